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

use api::v1::{EventKind, Progress, Requester};
use channel::admin::APPLY_LOG_ARGUMENT;

use super::binaries::Binaries;
use super::running::Running;
use super::{Supervisor, child, replace};

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
    /// Returns the reload of a Lasthop that was started with this configuration file.
    pub(super) fn of(config: Option<PathBuf>) -> Self {
        Self {
            config,
            ..Self::default()
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

impl Supervisor {
    /// Applies the file, or once more after the reload in progress.
    pub(super) fn reload(&mut self, by: Option<Requester>) {
        if self.reload.running.is_some() {
            self.reload.again = Some(by);
            return;
        }
        self.reload.by = by;
        let Some(config) = &self.reload.config else {
            let reason = "it is not known from which file".to_owned();
            return self.emit_reload(Progress::Refused, Some(reason));
        };
        match start(&self.binaries, &self.home.dir, config) {
            Ok(running) => {
                self.reload.running = Some(running);
                self.emit_reload(Progress::Started, None);
            }
            Err(error) => self.emit_reload(Progress::Refused, Some(error.to_string())),
        }
    }

    fn emit_reload(&mut self, progress: Progress, reason: Option<String>) {
        let file = self
            .reload
            .config
            .as_ref()
            .map(|file| file.display().to_string());
        self.emit(EventKind::Reload {
            by: self.reload.by,
            file: api::v1::event_text::printable(&file.unwrap_or_default()),
            progress,
            reason,
        });
    }

    /// Reports the end of a reload.
    pub(super) fn poll_reload(&mut self) {
        let Some(status) = self.reload.ended() else {
            return;
        };
        if status.success() {
            self.emit_reload(Progress::Done, None)
        } else {
            self.emit_reload(Progress::Refused, Some(status.to_string()))
        }
        if let Some(by) = self.reload.again.take() {
            self.reload(by);
        }
    }
}

fn start(binaries: &Binaries, runtime_dir: &Path, config: &Path) -> io::Result<Running> {
    let log = io::stderr().as_fd().try_clone_to_owned()?;
    let mut command = binaries.command_line();
    replace::without_own_variables(&mut command)
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
