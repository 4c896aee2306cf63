//! A running Lasthop in a runtime directory of its own, and its command line.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testkit::iommu::IommuConfig;
use testkit::lasthop::{Place, Running, port};
use testkit::metrics::Metrics;
use testkit::process::send;
use testkit::procfs;
use testkit::turn::needs_turn;
use testkit::wait::{LIMIT, wait_for, wait_until, within};
use testkit::{FakeGuest, GuestConfig};

use crate::stats::Stats;
use crate::{nobody, paths};
use testkit::netns::Netns;

/// Tolerance for an allocator, in KiB.
const SLACK_KIB: u64 = 1024;

const LASTHOP: &str = "Lasthop";

/// A configuration with more keys of the switch, and with a port for a guest for each name.
pub fn guest_ports(switch: &str, names: &[&str]) -> String {
    let ports: String = names.iter().map(|name| port(name, "")).collect();
    format!("[switch]\nname = \"host1\"\n{switch}\n{ports}")
}

/// A running Lasthop; killed with all its processes when dropped.
pub struct Lasthop {
    running: Running,
    place: Place,
}

impl Deref for Lasthop {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

/// Words of the command that adds a port at run time.
pub fn add_port<'a>(name: &'a str, socket: &'a str, segment: &'a str) -> [&'a str; 11] {
    [
        "port",
        "add",
        name,
        "--kind",
        "vhost-user",
        "--socket",
        socket,
        "--segment",
        segment,
        // Our generators are many stations.
        "--macs",
        "any",
    ]
}

