//! Ports by the hundred: many change at once beside a pair under load, a removed one gets nothing
//! more, and a frame for one guest disturbs no other.

use std::fs;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use e2e::lasthop::Lasthop;
use e2e::numbered::{Stream, collect, introduce, settle};
use e2e::turn;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use testkit::lasthop::port;
use testkit::packets::{BROADCAST, Flow, SequenceChecker, ethernet, mac};
use testkit::procfs;
use testkit::wait::{LIMIT, wait_for, wait_until};
use testkit::{FakeGuest, GuestConfig};

const PORTS: usize = 256;
/// Frames of the load that are on their way at most: its receiver has buffers for all of them.
const WINDOW: u64 = 128;
/// Time in which a frame would arrive that must not.
const LATE: Duration = Duration::from_millis(100);

/// The configuration of the pair under load, and of others with these keys.
fn config(others: &str) -> String {
    let two = port("vm1", "") + &port("vm2", "");
    let all: String = (0..PORTS)
        .map(|n| port(&format!("vif{n}"), others))
        .collect();
    let others = if others.is_empty() { "" } else { &all };
    format!("[switch]\nname = \"host1\"\n{two}{others}")
}

/// The address of the guest of a port.
fn address(n: usize) -> [u8; 6] {
    [2, 0, 0, 1, (n >> 8) as u8, n as u8]
}

fn guest_of(lasthop: &Lasthop, name: &str, mac: [u8; 6]) -> FakeGuest {
    let config = GuestConfig {
        mac,
        queue_size: 64,
        ..GuestConfig::default()
    };
    let mut guest = lasthop.connect_as(name, config);
    guest.wait_link().expect("a link");
    guest
}

#[test]
fn a_pair_under_load_loses_nothing_while_all_others_change_at_once() {
    let turn = turn();
    let lasthop = Lasthop::start(&config(""));
    let (mut a, mut b) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    introduce(&mut a, &mut b, Flow::v4(1, 2));
    let (mut checker, mut load) = (SequenceChecker::default(), Stream::new(0, Flow::v4(1, 2)));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("new.toml");
    let file_name = file.display().to_string();
    for (what, text) in [
        ("created", config("weight = 100")),
        ("changed", config("weight = 200\nmtu = 1400")),
        ("removed", config("")),
    ] {
        fs::write(&file, &text).expect("the file can be written");
        let (before, began) = (load.sent(), Instant::now());
        std::thread::scope(|scope| {
            let apply = scope.spawn(|| lasthop.ok(&["apply", &file_name]));
            while !apply.is_finished() {
                while load.sent() - checker.next_of(load.id()) < WINDOW {
                    load.send(&mut a, 100);
                }
                collect(&mut b, &mut checker);
            }
            let output = apply.join().expect("it is applied");
            assert!(output.ends_with(" applied\n"), "{output}");
        });
        let (took, frames) = (began.elapsed(), load.sent() - before);
        turn.step(&format!(
            "{PORTS} ports {what} in {took:?}, beside {frames} frames"
        ));
        let list = lasthop.json(&["port", "list"]);
        let others = if what == "removed" { 0 } else { PORTS };
        let ports = list["ports"].as_array().expect("ports are listed");
        assert_eq!(ports.len(), 2 + others);
    }
    let clean = settle(&mut b, &mut checker, &load, LIMIT);
    assert!(clean, "of {} frames: {checker:?}", load.sent());
    assert_eq!(lasthop.stats().drops(), [].into());
    drop((a, b));
    lasthop.stop();
}

#[test]
fn a_removed_port_gets_no_frame_after_the_answer() {
    let _turn = turn();
    let lasthop = Lasthop::start(&config(""));
    let mut sender = lasthop.connect("vm1", 1);
    for round in 0..3 {
        let words = [
            "port",
            "add",
            "gone",
            "--kind",
            "vhost-user",
            "--socket",
            "gone.sock",
        ];
        lasthop.ok(&words);
        let mut guest = guest_of(&lasthop, "gone", address(9));
        let flood = || ethernet(BROADCAST, mac(1), 0x88b5, &[round; 46]);
        let mut send = || {
            sender.send(&flood()).expect("the guest can send");
            std::thread::sleep(Duration::from_micros(50));
        };
        let mut received = 0;
        wait_for("floods to arrive", || {
            send();
            received += guest.recv_all().expect("the device keeps the rules").len();
            (received > 10).then_some(())
        });
        std::thread::scope(|scope| {
            let remove = scope.spawn(|| lasthop.ok(&["port", "remove", "gone"]));
            while !remove.is_finished() {
                send();
                guest.recv_all().expect("the device keeps the rules");
            }
            remove.join().expect("it is removed");
        });
        guest.recv_all().expect("the device keeps the rules");
        let _ = guest.pairs[0].rx_call.take();
        let end = Instant::now() + LATE;
        while Instant::now() < end {
            send();
        }
        let late = guest.recv_all().expect("the device keeps the rules");
        assert_eq!((late.len(), guest.pairs[0].rx_call.take()), (0, 0));
    }
    drop(sender);
    lasthop.stop();
}

