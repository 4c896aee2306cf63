//! Replacement of a driver's process by one of another version.
//!
//! ```text
//! start     the new process starts and waits; the old one is stopped: it completes its frames
//!           and ends
//! dialed    the switch has lost the connection, and dials: the new process gets the interface
//! settled   it replies to a ping, so its queues run
//! ```

use std::io;
use std::time::{Duration, Instant};

use ipc::supervision::EventToDriver;

use super::super::STOP_TIMEOUT;
use super::{Child, Driver, DriverChild};
use crate::binaries::Binaries;
use crate::heartbeat::Heartbeat;

/// Time for the complete replacement: 3 seconds.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(3);

/// Replacement in progress.
pub(in crate::drivers) struct Renewal {
    /// New process; `None` once it has replaced the old one.
    next: Option<DriverChild>,
    since: Instant,
    outcome: Option<RenewalResult>,
}

/// Result of a replacement.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RenewalResult {
    /// The new process serves; the port had none for this time.
    Done(Duration),
    /// The port does not exist any longer, or it has another interface.
    Gone,
    /// The new process does not serve, for this reason.
    Failed(String),
}

impl Renewal {
    /// Returns the new process.
    pub(super) fn into_child(self) -> Option<DriverChild> {
        self.next
    }

    /// Takes the new process, to install it.
    pub(super) fn take_child(&mut self) -> Option<DriverChild> {
        self.next.take()
    }

    /// Returns the next deadline.
    pub(super) fn due(&self) -> Instant {
        let killed = self.since + STOP_TIMEOUT;
        match self.next {
            Some(_) if Instant::now() < killed => killed,
            _ => self.since + RENEWAL_TIMEOUT,
        }
    }
}

impl Driver {
    /// Returns whether there is a process that can be replaced.
    pub(in crate::drivers) fn serves(&self) -> bool {
        self.is_alive() && !self.killed && self.renewal.is_none()
    }

    /// Starts the replacement by a process of other binaries.
    ///
    /// # Errors
    /// It cannot be started; the old one continues.
    pub(in crate::drivers) fn renew(&mut self, binaries: &Binaries) -> io::Result<()> {
        let next = DriverChild::start(binaries)?;
        self.renewal = Some(Renewal {
            next: Some(next),
            since: Instant::now(),
            outcome: None,
        });
        // Whatever ends it now, a late death by the supervisor included, is no failure of its own.
        self.excuse_end();
        if self.send(&EventToDriver::Stop, &[]).is_err() {
            self.kill();
        }
        Ok(())
    }

    /// Returns the result; `None` while the replacement is in progress. After a failure the next
    /// process is started from the binaries of that time.
    pub(in crate::drivers) fn renewed(&mut self) -> Option<RenewalResult> {
        let Some(renewal) = &mut self.renewal else {
            // The driver that had its process replaced has another interface now.
            return Some(RenewalResult::Gone);
        };
        let outcome = renewal.outcome.take()?;
        let unused = self.renewal.take().and_then(Renewal::into_child);
        if let Some(mut unused) = unused {
            unused.kill();
            unused.wait(Instant::now());
        }
        if matches!(outcome, RenewalResult::Failed(_)) {
            self.kill();
        }
        Some(outcome)
    }

    /// Returns whether the old process has been stopped but not replaced.
    pub(super) fn is_stopping(&self) -> bool {
        self.renewal.as_ref().is_some_and(|r| r.next.is_some())
    }

    /// Installs the new process in place of the old one, which has ended.
    pub(super) fn install(&mut self, mut next: DriverChild) {
        if let Some(old) = &self.child {
            next.take_place_of(old);
        }
        self.child = Some(next);
    }

    /// Follows a replacement. Returns `false` when it has failed and no process may start before
    /// the result was read.
    pub(super) fn follow_renewal(&mut self) -> bool {
        let (alive, stopping) = (self.is_alive(), self.is_stopping());
        let beat = self.child.as_ref().and_then(Child::beat);
        let answers = beat.is_some_and(Heartbeat::has_replied);
        let Some(renewal) = &mut self.renewal else {
            return true;
        };
        let elapsed = renewal.since.elapsed();
        let reason = self.reason.as_deref().unwrap_or("unknown reason");
        renewal.outcome = if elapsed >= RENEWAL_TIMEOUT {
            Some(RenewalResult::Failed(format!(
                "not ready in time ({reason})"
            )))
        } else if !stopping && !alive {
            Some(RenewalResult::Failed(reason.to_owned()))
        } else if !stopping && answers {
            Some(RenewalResult::Done(elapsed))
        } else {
            None
        };
        let failed = matches!(renewal.outcome, Some(RenewalResult::Failed(_)));
        if stopping && alive && !self.killed && elapsed >= STOP_TIMEOUT {
            tracing::warn!("driver did not stop in time: killed");
            self.kill();
        }
        !failed
    }

    /// Returns whether the old process has ended.
    pub(super) fn has_stopped(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| child.has_died().is_some() && child.wait(Instant::now()))
    }
}
