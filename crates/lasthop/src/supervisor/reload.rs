//! SIGHUP: the file with which Lasthop was started is applied again, as `lasthop apply` does it.
//!
//! It is `lasthop apply` that does so, in a process of its own with our rights: the supervisor itself speaks no HTTP, and waits for
//! nobody. What it says are lines of the log.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use super::binaries::Binaries;
use super::running::Running;
use super::{Supervisor, child, notify, replace};
use crate::cli::LOG;

/// See the module.
#[derive(Default)]
pub(super) struct Reload {
    running: Option<Running>,
    /// The file may have changed since it was read.
    again: bool,
}

impl Reload {
    /// Readable when there is something to do.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(AsFd::as_fd)
    }

    /// How it ended, if it has.
    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.running.as_mut()?.has_ended()?;
        self.running = None;
        Some(status)
    }

    /// Ends it, for a supervisor that becomes another one. Either everything was changed or nothing.
    pub(super) fn stop(&mut self) {
        self.again = false;
        if let Some(running) = &mut self.running {
            running.kill();
            while running.has_ended().is_none() {
                let mut ended = [rustix::event::PollFd::new(
                    running,
                    rustix::event::PollFlags::IN,
                )];
                // Interrupted or not, the loop looks.
                let _ = rustix::event::poll(&mut ended, None);
            }
        }
        self.running = None;
    }
}

impl Supervisor {
    /// Applies the file again, or once more when that is under way.
    pub(super) fn reload(&mut self) {
        if self.reload.running.is_some() {
            self.reload.again = true;
            return;
        }
        let Some(config) = &self.config else {
            return tracing::error!("cannot reload: it is not known from which file");
        };
        match start(&self.binaries, &self.runtime_dir, config) {
            Ok(running) => {
                tracing::info!("reloading {}", config.display());
                self.reload.running = Some(running);
            }
            Err(error) => tracing::error!("cannot reload: {error}"),
        }
    }

    /// Sees what became of it.
    pub(super) fn turn_reload(&mut self) {
        let Some(status) = self.reload.ended() else {
            return;
        };
        match status.success() {
            true => tracing::info!("reloaded"),
            false => tracing::error!("not reloaded, nothing was changed: {status}"),
        }
        if std::mem::take(&mut self.reload.again) {
            self.reload();
        }
    }
}

fn start(binaries: &Binaries, runtime_dir: &Path, config: &Path) -> io::Result<Running> {
    let log = io::stderr().as_fd().try_clone_to_owned()?;
    let mut command = binaries.command_line();
    command
        .arg("--runtime-dir")
        .args([runtime_dir, Path::new("apply")])
        .arg(format!("--{LOG}"))
        .arg(config)
        .env_remove(notify::SOCKET)
        .env_remove(replace::RESUME)
        .stdin(Stdio::null())
        .stdout(log);
    // SAFETY: the closure only makes system calls, which are async-signal-safe, and owns nothing.
    unsafe { command.pre_exec(|| child::prepare(3)) };
    Running::of(&command.spawn()?)
}
