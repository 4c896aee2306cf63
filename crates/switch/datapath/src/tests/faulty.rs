//! A port around another that loses frames on purpose.

use port::{DropReason, Offload};

use crate::ports::batch::Batch;
use crate::ports::calls::PendingCalls;
use crate::ports::loopback::LoopbackPort;
use crate::ports::payload::{Outgoing, Payload};
use crate::ports::port::{Accepts, Port};

/// Drops every `nth` frame that the inner port should get.
#[derive(Debug)]
pub(super) struct Faulty<P> {
    inner: P,
    nth: u64,
    seen: u64,
}

impl<P: Port> Faulty<P> {
    /// Wraps `inner`; an `nth` of 0 drops nothing, 1 everything.
    pub(super) fn new(inner: P, nth: u64) -> Self {
        Self {
            inner,
            nth,
            seen: 0,
        }
    }

    /// Returns the inner port.
    pub(super) fn into_inner(self) -> P {
        self.inner
    }
}

impl<P: Port> Port for Faulty<P> {
    fn pairs(&self) -> u16 {
        self.inner.pairs()
    }

    fn accepts(&self) -> Accepts {
        self.inner.accepts()
    }

    fn mtu(&self) -> u32 {
        self.inner.mtu()
    }

    fn take(&mut self, pair: u16, batch: &mut Batch) {
        self.inner.take(pair, batch);
    }

    fn leave(&mut self, pair: u16, kept: usize) {
        self.inner.leave(pair, kept);
    }

    fn release(&mut self, pair: u16, calls: &mut PendingCalls) {
        self.inner.release(pair, calls);
    }

    fn hold(&mut self, pair: u16, wait: bool) -> bool {
        self.inner.hold(pair, wait)
    }

    fn expect(&mut self, pair: u16, frames: usize) {
        self.inner.expect(pair, frames);
    }

    fn is_masked(&mut self, pair: u16) -> bool {
        self.inner.is_masked(pair)
    }

    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        self.seen += 1;
        if self.nth != 0 && self.seen.is_multiple_of(self.nth) {
            return Err(DropReason::FaultInjected);
        }
        self.inner.deliver(pair, frame)
    }

    fn flush(&mut self, pair: u16, now: u64, calls: &mut PendingCalls) -> Option<u64> {
        self.inner.flush(pair, now, calls)
    }

    fn notify(&mut self, pair: u16, now: u64, calls: &mut PendingCalls) -> Option<u64> {
        self.inner.notify(pair, now, calls)
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        self.inner.arm(pair, on)
    }
}

#[test]
fn a_faulty_port_loses_every_nth_frame() {
    let mut port = Faulty::new(LoopbackPort::new(false), 3);
    let bytes: Vec<u8> = (0..60).collect();
    let out = Outgoing {
        headers: &bytes,
        payload: &Payload::empty(),
        offload: Offload::default(),
    };
    let lost = (0..9)
        .filter(|_| port.deliver(0, &out) == Err(DropReason::FaultInjected))
        .count();
    assert_eq!(lost, 3);
    assert_eq!(port.into_inner().delivered.len(), 6);
}
