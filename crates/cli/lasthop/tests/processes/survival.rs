//! The switch is killed, and its guests stay connected: no reset, no buffer used twice or lost.
//!
//! Guests on both sides send numbered frames and check every byte of the received ones; the driver
//! of the test checks that every descriptor comes back exactly once. `LASTHOP_KILLS=1000` increases
//! the number of kills.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::crashes::{crash_switch, send_until};
use rustix::process::Signal;
use testkit::driver::{Piece, Shape};
use testkit::features::{MRG_RXBUF, MTU, VERSION_1};
use testkit::frontend::FrontEnd;
use testkit::guest_ram::RegionSpec;
use testkit::lasthop::{Place, Running, port};
use testkit::net::NetHeader;
use testkit::packets::{Flow, Numbered, SequenceChecker, numbered_payload, payload_of, udp};
use testkit::process::send;
use testkit::procfs;
use testkit::stop::Stop;
use testkit::wait::{LIMIT, wait_until};
use testkit::{FakeGuest, GuestConfig};

/// Returns the number of kills of each test.
fn kills() -> usize {
    let desired = std::env::var("LASTHOP_KILLS").ok();
    desired.map_or(8, |n| n.parse().expect("LASTHOP_KILLS is a number"))
}

fn config(workers: u16, ports: u8) -> String {
    let switch = format!("[switch]\nname = \"host1\"\nworkers = {workers}\n");
    let segment = "[[segment]]\nname = \"blue\"\n";
    let ports = (1..=ports).map(|n| port(&format!("vm{n}"), "segment = \"blue\""));
    format!("{switch}{segment}{}", ports.collect::<String>())
}

fn guest(place: &Place, n: u8, config: GuestConfig) -> FakeGuest {
    let path = place.run_dir().join(format!("vm{n}.sock"));
    let mut guest = FakeGuest::connect(&path, config.guest(n)).unwrap();
    guest.wait_link().unwrap();
    guest
}

/// Progress of one guest.
#[derive(Default)]
struct Seen {
    received: AtomicU64,
}

/// Sends numbered frames to `peer` and checks the received ones until the stop.
fn talk(guest: &mut FakeGuest, n: u8, peer: u8, seen: &Seen, stop: &Stop) -> SequenceChecker {
    let mut checker = SequenceChecker::default();
    let flow = Flow::v4(n, peer);
    let mut seq = 0;
    while !stop.is_set() {
        for _ in 0..16 {
            let stream = u16::from(n);
            let len = 64 + (seq as usize * 37) % 1300;
            let payload = numbered_payload(Numbered { stream, seq }, len);
            guest.send(&udp(&flow, &payload)).expect("room in the end");
            seq += 1;
        }
        check(guest, &mut checker, seen);
    }
    // Frames in flight.
    let quiet = Instant::now() + Duration::from_millis(300);
    while Instant::now() < quiet {
        check(guest, &mut checker, seen);
        std::thread::sleep(Duration::from_millis(5));
    }
    checker
}

fn check(guest: &mut FakeGuest, checker: &mut SequenceChecker, seen: &Seen) {
    for got in guest.recv_all().expect("a sound device") {
        let payload = payload_of(&got.frame).expect("a sound frame");
        checker.see(payload).expect("a sound payload");
        seen.received.fetch_add(1, SeqCst);
    }
}

/// Kills the switch repeatedly while both guests have traffic. Returns the times until both had
/// more.
fn kill_often(lasthop: &Running, kills: usize, seen: &[Seen; 2]) -> Vec<Duration> {
    let wait_for_more = |frames: u64| {
        let before = [0, 1].map(|n| seen[n].received.load(SeqCst));
        wait_until("both guests see traffic", || {
            [0, 1]
                .iter()
                .all(|n| seen[*n].received.load(SeqCst) >= before[*n] + frames)
        });
    };
    let mut gaps = Vec::new();
    wait_for_more(100);
    for round in 0..kills {
        lasthop.kill_switch(Signal::KILL);
        let killed = Instant::now();
        // Frames in the queues of the receivers do not count as new traffic.
        wait_for_more(300);
        gaps.push(killed.elapsed());
        // At various moments.
        wait_for_more(50 + 37 * (round as u64 % 20));
    }
    gaps.sort();
    gaps
}

