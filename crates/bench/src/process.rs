//! A program that was started for a measurement, and is gone with it.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::stop;

/// How many lines of a log an error shows.
const LOG_LINES: usize = 12;

/// A running program in a process group of its own; killed with its group when dropped.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with both output streams in `log`, on these cores if any are named. It dies
    /// when the calling thread does, whatever that dies of.
    pub(crate) fn start(name: &str, cores: &[usize], words: &[String], log: &Path) -> Result<Self> {
        // What one of the same name has written before stays.
        let output = File::options().create(true).append(true).open(log);
        let output = output.with_context(|| log.display().to_string())?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if !cores.is_empty() {
            let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
            command.args(["taskset", "-c", &list.join(",")]);
        }
        command.args(words);
        command.stdin(Stdio::piped());
        command.stdout(output.try_clone()?).stderr(output);
        let child = command.process_group(0).spawn();
        Ok(Self {
            name: name.to_owned(),
            child: child.with_context(|| format!("{name} does not start"))?,
            log: log.to_owned(),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Writes a line to its standard input.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        let input = self
            .child
            .stdin
            .as_mut()
            .context("standard input is gone")?;
        writeln!(input, "{line}").with_context(|| format!("{} takes no commands", self.name))
    }

    /// Waits until `found` makes something of the output.
    ///
    /// # Errors
    /// With the end of the log, when the program ends first or takes longer than `limit`.
    pub(crate) fn wait_output<T>(
        &mut self,
        what: &str,
        limit: Duration,
        found: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let answer = stop::wait(what, limit, || {
            let ended = self.child.try_wait()?;
            match (found(&self.output()), ended) {
                (Some(answer), _) => Ok(Some(answer)),
                (None, Some(status)) => bail!("it ended with {status}"),
                (None, None) => Ok(None),
            }
        });
        answer.with_context(|| {
            format!(
                "{}, whose last words were:\n{}",
                self.name,
                self.last_words()
            )
        })
    }

    fn last_words(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        last.iter().map(|line| format!("    {line}\n")).collect()
    }

    /// Stops the whole group where it stands.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a frozen group.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end, and waits for that a while.
    pub(crate) fn end(&mut self, limit: Duration) {
        self.signal(Signal::TERM);
        let end = std::time::Instant::now() + limit;
        while std::time::Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        // An error means that all its processes have ended.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Words of a command line that has no blanks inside of words.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs a program to its end and gives what it printed.
///
/// # Errors
/// With its complaint, when its exit status is not 0.
pub(crate) fn run(words: &[String], environment: &[(&str, &Path)]) -> Result<String> {
    let [program, arguments @ ..] = words else {
        bail!("no program")
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied());
    let output = command.output().with_context(|| program.clone())?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{}: {}: {}",
            words.join(" "),
            output.status,
            complaint.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns whether a program is on the `PATH`, or there at all when it is a path.
pub(crate) fn installed(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}
