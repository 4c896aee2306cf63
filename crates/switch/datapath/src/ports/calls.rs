//! Call descriptors, which are written when no queue lock is held.
//!
//! A write to a call descriptor is the one thing by which a front end can make a worker wait (see
//! [`watchdog`](super::watchdog)). While the worker held a queue lock, other workers would wait
//! with it, and so would a thread that revokes memory. So who publishes buffers only notes whom to
//! notify, and writes when it has unlocked everything.
//!
//! No notification is lost by that. The buffers are published before it is noted. A descriptor that
//! is replaced meanwhile is written all the same, and the new one is written when it is set. A
//! process that dies in between has a successor that notifies all guests (`GuestQueue::begin`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sys::foreign::ForeignFd;

use super::faults::note_fault;
use super::watchdog::Doorbells;

/// Call descriptor of a queue: an eventfd by which its guest is notified.
#[derive(Debug)]
pub struct CallFd {
    event: ForeignFd,
    /// The connection whose watchdog covers it.
    doorbells: Doorbells,
    blocked: AtomicBool,
}

impl CallFd {
    /// Returns the call descriptor of a queue of this connection.
    #[must_use]
    pub fn new(event: ForeignFd, doorbells: Doorbells) -> Self {
        Self {
            event,
            doorbells,
            blocked: AtomicBool::new(false),
        }
    }

    /// Notifies the guest, unless a descriptor of its connection has blocked.
    fn ring(&self) {
        if self.doorbells.ring(&self.event).is_err() && !self.blocked.swap(true, Ordering::Relaxed)
        {
            note_fault();
        }
    }

    /// Returns whether a notification failed because a descriptor of the connection blocked.
    #[must_use]
    pub fn has_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }
}

/// A call descriptor of a connection of its own.
impl<T: Into<ForeignFd>> From<T> for CallFd {
    fn from(event: T) -> Self {
        Self::new(event.into(), Doorbells::default())
    }
}

/// Notifications that are due and not sent yet. Those that are left are sent when it is dropped.
#[derive(Debug, Default)]
pub struct PendingCalls(Vec<Arc<CallFd>>);

impl PendingCalls {
    /// Returns an empty list with room for so many.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// Adds a notification.
    pub fn add(&mut self, call: &Arc<CallFd>) {
        self.0.push(Arc::clone(call));
    }

    /// Returns whether none is due.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends them. The caller holds no queue lock.
    #[inline]
    pub fn send(&mut self) {
        if !self.is_empty() {
            self.send_all();
        }
    }

    #[inline(never)]
    fn send_all(&mut self) {
        while let Some(call) = self.0.pop() {
            call.ring();
        }
    }
}

impl Drop for PendingCalls {
    fn drop(&mut self) {
        self.send();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn event() -> OwnedFd {
        use rustix::event::{EventfdFlags, eventfd};
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
    }

    fn count(event: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        let read = rustix::io::read(event, &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn each_is_sent_once_and_those_left_when_the_list_goes() {
        let [a, b] = [event(), event()];
        let call = |event: &OwnedFd| Arc::new(CallFd::from(event.try_clone().expect("a copy")));
        let [to_a, to_b] = [call(&a), call(&b)];
        let mut calls = PendingCalls::default();
        for to in [&to_a, &to_b, &to_a] {
            calls.add(to);
        }
        assert_eq!((count(&a), count(&b)), (0, 0), "only noted");
        calls.send();
        assert!(calls.is_empty());
        assert_eq!((count(&a), count(&b)), (2, 1));
        calls.send();
        calls.add(&to_b);
        drop((to_b, calls));
        assert_eq!((count(&a), count(&b)), (0, 1));
    }
}
