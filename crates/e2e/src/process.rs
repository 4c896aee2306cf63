//! A process that cannot outlive its test.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::wait::within;

/// A running process with its log; killed with everything it started when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program with both output streams in the file `log`. It dies with the calling thread
    /// (`PR_SET_PDEATHSIG`), so start it from the test's own thread.
    pub fn start(name: &str, program: impl AsRef<Path>, args: &[String], log: &Path) -> Process {
        let output = File::create(log).expect("the log can be created");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program.as_ref())
            .args(args);
        command
            .stdin(Stdio::piped())
            .stdout(output.try_clone().expect("one more descriptor"))
            .stderr(output);
        let child = command
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        Process {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output of the process so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Writes a line to the process's standard input.
    pub fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("standard input is a pipe");
        writeln!(input, "{line}").unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Sends a signal to this process alone.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("the child is ours to wait for")
    }

    /// Waits for the end, at most `limit`.
    pub fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        within(limit, || self.ended())
    }

    /// Waits until the process has printed a line that `desired` accepts. Panics when it ends
    /// first, or after `limit`.
    pub fn printed(
        &mut self,
        what: &str,
        limit: Duration,
        desired: impl Fn(&str) -> bool,
    ) -> String {
        let found = within(limit, || {
            let ended = self.ended();
            let line = self
                .output()
                .lines()
                .find(|line| desired(line))
                .map(str::to_owned);
            match (line, ended) {
                (Some(line), _) => Some(Ok(line)),
                (None, Some(status)) => Some(Err(status)),
                (None, None) => None,
            }
        });
        match found {
            Some(Ok(line)) => line,
            Some(Err(status)) => {
                panic!("{} ended with {status} before it printed {what}", self.name)
            }
            None => panic!("{} did not print {what} within {limit:?}", self.name),
        }
    }

    /// `kill -9`, of this process alone, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        assert!(
            self.end(Duration::from_secs(10)).is_some(),
            "{} survived SIGKILL",
            self.name
        );
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.child);
        // An error means that all processes of the group have ended.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
        if std::thread::panicking() {
            print_end(&self.name, &self.output());
        }
    }
}

/// Sends a signal to a process of the test's, by id.
pub fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id");
    // The process may have ended a moment ago.
    let _ = kill_process(pid, signal);
}

/// Prints the end of a log, for the reader of a failed test.
pub fn print_end(name: &str, log: &str) {
    const LINES: usize = 25;
    let lines: Vec<&str> = log.lines().collect();
    eprintln!("--- the end of {name}'s log:");
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        eprintln!("    {line}");
    }
}
