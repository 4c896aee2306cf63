//! The answers to upcalls, and the flows to remove, on their way to the switch.

use std::collections::VecDeque;

use ipc::records::Answer;
use ipc::shared::Sender;

/// The ring of answers, with a queue in front of it.
pub(in crate::engine) struct Answers {
    ring: Sender,
    /// Answers for which the ring had no room, in order.
    backlog: VecDeque<Answer>,
    /// A binding is not in the state file yet. Answers wait until it is: one of them may allow
    /// frames that only this binding makes valid.
    unsaved_bindings: bool,
}

impl Answers {
    pub(super) fn new(ring: Sender) -> Self {
        Self {
            ring,
            backlog: VecDeque::new(),
            unsaved_bindings: false,
        }
    }

    /// Sends an answer, or queues it when the ring is full.
    pub(super) fn send(&mut self, answer: Answer) {
        if self.unsaved_bindings || !self.backlog.is_empty() || !self.ring.send(&answer) {
            self.backlog.push_back(answer);
        }
    }

    /// Sends the queued answers for which there is room.
    pub(super) fn send_backlog(&mut self) {
        if self.unsaved_bindings {
            return;
        }
        while let Some(answer) = self.backlog.front() {
            if !self.ring.send(answer) {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Returns how many answers are queued.
    pub(in crate::engine) fn queued(&self) -> usize {
        self.backlog.len()
    }

    /// Queues all later answers, until [`Answers::release`].
    pub(super) fn hold(&mut self) {
        self.unsaved_bindings = true;
    }

    /// Returns whether answers wait for bindings to be saved.
    pub(in crate::engine) fn are_held(&self) -> bool {
        self.unsaved_bindings
    }

    /// Sends what was held: the bindings are saved.
    pub(in crate::engine) fn release(&mut self) {
        if std::mem::take(&mut self.unsaved_bindings) {
            self.send_backlog();
        }
    }

    /// Wakes the switch if it sleeps.
    pub(in crate::engine) fn ring_bell(&mut self) {
        self.ring.ring_bell();
    }
}
