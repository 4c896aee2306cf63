//! A driver's process gives way to one of another version.
//!
//! ```text
//! begin     the new process starts, and waits for what the supervisor has to say
//!           the old one is told to stop: it passes on what it has, and ends
//! dialed    the switch has lost the connection, and dials: the new one gets the interface
//! settled   it answers, so its queues run
//! ```

use std::io;
use std::time::{Duration, Instant};

use channel::supervision::Tell;

use super::{Child, Driver, Kind};
use crate::supervisor::binaries::Binaries;

/// How long the old process may take to end.
const LEAVING: Duration = Duration::from_millis(200);
/// How long all of it may take.
const WHOLE: Duration = Duration::from_secs(3);

/// See the module.
pub(in crate::supervisor::drivers) struct Renewal {
    /// None when it has the place of the old one.
    next: Option<Child>,
    since: Instant,
    outcome: Option<Renewed>,
}

/// How it ended.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::supervisor) enum Renewed {
    /// The new process serves; for so long the port had none.
    Done(Duration),
    /// There is no such port any more.
    Gone,
    /// The new process does not serve, and why.
    Failed(String),
}

impl Renewal {
    /// The new process.
    pub(super) fn into_child(self) -> Option<Child> {
        self.next
    }

    /// The same, for the place of the old one.
    pub(super) fn take_child(&mut self) -> Option<Child> {
        self.next.take()
    }

    /// When something is too late.
    pub(super) fn due(&self) -> Instant {
        let killed = self.since + LEAVING;
        match self.next {
            Some(_) if Instant::now() < killed => killed,
            _ => self.since + WHOLE,
        }
    }
}

impl Driver {
    /// Whether there is a process that can be renewed.
    pub(in crate::supervisor::drivers) fn serves(&self) -> bool {
        self.is_alive() && !self.doomed && self.renewal.is_none()
    }

    /// Begins to replace the process by one of other binaries.
    ///
    /// # Errors
    /// It cannot be started; the old one goes on.
    pub(in crate::supervisor::drivers) fn renew(&mut self, binaries: &Binaries) -> io::Result<()> {
        let next = Child::start(Kind::Driver, binaries)?;
        self.renewal = Some(Renewal {
            next: Some(next),
            since: Instant::now(),
            outcome: None,
        });
        if self.tell(&Tell::Stop, &[]).is_err() {
            self.kill();
        }
        Ok(())
    }

    /// How it ended; nothing while it goes on. After one that failed, the next process is of the binaries of then.
    pub(in crate::supervisor::drivers) fn renewed(&mut self) -> Option<Renewed> {
        let outcome = self.renewal.as_mut()?.outcome.take()?;
        let unused = self.renewal.take().and_then(Renewal::into_child);
        if let Some(mut unused) = unused {
            unused.kill();
            unused.wait(Instant::now());
        }
        if matches!(outcome, Renewed::Failed(_)) {
            self.kill();
        }
        Some(outcome)
    }

    /// Whether the process that is there was told to end.
    pub(super) fn is_leaving(&self) -> bool {
        self.renewal.as_ref().is_some_and(|r| r.next.is_some())
    }

    /// The new process has the place of the old one, which has ended.
    pub(super) fn install(&mut self, mut next: Child) {
        if let Some(old) = &self.child {
            next.take_place_of(old);
        }
        self.child = Some(next);
    }

    /// Follows a renewal: what it has come to, and the time. `false` when it has failed, and nothing is to be started before
    /// somebody has heard of that.
    pub(super) fn follow_renewal(&mut self) -> bool {
        let (alive, leaving) = (self.is_alive(), self.is_leaving());
        let answers = self.child.as_ref().is_some_and(Child::has_answered);
        let Some(renewal) = &mut self.renewal else {
            return true;
        };
        let gone_by = renewal.since.elapsed();
        let reason = self.reason.as_deref().unwrap_or("nobody knows why");
        renewal.outcome = if gone_by >= WHOLE {
            Some(Renewed::Failed(format!(
                "it is not ready in time ({reason})"
            )))
        } else if !leaving && !alive {
            Some(Renewed::Failed(reason.to_owned()))
        } else if !leaving && answers {
            Some(Renewed::Done(gone_by))
        } else {
            None
        };
        let failed = matches!(renewal.outcome, Some(Renewed::Failed(_)));
        if leaving && alive && !self.doomed && gone_by >= LEAVING {
            tracing::warn!("the driver does not end, and is killed");
            self.kill();
        }
        !failed
    }

    /// If the old process has ended, as it was told to.
    pub(super) fn has_left(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| child.has_died().is_some() && child.wait(Instant::now()))
    }
}
