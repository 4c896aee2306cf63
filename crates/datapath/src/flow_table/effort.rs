//! What things cost that are done between two passes over the queues, while frames wait.

/// Flows that are forgotten in one call.
pub const PIECE: usize = 1024;

/// Looking at a flow in its turn.
pub(crate) const LOOK: usize = 1;
/// Looking at a flow somewhere, or asking a map once or twice.
pub(crate) const SEEK: usize = 16;
/// Forgetting a flow or installing one, or handing a frame over: some places in memory that nobody has fetched.
pub(crate) const CHANGE: usize = 32;
/// Bytes that are copied for what a [`LOOK`] costs.
const BYTES: usize = 64;

/// What may still be done in one call: what it costs to forget [`PIECE`] flows, about a tenth of a millisecond.
#[derive(Debug)]
pub struct Effort {
    left: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            left: PIECE * CHANGE,
        }
    }
}

impl Effort {
    /// Whether nothing more is to be begun.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Something was done.
    pub(crate) fn charge(&mut self, cost: usize) {
        self.left = self.left.saturating_sub(cost);
    }

    /// So many frames with so many bytes were handed over.
    pub(crate) fn charge_frames(&mut self, frames: usize, bytes: usize) {
        self.charge(frames * CHANGE + bytes / BYTES);
    }
}
