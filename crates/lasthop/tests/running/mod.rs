//! Running Lasthop, which ends with the test.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Time limit that suffices on a busy machine: 20 seconds.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Waits until `what` holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a `[[port]]` table.
pub(crate) fn port(name: &str, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n{more}\n"
    )
}

/// Directory of a test.
pub(crate) struct Place {
    root: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Returns the runtime directory.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// Returns the names of all files in the runtime directory.
    pub(crate) fn left(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.run_dir()) else {
            return Vec::new();
        };
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Returns `lasthop run` with this configuration, whose first line is the first of `config`.
    pub(crate) fn command(&self, config: &str) -> Command {
        let file = self.path("lasthop.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(testkit::programs::program("lasthop"));
        command.env_remove("LASTHOP_RUNTIME_DIR");
        command.env_remove("LASTHOP_LOG");
        command.arg("run").arg("--config").arg(file);
        command.arg("--runtime-dir").arg(self.run_dir());
        command
    }

    /// Starts Lasthop and waits until it is ready.
    pub(crate) fn start(&self, config: &str) -> Running {
        let mut running = self.spawn(self.command(config));
        running.wait_ready();
        running
    }

    /// Starts a command of [`Place::command`], in a process group of its own.
    pub(crate) fn spawn(&self, mut command: Command) -> Running {
        let log = self.path("log");
        let file = File::options().create(true).append(true).open(&log);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file.unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        Running {
            out: child.stdout.take(),
            child,
            dir: self.run_dir(),
            log,
        }
    }

    /// Runs Lasthop with an invalid configuration. Returns exit status and error message.
    pub(crate) fn refuses(&self, config: &str) -> (Option<i32>, String) {
        let mut running = self.spawn(self.command(config));
        let status = running.wait();
        assert_eq!(running.rest_of_stdout(), "");
        (status.code(), running.log())
    }
}

/// Running Lasthop.
pub(crate) struct Running {
    child: Child,
    out: Option<ChildStdout>,
    dir: PathBuf,
    log: PathBuf,
}

impl Running {
    /// Reads the ready message, which must be the first line.
    pub(crate) fn wait_ready(&mut self) {
        let mut line = [0; 15];
        let read = self.out.as_mut().unwrap().read_exact(&mut line);
        assert!(read.is_ok(), "it ended: {}", self.log());
        assert_eq!(std::str::from_utf8(&line), Ok("lasthop: ready\n"));
    }

    /// Closes its standard output.
    pub(crate) fn close_stdout(&mut self) {
        self.out = None;
    }

    pub(crate) fn rest_of_stdout(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut out) = self.out.take() {
            out.read_to_string(&mut text).unwrap();
        }
        text
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn signal_group(&self, signal: Signal) {
        kill_process_group(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Ends it with a signal, and checks its exit status and that no process is left.
    pub(crate) fn end(&mut self, signal: Signal) {
        let children = self.children();
        self.signal(signal);
        assert_eq!(self.wait().code(), Some(0), "{}", self.log());
        for pid in children {
            assert!(is_gone(pid), "process {pid} is left");
        }
    }

    /// Runs a command of the command line.
    pub(crate) fn cli(&self, line: &str) -> Output {
        Command::new(testkit::programs::program("lasthop"))
            .arg("--runtime-dir")
            .arg(&self.dir)
            .args(line.split(' '))
            .output()
            .unwrap()
    }

    /// Returns the output of a command, which must succeed.
    pub(crate) fn prints(&self, line: &str) -> String {
        let output = self.cli(line);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {complaint}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.prints(&format!("{line} --json"))).unwrap()
    }

    /// Returns the state of a port.
    pub(crate) fn state(&self, port: &str) -> String {
        let status = self.json(&format!("port show {port}"));
        status["state"].as_str().unwrap().to_owned()
    }

    /// Returns a process of `status`, if control replies.
    pub(crate) fn try_process(&self, name: &str) -> Option<Value> {
        let output = self.cli("status --json");
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        let all = status["processes"].as_array()?;
        all.iter().find(|p| p["name"] == name).cloned()
    }

    /// Returns the process id of "control" or "switch".
    pub(crate) fn pid(&self, name: &str) -> i32 {
        let process = self.try_process(name).unwrap();
        i32::try_from(process["pid"].as_i64().unwrap()).unwrap()
    }

    /// Kills a process, and waits until `status` shows its successor. Returns the time until then.
    pub(crate) fn kill_and_wait(&self, name: &str) -> Duration {
        let pid = self.pid(name);
        let restarts = self.try_process(name).unwrap()["restarts"].as_i64();
        signal(pid, Signal::KILL);
        let killed = Instant::now();
        eventually("there is a successor", || {
            let Some(process) = self.try_process(name) else {
                return false;
            };
            process["restarts"].as_i64() > restarts && !process["pid"].is_null()
        });
        killed.elapsed()
    }

    /// Returns the running switch from `/proc`, without control.
    pub(crate) fn switch(&self) -> Option<i32> {
        let is_switch = |pid: &i32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "lasthop-switch")
        };
        let mut living = self.children().into_iter().filter(|pid| !is_gone(*pid));
        living.find(is_switch)
    }

    /// Sends a signal to the switch, once there is one.
    pub(crate) fn kill_switch(&self, how: Signal) {
        let mut found = None;
        eventually("there is a switch", || {
            found = self.switch();
            found.is_some()
        });
        signal(found.unwrap(), how);
    }

    /// Returns its child processes.
    pub(crate) fn children(&self) -> Vec<i32> {
        let own = self.child.id() as i32;
        let entries = std::fs::read_dir("/proc").unwrap();
        let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| parent_of(*pid) == Some(own)).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let children = self.children();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in children {
            signal(pid, Signal::KILL);
        }
        if std::thread::panicking() {
            eprintln!("its log:\n{}", self.log());
        }
    }
}

/// Sends a signal to a process, which may have ended already.
pub(crate) fn signal(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// Returns state and parent of a process (proc_pid_stat(5)).
fn stat(pid: i32) -> Option<(String, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut after_name = text.rsplit_once(')')?.1.split_whitespace();
    Some((
        after_name.next()?.to_owned(),
        after_name.next()?.parse().ok()?,
    ))
}

fn parent_of(pid: i32) -> Option<i32> {
    Some(stat(pid)?.1)
}

/// Returns whether a process has ended, reaped or not.
pub(crate) fn is_gone(pid: i32) -> bool {
    test_kill_process(Pid::from_raw(pid).unwrap()).is_err()
        || stat(pid).is_none_or(|(state, _)| state == "Z" || state == "X")
}

/// Returns whether a socket accepts connections.
pub(crate) fn listens(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}