/// Returns the number of dropped frames of all reasons.
fn dropped(lasthop: &Running) -> u64 {
    let stats = lasthop.json("stats");
    let ports = stats["ports"].as_array().unwrap().iter();
    let drops = ports.flat_map(|port| port["drops"].as_object().unwrap().values());
    drops.map(|count| count.as_u64().unwrap()).sum()
}

/// Checks that neither the switch nor its successor has ended a connection.
fn no_connection_ended(lasthop: &Running) {
    let log = lasthop.log();
    for bad in [
        "disconnected",
        "connection not continued",
        "session not saved",
    ] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
}

/// Runs two guests under load with kills of the switch.
fn survive(what: &str, workers: u16, prepare: impl Fn(&Place, u8) -> FakeGuest) {
    let place = Place::new();
    let mut lasthop = place.start(&config(workers, 2));
    let (mut a, mut b) = (prepare(&place, 1), prepare(&place, 2));
    let (seen, stop) = (<[Seen; 2]>::default(), Stop::new());
    let kills = kills();
    let (gaps, checkers) = std::thread::scope(|scope| {
        let first = scope.spawn(|| talk(&mut a, 1, 2, &seen[0], &stop));
        let second = scope.spawn(|| talk(&mut b, 2, 1, &seen[1], &stop));
        let end = stop.at_end();
        let gaps = kill_often(&lasthop, kills, &seen);
        drop(end);
        (gaps, [first.join().unwrap(), second.join().unwrap()])
    });
    let sum = |of: fn(&SequenceChecker) -> u64| checkers.iter().map(of).sum::<u64>();
    println!(
        "{what}, {workers} workers: {kills} kills, {} frames, {} lost, {} twice; \
         until traffic: p50 {:.1?}, max {:.1?}",
        sum(|c| c.received),
        sum(SequenceChecker::lost),
        sum(|c| c.duplicated),
        gaps[gaps.len() / 2],
        gaps[gaps.len() - 1],
    );
    assert_eq!(sum(|c| c.damaged), 0);
    // A batch that was delivered but not completed is delivered again: 64 frames for each worker.
    let most = 64 * u64::from(workers) * kills as u64;
    assert!(
        sum(|c| c.duplicated) <= most,
        "{} twice",
        sum(|c| c.duplicated)
    );
    // Frames without room among the pending upcalls are counted as drops. Frames that were pending
    // in a killed switch are not counted: at most 256 of each port.
    let lost = sum(SequenceChecker::lost);
    let most = dropped(&lasthop) + 2 * 256 * kills as u64;
    assert!(lost <= most, "{lost} lost, {most} at most");
    no_connection_ended(&lasthop);
    // The sessions are those of the start.
    for guest in [&mut a, &mut b] {
        guest.wait_link().expect("the same connection");
        guest.disconnect().expect("a good end");
    }
    lasthop.end(Signal::TERM);
}

#[test]
fn split_queues() {
    survive("split", 1, |place, n| {
        guest(place, n, GuestConfig::default())
    });
}

#[test]
fn queues_of_legacy_drivers() {
    survive("legacy", 1, |place, n| {
        let legacy = GuestConfig::default().legacy();
        match n {
            1 => guest(place, n, legacy),
            _ => guest(place, n, legacy.without(MRG_RXBUF)),
        }
    });
}

#[test]
fn split_queues_in_order_with_three_workers() {
    survive("split, in order", 3, |place, n| {
        guest(place, n, GuestConfig::default().in_order())
    });
}

#[test]
fn packed_queues() {
    survive("packed", 1, |place, n| {
        guest(place, n, GuestConfig::default().packed())
    });
}

#[test]
fn packed_queues_in_order_with_three_workers() {
    survive("packed, in order", 3, |place, n| {
        guest(place, n, GuestConfig::default().packed().in_order())
    });
}

