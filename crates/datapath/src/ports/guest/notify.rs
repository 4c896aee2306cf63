//! Notifications of a guest; see [`crate::ports::coalescing`].

use super::{GuestFault, GuestQueue};
use crate::ports::coalescing::{Activity, Nanos, Rules};
use crate::ports::watchdog::Doorbells;

impl GuestQueue {
    /// Sets the connection whose watchdog covers the notifications.
    #[must_use]
    pub fn with_doorbells(mut self, doorbells: Doorbells) -> Self {
        self.doorbells = doorbells;
        self
    }

    /// Publishes used buffers, and notifies the guest or defers that. Returns the due time of a new
    /// deferral.
    pub(super) fn publish_and_notify_by(
        &mut self,
        rules: Rules,
        now: Nanos,
        activity: impl FnOnce() -> Activity,
    ) -> Option<Nanos> {
        self.queue.publish();
        let was_deferred = self.deferred;
        let due = self.notify_by(rules, now, activity);
        due.filter(|_| !was_deferred)
    }

    /// Notifies the guest of used buffers, or defers that. Returns the due time of a deferral.
    pub(super) fn notify_by(
        &mut self,
        rules: Rules,
        now: Nanos,
        activity: impl FnOnce() -> Activity,
    ) -> Option<Nanos> {
        let published = self.queue.unnotified();
        let until = rules.wait(published, self.notified, now, activity);
        if until.is_some() && self.may_defer() {
            self.deferred = true;
            return until;
        }
        if std::mem::take(&mut self.deferred) {
            // A guest that polled meanwhile was spared an interrupt; one that went to sleep should
            // have been interrupted earlier.
            let paid = until.is_some() || rules.is_up(published, self.notified, now);
            self.deferral.learn(paid);
        }
        if self.queue.needs_notify() {
            self.notified = Some(now);
            self.notify();
        }
        None
    }

    /// Returns whether the guest requests a notification and recent deferrals were of benefit.
    fn may_defer(&mut self) -> bool {
        self.queue.wants_notify() && (self.deferred || self.deferral.should_try())
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