/// One port of a configuration, for a generator of frames.
pub fn port_table(name: &str, segment: &str) -> String {
    let security = "port_security = { macs = \"any\", dhcp_server = true }";
    port(name, &format!("segment = \"{segment}\"\n{security}"))
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

/// A place for a Lasthop of the calling test.
fn new_place() -> Place {
    needs_turn(LASTHOP, false);
    Place::of(paths::binary("lasthop"))
}

impl Lasthop {
    /// Starts Lasthop with this configuration and waits until it is ready.
    pub fn start(config: &str) -> Lasthop {
        let place = new_place();
        // VMMs of other users connect to sockets in it.
        fs::create_dir(place.run_dir()).expect("a runtime directory");
        let running = place.start(config);
        Lasthop { running, place }
    }

    /// As [`Lasthop::start`], as `nobody` in a network namespace.
    pub fn start_as_nobody(config: &str, namespace: &Netns) -> Lasthop {
        let place = new_place();
        fs::create_dir(place.run_dir()).expect("a runtime directory");
        let command = place.command(config);
        nobody::give(&[
            &place.path(""),
            &place.run_dir(),
            &place.path("lasthop.toml"),
        ]);
        let mut running = place.spawn(nobody::command(&command, &namespace.path()));
        running.wait_ready();
        Lasthop { running, place }
    }

    /// As [`Lasthop::start`], where `/etc/resolv.conf` is a file of the caller's.
    pub fn start_with_resolvers(config: &str, resolvers: &Path) -> Lasthop {
        const BIND: &str = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
        let place = new_place();
        fs::create_dir(place.run_dir()).expect("a runtime directory");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", BIND]).arg(resolvers);
        nobody::append(&mut command, &place.command(config));
        let mut running = place.spawn(command);
        running.wait_ready();
        Lasthop { running, place }
    }

    /// `kill -9` of the supervisor, with which all other processes end, and a start from the
    /// configuration as an operator does it.
    pub fn start_again(&mut self) {
        let config = fs::read_to_string(self.place.path("lasthop.toml"));
        self.running.kill();
        self.running = self
            .place
            .start(&config.expect("the configuration is there"));
    }

    /// Starts Lasthop in a place of the caller's and waits until it is ready.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn start_in(place: Place, config: &str) -> io::Result<Lasthop> {
        needs_turn(LASTHOP, false);
        fs::create_dir(place.run_dir())?;
        let running = place.try_start(config)?;
        Ok(Lasthop { running, place })
    }

    /// Starts Lasthop again, whose supervisor has died, and does not wait.
    ///
    /// # Errors
    /// When it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        let config = fs::read_to_string(self.place.path("lasthop.toml"))?;
        self.running = self.place.try_spawn(self.place.command(&config))?;
        Ok(())
    }

    /// Runs `lasthop run` with a configuration that it must refuse, and gives exit status and
    /// complaint.
    pub fn refused(config: &str) -> (i32, String) {
        let place = new_place();
        let (status, complaint) = place.refuses(config);
        (status.unwrap_or(-1), complaint)
    }

    /// Attaches a guest of our own to a port.
    pub fn connect(&self, port: &str, number: u8) -> FakeGuest {
        self.connect_as(port, GuestConfig::default().guest(number))
    }

    /// Attaches a guest of our own to a port, configured like this.
    pub fn connect_as(&self, port: &str, config: GuestConfig) -> FakeGuest {
        FakeGuest::connect(&self.socket_of(port), config).expect("the port takes a guest")
    }

    /// Attaches a guest of our own with an IOMMU to a port.
    pub fn connect_translated(
        &self,
        port: &str,
        config: GuestConfig,
        iommu: IommuConfig,
    ) -> FakeGuest {
        FakeGuest::connect_translated(&self.socket_of(port), config, iommu)
            .expect("the port takes a guest with an IOMMU")
    }

    /// The runtime directory.
    pub fn folder(&self) -> PathBuf {
        self.place.run_dir()
    }

    /// The socket of a port.
    pub fn socket_of(&self, port: &str) -> PathBuf {
        self.socket(&format!("{port}.sock"))
    }

    /// Runs the command line against this Lasthop.
    pub fn cli(&self, args: &[&str]) -> Output {
        self.running.run(args)
    }

    /// Runs the command line, which must succeed, and gives what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.running.ask(args);
        output.unwrap_or_else(|error| panic!("{error}"))
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

    /// Returns the counters of a Lasthop that may have died.
    ///
    /// # Errors
    /// When control does not reply.
    pub fn try_stats(&self) -> io::Result<Stats> {
        let text = self.ask(&["stats", "--json"])?;
        Ok(Stats::read(&serde_json::from_str(&text)?))
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

    /// Waits until a port's guest has sent so many more frames.
    pub fn wait_sent(&self, port: &str, frames: u64) {
        let before = self.stats().sent(port);
        wait_until("frames flow", || self.stats().sent(port) >= before + frames);
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
        let found = within(LIMIT, || {
            last = port_in(&self.try_status(), name)?;
            (last["state"] == state).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("port {name} is not {state} after {LIMIT:?}: {last}"))
    }

    /// Waits until the reason that `status` gives for a port's state contains `text`.
    pub fn wait_reason(&self, name: &str, text: &str) -> Value {
        let mut last = Value::Null;
        let found = within(LIMIT, || {
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
        self.running.program(name)
    }

    /// The process id of a program, once it runs: the supervisor may be about to start one.
    fn running(&self, name: &str) -> u32 {
        wait_for(name, || self.pid(name))
    }

    /// `kill -9` of control. Returns at once; the supervisor starts another.
    pub fn kill_control(&self) {
        send(self.running("lasthop-control"), Signal::KILL);
    }

    /// `kill -9` of the switch. Returns at once; the supervisor starts another.
    pub fn kill_switch(&self) {
        send(self.running("lasthop-switch"), Signal::KILL);
    }

    /// `kill -9` of the switch. Waits until the new control, which comes with its successor,
    /// answers the command line.
    pub fn replace_switch(&self) {
        let control = self.running("lasthop-control");
        self.kill_switch();
        self.wait_control(control);
    }

    /// `kill -9` of control. Waits until its successor answers the command line.
    pub fn replace_control(&self) {
        let control = self.running("lasthop-control");
        self.kill_control();
        self.wait_control(control);
    }

    /// `kill -9` of control and the switch at once. Waits until a control answers the command line
    /// that has the next switch.
    pub fn replace_both(&self) {
        let restarts = || self.try_process("switch")?["restarts"].as_u64();
        let before = restarts();
        self.kill_control();
        self.kill_switch();
        wait_until("both are replaced", || restarts() > before);
    }

    /// Waits until a control other than `before` answers the command line.
    pub fn wait_control(&self, before: u32) {
        wait_until("a new control answers", || {
            let new = self.pid("lasthop-control").is_some_and(|pid| pid != before);
            new && self.cli(&["status", "--json"]).status.success()
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
        self.running.wait_for_spares();
        let (mut last, mut same) = (self.footprint_now(), 0);
        wait_for("all processes hold the same for a while", || {
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
        let supervisor = self.running.supervisor();
        let mut processes = vec![(supervisor, "lasthop".to_owned())];
        processes.extend(procfs::programs_below(supervisor));
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

    /// Ends Lasthop in order, without checks.
    pub fn end(mut self) {
        self.running.terminate();
    }

    /// Ends Lasthop as an operator does: it must exit with 0, within seconds, and leave no socket
    /// and no process behind.
    pub fn stop(mut self) {
        let dialed = self.dialed();
        self.running.end(Signal::TERM);
        let mut left = sockets(&self.folder());
        left.retain(|socket| !dialed.contains(socket));
        assert!(left.is_empty(), "sockets left behind: {left:?}");
    }
}

fn footprint(pid: u32, name: String) -> Footprint {
    Footprint {
        name,
        fds: procfs::descriptors(pid).unwrap_or(0) as usize,
        threads: procfs::threads(pid),
        mappings: procfs::mappings(pid),
        private_kib: procfs::private_kib(pid),
    }
}

/// Waits until each process holds what it held before, but for what an allocator may keep for
/// itself: cleanup may still be in progress, and what is left behind stays.
///
/// # Panics
/// When one holds something else after [`LIMIT`].
pub fn same_footprint(what: &str, before: &[Footprint], lasthop: &Lasthop) {
    let mut other = None;
    let same = within(LIMIT, || {
        other = difference(before, &lasthop.footprint());
        other.is_none().then_some(())
    });
    assert!(same.is_some(), "{what}: {}", other.unwrap_or_default());
}

/// The first process that does not hold what it held before.
fn difference(before: &[Footprint], after: &[Footprint]) -> Option<String> {
    if before.len() != after.len() {
        return Some(format!("before {before:#?}, after {after:#?}"));
    }
    let counts = |print: &Footprint| (print.name.clone(), print.fds, print.threads);
    let differs = |(before, after): &(&Footprint, &Footprint)| {
        let grown = after.private_kib.saturating_sub(before.private_kib);
        // The allocator may map a piece more or less.
        let fits = after.mappings <= before.mappings + 4 && grown <= SLACK_KIB;
        counts(after) != counts(before) || !fits
    };
    let (before, after) = before.iter().zip(after).find(differs)?;
    Some(format!("before {before:?}, after {after:?}"))
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

/// A port's part of `status`.
fn port_in(status: &Value, name: &str) -> Option<Value> {
    let mut ports = status["ports"].as_array()?.iter();
    ports.find(|port| port["name"] == name).cloned()
}
