//! A running Lasthop in a folder of its own, which ends with the test, and its command line.

use std::fs;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Process, on_cores, send};
use crate::wait::{LIMIT, check, wait_for, wait_until};
use crate::{procfs, programs};

/// The program's only line of output.
const READY: &str = "lasthop: ready\n";

/// Returns a `[[port]]` table of a port for a guest, with more keys.
#[must_use]
pub fn port(name: &str, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n{more}\n"
    )
}

/// Returns whether a socket accepts connections.
#[must_use]
pub fn listens(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

/// The folder of a Lasthop: its configuration, its log, and its runtime directory.
pub struct Place {
    program: PathBuf,
    cores: Vec<usize>,
    root: TempDir,
}

impl Place {
    /// Creates a folder for the programs of [`programs`].
    #[must_use]
    pub fn new() -> Self {
        Self::of(programs::program("lasthop"))
    }

    /// Creates a folder for the program `lasthop` at this path.
    ///
    /// # Panics
    /// When no folder can be created.
    #[must_use]
    pub fn of(program: impl Into<PathBuf>) -> Self {
        let root = tempfile::Builder::new().prefix("lasthop-").tempdir();
        Self::within(program, root.expect("a temporary folder"), &[])
    }

    /// Uses a folder of the caller's, and keeps Lasthop on these cores, if any are named.
    pub fn within(program: impl Into<PathBuf>, root: TempDir, cores: &[usize]) -> Self {
        Self {
            program: program.into(),
            cores: cores.to_vec(),
            root,
        }
    }

    /// Returns the path of a file in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Returns the runtime directory, which Lasthop creates.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// Returns the names of all files in the runtime directory.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run_dir()).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Writes the configuration, whose first line is the first of `config`, and returns
    /// `lasthop run` with it.
    ///
    /// # Panics
    /// When the configuration cannot be written.
    #[must_use]
    pub fn command(&self, config: &str) -> Command {
        let file = self.path("lasthop.toml");
        fs::write(&file, config).expect("the configuration can be written");
        let mut command = Command::new(&self.program);
        command
            .env_remove("LASTHOP_RUNTIME_DIR")
            .env_remove("LASTHOP_LOG");
        command.arg("run").arg("--config").arg(file);
        command.arg("--runtime-dir").arg(self.run_dir());
        on_cores(&mut command, &self.cores);
        command
    }

    /// Starts Lasthop and waits until it is ready.
    ///
    /// # Panics
    /// When it does not get ready.
    #[must_use]
    pub fn start(&self, config: &str) -> Running {
        let running = self.try_start(config);
        running.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts Lasthop and waits until it is ready.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn try_start(&self, config: &str) -> io::Result<Running> {
        let mut running = self.try_spawn(self.command(config))?;
        running.try_ready()?;
        Ok(running)
    }

    /// Starts a command of [`Place::command`] and does not wait.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn spawn(&self, command: Command) -> Running {
        let running = self.try_spawn(command);
        running.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a command of [`Place::command`] and does not wait.
    ///
    /// # Errors
    /// When it does not start.
    pub fn try_spawn(&self, mut command: Command) -> io::Result<Running> {
        command.stdout(Stdio::piped());
        let mut process = Process::spawn_piped("lasthop", command, &self.path("log"))?;
        Ok(Running {
            out: process.take_stdout(),
            process,
            program: self.program.clone(),
            dir: self.run_dir(),
        })
    }

    /// Runs Lasthop with an invalid configuration. Returns exit status and error message.
    ///
    /// # Panics
    /// When it does not end, or prints something.
    pub fn refuses(&self, config: &str) -> (Option<i32>, String) {
        let mut running = self.spawn(self.command(config));
        let status = running.wait();
        assert_eq!(running.rest_of_stdout(), "");
        (status.code(), running.log())
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

/// A running Lasthop; killed with its children when dropped.
pub struct Running {
    process: Process,
    out: Option<ChildStdout>,
    program: PathBuf,
    dir: PathBuf,
}

impl Running {
    /// Reads the ready message, which must be the first line.
    ///
    /// # Panics
    /// When another line comes, or none within [`LIMIT`].
    pub fn wait_ready(&mut self) {
        self.try_ready().unwrap_or_else(|error| panic!("{error}"));
    }

    fn try_ready(&mut self) -> io::Result<()> {
        let ready = self.read_ready();
        ready.map_err(|error| self.process.with_log(&error))
    }

    fn read_ready(&mut self) -> io::Result<()> {
        let out = self.out.as_mut();
        let out = out.ok_or_else(|| io::Error::other("its output is closed"))?;
        let (mut line, mut read) = ([0; READY.len()], 0);
        let end = Instant::now() + LIMIT;
        while read < line.len() {
            check()?;
            if Instant::now() >= end {
                return Err(io::Error::other(format!("not ready within {LIMIT:?}")));
            }
            let pause = Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            };
            if poll(&mut [PollFd::new(out, PollFlags::IN)], Some(&pause)) == Ok(0) {
                continue;
            }
            match out.read(&mut line[read..])? {
                0 => return Err(io::Error::other("it ended before it was ready")),
                count => read += count,
            }
        }
        if line != READY.as_bytes() {
            let line = String::from_utf8_lossy(&line).into_owned();
            return Err(io::Error::other(format!("unexpected output {line:?}")));
        }
        Ok(())
    }

    /// Closes its standard output.
    pub fn close_stdout(&mut self) {
        self.out = None;
    }

    /// Reads its standard output to the end.
    ///
    /// # Panics
    /// When that is no text.
    pub fn rest_of_stdout(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut out) = self.out.take() {
            out.read_to_string(&mut text).expect("output is text");
        }
        text
    }

    /// Returns its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Returns the process id of the supervisor.
    #[must_use]
    pub fn supervisor(&self) -> u32 {
        self.process.pid()
    }

    /// Waits until the spare processes of control and of the switch are there, which have
    /// descriptors in the supervisor.
    pub fn wait_for_spares(&self) {
        crate::wait::wait_until("spare processes", || {
            crate::procfs::spares(self.supervisor()).len() == 2
        });
    }

    /// Returns the runtime directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of a file in the runtime directory, such as a socket.
    #[must_use]
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Sends a signal to the supervisor alone.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Sends a signal to its process group.
    pub fn signal_group(&self, signal: Signal) {
        self.process.signal_group(signal);
    }

    /// Returns whether the supervisor runs.
    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Waits for the end of the supervisor.
    ///
    /// # Panics
    /// When it does not end within [`LIMIT`].
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the end of lasthop", || self.process.ended())
    }

    /// Kills the supervisor, and waits until all its processes are gone.
    ///
    /// # Panics
    /// When they are not within [`LIMIT`].
    pub fn kill(&mut self) {
        let children = self.children();
        self.process.kill();
        wait_until("the end of all processes", || {
            children.iter().all(|pid| procfs::is_gone(*pid))
        });
    }

    /// Ends it with a signal, and checks its exit status and that no process is left.
    ///
    /// # Panics
    /// When it fails, or a process is left.
    pub fn end(&mut self, signal: Signal) {
        let below = procfs::programs_below(self.supervisor());
        self.signal(signal);
        assert_eq!(self.wait().code(), Some(0), "{}", self.log());
        let left: Vec<_> = below
            .iter()
            .filter(|(pid, _)| !procfs::is_gone(*pid))
            .collect();
        assert!(left.is_empty(), "processes are left: {left:?}");
    }

    /// Ends it in order, without checks.
    pub fn terminate(&mut self) {
        self.process.terminate(LIMIT);
    }

    /// Returns a command of the command line for this Lasthop.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--runtime-dir").arg(&self.dir).args(words);
        command
    }

    /// Runs a command of the command line.
    ///
    /// # Panics
    /// When the program does not start.
    pub fn run(&self, words: &[&str]) -> Output {
        let output = self.command(words).output();
        output.expect("the command line runs")
    }

    /// Runs a command of the command line, and returns its output.
    ///
    /// # Errors
    /// With its message, when its exit status is not 0.
    pub fn ask(&self, words: &[&str]) -> io::Result<String> {
        let output = self.command(words).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!(
            "lasthop {}: {}: {}",
            words.join(" "),
            output.status,
            complaint.trim()
        )))
    }

    /// Runs a command of the command line, whose words have no blanks.
    pub fn cli(&self, line: &str) -> Output {
        self.run(&line.split(' ').collect::<Vec<_>>())
    }

    /// Waits until a command of the command line succeeds.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_cli(&self, line: &str) {
        wait_until(line, || self.cli(line).status.success());
    }

    /// Returns the output of a command, which must succeed.
    ///
    /// # Panics
    /// When it fails.
    pub fn prints(&self, line: &str) -> String {
        let output = self.ask(&line.split(' ').collect::<Vec<_>>());
        output.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the document of a command with `--json`.
    ///
    /// # Panics
    /// When it fails.
    pub fn json(&self, line: &str) -> Value {
        let text = self.prints(&format!("{line} --json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    /// Returns the state of a port.
    ///
    /// # Panics
    /// When there is no such port.
    #[must_use]
    pub fn state(&self, port: &str) -> String {
        let status = self.json(&format!("port show {port}"));
        status["state"]
            .as_str()
            .expect("a port has a state")
            .to_owned()
    }

    /// Returns a process of `status`, if control replies.
    #[must_use]
    pub fn try_process(&self, name: &str) -> Option<Value> {
        let output = self.cli("status --json");
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        let all = status["processes"].as_array()?;
        all.iter().find(|p| p["name"] == name).cloned()
    }

    /// Returns the process id of "control" or "switch" from `status`.
    ///
    /// # Panics
    /// When control does not reply.
    #[must_use]
    pub fn pid(&self, name: &str) -> u32 {
        let process = self.try_process(name).expect("control replies");
        let pid = process["pid"].as_u64().expect("it runs");
        u32::try_from(pid).expect("a process id")
    }

    /// Kills a process, and waits until `status` shows its successor. Returns the time until then.
    ///
    /// # Panics
    /// When there is none within [`LIMIT`].
    pub fn kill_and_wait(&self, name: &str) -> Duration {
        let pid = self.pid(name);
        let restarts = self.try_process(name).expect("control replies")["restarts"].as_i64();
        send(pid, Signal::KILL);
        let killed = Instant::now();
        wait_until("there is a successor", || {
            let Some(process) = self.try_process(name) else {
                return false;
            };
            process["restarts"].as_i64() > restarts && !process["pid"].is_null()
        });
        killed.elapsed()
    }

    /// Returns a running program below the supervisor from `/proc`, without control.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<u32> {
        let below = procfs::programs_below(self.supervisor());
        let found = below.into_iter().find(|(_, program)| program == name);
        found.map(|(pid, _)| pid)
    }

    /// Sends a signal to the switch, once there is one.
    ///
    /// # Panics
    /// When there is none within [`LIMIT`].
    pub fn kill_switch(&self, how: Signal) {
        let switch = wait_for("there is a switch", || self.program("lasthop-switch"));
        send(switch, how);
    }

    /// Returns its child processes.
    #[must_use]
    pub fn children(&self) -> Vec<u32> {
        procfs::children(self.supervisor())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.process.ended().is_some() {
            return;
        }
        let below = procfs::programs_below(self.supervisor());
        self.process.signal(Signal::KILL);
        for (pid, _) in below {
            send(pid, Signal::KILL);
        }
    }
}
