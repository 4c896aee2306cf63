//! The report that control ends because the switch is gone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::link::Link;
use ipc::supervision::{ControlRequest, EventToControl};
use rustix::event::PollFlags;

/// Time for the system to close the rest of a link that no longer takes messages. The two ends are
/// closed one after the other, and what is sent meanwhile fails before the end can be seen.
const CLOSING: Duration = Duration::from_millis(200);

/// Watches whether the switch has closed its end of the link, so that the supervisor counts the
/// death of the switch, and not the end of control that follows from it.
pub(in crate::engine) struct SwitchLoss {
    switch: OwnedFd,
    supervisor: Link<ControlRequest, EventToControl>,
}

impl SwitchLoss {
    /// Keeps copies of both links.
    ///
    /// # Errors
    /// The system's refusal.
    pub(in crate::engine) fn new(switch: &impl AsFd, supervisor: &impl AsFd) -> io::Result<Self> {
        Ok(Self {
            switch: switch.as_fd().try_clone_to_owned()?,
            supervisor: Link::new(supervisor.as_fd().try_clone_to_owned()?),
        })
    }

    /// Passes on the result of control's work. If it has failed and the switch is gone, the
    /// supervisor is informed first, whatever the error is: it may be one of a message, of a reply
    /// that did not come, or of a change that was refused.
    pub(in crate::engine) fn reported<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &done
            && self.has_happened(error.kind())
        {
            // If the supervisor is gone, the report has no receiver.
            let _ = self.supervisor.send(&ControlRequest::SwitchGone, &[]);
        }
        done
    }

    fn has_happened(&self, error: io::ErrorKind) -> bool {
        let time = match error {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => CLOSING,
            _ => Duration::ZERO,
        };
        let state = sys::wait::ready(
            &self.switch,
            PollFlags::empty(),
            Some(Instant::now() + time),
        );
        state.is_ok_and(|state| state.contains(PollFlags::HUP))
    }
}

#[cfg(test)]
mod tests {
    use ipc::link::{self, LinkEvent};
    use rustix::net::{Shutdown, shutdown};

    use super::*;

    /// Returns whether an error is reported, with a switch that closes its end after this time.
    fn is_reported(error: io::ErrorKind, closes: Option<Duration>) -> bool {
        let (switch, theirs) = link::pair().unwrap();
        let (supervisor, reports) = link::pair().unwrap();
        let loss = SwitchLoss::new(&switch, &supervisor).unwrap();
        std::thread::scope(|scope| {
            if let Some(time) = closes {
                let theirs = &theirs;
                scope.spawn(move || {
                    std::thread::sleep(time);
                    shutdown(theirs, Shutdown::Both).unwrap();
                });
            }
            assert!(loss.reported::<()>(Err(error.into())).is_err());
        });
        drop((loss, supervisor));
        let mut reports: Link<EventToControl, ControlRequest> = Link::new(reports);
        match reports.recv() {
            Ok(LinkEvent::Message(ControlRequest::SwitchGone, _)) => true,
            Ok(LinkEvent::Closed) => false,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_switch_whose_end_closes_later_than_sending_fails_is_reported() {
        let later = Duration::from_millis(10);
        assert!(is_reported(io::ErrorKind::BrokenPipe, Some(later)));
    }

    #[test]
    fn a_switch_that_is_there_is_not_reported() {
        for error in [io::ErrorKind::BrokenPipe, io::ErrorKind::InvalidData] {
            assert!(!is_reported(error, None));
        }
    }
}
