//! How each thread waits: by the rule of the crate `polling`.

use std::cell::RefCell;
use std::time::Duration;

use polling::{Look, Waiter};

thread_local! {
    static WAITER: RefCell<Option<Waiter>> = const { RefCell::new(None) };
}

/// Acts on the state of this thread's waits. Its first call sets the longest look. `None`: in a
/// signal handler that has interrupted another wait; it does without.
pub(super) fn with_waiter<T>(longest: Duration, act: impl FnOnce(&mut Waiter) -> T) -> Option<T> {
    let found = WAITER.try_with(|waiter| {
        let mut waiter = waiter.try_borrow_mut().ok()?;
        let new = || Waiter::new(Look::System, longest).with_timer_slack();
        Some(act(waiter.get_or_insert_with(new)))
    });
    found.ok().flatten()
}
