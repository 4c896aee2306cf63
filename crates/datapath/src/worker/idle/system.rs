//! The kernel's scheduler, as helpers use it.

use std::io;

use rustix::process::Pid;
use rustix::thread::CpuSet;

use super::boost::Scheduling;

/// A thread that is bound to a core.
#[derive(Debug)]
pub(crate) struct Thread {
    id: Pid,
    core: u16,
    /// The thread may take the lowest priority.
    lowest: bool,
}

impl Thread {
    /// Binds the calling thread to `core`. Unless it is to take the `lowest` priority, it keeps the
    /// ordinary one.
    ///
    /// # Errors
    /// A system error: the core is not allowed, or the thread could not return from the lowest
    /// priority.
    pub(crate) fn current(core: u16, lowest: bool) -> io::Result<Self> {
        let id = rustix::thread::gettid();
        let thread = Self { id, core, lowest };
        thread.run_on(core)?;
        if lowest {
            thread.set(libc::SCHED_IDLE)?;
            thread.set(libc::SCHED_OTHER)?;
        }
        Ok(thread)
    }

    /// Returns the calling thread as if it was bound to a core, which need not exist; nothing is
    /// changed.
    #[cfg(test)]
    pub(crate) fn imagined(core: u16) -> Self {
        let (id, lowest) = (rustix::thread::gettid(), false);
        Self { id, core, lowest }
    }

    fn run_on(&self, core: u16) -> io::Result<()> {
        let mut set = CpuSet::new();
        set.set(usize::from(core));
        Ok(rustix::thread::sched_setaffinity(Some(self.id), &set)?)
    }

    fn set(&self, policy: libc::c_int) -> io::Result<()> {
        let parameter = libc::sched_param { sched_priority: 0 };
        // By number, because not every C library has this call.
        // SAFETY: the kernel reads one `sched_param`, which lives until the call is over.
        let done = unsafe {
            libc::syscall(
                libc::SYS_sched_setscheduler,
                self.id.as_raw_nonzero().get(),
                policy,
                &raw const parameter,
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Scheduling for Thread {
    // Each call succeeded at the start; a later error changes when the thread runs, not what it
    // does.
    fn normal(&self) {
        if self.lowest {
            let _ = self.set(libc::SCHED_OTHER);
        }
    }

    fn idle(&self) {
        if self.lowest {
            let _ = self.set(libc::SCHED_IDLE);
        }
    }

    fn move_to(&self, core: Option<u16>) {
        let _ = self.run_on(core.unwrap_or(self.core));
    }
}

/// Returns the core that the calling thread runs on.
pub(crate) fn current_core() -> Option<u16> {
    u16::try_from(rustix::thread::sched_getcpu()).ok()
}
