//! The first queue pair of a [`FakeGuest`] as such a guest's NIC.

use std::time::Duration;

use super::Nic;
use testkit::frontend::wait_any;
use testkit::guest::{FakeGuest, GuestError};
use testkit::net::NetHeader;

impl Nic for FakeGuest {
    fn interrupted(&mut self) -> bool {
        let pair = &mut self.pairs[0];
        let interrupted = pair.rx_call.take() > 0;
        pair.stats.calls += u64::from(interrupted);
        interrupted
    }

    fn mask(&mut self) {
        self.pairs[0].nic.rx.set_notifications(false);
    }

    fn unmask(&mut self) -> bool {
        let pair = &mut self.pairs[0];
        pair.offer();
        pair.arm_rx()
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, GuestError> {
        Ok(self.pairs[0].try_recv_into(frame)?.is_some())
    }

    fn send(&mut self, frame: &[u8], header: &NetHeader) -> Result<bool, GuestError> {
        let pair = &mut self.pairs[0];
        let staged = pair.stage(frame, header)?;
        pair.flush();
        Ok(staged)
    }

    fn kicks(&self) -> u64 {
        self.stats().kicks
    }

    fn sleep(&mut self, time: Duration) {
        // Whether it was an interrupt or the time is asked for next.
        let _ = wait_any(&[&self.pairs[0].rx_call], time);
    }
}
