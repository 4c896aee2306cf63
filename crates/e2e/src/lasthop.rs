//! A running Lasthop in a runtime directory of its own, and its command line.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use testkit::metrics::Metrics;

use crate::paths;
use crate::proc;
use crate::process::{Process, send};
use crate::stats::Stats;
use crate::wait::{eventually, within};

/// How long Lasthop may take to be ready, or to end.
const START: Duration = Duration::from_secs(15);
/// How long a port may take to get into a state that the test waits for.
const STATE: Duration = Duration::from_secs(15);

/// Tolerance for an allocator, in KiB.
const SLACK_KIB: u64 = 1024;

/// A configuration with two ports for guests, and nothing else.
pub const TWO_PORTS: &str = r#"
[switch]
name = "host1"

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"

[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
"#;

/// A running Lasthop; killed with all its processes when dropped.
pub struct Lasthop {
    process: Process,
    folder: TempDir,
}

/// Resources of one of Lasthop's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    /// The process: `lasthop`, `lasthop-control`, `lasthop-switch`.
    pub name: String,
    /// Open descriptors.
    pub fds: usize,
    /// Threads.
    pub threads: usize,
    /// Mapped pieces of memory.
    pub mappings: usize,
    /// Resident memory of its own in KiB.
    pub private_kib: u64,
}

impl Lasthop {
    /// Starts Lasthop with this configuration and waits until it is ready.
    pub fn start(config: &str) -> Lasthop {
        let folder = tempfile::Builder::new()
            .prefix("lasthop-")
            .tempdir()
            .expect("a temporary folder");
        let file = folder.path().join("lasthop.toml");
        fs::write(&file, config).expect("the configuration can be written");
        fs::create_dir(folder.path().join("run")).expect("a runtime directory");
        let process = run(folder.path());
        Lasthop { process, folder }
    }

    /// `kill -9` of the supervisor, with which all other processes end, and a start from the
    /// configuration as an operator does it.
    pub fn start_again(&mut self) {
        let children = proc::descendants(self.process.pid());
        self.process.kill();
        eventually("the end of all processes", START, || {
            let gone = children.iter().all(|(pid, _)| proc::threads(*pid) == 0);
            gone.then_some(())
        });
        self.process = run(self.folder.path());
    }

