//! A process that was started here, whoever started it: this supervisor, or the one whose place it took.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

/// See the module.
pub(super) struct Running {
    pid: Pid,
    pidfd: OwnedFd,
    ended: Option<ExitStatus>,
}

impl Running {
    /// Takes care of a child.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn of(child: &std::process::Child) -> io::Result<Self> {
        Self::with_pid(child.id())
    }

    /// The child with this process id.
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

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended, if it has.
    pub(super) fn has_ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = match waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(Some((_, status))) => Some(ExitStatus::from_raw(status.as_raw())),
                // Gone, and nobody knows how.
                Err(Errno::CHILD) => Some(ExitStatus::from_raw(libc::SIGKILL)),
                _ => None,
            };
        }
        self.ended
    }

    /// Ends it now.
    pub(super) fn kill(&self) {
        // One that has ended need not be killed.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Readable when it has ended.
impl AsFd for Running {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
