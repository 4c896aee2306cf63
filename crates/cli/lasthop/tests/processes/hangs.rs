//! A process that hangs is killed, as after any other death: no guest is disconnected.

use rustix::process::Signal;
use testkit::lasthop::{Place, Running, port};
use testkit::packets::{Flow, udp};
use testkit::process::send;
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};

/// Starts Lasthop with two guests.
fn start(place: &Place) -> (Running, FakeGuest, FakeGuest) {
    let segment = "[switch]\nname = \"host1\"\nworkers = 2\n[[segment]]\nname = \"blue\"\n";
    let ports = ["vm1", "vm2"].map(|vm| port(vm, "segment = \"blue\""));
    let lasthop = place.start(&format!("{segment}{}", ports.concat()));
    let guest = |n| {
        let path = place.run_dir().join(format!("vm{n}.sock"));
        let mut guest = FakeGuest::connect(&path, GuestConfig::default().guest(n)).unwrap();
        guest.wait_link().unwrap();
        guest
    };
    (lasthop, guest(1), guest(2))
}

/// Checks that a frame arrives, both connections are the original ones, and the log names the
/// process that hung.
fn check_service(lasthop: &mut Running, name: &str, a: &mut FakeGuest, b: &mut FakeGuest) {
    let frame = udp(&Flow::v4(1, 2), name.as_bytes());
    a.send(&frame).unwrap();
    wait_until("it arrives", || {
        b.recv_all().unwrap().iter().any(|got| got.frame == frame)
    });
    a.wait_link().expect("the same connection");
    b.wait_link().expect("the same connection");
    let log = lasthop.log();
    assert!(log.contains(&format!("{name} hung: killed")), "{log}");
    for bad in ["disconnected", "connection not continued"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    lasthop.end(Signal::TERM);
}

/// Waits until another process replaces this one, and control replies.
fn is_replaced(lasthop: &Running, name: &str, pid: u32) {
    wait_until("there is a successor", || {
        let now = lasthop.try_process(name);
        let now = now.and_then(|process| process["pid"].as_i64());
        now.is_some_and(|now| now != i64::from(pid))
    });
}

/// Runs a check for each name in parallel, because most of the time is spent waiting for a timeout.
fn for_each(names: [&'static str; 2], check: fn(&str)) {
    std::thread::scope(|scope| {
        for name in names {
            scope.spawn(move || check(name));
        }
    });
}

#[test]
fn control_or_a_switch_that_is_stopped_is_replaced() {
    for_each(["control", "switch"], |name| {
        let place = Place::new();
        let (mut lasthop, mut a, mut b) = start(&place);
        let pid = lasthop.pid(name);
        send(pid, Signal::STOP);
        is_replaced(&lasthop, name, pid);
        let log = lasthop.log();
        assert!(
            !log.contains("crashed while serving"),
            "no crash is counted: {log}"
        );
        check_service(&mut lasthop, name, &mut a, &mut b);
    });
}

/// Returns the threads of a process with this name.
fn threads(pid: u32, name: &str) -> Vec<i32> {
    let all = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_called = |tid: &i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
        comm.is_ok_and(|comm| comm.trim() == name)
    };
    all.filter(is_called).collect()
}

/// Thread that is stopped as by a debugger, while the others of its process continue.
struct Stopped(i32);

impl Stopped {
    fn thread(tid: i32) -> Self {
        // SAFETY: bare system calls without memory.
        let done = unsafe {
            libc::ptrace(libc::PTRACE_SEIZE, tid, 0, 0) == 0
                && libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) == 0
        };
        assert!(done, "{}", std::io::Error::last_os_error());
        let mut stopped = Self(tid);
        assert!(!stopped.wait(0), "it stops, and lives");
        stopped
    }

    /// Reaps its state as the tracer must; returns whether it has ended.
    fn wait(&mut self, flags: i32) -> bool {
        let mut status = 0;
        // SAFETY: the status lives until the call returns.
        let found = unsafe { libc::waitpid(self.0, &raw mut status, flags | libc::__WALL) };
        found == self.0 && !libc::WIFSTOPPED(status)
    }
}

#[test]
fn a_switch_with_a_hung_thread_is_replaced() {
    // The session thread has the name of its process.
    for_each(["lasthop-switch", "worker"], |name| {
        let place = Place::new();
        let (mut lasthop, mut a, mut b) = start(&place);
        let pid = lasthop.pid("switch");
        let last = threads(pid, name).pop().expect("such a thread");
        let mut stopped = Stopped::thread(last);
        wait_until("it is killed", || stopped.wait(libc::WNOHANG));
        is_replaced(&lasthop, "switch", pid);
        check_service(&mut lasthop, "switch", &mut a, &mut b);
    });
}
