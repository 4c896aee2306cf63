//! Chains whose copies are under way.
//!
//! Copies end in any order; chains go back in the order in which they were taken, and all of a frame together. What
//! waits here counts as taken: a successor of this process finds it as it finds any frame that was not published.

use std::collections::VecDeque;
use std::sync::Arc;

use memory::GuestMemory;
use memory::engine::{Copier, Engines, Tickets};
use virtio::queue::{Chain, Queue};

use super::receive::Spread;
use super::vcpus::activity;
use super::{GuestPort, GuestQueue, to_guest};
use crate::batching::{Activity, Nanos, Rules};

/// Chains that go back together.
#[derive(Debug)]
struct Group {
    chains: usize,
    /// Bytes written to all of them; 0 of chains that were read.
    written: u32,
    tickets: Tickets,
}

/// See the module. Bounded by the queue's size.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    chains: VecDeque<Chain>,
    groups: VecDeque<Group>,
}

impl Waiting {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// These go back when their copies are done, and all before them have gone.
    pub(super) fn push(&mut self, chains: &[Chain], written: u32, tickets: Tickets) {
        self.chains.extend(chains);
        self.groups.push_back(Group {
            chains: chains.len(),
            written,
            tickets,
        });
    }

    /// Stages what need not wait any more.
    pub(super) fn settle(&mut self, queue: &mut Queue, engines: &Engines) {
        while let Some(group) = self.groups.front_mut() {
            if !engines.are_done(&mut group.tickets) {
                return;
            }
            let chains = &self.chains.make_contiguous()[..group.chains];
            if group.written == 0 {
                queue.put_read(chains);
            } else {
                queue.put_filled(chains, &mut Spread(group.written));
            }
            self.chains.drain(..group.chains);
            self.groups.pop_front();
        }
    }

    /// Returns when all copies are done.
    pub(super) fn wait(&self, engines: &Engines) {
        for group in &self.groups {
            engines.wait(group.tickets);
        }
    }
}

impl GuestQueue {
    /// These engines may copy to and from this queue's memory from now on.
    pub(super) fn set_engines(&mut self, engines: &Arc<Engines>) {
        self.engines = Some(Arc::clone(engines));
        self.at_once = false;
    }

    /// Waits for all copies from and to this queue's memory, and stages what waited for them.
    pub(super) fn drain(&mut self) {
        if let Some(engines) = &self.engines {
            self.waiting.wait(engines);
            self.waiting.settle(&mut self.queue, engines);
        }
    }

    pub(super) fn publish(&mut self) {
        if let Some(engines) = &self.engines {
            self.waiting.settle(&mut self.queue, engines);
        }
        self.queue.publish();
    }

    pub(super) fn publish_and_notify(&mut self) {
        self.publish();
        if self.queue.needs_notify() {
            self.notify();
        }
    }

    /// Publishes, and notifies the guest or puts that off: until when, if that was not said before.
    pub(super) fn publish_and_notify_by(
        &mut self,
        rules: Rules,
        now: Nanos,
        activity: impl FnOnce() -> Activity,
    ) -> Option<Nanos> {
        self.publish();
        let was_late = self.late;
        let due = self.notify_by(rules, now, activity);
        due.filter(|_| !was_late)
    }

    pub(super) fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        // The VMM may do with the former memory what it likes when this is over, and the log knows of no earlier write.
        if !self.waiting.is_empty() {
            self.drain();
            self.publish_and_notify();
        }
        if let Err(fault) = self.queue.set_memory(Arc::clone(memory)) {
            self.fault = Some(fault.into());
        }
        self.at_once = self.engines.is_none() && memory.log().is_none();
    }
}

/// Notes a queue, about to be let go, in which something waits for copies.
pub(super) fn note(unsettled: &mut Vec<usize>, index: usize, queue: &GuestQueue) {
    if !queue.waiting.is_empty() && !unsettled.contains(&index) {
        unsettled.push(index);
    }
}

impl GuestPort {
    /// Has long frames copied by `copier`, which is of the worker that the port is for. Before any queue is started.
    #[must_use]
    pub fn copying_by(mut self, copier: Option<Copier>) -> Self {
        self.copier = copier;
        self
    }

    /// Gives back what has been copied meanwhile; `late` is told of guests that are to be notified later, and when.
    pub(super) fn settle_queues(&mut self, now: Nanos, late: &mut dyn FnMut(u16, Nanos)) {
        let (queues, rules) = (&mut self.queues, self.rules);
        let (vcpus, pairs) = (self.vcpus.as_deref(), self.usable_pairs);
        self.unsettled.retain(|index| {
            let Some(lane) = queues.get_mut(*index).and_then(Option::as_mut) else {
                return false;
            };
            let pair = (*index / 2) as u16;
            let settled = lane.try_with(|queue| {
                if *index == to_guest(pair) {
                    let activity = || activity(vcpus, pair, pairs);
                    if let Some(due) = queue.publish_and_notify_by(rules, now, activity) {
                        late(pair, due);
                    }
                } else {
                    queue.publish_and_notify();
                }
                queue.waiting.is_empty()
            });
            // Another worker is busy with it: it gives back what it finds, and the rest is looked at again here.
            settled != Some(true)
        });
    }
}

impl Drop for GuestQueue {
    fn drop(&mut self) {
        // Before the memory goes.
        self.drain();
    }
}
