//! When what is due at ports is looked for.

use std::time::{Duration, Instant};

/// Time between two looks at the timers of all ports, milliseconds.
pub(super) const TIMER_INTERVAL: Duration = Duration::from_millis(1);

/// When the timers of all ports are looked at.
pub(super) struct Timers {
    /// Time of the next thing that is due, as far as is known.
    pub(super) next: Option<Instant>,
    /// Time of the next look, at the earliest.
    pub(super) look_at: Instant,
    /// Time of the last check of the workers' loads.
    pub(super) balanced: Instant,
}

impl Timers {
    /// Nothing is known yet.
    pub(super) fn start() -> Self {
        let now = Instant::now();
        Self {
            next: None,
            look_at: now,
            balanced: now,
        }
    }
}
