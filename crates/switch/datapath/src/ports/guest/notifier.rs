//! Notifications of a queue's guest: at once, deferred while it works, or none.

use std::sync::Arc;

use ipc::figures::QueueCounts;
use virtio::queue::Queue;

use crate::ports::calls::{CallFd, PendingCalls};
use crate::ports::coalescing::{Nanos, Rules, Servers, TrialRecord, WorkRecord};

/// The notifications of a queue's guest.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    /// Notifies the guest; without it the guest polls.
    pub(super) call: Option<Arc<CallFd>>,
    /// To the guest: time of the last notification of frames.
    notified: Option<Nanos>,
    /// To the guest: the time until which a notification is deferred.
    deferred: Option<Nanos>,
    /// Benefit of recent deferrals.
    deferral: TrialRecord,
    /// To the guest: whether it is known to work.
    work: WorkRecord,
}

impl Notifier {
    /// Returns a notifier that has not notified yet.
    pub(super) fn new(call: Option<CallFd>) -> Self {
        Self {
            call: call.map(Arc::new),
            ..Self::default()
        }
    }

    /// Returns whether a notification is deferred.
    pub(super) fn defers(&self) -> bool {
        self.deferred.is_some()
    }

    /// Notes that the guest is to be notified.
    pub(super) fn notify(&self, counts: &mut QueueCounts, calls: &mut PendingCalls) {
        if let Some(call) = &self.call {
            counts.notifications += 1;
            calls.add(call);
        }
    }

    /// Notifies the guest at once if that was deferred.
    pub(super) fn end_deferral(
        &mut self,
        queue: &mut Queue,
        counts: &mut QueueCounts,
        calls: &mut PendingCalls,
    ) {
        if self.deferred.take().is_some() && queue.needs_notify() {
            self.notify(counts, calls);
        }
    }

    /// Notifies the guest of used buffers, or defers that. Returns the due time of a deferral.
    pub(super) fn notify_by(
        &mut self,
        (queue, counts): (&mut Queue, &mut QueueCounts),
        (rules, servers): (Rules, Servers<'_>),
        now: Nanos,
        calls: &mut PendingCalls,
    ) -> Option<Nanos> {
        let (published, last) = (queue.unnotified(), self.notified);
        let until = rules.wait(published, last, now, || self.works(servers, now, counts));
        if until.is_some() && self.may_defer(queue) {
            counts.deferred += u64::from(self.deferred.is_none());
            self.deferred = until;
            return until;
        }
        let deferred = self.deferred.take();
        let mut was_deferred = deferred.is_some();
        if deferred.is_some_and(|until| now < until) && !rules.are_many(published) {
            // It went to sleep.
            self.learn(false, counts);
            was_deferred = false;
        }
        if queue.needs_notify() {
            if rules.defers() && servers.vcpus.is_some() {
                self.works(servers, now, counts);
                self.work.notified(rules, now, was_deferred);
            }
            self.notified = Some(now);
            self.notify(counts, calls);
        } else if was_deferred {
            // It polled meanwhile.
            self.learn(true, counts);
        }
        None
    }

    /// Returns whether the guest is known to work, and learns from the last deferral.
    fn works(&mut self, servers: Servers<'_>, now: Nanos, counts: &mut QueueCounts) -> bool {
        let mut paid = None;
        let works = self.work.works(servers, now, |did| paid = Some(did));
        if let Some(paid) = paid {
            self.learn(paid, counts);
        }
        works
    }

    /// Records whether a deferral paid: a guest that worked or polled meanwhile was spared an
    /// interrupt; one that slept should have been notified earlier.
    fn learn(&mut self, paid: bool, counts: &mut QueueCounts) {
        counts.slept_through += u64::from(!paid);
        self.deferral.learn(paid);
    }

    /// Returns whether the guest requests a notification and recent deferrals were of benefit.
    fn may_defer(&mut self, queue: &mut Queue) -> bool {
        queue.wants_notify() && (self.deferred.is_some() || self.deferral.should_try())
    }
}
