//! Wake-ups of a round trip: how often threads sleep while one request and its answer pass. On a
//! core that is idle each takes as long as all the work for a small frame, or longer.
//!
//! The kernel counts them, as voluntary context switches: those of all threads of Lasthop, and
//! those of the two programs that ask and answer.

use std::thread;

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::outside::user_port;
use e2e::uplinks::tap;
use testkit::lasthop::port;
use testkit::netns::{Netns, Wire};
use testkit::packets::{ECHO_REPLY, Flow, echo_of, echo_request, ethernet, mac};
use testkit::wait::LIMIT;
use testkit::{FakeGuest, GuestConfig, procfs};

/// Wake-ups of a round trip between two guests, at most: the worker and a guest, each way.
const GUEST_TO_GUEST: u64 = 4;
/// Between a guest and a program at a TAP interface: the worker and the program; the worker and the
/// guest.
const GUEST_TO_TAP: u64 = 4;
/// Between programs at two TAP interfaces: the worker and a program, each way.
const TAP_TO_TAP: u64 = 4;
/// From a guest to the gateway of a user port: the worker and the port's process; the worker and
/// the guest.
const GUEST_TO_USER: u64 = 4;

/// Round trips that are counted, after as many that are not.
const ROUND_TRIPS: u64 = 100;
/// Round trips for one wake-up of something else, such as a heartbeat.
const OTHERS: u64 = 2;
/// The thread that looks at its worker at an interval, while that notifies others: its wake-ups are
/// those of a time, not of round trips, and no frame waits for them.
const BY_TIME: &str = "watchdog";
/// Maximum number of counts until one keeps the bound: on a busy machine a round trip takes long,
/// and something else wakes meanwhile. That makes a count larger, and never smaller.
const TRIES: u32 = 10;

/// EtherType for experiments (IEEE 802): the kernel does nothing about it.
const EXPERIMENTAL: u16 = 0x88b5;
/// A station at the first end, and one at the second.
const STATIONS: [u8; 2] = [1, 2];

/// A program at a port.
trait Program: Send {
    fn send(&mut self, frame: &[u8]);

    /// Sleeps until the next frame.
    fn receive(&mut self) -> Vec<u8>;
}

impl Program for FakeGuest {
    fn send(&mut self, frame: &[u8]) {
        FakeGuest::send(self, frame).expect("room");
    }

    fn receive(&mut self) -> Vec<u8> {
        let received = self.recv(LIMIT).expect("the device keeps the rules");
        received.expect("a frame").frame
    }
}

impl Program for Wire {
    fn send(&mut self, frame: &[u8]) {
        Wire::send(self, frame);
    }

    fn receive(&mut self) -> Vec<u8> {
        Wire::receive(self)
    }
}

/// Waits for a frame that is part of the exchange: interfaces send some of their own.
fn next(program: &mut impl Program, is_part: fn(&[u8]) -> bool) {
    while !is_part(&program.receive()) {}
}

/// Sends requests one by one, each after the answer to the one before. Returns the sleeps of the
/// calling thread.
fn ask(program: &mut impl Program, request: &[u8], is_answer: fn(&[u8]) -> bool) -> u64 {
    let before = procfs::own_wake_ups();
    for _ in 0..ROUND_TRIPS {
        program.send(request);
        next(program, is_answer);
    }
    procfs::own_wake_ups() - before
}

/// Answers as many requests.
fn answer(program: &mut impl Program, answer: &[u8]) -> u64 {
    let before = procfs::own_wake_ups();
    for _ in 0..ROUND_TRIPS {
        next(program, is_experimental);
        program.send(answer);
    }
    procfs::own_wake_ups() - before
}

fn is_experimental(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&EXPERIMENTAL.to_be_bytes())
}

fn is_echo_reply(frame: &[u8]) -> bool {
    echo_of(frame).is_some_and(|(kind, ..)| kind == ECHO_REPLY)
}