#[test]
fn queues_whose_vmm_brought_an_inflight_area() {
    for (packed, used) in [(false, true), (true, true), (true, false)] {
        survive("inflight area", 1, |place, n| {
            let mut config = GuestConfig::default();
            if packed {
                config = config.packed();
            }
            let mut guest = guest(place, n, config);
            let front = guest.front().unwrap();
            let area = front.get_inflight(2, 256).unwrap();
            front.set_inflight(&area).unwrap();
            // Running queues do not use it.
            if used {
                guest.reset().unwrap();
            }
            guest.wait_link().unwrap();
            guest
        });
    }
}

#[test]
fn a_vmm_in_the_middle_of_a_request_gets_its_answer_once() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1, 1));
    let mut guest = guest(&place, 1, GuestConfig::default().packed());
    let stop = Stop::new();
    let answers = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let chat = scope.spawn(|| {
            let front = guest.front().unwrap();
            let features = front.get_features().unwrap();
            while !stop.is_set() {
                // The replies differ from each other: a missing or a duplicate one would be
                // noticed.
                assert_eq!(front.get_features().unwrap(), features);
                assert_eq!(front.get_queue_num().unwrap(), 2);
                assert!(front.get_protocol_features().unwrap() != 0);
                let base = front.get_vring_base(0).unwrap();
                assert_eq!(front.get_vring_base(0).unwrap(), base);
                answers.fetch_add(5, SeqCst);
            }
        });
        let end = stop.at_end();
        for _ in 0..kills() {
            let before = answers.load(SeqCst);
            wait_until("answers come", || {
                assert!(!chat.is_finished());
                answers.load(SeqCst) > before + 20
            });
            lasthop.kill_switch(Signal::KILL);
        }
        drop(end);
        chat.join().unwrap();
    });
    println!("{} answers", answers.load(SeqCst));
    guest.wait_link().unwrap();
    lasthop.end(Signal::TERM);
}

#[test]
fn a_vmm_that_leaves_or_comes_while_there_is_no_switch_is_served() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1, 2));
    let mut one = guest(&place, 1, GuestConfig::default());
    for _ in 0..kills() {
        lasthop.kill_switch(Signal::KILL);
        one.crash();
        let path = place.run_dir().join("vm1.sock");
        // A port has one guest; the end of the old connection is handled before the new one is
        // accepted.
        one.reconnect(&path).unwrap();
        one.wait_link().unwrap();
        wait_until("the port is up", || {
            let shown = lasthop.cli("port show vm1 --json");
            String::from_utf8_lossy(&shown.stdout).contains("\"up\"")
        });
    }
    lasthop.end(Signal::TERM);
}

#[test]
fn a_switch_may_die_while_it_takes_over() {
    dies_again(|lasthop| lasthop.kill_switch(Signal::KILL));
}

/// The switch has all connections then, and no program.
#[test]
fn control_may_die_while_a_switch_takes_over() {
    dies_again(|lasthop| {
        if let Some(control) = lasthop.program("lasthop-control") {
            send(control, Signal::KILL);
        }
    });
}

/// No queue is served before there is a program: what is taken from it would wait for a decision,
/// and be dropped in the end.
#[test]
fn frames_stay_in_their_queues_until_control_is_there() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1, 2));
    let mut a = guest(&place, 1, GuestConfig::default().packed());
    let mut b = guest(&place, 2, GuestConfig::default());
    lasthop.wait_for_spares();
    let control = |pid: &u32| {
        let file = std::fs::read_link(format!("/proc/{pid}/exe"));
        file.is_ok_and(|file| file.ends_with("lasthop-control"))
    };
    let spare = procfs::spares(lasthop.supervisor());
    let control = spare.into_iter().find(control).expect("a spare control");
    send(control, Signal::STOP);
    lasthop.kill_switch(Signal::KILL);
    let frame = udp(&Flow::v4(1, 2), &[5; 100]);
    a.send(&frame).unwrap();
    // An open question to control is dropped after a second.
    std::thread::sleep(Duration::from_millis(1500));
    send(control, Signal::CONT);
    wait_until("the frame arrives", || {
        let all = b.recv_all().unwrap();
        all.iter().any(|got| got.frame == frame)
    });
    assert_eq!(dropped(&lasthop), 0);
    no_connection_ended(&lasthop);
    lasthop.end(Signal::TERM);
}

