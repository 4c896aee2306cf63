//! When a guest hears of what was published: see [`crate::batching`].

use super::{GuestFault, GuestQueue};
use crate::batching::{Activity, Nanos, Rules};
use crate::watchdog::Doorbells;

impl GuestQueue {
    /// Its guest is notified as one of this connection's.
    #[must_use]
    pub fn with_doorbells(mut self, doorbells: Doorbells) -> Self {
        self.doorbells = doorbells;
        self
    }

    /// Notifies the guest of what was published, or puts that off: until when.
    pub(super) fn notify_by(
        &mut self,
        rules: Rules,
        now: Nanos,
        activity: impl FnOnce() -> Activity,
    ) -> Option<Nanos> {
        let published = self.queue.unnotified();
        let until = rules.wait(published, self.notified, now, activity);
        if until.is_some() && self.may_put_off() {
            self.late = true;
            return until;
        }
        if std::mem::take(&mut self.late) {
            // One that looked by itself was spared an interrupt; one that fell asleep had better been interrupted before.
            let paid = until.is_some() || rules.is_up(published, self.notified, now);
            self.puts_off.learn(paid);
        }
        if self.queue.needs_notify() {
            self.notified = Some(now);
            self.notify();
        }
        None
    }

    /// Whether a notification is wanted, and putting it off paid lately.
    fn may_put_off(&mut self) -> bool {
        self.queue.wants_notify() && (self.late || self.puts_off.wants())
    }

    pub(super) fn notify(&mut self) {
        self.counts.notifications += u64::from(self.call.is_some());
        if let Some(call) = &self.call
            && self.doorbells.ring(call).is_err()
        {
            self.fault = Some(GuestFault::CallBlocked);
        }
    }
}