    /// Runs `lasthop run` with a configuration that it must refuse, and gives exit status and
    /// complaint.
    pub fn refused(config: &str) -> (i32, String) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Lasthop::refused_in(folder.path(), config)
    }

    /// Runs a refused configuration in a folder of the caller's; the file is `lasthop.toml` there,
    /// the runtime directory `run`.
    pub fn refused_in(folder: &Path, config: &str) -> (i32, String) {
        fs::write(folder.join(CONFIGURATION), config).expect("the configuration can be written");
        fs::create_dir_all(folder.join(RUNTIME)).expect("a runtime directory");
        let args = run_arguments(folder);
        let mut process = Process::start(
            "lasthop",
            paths::binary("lasthop"),
            &args,
            &folder.join("log"),
        );
        let status = process
            .end(START)
            .expect("a wrong configuration ends `lasthop run`");
        (status.code().unwrap_or(-1), process.output())
    }

    /// The runtime directory.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// A socket in the runtime directory.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Returns Lasthop's log.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Runs the command line against this Lasthop.
    pub fn cli(&self, args: &[&str]) -> Output {
        let mut command = Command::new(paths::binary("lasthop"));
        command.arg("--runtime-dir").arg(self.folder()).args(args);
        command.output().expect("the command line runs")
    }

    /// Runs the command line, which must succeed, and gives what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.cli(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "lasthop {args:?}: {}: {error}",
            output.status
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A `--json` document.
    pub fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[args, &["--json"]].concat());
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("lasthop {args:?}: {error}: {text}"))
    }

    /// Returns the status of a Lasthop whose processes may be dying: null when the command fails.
    fn try_status(&self) -> Value {
        let output = self.cli(&["status", "--json"]);
        if output.status.success() {
            serde_json::from_slice(&output.stdout).expect("a JSON document")
        } else {
            Value::Null
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        Stats::read(&self.json(&["stats"]))
    }

    /// Returns the counters, without the command line, which takes longer to start than to answer:
    /// for a test that reads them a thousand times.
    pub fn quick_stats(&self) -> Stats {
        let body = self.get("/v1/stats");
        Stats::read(&serde_json::from_str(&body).expect("statistics are JSON"))
    }

    /// Returns the metrics as a collector gets them.
    pub fn metrics(&self) -> Metrics {
        Metrics::read(&self.get("/metrics")).expect("a page by the rules")
    }

    /// Returns the body at a path of the API.
    fn get(&self, path: &str) -> String {
        let ask = format!("GET {path} HTTP/1.1\r\nhost: lasthop\r\nconnection: close\r\n\r\n");
        let mut stream = UnixStream::connect(self.socket("api.sock")).expect("the API listens");
        stream.write_all(ask.as_bytes()).expect("the API is asked");
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        read.expect("the API answers with text");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
        body.to_owned()
    }

    /// Returns a port's part of `status`.
    pub fn port(&self, name: &str) -> Value {
        let status = self.json(&["status"]);
        port_in(&status, name).unwrap_or_else(|| panic!("no port {name} in {status}"))
    }

    /// Waits until a port is in a state, and gives its part of `status`.
    pub fn wait_port(&self, name: &str, state: &str) -> Value {
        let mut last = Value::Null;
        let found = within(STATE, || {
            last = port_in(&self.try_status(), name)?;
            (last["state"] == state).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("port {name} is not {state} after {STATE:?}: {last}"))
    }

    /// Waits until the reason that `status` gives for a port's state contains `text`.
    pub fn wait_reason(&self, name: &str, text: &str) -> Value {
        let mut last = Value::Null;
        let found = within(STATE, || {
            last = port_in(&self.try_status(), name)?;
            last["reason"]
                .as_str()
                .is_some_and(|reason| reason.contains(text))
                .then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("port {name} gives no reason with {text:?}: {last}"))
    }

    /// The process id of `lasthop-control` or `lasthop-switch`, if it runs.
    pub fn pid(&self, name: &str) -> Option<u32> {
        let processes = proc::descendants(self.process.pid());
        processes
            .into_iter()
            .find(|(_, program)| program == name)
            .map(|(pid, _)| pid)
    }

    /// `kill -9` of control. Returns at once; the supervisor starts another.
    pub fn kill_control(&self) {
        send(
            self.pid("lasthop-control").expect("control runs"),
            Signal::KILL,
        );
    }

    /// `kill -9` of the switch. Returns at once; the supervisor starts another.
    pub fn kill_switch(&self) {
        send(
            self.pid("lasthop-switch").expect("the switch runs"),
            Signal::KILL,
        );
    }

    /// Waits until a control other than `before` answers the command line.
    pub fn wait_control(&self, before: u32) {
        eventually("a new control answers", START, || {
            let new = self.pid("lasthop-control").is_some_and(|pid| pid != before);
            (new && self.cli(&["status", "--json"]).status.success()).then_some(())
        });
    }

    /// Returns the resources of each process, supervisor first, once they have been the same for a
    /// while: cleanup may still be in progress.
    pub fn footprint(&self) -> Vec<Footprint> {
        let counts = |all: &[Footprint]| -> Vec<_> {
            let all = all.iter();
            all.map(|of| (of.name.clone(), of.fds, of.threads))
                .collect()
        };
        let (mut last, mut same) = (self.footprint_now(), 0);
        eventually("all processes hold the same for a while", START, || {
            std::thread::sleep(Duration::from_millis(50));
            let now = self.footprint_now();
            same = if counts(&now) == counts(&last) {
                same + 1
            } else {
                0
            };
            last = now;
            (same == 5).then_some(())
        });
        last
    }

    fn footprint_now(&self) -> Vec<Footprint> {
        let mut processes = vec![(self.process.pid(), "lasthop".to_owned())];
        processes.extend(proc::descendants(self.process.pid()));
        let mut found: Vec<Footprint> = processes
            .into_iter()
            .map(|(pid, name)| footprint(pid, name))
            .collect();
        found[1..].sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// The sockets that belong to VMMs, which listen on them.
    fn dialed(&self) -> Vec<String> {
        let list = self.json(&["port", "list"]);
        let ports = list["ports"].as_array().expect("ports are listed").iter();
        let dialed = ports.filter(|port| port["role"] == "client");
        dialed
            .filter_map(|port| port["socket"].as_str().map(str::to_owned))
            .collect()
    }

    /// Ends Lasthop as an operator does: it must exit with 0, within seconds, and leave no socket
    /// and no process behind.
    pub fn stop(mut self) {
        let children = proc::descendants(self.process.pid());
        let dialed = self.dialed();
        self.process.signal(Signal::TERM);
        let status = self.process.end(START).expect("lasthop ends on SIGTERM");
        assert_eq!(status.code(), Some(0), "after SIGTERM: {status}");
        let mut left = sockets(&self.folder());
        left.retain(|socket| !dialed.contains(socket));
        assert!(left.is_empty(), "sockets left behind: {left:?}");
        let alive: Vec<_> = children
            .into_iter()
            .filter(|(pid, _)| proc::threads(*pid) > 0)
            .collect();
        assert!(alive.is_empty(), "processes left behind: {alive:?}");
    }
}

impl Drop for Lasthop {
    fn drop(&mut self) {
        for (pid, _) in proc::descendants(self.process.pid()) {
            send(pid, Signal::KILL);
        }
    }
}

/// Name of the configuration file in a folder of a Lasthop.
const CONFIGURATION: &str = "lasthop.toml";
const RUNTIME: &str = "run";

/// `lasthop run` in a folder with a configuration.
fn run_arguments(folder: &Path) -> [String; 5] {
    let (file, runtime) = (folder.join(CONFIGURATION), folder.join(RUNTIME));
    let (file, runtime) = (text(&file), text(&runtime));
    ["run", "--config", &file, "--runtime-dir", &runtime].map(str::to_owned)
}

/// Starts it, and waits until it is ready.
fn run(folder: &Path) -> Process {
    let args = run_arguments(folder);
    let log = folder.join("lasthop.log");
    let mut process = Process::start("lasthop", paths::binary("lasthop"), &args, &log);
    process.printed("lasthop: ready", START, |line| line == "lasthop: ready");
    process
}

fn footprint(pid: u32, name: String) -> Footprint {
    Footprint {
        name,
        fds: proc::open_fds(pid),
        threads: proc::threads(pid),
        mappings: proc::mappings(pid),
        private_kib: proc::private_kib(pid),
    }
}

/// Panics unless each process holds what it held before, but for what an allocator may keep for
/// itself.
pub fn same_footprint(what: &str, before: &[Footprint], after: &[Footprint]) {
    assert_eq!(
        before.len(),
        after.len(),
        "{what}: before {before:#?}, after {after:#?}"
    );
    for (before, after) in before.iter().zip(after) {
        let counts = |print: &Footprint| (print.name.clone(), print.fds, print.threads);
        assert_eq!(
            counts(after),
            counts(before),
            "{what}: (process, descriptors, threads)"
        );
        // The allocator may map a piece more or less.
        assert!(
            after.mappings <= before.mappings + 4,
            "{what}: mappings: {before:?} {after:?}"
        );
        let grown = after.private_kib.saturating_sub(before.private_kib);
        assert!(
            grown <= SLACK_KIB,
            "{what}: {} grew by {grown} KiB",
            after.name
        );
    }
}

/// Names of the sockets in a folder.
fn sockets(folder: &Path) -> Vec<String> {
    use std::os::unix::fs::FileTypeExt as _;
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let sockets = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A port's part of `status`.
fn port_in(status: &Value, name: &str) -> Option<Value> {
    let mut ports = status["ports"].as_array()?.iter();
    ports.find(|port| port["name"] == name).cloned()
}
