//! SIGHUP: the configuration file of the start is applied again, as by `lasthop apply`.
//!
//! A child process runs `lasthop apply` with the supervisor's rights: the supervisor itself has no
//! HTTP client, and does not wait. The output of the child goes to the log.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ipc::admin::APPLY_LOG_ARGUMENT;
use model::{EventKind, Progress, Requester};

use super::binaries::Binaries;
use super::events::PendingEvents;
use super::running::Running;
use super::{child, environment};

/// Time after which another look is taken at a killed reload: 1 second.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Reload in progress.
#[derive(Default)]
pub(super) struct Reload {
    /// Configuration file of the start, if known.
    pub(super) config: Option<PathBuf>,
    running: Option<Running>,
    /// Requester of a further reload, because the file may have changed since it was read.
    again: Option<Option<Requester>>,
    /// Requester of the reload in progress.
    by: Option<Requester>,
}

impl Reload {
    /// Returns the reload of this process, whose arguments name the configuration file.
    pub(super) fn of_this_process() -> Self {
        Self {
            config: configuration(),
            ..Self::default()
        }
    }

    /// Applies the file, or once more after the reload in progress.
    pub(super) fn request(
        &mut self,
        by: Option<Requester>,
        binaries: &Binaries,
        runtime_dir: &Path,
        events: &mut PendingEvents,
    ) {
        if self.running.is_some() {
            self.again = Some(by);
            return;
        }
        self.by = by;
        let started = match &self.config {
            Some(config) => start(binaries, runtime_dir, config),
            None => Err(io::Error::other("it is not known from which file")),
        };
        match started {
            Ok(running) => {
                self.running = Some(running);
                events.emit(self.event(Progress::Started, None));
            }
            Err(error) => events.emit(self.event(Progress::Refused, Some(error.to_string()))),
        }
    }

    /// Reports the end of a reload.
    pub(super) fn poll(
        &mut self,
        binaries: &Binaries,
        runtime_dir: &Path,
        events: &mut PendingEvents,
    ) {
        let Some(status) = self.ended() else {
            return;
        };
        events.emit(match status.success() {
            true => self.event(Progress::Done, None),
            false => self.event(Progress::Refused, Some(status.to_string())),
        });
        if let Some(by) = self.again.take() {
            self.request(by, binaries, runtime_dir, events);
        }
    }

    fn event(&self, progress: Progress, reason: Option<String>) -> EventKind {
        let file = self.config.as_ref().map(|file| file.display().to_string());
        EventKind::Reload {
            by: self.by,
            file: model::event_text::printable(&file.unwrap_or_default()),
            progress,
            reason,
        }
    }

    /// Returns the pidfd, which becomes readable when the reload has ended.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(AsFd::as_fd)
    }

    /// Returns the exit status if the reload has ended.
    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.running.as_mut()?.has_ended()?;
        self.running = None;
        Some(status)
    }

    /// Ends the reload before another supervisor takes over. The file was applied completely or not
    /// at all.
    pub(super) fn stop(&mut self) {
        self.again = None;
        if let Some(running) = &mut self.running {
            running.kill();
            running.ends_by(Instant::now() + KILL_TIMEOUT);
        }
        self.running = None;
    }
}

/// Returns the configuration file, which this program's arguments name.
fn configuration() -> Option<PathBuf> {
    let mut arguments = std::env::args_os();
    arguments.find(|argument| argument == "--config")?;
    std::path::absolute(arguments.next()?).ok()
}

fn start(binaries: &Binaries, runtime_dir: &Path, config: &Path) -> io::Result<Running> {
    let log = io::stderr().as_fd().try_clone_to_owned()?;
    let mut command = binaries.command_line();
    environment::without_own_variables(&mut command)
        .arg("--runtime-dir")
        .args([runtime_dir, Path::new("apply")])
        .arg(APPLY_LOG_ARGUMENT)
        .arg(config)
        .stdin(Stdio::null())
        .stdout(log);
    // SAFETY: the closure only makes system calls, which are async-signal-safe, and owns nothing.
    unsafe { command.pre_exec(|| child::prepare(3)) };
    Running::of("reload", &command.spawn()?)
}
