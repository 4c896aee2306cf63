//! A port that discards everything and sends nothing: the switch's cost without a receiver.

use crate::{Accepts, Batch, DropReason, Outgoing, Port};

/// Port that discards everything.
#[derive(Debug, Default)]
pub struct NullPort {
    /// Number of discarded frames.
    pub swallowed: u64,
}

impl Port for NullPort {
    fn pairs(&self) -> u16 {
        1
    }

    fn accepts(&self) -> Accepts {
        Accepts::ALL
    }

    fn take(&mut self, _pair: u16, _batch: &mut Batch) {}

    fn release(&mut self, _pair: u16) {}

    fn deliver(&mut self, _pair: u16, _frame: &Outgoing<'_>) -> Result<(), DropReason> {
        self.swallowed += 1;
        Ok(())
    }

    fn flush(&mut self, _pair: u16, _now: u64) -> Option<u64> {
        None
    }

    fn arm(&mut self, _pair: u16, _on: bool) -> bool {
        false
    }
}
