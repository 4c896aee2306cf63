//! The end of threads that run beside a test.

use std::sync::atomic::{AtomicBool, Ordering};

/// Flag that ends threads of a scope, also when the test beside them fails: `std::thread::scope`
/// waits for its threads before it lets a panic through, so a thread that nothing ends makes the
/// program wait forever.
///
/// ```
/// let stop = testkit::stop::Stop::new();
/// std::thread::scope(|scope| {
///     scope.spawn(|| while !stop.is_set() {});
///     let _stop = stop.at_end();
///     // What may fail.
/// });
/// ```
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// A flag that is not set.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Sets it.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Sets it when the guard is dropped.
    #[must_use = "dropped at once, it ends the threads at once"]
    pub const fn at_end(&self) -> StopAtEnd<'_> {
        StopAtEnd(self)
    }
}

/// Guard that sets a [`Stop`].
#[derive(Debug)]
pub struct StopAtEnd<'a>(&'a Stop);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::Stop;

    #[test]
    fn a_test_that_fails_ends_its_threads() {
        let stop = Stop::new();
        let test = AssertUnwindSafe(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.is_set() {
                        std::thread::yield_now();
                    }
                });
                let _stop = stop.at_end();
                std::panic::resume_unwind(Box::new("it fails"));
            });
        });
        assert!(catch_unwind(test).is_err());
        assert!(stop.is_set());
    }
}
