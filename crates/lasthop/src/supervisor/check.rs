//! Whether the binaries of another version start, and agree with each other and with this one.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use channel::formats;

use super::binaries::Binaries;
use super::running::Running;
use crate::cli;
use crate::self_check::{ARGUMENT, SelfCheck};

/// How long all of them may take. They start, give up their rights, and say a line.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one that is killed may take to end.
const PATIENCE_AT_END: Duration = Duration::from_secs(1);
/// Bytes of an answer at most: less than a pipe holds.
const ANSWER_MAX: u64 = 16 << 10;

/// One that is being checked.
struct Checked {
    name: &'static str,
    process: Running,
    answer: File,
}

/// See the module.
pub(super) struct Check {
    all: Vec<Checked>,
    deadline: Instant,
}

impl Check {
    /// Starts the binaries, all at once. `record`: what the new supervisor would be given.
    ///
    /// # Errors
    /// The first that cannot be started.
    pub(super) fn start(binaries: &Binaries, record: OwnedFd) -> Result<Self, String> {
        let mut record = Some(record);
        let mut check = Self {
            all: Vec::new(),
            deadline: Instant::now() + PATIENCE,
        };
        for (name, mut command) in binaries.commands() {
            match record.take() {
                // The first is the supervisor.
                Some(record) => command.args([cli::SELF_CHECK, "--record"]).stdin(record),
                None => command.arg(ARGUMENT).stdin(Stdio::null()),
            };
            let checked = ask(name, command).map_err(|e| format!("{name} does not start: {e}"))?;
            check.all.push(checked);
        }
        Ok(check)
    }

    /// What says that one is done.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().map(|checked| checked.process.as_fd())
    }

    /// When they have to be done.
    pub(super) fn due(&self) -> Instant {
        self.deadline
    }

    /// The new version, when all are done and nothing is wrong.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn turn(&mut self) -> Result<Option<SelfCheck>, String> {
        let mut running = None;
        for checked in &mut self.all {
            let name = checked.name;
            match checked.process.has_ended() {
                Some(status) if status.success() => {}
                Some(status) => return Err(format!("{name} failed its self-check ({status})")),
                None => running = Some(name),
            }
        }
        match running {
            None => self.compare().map(Some),
            Some(name) if Instant::now() >= self.deadline => {
                Err(format!("{name} did not finish its self-check in time"))
            }
            Some(_) => Ok(None),
        }
    }

    fn compare(&mut self) -> Result<SelfCheck, String> {
        let mut first: Option<SelfCheck> = None;
        for checked in &mut self.all {
            let name = checked.name;
            let answer = checked.read();
            let answer = answer.map_err(|e| format!("{name} says nothing sensible: {e}"))?;
            match &first {
                None => first = Some(answer),
                Some(first) if *first == answer => {}
                Some(_) => return Err(format!("{name} is not of the same version as the others")),
            }
        }
        let new = first.ok_or("there is nothing to check")?;
        formats::agree(&formats::formats(), &new.formats)?;
        Ok(new)
    }
}

impl Checked {
    fn read(&mut self) -> Result<SelfCheck, String> {
        let mut answer = Vec::new();
        let read = self
            .answer
            .by_ref()
            .take(ANSWER_MAX)
            .read_to_end(&mut answer);
        read.map_err(|e| e.to_string())?;
        serde_json::from_slice(&answer).map_err(|e| e.to_string())
    }
}

fn ask(name: &'static str, mut command: Command) -> std::io::Result<Checked> {
    let mut child = command
        .env_remove(super::notify::SOCKET)
        .env_remove(super::replace::RESUME)
        .stdout(Stdio::piped())
        .spawn()?;
    let answer = child.stdout.take().map(OwnedFd::from);
    let answer = File::from(answer.ok_or(std::io::ErrorKind::BrokenPipe)?);
    // A process that it leaves behind must not hold us up.
    rustix::io::ioctl_fionbio(&answer, true)?;
    Ok(Checked {
        name,
        process: Running::of(&child)?,
        answer,
    })
}

impl Drop for Checked {
    /// Nobody waits for its answer any more. One that does not die, as on a file system that hangs, is left to the system.
    fn drop(&mut self) {
        self.process.kill();
        let end = Instant::now() + PATIENCE_AT_END;
        while self.process.has_ended().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