#[test]
fn spare_processes_that_die_are_replaced() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1, 2));
    lasthop.wait_for_spares();
    // One that dies at once is not started again.
    std::thread::sleep(Duration::from_millis(1200));
    let before = procfs::spares(lasthop.supervisor());
    before.iter().for_each(|pid| send(*pid, Signal::KILL));
    wait_until("there are others", || {
        let now = procfs::spares(lasthop.supervisor());
        now.len() == 2 && now.iter().all(|pid| !before.contains(pid))
    });
    for pid in &before {
        wait_until("it is reaped", || procfs::status(*pid, "State").is_none());
    }
    lasthop.kill_switch(Signal::KILL);
    lasthop.wait_cli("port show vm1");
    assert_eq!(lasthop.json("status")["processes"][1]["restarts"], 0);
    lasthop.end(Signal::TERM);
}

/// Kills the switch, and another process again and again while its successor takes over.
fn dies_again(kill: impl Fn(&Running)) {
    let place = Place::new();
    let mut lasthop = place.start(&config(1, 2));
    let mut a = guest(&place, 1, GuestConfig::default().packed());
    let mut b = guest(&place, 2, GuestConfig::default());
    let mut arrives = |round: u64| {
        let payload = numbered_payload(
            Numbered {
                stream: 0,
                seq: round,
            },
            100,
        );
        a.send(&udp(&Flow::v4(1, 2), &payload)).unwrap();
        wait_until("the frame arrives", || {
            let all = b.recv_all().unwrap();
            all.iter()
                .any(|got| payload_of(&got.frame).is_ok_and(|p| p == payload))
        });
    };
    for round in 0..6 {
        // From before its first message until it serves, as far as the timing permits.
        lasthop.kill_switch(Signal::KILL);
        for step in 0..3 {
            std::thread::sleep(Duration::from_micros(700 * (round + step)));
            kill(&lasthop);
        }
        arrives(round);
    }
    a.wait_link().unwrap();
    b.wait_link().unwrap();
    no_connection_ended(&lasthop);
    lasthop.end(Signal::TERM);
}

#[test]
fn a_guest_with_an_mtu_survives_the_removal_of_the_mtu() {
    let place = Place::new();
    let segment = "[switch]\nname = \"host1\"\n[[segment]]\nname = \"blue\"\n";
    let ports = ["vm1", "vm2"].map(|vm| port(vm, "segment = \"blue\"\nmtu = 9000"));
    let mut lasthop = place.start(&format!("{segment}{}", ports.concat()));
    let took_it = || GuestConfig::default().with(MTU).requiring(MTU);
    let (mut a, mut b) = (guest(&place, 1, took_it()), guest(&place, 2, took_it()));
    lasthop.prints("port set vm1 --no-mtu");
    for round in 0..2 {
        lasthop.kill_switch(Signal::KILL);
        let frame = udp(&Flow::v4(1, 2), &[round; 100]);
        a.send(&frame).unwrap();
        wait_until("it arrives", || {
            b.recv_all().unwrap().iter().any(|got| got.frame == frame)
        });
    }
    no_connection_ended(&lasthop);
    a.wait_link().expect("the same connection");
    lasthop.end(Signal::TERM);
}

