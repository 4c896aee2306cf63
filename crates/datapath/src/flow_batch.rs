//! Grouping of the frames of a batch.
//!
//! A *flow batch* has consecutive frames with one key, looked up once. After the decision, flow
//! batches with one action become an *action batch*. A receiver is looked up once per action batch,
//! and the number of frames is announced to it before the first one.

use std::ops::Range;

use policy::Action;
use wire::flow::FlowKey;

use flow_table::Probe;

/// Consecutive frames with one key.
#[derive(Clone, Debug)]
pub(crate) struct FlowBatch {
    pub(crate) key: FlowKey,
    /// Lookup of the key in progress.
    pub(crate) probe: Probe,
    /// Indices in the batch.
    pub(crate) frames: Range<usize>,
}

impl FlowBatch {
    /// Returns whether the frame at `index` with this key continues the flow batch.
    #[inline]
    pub(crate) fn continues(&self, index: usize, key: &FlowKey) -> bool {
        self.frames.end == index && same(&self.key, key)
    }
}

/// Compares word by word: as one block, the key that has just been stored in words would have to
/// reach the cache first.
#[inline]
fn same(a: &FlowKey, b: &FlowKey) -> bool {
    let (a, b) = (a.words(), b.words());
    (0..a.len()).all(|at| std::hint::black_box(a[at]) == b[at])
}

/// Consecutive frames with one action.
#[derive(Clone, Debug)]
pub(crate) struct ActionBatch {
    pub(crate) action: Action,
    /// Whether they came with a tag.
    pub(crate) tagged: bool,
    /// Indices in the batch.
    pub(crate) frames: Range<usize>,
}

impl ActionBatch {
    /// Returns whether the frames of a flow batch continue the action batch.
    #[inline]
    pub(crate) fn continues(&self, action: Action, tagged: bool, frames: &Range<usize>) -> bool {
        self.frames.end == frames.start && self.tagged == tagged && self.action == action
    }
}
