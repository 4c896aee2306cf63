//! Deferred notifications of receivers (see `coalescing`).

use port::{Port, PortId};

use crate::fabric::Fabric;
use crate::guest::GuestPort;
use crate::switch::Switch;

/// Receivers that are remembered at most.
const SERVED: usize = 8;

impl<P: Port> Switch<P> {
    /// Sets the time for deferred notifications and rate limits, nanoseconds of the monotonic
    /// clock.
    #[inline]
    pub fn set_clock(&mut self, now: u64) {
        self.fabric.now = now;
    }

    /// Starts to remember some of the last receivers, for `Switch::next_served`.
    pub fn remember_served(&mut self) {
        self.fabric.served.reserve_exact(SERVED);
    }

    /// Returns one of the last receivers. One may be returned twice.
    pub(crate) fn next_served(&mut self) -> Option<(PortId, u16)> {
        self.fabric.served.pop()
    }

    /// Sends the deferred notifications that are due. Returns the time of the next one, if any is
    /// left.
    pub fn flush_deferred(&mut self) -> Option<u64> {
        if !self.fabric.deferred.is_empty() {
            self.fabric.flush_deferred();
        }
        self.fabric.deferred.iter().map(|(_, _, due)| *due).min()
    }
}

impl Switch<GuestPort> {
    /// Subscribes to block events of the guests with deferred notifications. Returns `true` when
    /// one has blocked before the subscription. Without block events the clock ends the deferral.
    pub(crate) fn subscribe_deferred(&mut self) -> bool {
        let mut blocked = false;
        for at in 0..self.fabric.deferred.len() {
            let (id, pair, _) = self.fabric.deferred[at];
            if let Some(guest) = self.port_mut(id) {
                blocked |= guest.listen(pair) && !guest.runs(pair);
            }
        }
        blocked
    }
}

impl<P: Port> Fabric<P> {
    /// Sends the deferred notifications that are due.
    fn flush_deferred(&mut self) {
        let (slots, now) = (&mut self.slots, self.now);
        self.deferred.retain_mut(|(id, pair, due)| {
            let slot = slots.get_mut(id.0 as usize).and_then(Option::as_mut);
            let next = slot.and_then(|slot| slot.port.notify(*pair, now));
            *due = next.unwrap_or(*due);
            next.is_some()
        });
    }
}
