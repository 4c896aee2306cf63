//! The frames of a batch, put together as far as they can be dealt with together.
//!
//! Frames come in *trains*: one behind the other with one key, looked up once. Once it is decided, trains become
//! *runs*: frames with one action. A receiver is looked up once for each, and is told how many frames will come
//! before the first does.

use std::ops::Range;

use policy::Action;
use wire::flow::FlowKey;

use crate::flow_table::Probe;

/// Frames that follow one another and have one key.
#[derive(Clone, Debug)]
pub(crate) struct Train {
    pub(crate) key: FlowKey,
    /// The key's lookup, as far as it is.
    pub(crate) probe: Probe,
    /// Their places in the batch.
    pub(crate) frames: Range<usize>,
}

impl Train {
    /// Whether a frame at `index` with this key is the next one of the train.
    #[inline]
    pub(crate) fn goes_on(&self, index: usize, key: &FlowKey) -> bool {
        self.frames.end == index && same(&self.key, key)
    }
}

/// Equality word by word: as one block, the key that has just been stored in words would have to reach the
/// cache first.
#[inline]
fn same(a: &FlowKey, b: &FlowKey) -> bool {
    let (a, b) = (a.words(), b.words());
    (0..a.len()).all(|at| std::hint::black_box(a[at]) == b[at])
}

/// Frames that share a decision.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) action: Action,
    /// They came with a tag.
    pub(crate) tagged: bool,
    /// Their places in the batch.
    pub(crate) frames: Range<usize>,
}

impl Run {
    /// Whether the frames of a train are the next ones of the run.
    #[inline]
    pub(crate) fn goes_on(&self, action: Action, tagged: bool, frames: &Range<usize>) -> bool {
        self.frames.end == frames.start && self.tagged == tagged && self.action == action
    }
}
