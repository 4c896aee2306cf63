//! The end of a batch: buffers are published, queues unlocked, and then guests notified.

use port::PortId;
use port::counters::Traffic;

use super::{Dropping, Fabric, MAX_RECEIVERS, Notifications, Receiver};
use crate::forward::cycles::BYTES_PER_LOAD;
use crate::ports::port::Port;

impl<P: Port> Fabric<P> {
    /// Publishes the buffers of all receivers with queue pairs to flush, and unlocks these. Their
    /// guests are notified when the sender's queue is unlocked too.
    pub(crate) fn flush(&mut self) {
        while let Some(id) = self.touched.pop() {
            let Some(slot) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else {
                continue;
            };
            while slot.unflushed != 0 {
                let pair = slot.unflushed.trailing_zeros() as u16;
                slot.unflushed &= slot.unflushed - 1;
                let Notifications { calls, deferred } = &mut self.notifications;
                if let Some(due) = slot.port.flush(pair, self.now, calls) {
                    deferred.push((id, pair, due));
                }
                if self.served.len() < self.served.capacity() {
                    self.served.push((id, pair));
                }
            }
            slot.expected = 0;
            match std::mem::take(&mut slot.dropping) {
                Dropping::Nothing => {}
                Dropping::Masked => self.counters.add_masked(id),
                Dropping::OverShare => self.shares.note_dropped(id),
            }
            let Traffic { packets, bytes } = std::mem::take(&mut slot.delivered);
            if packets == 0 {
                continue;
            }
            self.counters.add_to(id, Traffic { packets, bytes });
            if self.uncharged.len() < MAX_RECEIVERS {
                let load = packets + bytes / BYTES_PER_LOAD;
                self.uncharged.push(Receiver { port: id, load });
            }
        }
    }

    /// Flushes as [`Fabric::flush`] does, and notifies. For frames that hold no sender's queue.
    pub(crate) fn flush_and_notify(&mut self) {
        self.flush();
        self.notifications.calls.send();
    }

    /// Returns the buffers of the sender and unlocks its queue, which is the last one that this
    /// worker holds. Then all guests are notified.
    #[inline]
    pub(crate) fn release(&mut self, from: PortId, pair: u16) {
        let calls = &mut self.notifications.calls;
        if let Some(Some(slot)) = self.slots.get_mut(from.0 as usize) {
            slot.port.release(pair, calls);
        }
        calls.send();
    }

    /// Sends the deferred notifications that are due.
    pub(crate) fn flush_deferred(&mut self) {
        let (slots, now) = (&mut self.slots, self.now);
        let Notifications { calls, deferred } = &mut self.notifications;
        deferred.retain_mut(|(id, pair, due)| {
            let slot = slots.get_mut(id.0 as usize).and_then(Option::as_mut);
            let next = slot.and_then(|slot| slot.port.notify(*pair, now, calls));
            *due = next.unwrap_or(*due);
            next.is_some()
        });
        calls.send();
    }
}