/// A thread that sleeps until its guest's call descriptor moves, as a vCPU would be interrupted.
struct Sleeper {
    thread: AtomicI32,
    calls: AtomicU64,
}

impl Sleeper {
    const fn new() -> Self {
        Self {
            thread: AtomicI32::new(0),
            calls: AtomicU64::new(0),
        }
    }

    fn start<'s>(&'s self, scope: &'s Scope<'s, '_>, call: OwnedFd, ended: &'s AtomicBool) {
        scope.spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            self.thread.store(own, Ordering::Release);
            loop {
                let mut fds = [PollFd::new(&call, PollFlags::IN)];
                poll(&mut fds, None).expect("it waits");
                if ended.load(Ordering::Acquire) {
                    return;
                }
                let mut count = [0; 8];
                rustix::io::read(&call, &mut count).expect("a count");
                let count = u64::from_ne_bytes(count);
                self.calls.fetch_add(count, Ordering::AcqRel);
            }
        });
    }

    /// Calls, and how often the thread went to sleep.
    fn seen(&self) -> (u64, String) {
        let thread = self.thread.load(Ordering::Acquire) as u32;
        let switches = procfs::status(thread, "voluntary_ctxt_switches");
        let switches = switches.expect("the thread runs");
        (self.calls.load(Ordering::Acquire), switches)
    }

    /// Waits until it sleeps.
    fn wait_asleep(&self) {
        wait_until("it sleeps", || {
            let thread = self.thread.load(Ordering::Acquire);
            thread != 0
                && procfs::status(thread as u32, "State").is_some_and(|is| is.starts_with('S'))
        });
    }
}

#[test]
fn a_frame_for_one_guest_wakes_nobody_else() {
    let turn = turn();
    let lasthop = Lasthop::start(&config("weight = 100"));
    let mut sender = lasthop.connect("vm1", 1);
    sender.wait_link().expect("a link");
    sender
        .send(&ethernet(BROADCAST, mac(1), 0x88b5, &[0; 46]))
        .expect("the guest can send");
    let guests = (0..PORTS).map(|n| guest_of(&lasthop, &format!("vif{n}"), address(n)));
    let mut guests: Vec<FakeGuest> = guests.collect();
    turn.step("all are attached");
    // The switch learns where they are.
    for (n, guest) in guests.iter_mut().enumerate() {
        let frame = ethernet(mac(1), address(n), 0x88b5, &[0; 46]);
        guest.send(&frame).expect("the guest can send");
        let arrived = sender.recv(LIMIT);
        assert!(arrived.expect("the device keeps the rules").is_some());
    }
    let frame = |to: usize| ethernet(address(to), mac(1), 0x88b5, &[1; 46]);
    for (n, guest) in guests.iter_mut().enumerate() {
        sender.send(&frame(n)).expect("the guest can send");
        let arrived = guest.recv(LIMIT);
        assert!(arrived.expect("the device keeps the rules").is_some());
        guest.recv_all().expect("the device keeps the rules");
        let pair = &mut guest.pairs[0];
        assert!(!pair.arm_rx(), "it has all");
        let _ = (pair.rx_call.take(), pair.tx_call.take());
    }
    turn.step("all have received");
    let sleepers: Vec<Sleeper> = (0..PORTS).map(|_| Sleeper::new()).collect();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (guest, sleeper) in guests.iter().zip(&sleepers) {
            let call = guest.pairs[0].rx_call.as_fd().try_clone_to_owned();
            sleeper.start(scope, call.expect("a descriptor"), &ended);
        }
        sleepers.iter().for_each(Sleeper::wait_asleep);
        let mut before: Vec<_> = sleepers.iter().map(Sleeper::seen).collect();
        for called in (0..PORTS).step_by(PORTS / 16) {
            sender.send(&frame(called)).expect("the guest can send");
            wait_until("its guest is called", || sleepers[called].seen().0 == 1);
            sleepers[called].wait_asleep();
            std::thread::sleep(Duration::from_millis(5));
            let after: Vec<_> = sleepers.iter().map(Sleeper::seen).collect();
            for (n, (before, after)) in before.iter().zip(&after).enumerate() {
                assert_eq!(
                    before == after,
                    n != called,
                    "guest {n}: {before:?} {after:?}"
                );
            }
            before = after;
        }
        ended.store(true, Ordering::Release);
        for guest in &guests {
            assert_eq!(guest.pairs[0].tx_call.take(), 0, "nobody waits for room");
            guest.pairs[0].rx_call.signal();
        }
    });
    drop((sender, guests));
    lasthop.stop();
}
