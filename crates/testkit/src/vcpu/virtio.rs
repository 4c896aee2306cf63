//! A queue pair as such a guest's NIC.

use std::time::Duration;

use super::Nic;
use crate::frontend::wait_any;
use crate::guest::{GuestError, GuestPair};
use crate::net::NetHeader;

impl Nic for GuestPair {
    fn interrupted(&mut self) -> bool {
        let interrupted = self.rx_call.take() > 0;
        self.stats.calls += u64::from(interrupted);
        interrupted
    }

    fn mask(&mut self) {
        self.nic.rx.set_notifications(false);
    }

    fn unmask(&mut self) -> bool {
        self.offer();
        self.arm_rx()
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, GuestError> {
        Ok(self.try_recv_into(frame)?.is_some())
    }

    fn send(&mut self, frame: &[u8], header: &NetHeader) -> Result<bool, GuestError> {
        let staged = self.stage(frame, header)?;
        self.flush();
        Ok(staged)
    }

    fn kicks(&self) -> u64 {
        self.stats.kicks
    }

    fn sleep(&mut self, time: Duration) {
        // Whether it was an interrupt or the time is asked for next.
        let _ = wait_any(&[&self.rx_call], time);
    }
}
