//! Check of the binaries of another version: they start, agree with each other and with this
//! version, and accept the configuration file.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ipc::{formats, timeouts};
use rustix::fs::MemfdFlags;

use super::binaries::Binaries;
use super::environment::without_own_variables;
use super::running::Running;
use process::self_check::{ARGUMENT, RECORD_ARGUMENT, SelfCheck};

/// Time for a killed process to end: 1 second.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of an answer in bytes.
const MAX_ANSWER_BYTES: u64 = 16 << 10;

/// Reason why another version is not suitable.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    #[error("cannot start {0}: {1}")]
    Start(&'static str, io::Error),
    #[error("cannot check the configuration file: {0}")]
    StartOfConfiguration(io::Error),
    #[error("{0} failed its self-check ({1})")]
    Failed(&'static str, ExitStatus),
    #[error("{0} did not finish its self-check in time")]
    Late(&'static str),
    #[error("malformed self-check report of {0}: {1}")]
    Malformed(&'static str, io::Error),
    #[error("the new version does not accept the configuration file: {0}")]
    Configuration(String),
    #[error("{0} is not of the same version as the others")]
    Mixed(&'static str),
    #[error("nothing to check")]
    Nothing,
    /// The versions do not agree about a format; the reason.
    #[error("{0}")]
    Formats(String),
}

/// Running check of one binary.
struct BinaryCheck {
    name: &'static str,
    process: Running,
    /// Output in a memory file, because it may exceed the capacity of a pipe.
    output: File,
}

/// All running self-checks.
pub(super) struct Check {
    all: Vec<BinaryCheck>,
    /// `lasthop run --check` of the new version with the configuration file of this one.
    ///
    /// The new supervisor does not read that file to take over, but the next reload and the next
    /// start do: after an upgrade to a version that refuses the file, Lasthop could not be started
    /// again.
    config: Option<BinaryCheck>,
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
    ) -> Result<Self, CheckError> {
        let mut record = Some(record);
        let config = config.filter(|file| !is_stream(file)).map(|file| {
            let started = check_config(binaries, file, runtime_dir);
            started.map_err(CheckError::StartOfConfiguration)
        });
        let mut check = Self {
            all: Vec::new(),
            config: config.transpose()?,
            deadline: Instant::now() + timeouts::SELF_CHECK,
        };
        for (name, mut command) in binaries.commands() {
            command.arg(ARGUMENT);
            match record.take() {
                // The first command is the supervisor's.
                Some(record) => command.arg(RECORD_ARGUMENT).stdin(record),
                None => command.stdin(Stdio::null()),
            };
            let started = BinaryCheck::start(name, &mut command, Command::stdout);
            check
                .all
                .push(started.map_err(|error| CheckError::Start(name, error))?);
        }
        Ok(check)
    }

    /// Returns the descriptors that become readable when a check ends.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = self.all.iter().chain(&self.config);
        all.map(|check| check.process.as_fd())
    }

    /// Returns the deadline.
    pub(super) fn due(&self) -> Instant {
        self.deadline
    }

    /// Returns the new version when all checks have passed.
    ///
    /// # Errors
    /// The reason of the first failed check.
    pub(super) fn poll(&mut self) -> Result<Option<SelfCheck>, CheckError> {
        let mut running = None;
        for check in &mut self.all {
            let name = check.name;
            match check.process.has_ended() {
                Some(status) if status.success() => {}
                Some(status) => {
                    // With another number, the supervisor cannot read the record.
                    check.report().map_or(Ok(()), |report| agrees(&report))?;
                    return Err(CheckError::Failed(name, status));
                }
                None => running = Some(name),
            }
        }
        if running.is_none() {
            let new = self.compare()?;
            match self.config.as_mut().map(BinaryCheck::config_status) {
                Some(Err(why)) => return Err(why),
                Some(Ok(None)) => running = self.config.as_ref().map(|config| config.name),
                Some(Ok(Some(()))) | None => return Ok(Some(new)),
            }
        }
        match running {
            Some(name) if Instant::now() >= self.deadline => Err(CheckError::Late(name)),
            _ => Ok(None),
        }
    }

    fn compare(&mut self) -> Result<SelfCheck, CheckError> {
        let mut first: Option<SelfCheck> = None;
        for check in &mut self.all {
            let name = check.name;
            let answer = check.report();
            let answer = answer.map_err(|error| CheckError::Malformed(name, error))?;
            match &first {
                None => first = Some(answer),
                Some(first) if *first == answer => {}
                Some(_) => return Err(CheckError::Mixed(name)),
            }
        }
        let new = first.ok_or(CheckError::Nothing)?;
        agrees(&new)?;
        Ok(new)
    }
}

/// Checks that an upgrade to another build is possible by its formats.
fn agrees(new: &SelfCheck) -> Result<(), CheckError> {
    formats::agree(&formats::formats(), &new.formats).map_err(CheckError::Formats)
}

impl BinaryCheck {
    /// Starts a check; `direct` sets the output of a command that is kept.
    fn start(
        name: &'static str,
        command: &mut Command,
        direct: fn(&mut Command, File) -> &mut Command,
    ) -> io::Result<Self> {
        let output = File::from(rustix::fs::memfd_create(
            "lasthop-check",
            MemfdFlags::CLOEXEC,
        )?);
        let command = direct(command, output.try_clone()?);
        let child = without_own_variables(command).spawn()?;
        Ok(Self {
            name,
            process: Running::of("self-check", &child)?,
            output,
        })
    }

    /// Returns the beginning of what it has printed.
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.output.rewind()?;
        let output = &mut self.output;
        output.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the report of a program.
    fn report(&mut self) -> io::Result<SelfCheck> {
        Ok(serde_json::from_slice(&self.read()?)?)
    }

    /// Returns whether the new version accepts the configuration file; `None` while it checks.
    fn config_status(&mut self) -> Result<Option<()>, CheckError> {
        match self.process.has_ended() {
            Some(status) if status.success() => Ok(Some(())),
            Some(status) => Err(CheckError::Configuration(self.complaint(status))),
            None => Ok(None),
        }
    }

    /// Returns the first line that it has printed, or else the exit status.
    fn complaint(&mut self, status: ExitStatus) -> String {
        let text = self.read().unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        match text.lines().next() {
            Some(line) if !line.is_empty() => {
                line.strip_prefix("lasthop: ").unwrap_or(line).to_owned()
            }
            _ => status.to_string(),
        }
    }
}

fn check_config(binaries: &Binaries, config: &Path, runtime_dir: &Path) -> io::Result<BinaryCheck> {
    let mut command = binaries.command_line();
    command
        .arg("--runtime-dir")
        .arg(runtime_dir)
        .args(["run", "--check", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    BinaryCheck::start("lasthop run --check", &mut command, Command::stderr)
}

/// Returns whether a file can be read only once, or depends on the process that opens it.
fn is_stream(file: &Path) -> bool {
    const OF_A_PROCESS: [&str; 3] = ["/dev/stdin", "/dev/fd", "/proc"];
    let of_a_process = OF_A_PROCESS.iter().any(|path| file.starts_with(path));
    let kind = std::fs::metadata(file).map(|metadata| metadata.file_type());
    of_a_process || kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device())
}

/// Kills a process when its answer is not needed. A process that does not die, for example because
/// of a hanging file system, stays.
impl Drop for BinaryCheck {
    fn drop(&mut self) {
        self.process.kill();
        self.process.ends_by(Instant::now() + KILL_TIMEOUT);
    }
}
