//! Check of the binaries of another version: they start, agree with each other and with this
//! version, and accept the configuration file.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use channel::formats;
use rustix::fs::MemfdFlags;

use super::binaries::Binaries;
use super::running::Running;
use crate::cli;
use crate::self_check::{ARGUMENT, SelfCheck};

/// Time for all self-checks together: 5 seconds.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which a killed process must end: 1 second.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of an answer in bytes: less than the capacity of a pipe.
const MAX_ANSWER_BYTES: u64 = 16 << 10;

/// Running self-check of one binary.
struct Checked {
    name: &'static str,
    process: Running,
    answer: File,
}

/// `lasthop run --check` of the new version with the configuration file of this one.
///
/// The new supervisor does not read that file to take over, but the next reload and the next start
/// do: after an upgrade to a version that refuses the file, Lasthop could not be started again.
struct ConfigCheck {
    process: Running,
    /// Standard error in a memory file, because warnings may exceed the capacity of a pipe.
    stderr: File,
}

/// All running self-checks.
pub(super) struct Check {
    all: Vec<Checked>,
    config: Option<ConfigCheck>,
    deadline: Instant,
}

impl Check {
    /// Starts all self-checks. `record` is the record that the new supervisor would get. `config`
    /// is the configuration file, if known. It is checked in its present state, even if it was
    /// edited since Lasthop read it; a missing file is refused. A file that can be read only once,
    /// such as a pipe or `/dev/stdin`, is not checked.
    ///
    /// # Errors
    /// The first binary that cannot be started.
    pub(super) fn start(
        binaries: &Binaries,
        record: OwnedFd,
        config: Option<&Path>,
        runtime_dir: &Path,
    ) -> Result<Self, String> {
        let mut record = Some(record);
        let config = config.filter(|file| !is_stream(file)).map(|file| {
            let started = ConfigCheck::start(binaries, file, runtime_dir);
            started.map_err(|e| format!("cannot check the configuration file: {e}"))
        });
        let mut check = Self {
            all: Vec::new(),
            config: config.transpose()?,
            deadline: Instant::now() + CHECK_TIMEOUT,
        };
        for (name, mut command) in binaries.commands() {
            match record.take() {
                // The first command is the supervisor's.
                Some(record) => command.args([cli::SELF_CHECK, "--record"]).stdin(record),
                None => command.arg(ARGUMENT).stdin(Stdio::null()),
            };
            let checked =
                spawn_check(name, command).map_err(|e| format!("cannot start {name}: {e}"))?;
            check.all.push(checked);
        }
        Ok(check)
    }

    /// Returns the descriptors that become readable when a check ends.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = self.all.iter().map(|checked| &checked.process);
        let config = self.config.iter().map(|config| &config.process);
        all.chain(config).map(AsFd::as_fd)
    }

    /// Returns the deadline.
    pub(super) fn due(&self) -> Instant {
        self.deadline
    }

    /// Returns the new version when all checks have passed.
    ///
    /// # Errors
    /// The reason of the first failed check.
    pub(super) fn poll(&mut self) -> Result<Option<SelfCheck>, String> {
        let mut running = None;
        for checked in &mut self.all {
            let name = checked.name;
            match checked.process.has_ended() {
                Some(status) if status.success() => {}
                Some(status) => return Err(format!("{name} failed its self-check ({status})")),
                None => running = Some(name),
            }
        }
        if let Some(config) = &mut self.config
            && !config.poll()?
        {
            running = running.or(Some("lasthop run --check"));
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
            let answer =
                answer.map_err(|e| format!("malformed self-check report of {name}: {e}"))?;
            match &first {
                None => first = Some(answer),
                Some(first) if *first == answer => {}
                Some(_) => return Err(format!("{name} is not of the same version as the others")),
            }
        }
        let new = first.ok_or("nothing to check")?;
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
            .take(MAX_ANSWER_BYTES)
            .read_to_end(&mut answer);
        read.map_err(|e| e.to_string())?;
        serde_json::from_slice(&answer).map_err(|e| e.to_string())
    }
}

impl ConfigCheck {
    fn start(binaries: &Binaries, config: &Path, runtime_dir: &Path) -> io::Result<Self> {
        let stderr = rustix::fs::memfd_create("lasthop-stderr", MemfdFlags::CLOEXEC)?;
        let child = binaries
            .command_line()
            .arg("--runtime-dir")
            .arg(runtime_dir)
            .args(["run", "--check", "--config"])
            .arg(config)
            .env_remove(super::notify::SOCKET)
            .env_remove(super::replace::RESUME)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr.try_clone()?)
            .spawn()?;
        Ok(Self {
            process: Running::of(&child)?,
            stderr: stderr.into(),
        })
    }

    /// Returns whether the check has passed.
    ///
    /// # Errors
    /// The complaint of the new version: file, line, key.
    fn poll(&mut self) -> Result<bool, String> {
        match self.process.has_ended() {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => Err(format!(
                "the new version does not accept the configuration file: {}",
                self.stderr(status)
            )),
        }
    }

    /// Returns the first line of standard error, or else the exit status.
    fn stderr(&mut self, status: ExitStatus) -> String {
        let mut text = Vec::new();
        let file = &mut self.stderr;
        let read = file
            .rewind()
            .and_then(|()| file.take(MAX_ANSWER_BYTES).read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        match (read, text.lines().next()) {
            (Ok(_), Some(line)) if !line.is_empty() => {
                line.strip_prefix("lasthop: ").unwrap_or(line).to_owned()
            }
            _ => status.to_string(),
        }
    }
}

/// Returns whether a file can be read only once, or depends on the process that opens it.
fn is_stream(file: &Path) -> bool {
    const OF_A_PROCESS: [&str; 3] = ["/dev/stdin", "/dev/fd", "/proc"];
    let of_a_process = OF_A_PROCESS.iter().any(|path| file.starts_with(path));
    let kind = std::fs::metadata(file).map(|metadata| metadata.file_type());
    of_a_process || kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device())
}

fn spawn_check(name: &'static str, mut command: Command) -> io::Result<Checked> {
    let mut child = command
        .env_remove(super::notify::SOCKET)
        .env_remove(super::replace::RESUME)
        .stdout(Stdio::piped())
        .spawn()?;
    let answer = child.stdout.take().map(OwnedFd::from);
    let answer = File::from(answer.ok_or(io::ErrorKind::BrokenPipe)?);
    // A process that the binary leaves behind could keep the pipe open.
    rustix::io::ioctl_fionbio(&answer, true)?;
    Ok(Checked {
        name,
        process: Running::of(&child)?,
        answer,
    })
}

impl Drop for Checked {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

impl Drop for ConfigCheck {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Kills a process whose answer is not needed. A process that does not die, for example because of
/// a hanging file system, is left behind.
fn end(process: &mut Running) {
    process.kill();
    let end = Instant::now() + KILL_TIMEOUT;
    while process.has_ended().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}
