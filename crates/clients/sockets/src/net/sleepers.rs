//! Threads that sleep until something is there for them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Interest;

/// A set of interests that other threads may change while one waits for it.
pub(crate) struct Set<'a> {
    /// Its number, for [`Net::set_has_changed`](super::Net::set_has_changed).
    pub(crate) number: i32,
    /// Whether it has changed since the interests were taken of it.
    pub(crate) has_changed: &'a dyn Fn() -> bool,
}

impl Set<'_> {
    pub(super) fn is_other(set: Option<&Self>) -> bool {
        set.is_some_and(|set| (set.has_changed)())
    }
}

/// A thread that sleeps.
#[derive(Debug)]
pub(super) struct Sleeper {
    /// Wakes it.
    pub(super) event: Arc<OwnedFd>,
    pub(super) interests: Vec<Interest>,
    /// The number of the set that they are of.
    pub(super) set: Option<i32>,
    /// It is to become the leader.
    pub(super) is_called: bool,
    /// It was woken, and may not run yet.
    pub(super) is_woken: bool,
}

impl Sleeper {
    /// Wakes it, once: what is there for it may stay there through many calls of others.
    pub(super) fn wake(&mut self) {
        if !std::mem::replace(&mut self.is_woken, true) {
            // Full only if it is awake anyway.
            let _ = sys::event::ring(&*self.event);
        }
    }
}
