//! Receivers that have frames, and are to hear of them later (see `batching`).

use port::{Port, PortId};

use crate::fabric::Fabric;
use crate::guest::GuestPort;
use crate::switch::Switch;

/// Of so many receivers it is remembered that they were sent something: more than this have no sender that waits for each.
const SERVED: usize = 8;

impl<P: Port> Switch<P> {
    /// The time, for receivers that are notified by it: nanoseconds of the machine's monotonic clock.
    #[inline]
    pub fn set_clock(&mut self, now: u64) {
        self.fabric.now = now;
    }

    /// From now on, some of those who received something last are remembered, for [`Switch::next_served`].
    pub fn remember_served(&mut self) {
        self.fabric.served.reserve_exact(SERVED);
    }

    /// One of those who received something, each once, or twice.
    pub(crate) fn next_served(&mut self) -> Option<(PortId, u16)> {
        self.fabric.served.pop()
    }

    /// Notifies receivers that were to wait, as far as they are due by the clock or wait no more. When to come again, if any is left.
    pub fn notify_late(&mut self) -> Option<u64> {
        if !self.fabric.late.is_empty() {
            self.fabric.notify_late();
        }
        self.fabric.late.iter().map(|(_, _, due)| *due).min()
    }
}

impl Switch<GuestPort> {
    /// Has a bell rung when one of the guests blocks that are to be notified later. `true` when one has before there was
    /// somebody to hear it. Where there is no bell, the clock does.
    pub(crate) fn listen_late(&mut self) -> bool {
        let mut blocked = false;
        for at in 0..self.fabric.late.len() {
            let (id, pair, _) = self.fabric.late[at];
            if let Some(guest) = self.port_mut(id) {
                blocked |= guest.listen(pair) && !guest.runs(pair);
            }
        }
        blocked
    }
}

impl<P: Port> Fabric<P> {
    /// Notifies receivers that were to wait, as far as they are due or wait no more.
    fn notify_late(&mut self) {
        let (slots, now) = (&mut self.slots, self.now);
        self.late.retain_mut(|(id, pair, due)| {
            let slot = slots.get_mut(id.0 as usize).and_then(Option::as_mut);
            let later = slot.and_then(|slot| slot.port.notify(*pair, now));
            *due = later.unwrap_or(*due);
            later.is_some()
        });
    }
}
