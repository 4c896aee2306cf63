//! Wait for events of the supervisor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::hand_over::HandOver;
use super::{CONTROL, ProcessRef, SWITCH, Supervisor};

impl Supervisor {
    /// Waits for signals, messages and timers. Returns whether a signal is pending, and the
    /// processes with messages or an end.
    pub(super) fn wait(&self, signals: &OwnedFd) -> io::Result<(bool, Vec<ProcessRef>)> {
        let mut sources: Vec<(Option<ProcessRef>, BorrowedFd<'_>)> = vec![(None, signals.as_fd())];
        let serving = [(CONTROL, &self.control), (SWITCH, &self.switch)];
        let next = self.next.iter().flat_map(HandOver::children);
        for (process, child) in serving.into_iter().chain(next) {
            sources.extend(child.link().map(|fd| (Some(process), fd)));
            sources.extend(child.pidfd().map(|fd| (Some(process), fd)));
        }
        sources.extend(self.drivers.sources().map(|fd| (None, fd)));
        sources.extend(self.reload.source().map(|fd| (None, fd)));
        sources.extend(self.upgrade_sources().map(|fd| (None, fd)));
        let mut fds: Vec<_> = sources
            .iter()
            .map(|(_, fd)| PollFd::new(fd, PollFlags::IN))
            .collect();
        let receiver = match &self.next {
            Some(next) if next.receives_sessions() => next.switch(),
            _ => &self.switch,
        };
        if let (true, Some(link)) = (self.saved_sessions.has_queued(), receiver.link()) {
            fds.push(PollFd::from_borrowed_fd(link, PollFlags::OUT));
        }
        // During a hand-over no process of the pair is restarted or checked.
        let alone = self.next.is_none();
        let due = (self.pair_due().filter(|_| alone).into_iter())
            .chain(self.drivers.due())
            .chain(self.guests.due())
            .chain(self.upgrade_due())
            .min();
        sys::wait::poll(&mut fds, due)?;
        let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = sources.iter().zip(&fds);
        let ready = ready
            .filter(|(_, fd)| happened(fd))
            .filter_map(|((process, _), _)| *process);
        Ok((happened(&fds[0]), ready.collect()))
    }

    /// Returns the time of the next restart or heartbeat check of control and switch.
    fn pair_due(&self) -> Option<Instant> {
        let control_due = self
            .control
            .restart_at()
            .filter(|_| self.switch_is_complete());
        let due = [self.control.heartbeat_due(), self.switch.heartbeat_due()];
        let restarts = [control_due, self.switch.restart_at()];
        due.into_iter().chain(restarts).flatten().min()
    }
}
