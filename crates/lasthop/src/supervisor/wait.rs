//! What the supervisor waits for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::hand_over::HandOver;
use super::{CONTROL, SWITCH, Supervisor, Who};

impl Supervisor {
    /// Whether a signal came, and which children said something.
    pub(super) fn wait(&self, signals: &OwnedFd) -> io::Result<(bool, Vec<Who>)> {
        let mut sources: Vec<(Option<Who>, BorrowedFd<'_>)> = vec![(None, signals.as_fd())];
        let serving = [(CONTROL, &self.control), (SWITCH, &self.switch)];
        let next = self.next.iter().flat_map(HandOver::children);
        for (who, child) in serving.into_iter().chain(next) {
            sources.extend(child.link().map(|fd| (Some(who), fd)));
            sources.extend(child.pidfd().map(|fd| (Some(who), fd)));
        }
        sources.extend(self.drivers.sources().map(|fd| (None, fd)));
        sources.extend(self.reload.source().map(|fd| (None, fd)));
        sources.extend(self.upgrade_sources().map(|fd| (None, fd)));
        let mut fds: Vec<_> = sources
            .iter()
            .map(|(_, fd)| PollFd::new(fd, PollFlags::IN))
            .collect();
        let receiver = match &self.next {
            Some(next) if next.gets_deposits() => next.switch(),
            _ => &self.switch,
        };
        if let (true, Some(link)) = (self.deposits.is_handing_over(), receiver.link()) {
            fds.push(PollFd::from_borrowed_fd(link, PollFlags::OUT));
        }
        // Nobody is started or looked at while a pair is to take over.
        let alone = self.next.is_none();
        let due = (self.pair_due().filter(|_| alone).into_iter())
            .chain(self.drivers.due())
            .chain(self.guests.due())
            .chain(self.upgrade_due())
            .min();
        let timeout = due.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let heard = sources.iter().zip(&fds);
        let heard = heard
            .filter(|(_, fd)| happened(fd))
            .filter_map(|((who, _), _)| *who);
        Ok((happened(&fds[0]), heard.collect()))
    }

    /// When control or the switch is to be started again or looked at.
    fn pair_due(&self) -> Option<Instant> {
        let control_due = self.control.restart_at().filter(|_| self.switch_is_whole());
        let due = [self.control.look_at(), self.switch.look_at()];
        let restarts = [control_due, self.switch.restart_at()];
        due.into_iter().chain(restarts).flatten().min()
    }
}
