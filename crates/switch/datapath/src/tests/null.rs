//! A port that discards everything and sends nothing: the switch's cost without a receiver.

use port::DropReason;

use crate::ports::batch::Batch;
use crate::ports::calls::PendingCalls;
use crate::ports::payload::Outgoing;
use crate::ports::port::{Accepts, Port};

/// Port that discards everything.
#[derive(Debug, Default)]
pub(super) struct NullPort {
    /// Number of discarded frames.
    pub(super) swallowed: u64,
}

impl Port for NullPort {
    fn pairs(&self) -> u16 {
        1
    }

    fn accepts(&self) -> Accepts {
        Accepts::ALL
    }

    fn take(&mut self, _pair: u16, _batch: &mut Batch) {}

    fn leave(&mut self, _pair: u16, _kept: usize) {}

    fn release(&mut self, _pair: u16, _calls: &mut PendingCalls) {}

    fn deliver(&mut self, _pair: u16, _frame: &Outgoing<'_>) -> Result<(), DropReason> {
        self.swallowed += 1;
        Ok(())
    }

    fn flush(&mut self, _pair: u16, _now: u64, _calls: &mut PendingCalls) -> Option<u64> {
        None
    }

    fn arm(&mut self, _pair: u16, _on: bool) -> bool {
        false
    }
}