#[test]
fn another_iommu_is_not_of_the_connection_that_continues() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1, 2));
    let mut a = guest(&place, 1, GuestConfig::default());
    let mut b = guest(&place, 2, GuestConfig::default());
    let changed = lasthop.prints("port set vm1 --iommu required");
    assert_eq!(
        changed,
        "port vm1 changed, up; iommu required from its next connection\n"
    );
    let other = |lasthop: &Running| lasthop.json("port show vm1")["iommu_of_connection"].clone();
    for round in 0..2 {
        lasthop.kill_and_wait("switch");
        let frame = udp(&Flow::v4(1, 2), &[round; 100]);
        a.send(&frame).unwrap();
        wait_until("it arrives", || {
            b.recv_all().unwrap().iter().any(|got| got.frame == frame)
        });
        assert_eq!(other(&lasthop), "offered");
    }

    // The next connection has it, and so has the next switch.
    a.disconnect().unwrap();
    let state = |lasthop: &Running| lasthop.json("port show vm1")["state"].clone();
    wait_until("the port is free", || state(&lasthop) == "waiting");
    let path = place.run_dir().join("vm1.sock");
    let mut front = FrontEnd::connect(&path, LIMIT).unwrap();
    front.negotiate(VERSION_1, 0).unwrap();
    for _ in 0..2 {
        let refused = "the guest did not take ACCESS_PLATFORM";
        wait_until("the reason", || {
            let reason = lasthop.json("port show vm1")["reason"].to_string();
            reason.contains(refused) && state(&lasthop) == "connected"
        });
        assert!(other(&lasthop).is_null());
        lasthop.kill_and_wait("switch");
    }
    let log = lasthop.log();
    assert!(!log.contains("connection not continued"), "{log}");
    lasthop.end(Signal::TERM);
}

#[test]
fn counters_continue() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1, 2));
    let mut a = guest(&place, 1, GuestConfig::default());
    let _b = guest(&place, 2, GuestConfig::default());
    let count = |lasthop: &Running| {
        let stats = lasthop.cli("stats --json").stdout;
        let stats: serde_json::Value = serde_json::from_slice(&stats).ok()?;
        stats["ports"][0]["from_guest"]["packets"].as_u64()
    };
    for round in 1..4 {
        (0..10).for_each(|_| a.send(&udp(&Flow::v4(1, 2), b"counted")).unwrap());
        wait_until("all are counted", || count(&lasthop) == Some(10 * round));
        lasthop.kill_and_wait("switch");
    }
    lasthop.end(Signal::TERM);
}

#[test]
fn weight_and_cycles_are_kept() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1, 2));
    let mut a = guest(&place, 1, GuestConfig::default());
    let mut b = guest(&place, 2, GuestConfig::default());
    lasthop.prints("port set vm1 --weight 300");
    let show = |lasthop: &Running| {
        let port = lasthop.cli("port show vm1 --json").stdout;
        let port: serde_json::Value = serde_json::from_slice(&port).expect("JSON");
        let cycles = port["work"]["cycles_switching"].as_u64().expect("a count");
        (port["weight"].clone(), cycles)
    };
    let mut before = 0;
    for (round, victim) in ["switch", "control", "switch"].into_iter().enumerate() {
        let frame = udp(&Flow::v4(1, 2), &[round as u8; 100]);
        a.send(&frame).unwrap();
        wait_until("it arrives", || {
            b.recv_all().unwrap().iter().any(|got| got.frame == frame)
        });
        let (weight, cycles) = show(&lasthop);
        assert_eq!(weight, 300, "round {round}");
        assert!(cycles > before, "{cycles} after {before}");
        before = cycles;
        lasthop.kill_and_wait(victim);
    }
    assert_eq!(show(&lasthop).0, 300);
    no_connection_ended(&lasthop);
    lasthop.end(Signal::TERM);
}

#[test]
fn a_connection_that_crashes_the_switch_is_quarantined_and_the_others_continue() {
    let place = Place::new();
    let mut lasthop = place.start(&config(1, 3));
    let (mut a, mut b) = (
        guest(&place, 1, GuestConfig::default()),
        guest(&place, 2, GuestConfig::default()),
    );
    let stop = Stop::new();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            send_until(&mut a, &stop);
            a
        });
        let stopping = stop.at_end();
        // The third time is too much, also if nothing was counted for one of them.
        let is_over = || lasthop.log().contains("crashed repeatedly");
        for _ in 0..10 {
            crash_switch(&lasthop);
            if is_over() {
                break;
            }
        }
        drop(stopping);
        assert!(is_over(), "{}", lasthop.log());
        let mut a = sender.join().unwrap();
        assert!(lasthop.log().contains("vm1"), "it is named");
        b.wait_link().expect("the other guest is still connected");
        a.crash();
        let path = place.run_dir().join("vm1.sock");
        wait_until("it may come again", || a.reconnect(&path).is_ok());
    });
    lasthop.end(Signal::TERM);
}

