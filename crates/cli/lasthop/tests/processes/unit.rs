//! vCPU states under the package's unit, which is applied without systemd: the shipped programs
//! have the rights that the unit grants, and no others.

mod confinement;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use confinement::Unit;
use rustix::process::Signal;
use testkit::lasthop::{Place, Running, port};
use testkit::packets::{Flow, udp};
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig, procfs};

/// Name of the variable with the socket of [`a_vmm_of_another_user`].
const SOCKET: &str = "LASTHOP_TEST_VMM_SOCKET";
/// User `nobody`.
const NOBODY: u32 = 65534;
/// `CAP_PERFMON` and `CAP_BPF` (capabilities(7)).
const LOADING: u64 = 1 << 38 | 1 << 39;

fn config() -> String {
    let switch = "[switch]\nname = \"host1\"\n";
    format!("{switch}{}{}", port("vm1", ""), port("vm2", ""))
}

/// Starts Lasthop under the unit with these drop-ins; `None` where that is not possible.
fn start(place: &Place, files: &[&str]) -> Option<Running> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tested: the unit's confinement needs root");
        return None;
    }
    let mut command = place.command(&config());
    Unit::of(files).confine(&mut command);
    match place.try_spawn(command) {
        Ok(mut lasthop) => {
            lasthop.wait_ready();
            Some(lasthop)
        }
        Err(error) => {
            eprintln!("not tested: the unit's confinement: {error}");
            None
        }
    }
}

/// Returns the source of states, and the reason why there is none.
fn by(lasthop: &Running) -> (String, String) {
    let status = lasthop.json("status");
    let state = &status["switch"]["guest_state"];
    let text = |key: &str| state[key].as_str().unwrap_or_default().to_owned();
    (text("by"), text("reason"))
}

fn threads(lasthop: &Running, port: &str) -> Option<u64> {
    let output = lasthop.cli(&format!("port show {port} --json"));
    let port: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    port["vcpus"].as_u64()
}

/// Returns whether the kernel loads the programs for a Lasthop with all rights.
fn is_possible() -> bool {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    let (source, reason) = by(&lasthop);
    lasthop.end(Signal::TERM);
    if source != "bpf" {
        eprintln!("not tested: {reason}");
    }
    source == "bpf"
}

/// Returns the numbers of the BPF programs that a process keeps attached.
fn programs(pid: u32) -> BTreeSet<String> {
    let all = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let texts = all.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
    let links = texts.filter(|text| text.contains("link_type:"));
    let program = |text: String| {
        let mut lines = text.lines();
        lines.find_map(|line| Some(line.strip_prefix("prog_id:")?.trim().to_owned()))
    };
    links.filter_map(program).collect()
}

/// Checks that the supervisor has given up what loads programs.
fn has_given_up(lasthop: &Running) {
    let pid = lasthop.supervisor();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let bits = u64::from_str_radix(&procfs::status(pid, set).unwrap(), 16).unwrap();
        assert_eq!(bits & LOADING, 0, "{set}");
    }
    // The unit's and the supervisor's own, which refuses bpf(2).
    assert_eq!(procfs::status(pid, "Seccomp_filters").unwrap(), "2");
}

/// A process of another user with a connection and two named threads, which ends with this.
struct Vmm(Child);

