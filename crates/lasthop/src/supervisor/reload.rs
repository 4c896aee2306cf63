//! SIGHUP: the file with which Lasthop was started is applied again, as `lasthop apply` does it.
//!
//! It is `lasthop apply` that does so, in a process of its own with our rights: the supervisor itself speaks no HTTP, and waits for
//! nobody. What it says are lines of the log.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use api::v1::{Asker, EventKind, Progress};

use super::binaries::Binaries;
use super::running::Running;
use super::{Supervisor, child, notify, replace};
use crate::cli::LOG;

/// See the module.
#[derive(Default)]
pub(super) struct Reload {
    running: Option<Running>,
    /// The file may have changed since it was read, and who said so.
    again: Option<Option<Asker>>,
    /// Who has asked for the one that runs.
    by: Option<Asker>,
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
        self.again = None;
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
    pub(super) fn reload(&mut self, by: Option<Asker>) {
        if self.reload.running.is_some() {
            self.reload.again = Some(by);
            return;
        }
        self.reload.by = by;
        let Some(config) = &self.config else {
            let reason = "it is not known from which file".to_owned();
            return self.tell_reload(Progress::Refused, Some(reason));
        };
        match start(&self.binaries, &self.runtime_dir, config) {
            Ok(running) => {
                self.reload.running = Some(running);
                self.tell_reload(Progress::Begun, None);
            }
            Err(error) => self.tell_reload(Progress::Refused, Some(error.to_string())),
        }
    }

    fn tell_reload(&mut self, progress: Progress, reason: Option<String>) {
        let file = self.config.as_ref().map(|file| file.display().to_string());
        self.tell(EventKind::Reload {
            by: self.reload.by,
            file: control::events::text(&file.unwrap_or_default()),
            progress,
            reason,
        });
    }

    /// Sees what became of it.
    pub(super) fn turn_reload(&mut self) {
        let Some(status) = self.reload.ended() else {
            return;
        };
        match status.success() {
            true => self.tell_reload(Progress::Done, None),
            false => self.tell_reload(Progress::Refused, Some(status.to_string())),
        }
        if let Some(by) = self.reload.again.take() {
            self.reload(by);
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