/// Asserts that the round trips of `exchange`, which returns the programs' own sleeps, take at most
/// so many wake-ups each. The first ones are for decisions, and for learning.
fn bound(lasthop: &Lasthop, limit: u64, mut exchange: impl FnMut() -> u64) {
    exchange();
    let mut count = || {
        let before = procfs::family_wake_ups(lasthop.supervisor());
        let programs = exchange();
        let mut sleepers = procfs::family_wake_ups(lasthop.supervisor());
        for (thread, count) in &mut sleepers {
            *count -= before.get(thread).unwrap_or(&0);
        }
        sleepers.retain(|(_, name), count| *count > 0 && *name != BY_TIME);
        println!("{programs} of the programs, {sleepers:?}");
        sleepers.values().sum::<u64>() + programs
    };
    let holds = (0..TRIES).any(|_| count() <= limit * ROUND_TRIPS + ROUND_TRIPS / OTHERS);
    assert!(holds, "more than {limit} a round trip, {TRIES} times");
}

/// Exchanges frames of two programs.
fn exchange(first: &mut impl Program, second: &mut impl Program) -> u64 {
    let [near, far] = STATIONS.map(mac);
    let request = ethernet(far, near, EXPERIMENTAL, &[7; 46]);
    let reply = ethernet(near, far, EXPERIMENTAL, &[7; 46]);
    thread::scope(|scope| {
        let answers = scope.spawn(|| answer(second, &reply));
        let asked = ask(first, &request, is_experimental);
        asked + answers.join().expect("it answers")
    })
}

/// A TAP port with a station's address.
fn tap_of(name: &str, netns: &Netns, station: u8) -> String {
    let [.., last] = mac(station);
    let more = format!("mac = \"02:1a:57:00:00:{last:02x}\"");
    tap(name, &netns.path(), &format!("10.1.0.{station}/24"), &more)
}

fn start(ports: &[String]) -> Lasthop {
    // Workers that look before they sleep have fewer.
    let switch = "[switch]\nname = \"host1\"\npoll_us = 0\n";
    Lasthop::start(&(switch.to_owned() + &ports.concat()))
}

#[test]
fn guest_to_guest() {
    let _turn = beside();
    let lasthop = start(&[port("vm1", ""), port("vm2", "")]);
    let [near, far] = STATIONS;
    let (mut first, mut second) = (lasthop.connect("vm1", near), lasthop.connect("vm2", far));
    bound(&lasthop, GUEST_TO_GUEST, || {
        exchange(&mut first, &mut second)
    });
}

#[test]
fn guest_to_tap() {
    if !Netns::allowed() {
        return;
    }
    let _turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = Netns::new("netns", folder.path());
    let [near, far] = STATIONS;
    let lasthop = start(&[port("vm1", ""), tap_of("t0", &netns, far)]);
    lasthop.wait_port("t0", "up");
    let (mut guest, mut wire) = (lasthop.connect("vm1", near), netns.wire("t0"));
    bound(&lasthop, GUEST_TO_TAP, || exchange(&mut guest, &mut wire));
}

#[test]
fn tap_to_tap() {
    if !Netns::allowed() {
        return;
    }
    let _turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = ["near", "far"].map(|name| Netns::new(name, folder.path()));
    let ports = ["t0", "t1"];
    let tables = [0, 1].map(|at| tap_of(ports[at], &netns[at], STATIONS[at]));
    let lasthop = start(&tables);
    for port in ports {
        lasthop.wait_port(port, "up");
    }
    let [mut near, mut far] = [0, 1].map(|at| netns[at].wire(ports[at]));
    bound(&lasthop, TAP_TO_TAP, || exchange(&mut near, &mut far));
}

#[test]
fn guest_to_user() {
    if !Netns::allowed() {
        return;
    }
    let _turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = Netns::new("netns", folder.path());
    let lasthop = start(&[port("vm1", ""), user_port(&netns, "")]);
    lasthop.wait_port("out", "up");
    let mut guest = lasthop.connect_as("vm1", GuestConfig::default().guest(STATIONS[0]));
    // The gateway of the default network, and the address that is made of it.
    let flow = Flow {
        dst_mac: [0x52, 0x55, 10, 0, 2, 2],
        src: [10, 0, 2, 15].into(),
        dst: [10, 0, 2, 2].into(),
        ..Flow::v4(STATIONS[0], STATIONS[1])
    };
    let request = echo_request(&flow, 1, 1, &[7; 18]);
    bound(&lasthop, GUEST_TO_USER, || {
        ask(&mut guest, &request, is_echo_reply)
    });
}