impl Vmm {
    fn start(socket: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "unit::a_vmm_of_another_user", "--nocapture"])
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Returns whether it has worked to its end.
    fn end(mut self) -> bool {
        drop(self.0.stdin.take());
        self.0.wait().unwrap().success()
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of [`Vmm`]: it sends frames until its standard input ends.
#[test]
fn a_vmm_of_another_user() {
    static ENDS: AtomicBool = AtomicBool::new(false);
    // It connects when its threads have their names: a search before would ask for other sources,
    // and report those that this machine lacks.
    static NAMED: Barrier = Barrier::new(3);
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let vcpu = |n| {
        let named = std::thread::Builder::new().name(format!("CPU {n}/KVM"));
        let body = || {
            NAMED.wait();
            while !ENDS.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        named.spawn(body).unwrap()
    };
    let vcpus = [0, 1].map(vcpu);
    NAMED.wait();
    let mut guest =
        FakeGuest::connect(Path::new(&socket), GuestConfig::default().guest(1)).unwrap();
    guest.wait_link().unwrap();
    let input = std::thread::spawn(|| {
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
        ENDS.store(true, Ordering::Relaxed);
    });
    // SAFETY: these calls have no pointers. The C library changes the user of all threads.
    unsafe {
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        // As after the execution of a program by that user.
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    }
    while !ENDS.load(Ordering::Relaxed) {
        guest.send(&udp(&Flow::v4(1, 2), &[7; 100])).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    input.join().unwrap();
    for vcpu in vcpus {
        vcpu.join().unwrap();
    }
}

#[test]
fn the_unit_has_states_and_the_rights_for_them_are_given_up() {
    let place = Place::new();
    let Some(mut lasthop) = start(&place, &["lasthop.service"]) else {
        return;
    };
    let (source, reason) = by(&lasthop);
    if source != "bpf" {
        return assert!(!is_possible(), "{reason}");
    }
    has_given_up(&lasthop);
    let vmm = Vmm::start(&lasthop.socket("vm1.sock"));
    wait_until("its vCPUs are found", || {
        threads(&lasthop, "vm1") == Some(2)
    });
    let line = "vCPU states: BPF programs; vCPUs of 1 port found";
    let missing = "; no interrupt is deferred: KVM was not loaded when Lasthop started; restart \
                   Lasthop once it is";
    let has_kvm = Path::new("/sys/module/kvm").exists();
    let line = line.to_owned() + if has_kvm { "" } else { missing };
    let status = lasthop.prints("status");
    assert!(status.lines().any(|own| own == line), "{status}");
    let before = programs(lasthop.supervisor());
    // Two for the scheduler; one for halts and one for the search where there is KVM.
    assert_eq!(before.len(), if has_kvm { 4 } else { 2 }, "{before:?}");
    let mut other =
        FakeGuest::connect(&lasthop.socket("vm2.sock"), GuestConfig::default().guest(2)).unwrap();
    other.wait_link().unwrap();
    for _ in 0..2 {
        lasthop.prints("upgrade");
        assert_eq!(programs(lasthop.supervisor()), before, "not loaded anew");
        has_given_up(&lasthop);
        assert_eq!(by(&lasthop).0, "bpf");
        wait_until("the vCPUs are known", || {
            threads(&lasthop, "vm1") == Some(2)
        });
        other.recv_all().unwrap();
        let frame = other.recv(Duration::from_secs(20)).unwrap();
        assert!(frame.is_some(), "frames arrive after the upgrade");
    }
    let log = lasthop.log();
    assert_eq!(log.matches("loaded BPF programs").count(), 1, "{log}");
    assert!(vmm.end(), "its connection was kept");
    lasthop.end(Signal::TERM);
}

#[test]
fn with_the_drop_in_there_are_no_states_and_the_reason_is_given() {
    let place = Place::new();
    let files = ["lasthop.service", "vcpu-states-off.conf"];
    let Some(mut lasthop) = start(&place, &files) else {
        return;
    };
    let (source, reason) = by(&lasthop);
    assert_eq!(source, "off");
    let expected = "loading BPF programs needs CAP_BPF and CAP_PERFMON";
    assert!(reason.starts_with(expected), "{reason}");
    let line = format!("vCPU states: off: {reason}");
    assert!(lasthop.prints("status").lines().any(|own| own == line));
    let log = lasthop.log();
    assert_eq!(log.matches("vCPU states are off: ").count(), 1, "{log}");
    lasthop.end(Signal::TERM);
}

/// A named network namespace.
struct Namespace(String);

impl Namespace {
    fn new() -> io::Result<Self> {
        let name = format!("lasthop-unit-{}", std::process::id());
        let added = Command::new("ip").args(["netns", "add", &name]).output()?;
        match added.status.success() {
            true => Ok(Self(name)),
            false => Err(io::Error::other(String::from_utf8_lossy(&added.stderr))),
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn a_port_in_another_namespace_takes_the_drop_in_that_its_refusal_names() {
    const DROP_IN: &str = "network-namespaces.conf";
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return testkit::skip::skipped(format!("no network namespace: {error}")),
    };
    let add = |kind: &str| {
        let own = if kind == "tap" {
            ""
        } else {
            " --allow 10.0.0.0/8"
        };
        format!("port add t0 --kind {kind} --netns {}{own}", namespace.0)
    };
    let place = Place::new();
    let Some(mut lasthop) = start(&place, &["lasthop.service"]) else {
        return;
    };
    for kind in ["tap", "user"] {
        let refused = lasthop.cli(&add(kind));
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{text}");
        let path = format!("/usr/share/lasthop/{DROP_IN}");
        assert!(
            text.contains("CAP_SYS_ADMIN") && text.contains(&path),
            "{text}"
        );
    }
    lasthop.end(Signal::TERM);

    let place = Place::new();
    let Some(mut lasthop) = start(&place, &["lasthop.service", DROP_IN]) else {
        return;
    };
    lasthop.prints(&add("tap"));
    wait_until("the port is up", || lasthop.state("t0") == "up");
    let links = ["-n", &namespace.0, "-brief", "link"];
    let links = Command::new("ip").args(links).output().unwrap();
    assert!(String::from_utf8_lossy(&links.stdout).contains("t0"));
    lasthop.end(Signal::TERM);
}

#[test]
fn the_controllers_of_drivers_are_delegated() {
    let delegated = Unit::of(&["lasthop.service"]).controllers();
    // `CONTROLLERS` of `crates/host/supervisor/src/groups.rs`; `cpu_weight` needs the first.
    for controller in ["cpu", "memory", "pids"] {
        assert!(delegated.contains(controller), "{delegated:?}");
    }
}
