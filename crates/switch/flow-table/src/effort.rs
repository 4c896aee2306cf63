//! Costs of work between two passes over the queues, while frames wait.

/// Flows that are removed in one part of a sweep.
pub const FLOWS_PER_PART: usize = 1024;

/// Cost of reading a flow in slot order.
pub(super) const LOOK: usize = 1;
/// Cost of a flow at a random slot, or of one or two map lookups.
pub const SEEK: usize = 16;
/// Cost of removing or installing a flow, or of delivering a frame: several cache misses.
pub const CHANGE: usize = 32;
/// Bytes whose copy costs a [`LOOK`].
const BYTES: usize = 64;

/// Remaining budget of one call: the cost of removing [`FLOWS_PER_PART`] flows, about a tenth of a
/// millisecond.
#[derive(Debug)]
pub struct Effort {
    left: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            left: FLOWS_PER_PART * CHANGE,
        }
    }
}

impl Effort {
    /// Returns whether the budget is spent.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Subtracts a cost.
    pub fn charge(&mut self, cost: usize) {
        self.left = self.left.saturating_sub(cost);
    }

    /// Subtracts the cost of delivering frames.
    pub fn charge_frames(&mut self, frames: usize, bytes: usize) {
        self.charge(frames * CHANGE + bytes / BYTES);
    }
}
