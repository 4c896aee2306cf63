//! Ports by the hundred: many change at once beside a pair under load, a removed one gets nothing
//! more, and a frame for one guest disturbs no other.

use std::fs;
use std::time::{Duration, Instant};

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::numbered::{Stream, collect, introduce, settle};
use testkit::lasthop::port;
use testkit::packets::{BROADCAST, Flow, SequenceChecker, ethernet, mac};
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
    let turn = beside();
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
    settle(&mut b, &mut checker, &load, LIMIT);
    assert_eq!(lasthop.stats().drops(), [].into());
    drop((a, b));
    lasthop.stop();
}

#[test]
fn a_removed_port_gets_no_frame_after_the_answer() {
    let _turn = beside();
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

/// Receives one frame, which must be this one.
fn receive(guest: &mut FakeGuest, frame: &[u8]) {
    let arrived = guest.recv(LIMIT).expect("the device keeps the rules");
    assert_eq!(arrived.expect("a frame arrives").frame, frame);
}

/// Waits until the worker has made all calls for frames that have arrived: it makes those of a
/// batch before it takes the next one, so a frame that is sent now arrives after them. The receiver
/// is not one of the guests that are to be called or not.
fn await_calls(sender: &mut FakeGuest, other: &mut FakeGuest) {
    let frame = ethernet(other.mac(), sender.mac(), 0x88b5, &[2; 46]);
    sender.send(&frame).expect("the guest can send");
    receive(other, &frame);
}

/// Returns the calls of a guest since they were taken last, for both of its queues.
fn take_calls(guest: &FakeGuest) -> (u64, u64) {
    let pair = &guest.pairs[0];
    (pair.rx_call.take(), pair.tx_call.take())
}

#[test]
fn a_frame_for_one_guest_wakes_nobody_else() {
    let turn = beside();
    // One worker serves all ports.
    let lasthop = Lasthop::start(&config("weight = 100"));
    let (mut sender, mut other) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    introduce(&mut sender, &mut other, Flow::v4(1, 2));
    let guests = (0..PORTS).map(|n| guest_of(&lasthop, &format!("vif{n}"), address(n)));
    let mut guests: Vec<FakeGuest> = guests.collect();
    turn.step("all are attached");
    // The switch learns where they are.
    for (n, guest) in guests.iter_mut().enumerate() {
        let frame = ethernet(mac(1), address(n), 0x88b5, &[0; 46]);
        guest.send(&frame).expect("the guest can send");
        receive(&mut sender, &frame);
    }
    let frame = |to: usize| ethernet(address(to), mac(1), 0x88b5, &[1; 46]);
    for (n, guest) in guests.iter_mut().enumerate() {
        sender.send(&frame(n)).expect("the guest can send");
        receive(guest, &frame(n));
        assert!(!guest.pairs[0].arm_rx(), "guest {n} has all");
    }
    await_calls(&mut sender, &mut other);
    guests.iter().map(take_calls).for_each(drop);
    turn.step("all have received");
    for called in (0..PORTS).step_by(PORTS / 16) {
        sender.send(&frame(called)).expect("the guest can send");
        let its = &guests[called].pairs[0];
        wait_until("its guest is called", || its.rx_call.take() == 1);
        await_calls(&mut sender, &mut other);
        for (n, guest) in guests.iter().enumerate() {
            let calls = take_calls(guest);
            assert_eq!(calls, (0, 0), "calls of guest {n} after guest {called}'s");
        }
    }
    drop((sender, other, guests));
    lasthop.stop();
}