/// Hot-plugged regions, with an address in each from which frames are sent.
struct Plugged {
    places: Vec<(u64, u64)>,
    sent: u64,
}

impl Plugged {
    fn plug(&mut self, guest: &mut FakeGuest, gpa: u64) {
        let spec = RegionSpec::at(gpa, 64 << 10);
        guest.plug(spec).expect("more memory");
        let last = guest.ram().regions().len() - 1;
        let at = guest.ram().alloc_in(last, 4096, 64).expect("room");
        self.places.push((gpa, at));
    }

    /// Sends a frame out of the region with this index, and waits for it.
    fn send(&mut self, (from, to): (&mut FakeGuest, &mut FakeGuest), place: usize) {
        let number = Numbered {
            stream: 1,
            seq: self.sent,
        };
        self.sent += 1;
        let payload = numbered_payload(number, 600);
        let frame = udp(&Flow::v4(1, 2), &payload);
        let bytes = [&NetHeader::default().to_bytes()[..], &frame].concat();
        let (_, at) = self.places[place];
        from.ram().write(at, &bytes);
        let tx = &mut from.pairs[0].nic.tx;
        let piece = Piece::new(at, bytes.len() as u32);
        tx.add(&[piece], &[], Shape::Direct, 0).expect("room");
        tx.publish();
        from.pairs[0].tx_kick.signal();
        wait_until("the frame arrives and its buffer comes back", || {
            while from.pairs[0].nic.tx.poll().expect("sound").is_some() {}
            from.pairs[0].nic.tx.outstanding() == 0
        });
        // A frame that was delivered just before a death may be delivered again.
        wait_until("the frame is there", || {
            let all = to.recv_all().expect("a sound device");
            all.iter()
                .any(|got| payload_of(&got.frame).is_ok_and(|p| p == payload))
        });
    }

    /// Sends a frame out of every region.
    fn send_all(&mut self, (from, to): (&mut FakeGuest, &mut FakeGuest)) {
        for place in 0..self.places.len() {
            self.send((&mut *from, &mut *to), place);
        }
    }
}

/// QEMU can plug this many regions; the switch dies while they are plugged, in use, and unplugged.
#[test]
fn as_many_memory_regions_as_there_may_be_outlive_the_switch() {
    for packed in [false, true] {
        let place = Place::new();
        let mut lasthop = place.start(&config(2, 2));
        let mut hot_plug = GuestConfig {
            memory_slots: true,
            ..GuestConfig::default()
        };
        if packed {
            hot_plug = hot_plug.packed();
        }
        let (mut a, mut b) = (
            guest(&place, 1, hot_plug),
            guest(&place, 2, GuestConfig::default()),
        );
        let most = a.front().unwrap().get_max_mem_slots().unwrap();
        assert_eq!(most, 509);
        let more = most as usize - a.ram().regions().len();
        assert!(more >= 500);
        let mut plugged = Plugged {
            places: Vec::new(),
            sent: 0,
        };
        for n in 0..more {
            plugged.plug(&mut a, (0x20 + n as u64) << 32);
            if n % 200 == 99 {
                lasthop.kill_switch(Signal::KILL);
            }
        }
        plugged.send_all((&mut a, &mut b));
        lasthop.kill_switch(Signal::KILL);
        plugged.send_all((&mut a, &mut b));
        // In a mixed order.
        let mut next = 17;
        while !plugged.places.is_empty() {
            next = (next * 31 + 7) % plugged.places.len();
            let (gpa, _) = plugged.places.swap_remove(next);
            a.unplug(gpa).expect("less memory");
            match plugged.places.len() {
                0 => {}
                left if left % 200 == 99 => lasthop.kill_switch(Signal::KILL),
                left if left % 10 == 0 => plugged.send((&mut a, &mut b), left / 2),
                _ => {}
            }
        }
        let log = lasthop.log();
        for trouble in [
            "disconnected",
            "not all are kept",
            "session not saved",
            "not continued",
        ] {
            assert!(!log.contains(trouble), "{log}");
        }
        a.wait_link().expect("the same connection");
        a.disconnect().expect("a good end");
        lasthop.end(Signal::TERM);
    }
}
