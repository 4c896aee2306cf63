//! Check of the binaries of another version: they start, agree with each other and with this
//! version, and accept the configuration file.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use channel::{formats, timeouts};
use rustix::fs::MemfdFlags;

use super::binaries::Binaries;
use super::running::Running;
use process::self_check::{ARGUMENT, RECORD_ARGUMENT, SelfCheck};

/// Time in which a killed process must end: 1 second.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of an answer in bytes.
const MAX_ANSWER_BYTES: u64 = 16 << 10;

/// Running check of one binary.
struct Checked {
    name: &'static str,
    process: Running,
    /// Output in a memory file, because it may exceed the capacity of a pipe.
    output: File,
}

/// All running self-checks.
pub(super) struct Check {
    all: Vec<Checked>,
    /// `lasthop run --check` of the new version with the configuration file of this one.
    ///
    /// The new supervisor does not read that file to take over, but the next reload and the next
    /// start do: after an upgrade to a version that refuses the file, Lasthop could not be started
    /// again.
    config: Option<Checked>,
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
            let started = check_config(binaries, file, runtime_dir);
            started.map_err(|e| format!("cannot check the configuration file: {e}"))
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
            let started = Checked::start(name, &mut command, Command::stdout);
            let checked = started.map_err(|e| format!("cannot start {name}: {e}"))?;
            check.all.push(checked);
        }
        Ok(check)
    }

    /// Returns the descriptors that become readable when a check ends.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = self.all.iter().chain(&self.config);
        all.map(|checked| checked.process.as_fd())
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
        if let Some(config) = &mut self.config {
            match config.process.has_ended() {
                Some(status) if status.success() => {}
                Some(status) => {
                    let why = config.complaint(status);
                    let refused = "the new version does not accept the configuration file";
                    return Err(format!("{refused}: {why}"));
                }
                None => running = running.or(Some(config.name)),
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
            let answer = checked
                .read()
                .and_then(|answer| Ok(serde_json::from_slice(&answer)?));
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
        let child = super::replace::without_own_variables(command).spawn()?;
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

fn check_config(binaries: &Binaries, config: &Path, runtime_dir: &Path) -> io::Result<Checked> {
    let mut command = binaries.command_line();
    command
        .arg("--runtime-dir")
        .arg(runtime_dir)
        .args(["run", "--check", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Checked::start("lasthop run --check", &mut command, Command::stderr)
}

/// Returns whether a file can be read only once, or depends on the process that opens it.
fn is_stream(file: &Path) -> bool {
    const OF_A_PROCESS: [&str; 3] = ["/dev/stdin", "/dev/fd", "/proc"];
    let of_a_process = OF_A_PROCESS.iter().any(|path| file.starts_with(path));
    let kind = std::fs::metadata(file).map(|metadata| metadata.file_type());
    of_a_process || kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device())
}

/// Kills a process whose answer is not needed. A process that does not die, for example because of
/// a hanging file system, is left behind.
impl Drop for Checked {
    fn drop(&mut self) {
        self.process.kill();
        self.process.ends_by(Instant::now() + KILL_TIMEOUT);
    }
}
