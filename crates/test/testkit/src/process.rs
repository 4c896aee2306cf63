//! A process that cannot outlive its test or measurement.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal,
};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::wait::{LIMIT, try_wait, within};

/// Lines of a log that an error or a failed test shows.
const LOG_LINES: usize = 25;

/// A running process with its log, in a process group of its own; killed with its group when
/// dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program with both output streams at the end of the file `log`. It dies with the
    /// calling thread, so it is started from the test's own thread.
    ///
    /// # Errors
    /// When the log cannot be written or the program does not start.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> io::Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        command.stdout(output);
        Self::spawn_piped(name, command, log)
    }

    /// Starts a program whose standard output was set by the caller; only its errors are logged.
    ///
    /// # Errors
    /// When the log cannot be written or the program does not start.
    pub fn spawn_piped(name: &str, mut command: Command, log: &Path) -> io::Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        command
            .stdin(Stdio::piped())
            .stderr(output)
            .process_group(0);
        // SAFETY: between fork and exec the closure makes one system call and touches no memory.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let child = command.spawn();
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{name} does not start: {e}"));
        Ok(Self {
            name: name.to_owned(),
            child: child.map_err(named)?,
            log: log.to_owned(),
        })
    }

    /// Starts a program with arguments as [`Process::spawn`] does, with a new log.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(name: &str, program: impl AsRef<Path>, args: &[String], log: &Path) -> Self {
        let mut command = Command::new(program.as_ref());
        command.args(args);
        // There may be none.
        let _ = fs::remove_file(log);
        Self::spawn(name, command, log).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the log so far.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Takes its standard output, if that is a pipe.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Writes a line to the process's standard input.
    ///
    /// # Errors
    /// When it has closed its standard input.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        let input = self.child.stdin.as_mut();
        let input = input.ok_or_else(|| io::Error::other("standard input is gone"))?;
        writeln!(input, "{line}")
    }

    /// Sends a signal to this process alone.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Sends a signal to its process group.
    pub fn signal_group(&self, signal: Signal) {
        // An error means that all processes of the group have ended.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// The exit status, if the process has ended.
    ///
    /// # Panics
    /// When the kernel does not report it.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("the child is ours to wait for")
    }

    /// Waits for the end, at most `limit`.
    pub fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        within(limit, || self.ended())
    }

    /// Sends SIGTERM to the group and waits for the end of the process, at most `limit`.
    pub fn terminate(&mut self, limit: Duration) {
        self.signal_group(Signal::TERM);
        let _ = self.end(limit);
    }

    /// Kills this process alone and waits until it is gone.
    ///
    /// # Panics
    /// When it survives.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        assert!(self.end(LIMIT).is_some(), "{} survived SIGKILL", self.name);
    }

    /// Waits until `found` returns a value for the log.
    ///
    /// # Errors
    /// With the end of the log, when the process ends first or after `limit`.
    pub fn wait_output<T>(
        &mut self,
        what: &str,
        limit: Duration,
        found: impl Fn(&str) -> Option<T>,
    ) -> io::Result<T> {
        let answer = try_wait(what, limit, || {
            let ended = self.child.try_wait()?;
            match (found(&self.output()), ended) {
                (Some(answer), _) => Ok(Some(answer)),
                (None, Some(status)) => Err(io::Error::other(format!("it ended with {status}"))),
                (None, None) => Ok(None),
            }
        });
        answer.map_err(|error| self.with_log(&error))
    }

    /// Returns the error with the name of the process and the end of its log.
    pub(crate) fn with_log(&self, error: &io::Error) -> io::Error {
        let end = end_of(&self.output());
        io::Error::other(format!(
            "{}: {error}; the end of its log:\n{end}",
            self.name
        ))
    }

    /// Waits until the process has printed a line that `desired` accepts.
    ///
    /// # Panics
    /// When it ends first, or after `limit`.
    pub fn printed(
        &mut self,
        what: &str,
        limit: Duration,
        desired: impl Fn(&str) -> bool,
    ) -> String {
        let line = |log: &str| log.lines().find(|line| desired(line)).map(str::to_owned);
        let found = self.wait_output(what, limit, line);
        found.unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal_group(Signal::KILL);
        let _ = self.child.wait();
        if std::thread::panicking() {
            print_end(&self.name, &self.output());
        }
    }
}

/// Keeps a program on these cores, if any are named.
pub fn on_cores(command: &mut Command, cores: &[usize]) {
    if cores.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    // SAFETY: between fork and exec the closure makes one system call and only reads its copy of
    // the set.
    unsafe {
        command.pre_exec(move || Ok(sched_setaffinity(None, &set)?));
    }
}

/// Sends a signal to a process, which may have ended already.
pub fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Prints the end of a log, for the reader of a failed test.
pub fn print_end(name: &str, log: &str) {
    eprintln!("--- the end of {name}'s log:\n{}", end_of(log));
}

fn end_of(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    last.iter().map(|line| format!("    {line}\n")).collect()
}
