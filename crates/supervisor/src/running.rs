//! Child process, started by this supervisor or by the one that it replaced.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

/// Child process with its pidfd.
pub(super) struct Running {
    pid: Pid,
    pidfd: OwnedFd,
    ended: Option<ExitStatus>,
}

impl Running {
    /// Returns the process of a child.
    ///
    /// # Errors
    /// Failed system call.
    pub(super) fn of(child: &std::process::Child) -> io::Result<Self> {
        Self::with_pid(child.id())
    }

    /// Returns the child with this process id.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn with_pid(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            ended: None,
        })
    }

    /// Returns the process id.
    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Reaps the process if it has ended, and returns its exit status.
    pub(super) fn has_ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = match waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(Some((_, status))) => Some(ExitStatus::from_raw(status.as_raw())),
                // The exit status is lost.
                Err(Errno::CHILD) => Some(ExitStatus::from_raw(libc::SIGKILL)),
                _ => None,
            };
        }
        self.ended
    }

    /// Waits until the process has ended, and reaps it; `false` if it has not at the deadline.
    pub(super) fn ends_by(&mut self, deadline: Instant) -> bool {
        while self.has_ended().is_none() {
            let ended = sys::wait::ready(&self.pidfd, PollFlags::IN, Some(deadline));
            if ended.is_ok_and(|ended| ended.is_empty()) {
                return false;
            }
        }
        true
    }

    /// Kills the process.
    pub(super) fn kill(&self) {
        // A process that has ended needs no signal.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Pidfd, readable when the process has ended.
impl AsFd for Running {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
