//! Crashes of the switch in the middle of its work for a port.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ipc::keeping::SlotSnapshot;
use port::PortId;
use rustix::process::Signal;
use testkit::FakeGuest;
use testkit::lasthop::Running;
use testkit::net::NetHeader;
use testkit::packets::{Flow, udp};
use testkit::process::send;
use testkit::procfs;
use testkit::stop::Stop;
use testkit::wait::{wait_for, wait_until};

/// The thread that serves the guests of a switch with one worker.
const WORKER: &str = "worker";
/// How long a batch is waited for before the switch is stopped: 5 milliseconds.
const BATCH: Duration = Duration::from_millis(5);

/// Ends the switch by the signal of a fault in its worker while that serves a guest which sends,
/// and waits for its successor.
pub(crate) fn crash_switch(lasthop: &Running) {
    crash_switch_for(lasthop, |_| true);
}

/// As [`crash_switch`], while the worker serves a port of the caller's choice. Returns the port.
/// The switch is stopped for each look: else the worker would be done before the signal comes,
/// nearly always on a busy machine.
pub(crate) fn crash_switch_for(lasthop: &Running, is_meant: impl Fn(PortId) -> bool) -> PortId {
    let slots = thread_slots(lasthop);
    let served = |slots: &File| served(slots).filter(|port| is_meant(*port));
    let (crashed, port) = wait_for("the worker serves the port", || {
        let switch = lasthop.program("lasthop-switch")?;
        let worker = thread(switch, WORKER)?;
        // The guest fills its ring while the switch is stopped, so a batch begins soon.
        let looks = Instant::now();
        while served(&slots).is_none() && looks.elapsed() < BATCH {
            std::hint::spin_loop();
        }
        send(switch, Signal::STOP);
        wait_until("the worker is stopped", || {
            let state = procfs::status(worker, "State");
            state.is_none_or(|state| state.starts_with(['T', 'X', 'Z']))
        });
        let served = served(&slots);
        if served.is_some() {
            let [switch, worker, signal] = [switch, worker, libc::SIGILL as u32].map(i64::from);
            // SAFETY: a bare system call without memory.
            unsafe { libc::syscall(libc::SYS_tgkill, switch, worker, signal) };
        }
        send(switch, Signal::CONT);
        Some((switch, served?))
    });
    wait_until("there is a successor", || {
        let switch = lasthop.program("lasthop-switch");
        switch.is_some_and(|switch| switch != crashed)
    });
    lasthop.wait_cli("port show vm1");
    port
}

/// Has a guest send without end, as fast as the switch takes frames. After the end of its
/// connection it takes none.
pub(crate) fn send_until(guest: &mut FakeGuest, stop: &Stop) {
    let frame = udp(&Flow::v4(1, 9), &[7; 1000]);
    while !stop.is_set() {
        let pair = &mut guest.pairs[0];
        let staged = pair.stage(&frame, &NetHeader::default());
        pair.flush();
        if !staged.expect("a sound device") {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// The ports that threads of the switch serve, which the supervisor keeps.
fn thread_slots(lasthop: &Running) -> File {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", lasthop.supervisor())).unwrap();
    let mut paths = fds.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let file = std::fs::read_link(path);
        file.is_ok_and(|file| file.to_string_lossy().contains("lasthop-marks"))
    };
    let path = paths.find(is_it).expect("the supervisor has the slots");
    File::open(path).unwrap()
}

/// Returns the port that the worker serves, of a switch with one worker. What the session thread
/// serves does not count: the worker's death is not that port's.
fn served(slots: &File) -> Option<PortId> {
    let now = SlotSnapshot::at(slots).unwrap();
    now.served_by_workers().first().copied()
}

/// Returns a thread of a process by its name.
fn thread(pid: u32, name: &str) -> Option<u32> {
    let all = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.find(|tid| procfs::status(*tid, "Name").is_some_and(|of| of == name))
}
