//! What is to be done with the frames of a batch: runs of frames that follow one another and share a decision.
//!
//! Frames come in trains, so that most batches are a handful of runs. A receiver is looked up once for each, and
//! is told how many frames will come before the first does.

use std::ops::Range;

use policy::Action;
use port::BATCH;

/// Frames that share a decision.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// `None` for frames that are dealt with already: parked, or dropped.
    pub(crate) action: Option<Action>,
    /// Their places in the batch.
    pub(crate) frames: Range<usize>,
}

/// The runs of one batch, in its order. Reused.
#[derive(Debug)]
pub(crate) struct Runs(Vec<Run>);

impl Default for Runs {
    fn default() -> Self {
        Self(Vec::with_capacity(BATCH))
    }
}

impl Runs {
    /// Forgets the former batch.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The next frame is the first of a run.
    #[inline]
    pub(crate) fn start(&mut self, action: Option<Action>) {
        let at = self.0.last().map_or(0, |run| run.frames.end);
        self.0.push(Run {
            action,
            frames: at..at + 1,
        });
    }

    /// The next frames belong to the last run.
    #[inline(always)]
    pub(crate) fn extend(&mut self, frames: usize) {
        if let Some(run) = self.0.last_mut() {
            run.frames.end += frames;
        }
    }

    pub(crate) fn as_slice(&self) -> &[Run] {
        &self.0
    }
}
