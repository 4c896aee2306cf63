//! Many guests at once, and no guest at all.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use ipc::supervision::{Poll, SwitchSettings};
use rustix::time::{ClockId, clock_gettime};
use testkit::features::{EVENT_IDX, INDIRECT_DESC};
use testkit::guest_ram::RegionSpec;
use testkit::net::NetHeader;
use testkit::packets::{Flow, SequenceChecker, mac, payload_of, udp};
use testkit::{FakeGuest, GuestConfig};

use crate::host::{Host, LIMIT, wait_for};
use crate::traffic::{disconnect, numbered, stray, talk};

/// Sends 3000 frames to each neighbour in turn and takes what comes meanwhile.
fn chat(mut guest: FakeGuest, ids: [u8; 4], sent: &AtomicU64, done: &AtomicU64) -> SequenceChecker {
    let me = guest.mac()[5];
    let mut checker = SequenceChecker::default();
    let mut take = |guest: &mut FakeGuest| {
        for got in guest.recv_all().expect("a correct device") {
            checker.see(payload_of(&got.frame).expect("a datagram"));
        }
    };
    for seq in 0..3000 {
        for id in ids.into_iter().filter(|id| *id != me) {
            guest
                .send(&numbered(me, id, seq, 64 + seq as usize % 900))
                .expect("room");
            sent.fetch_add(1, SeqCst);
        }
        take(&mut guest);
    }
    guest.pairs[0].drain().expect("buffers come back");
    done.fetch_add(1, SeqCst);
    let end = Instant::now() + LIMIT;
    while done.load(SeqCst) < 5 && Instant::now() < end {
        take(&mut guest);
        std::thread::sleep(Duration::from_micros(200));
    }
    take(&mut guest);
    checker
}

#[test]
fn four_guests_at_once_lose_nothing_uncounted() {
    let host = Host::with_ports(1..=4);
    let ids = [1, 2, 3, 4];
    let (sent, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let guests = ids.map(|id| {
        let config = if id % 2 == 0 {
            GuestConfig::default().packed()
        } else {
            GuestConfig::default().in_order()
        };
        host.guest(id.into(), config)
    });
    let threads = guests.map(|guest| {
        let (sent, done) = (Arc::clone(&sent), Arc::clone(&done));
        std::thread::spawn(move || chat(guest, ids, &sent, &done))
    });
    wait_for("all to be sent", || done.load(SeqCst) == 4);
    wait_for("all to be decided", || {
        let (_, to, drops) = host.totals();
        to + drops == sent.load(SeqCst)
    });
    done.fetch_add(1, SeqCst);
    let checkers = threads.map(|thread| thread.join().expect("no panic"));
    let received: u64 = checkers.iter().map(|c| c.received).sum();
    let (from, to, _) = host.totals();
    assert_eq!((from, received), (sent.load(SeqCst), to));
    for checker in &checkers {
        // Each sender's stream may have gaps where a queue was full; its order holds.
        assert_eq!(
            (checker.damaged, checker.reordered, checker.duplicated),
            (0, 0, 0)
        );
    }
}

#[test]
fn no_wakeup_is_lost_in_a_long_game_of_ping_pong() {
    let host = Host::with_ports([1, 2]);
    for config in [
        GuestConfig::default(),
        GuestConfig::default().packed(),
        GuestConfig::default().without(EVENT_IDX),
        GuestConfig::default()
            .packed()
            .without(EVENT_IDX | INDIRECT_DESC),
    ] {
        let mut a = host.guest(1, config.clone());
        let mut b = host.guest(2, config);
        for n in 0..400u64 {
            // Pauses around the time after which the switch enables kicks again.
            let pause = Duration::from_micros(n * 37 % 150);
            a.send(&numbered(1, 2, n, 64)).expect("room");
            b.recv(LIMIT)
                .expect("correct")
                .unwrap_or_else(|| panic!("ping {n}"));
            std::thread::sleep(pause);
            b.send(&numbered(2, 1, n, 64)).expect("room");
            a.recv(LIMIT)
                .expect("correct")
                .unwrap_or_else(|| panic!("pong {n}"));
        }
        disconnect([a, b]);
    }
}

#[test]
fn sixty_four_queue_pairs_work() {
    let mut host = Host::new();
    host.add_port(1, 64);
    host.add_port(2, 64);
    let config = GuestConfig {
        queue_size: 16,
        ..GuestConfig::default().pairs(64)
    };
    let mut a = host.guest(1, config.clone().packed());
    let mut b = host.guest(2, config);
    for n in 0..64u16 {
        for port in 0..8 {
            let frame = udp(&Flow::v4(1, 2).ports(n * 8 + port, 7), &n.to_be_bytes());
            a.send_on(usize::from(n), &frame, &NetHeader::default())
                .expect("room");
        }
        b.recv_count(8, LIMIT).expect("all of them");
    }
    let used = b.pairs.iter().filter(|p| p.stats.received > 0).count();
    assert!(used > 50, "{used} pairs used");
    assert_eq!(host.state(1).queues.len(), 128);
}

#[test]
fn memory_is_plugged_under_traffic() {
    let host = Host::with_ports([1, 2]);
    for memory_slots in [false, true] {
        let config = GuestConfig {
            memory_slots,
            ..GuestConfig::default()
        };
        let mut a = host.guest(1, config.clone());
        let mut b = host.guest(2, config);
        // SET_MEM_TABLE takes eight regions.
        for n in 0..if memory_slots { 40 } else { 6 } {
            talk(&mut a, &mut b, 20);
            for _ in 0..50 {
                a.send(&stray(1, 2, 800)).expect("room");
            }
            a.plug(RegionSpec::at((0x20 + n) << 32, 1 << 20))
                .expect("more memory");
        }
        talk(&mut a, &mut b, 50);
        // Frames may lie in the memory that came last.
        let last = a.ram().regions().len() - 1;
        let frame = numbered(1, 2, 1, 600);
        let at = a.ram().alloc_in(last, 4096, 64).expect("room");
        let bytes = [NetHeader::default().to_bytes().as_slice(), &frame].concat();
        a.ram().write(at, &bytes);
        let piece = testkit::driver::Piece::new(at, bytes.len() as u32);
        let pair = &mut a.pairs[0];
        while pair.nic.tx.poll().expect("sound").is_some() {}
        let shape = testkit::driver::Shape::Direct;
        pair.nic.tx.add(&[piece], &[], shape, 0).expect("room");
        pair.nic.tx.publish();
        pair.tx_kick.signal();
        let got = b.recv(LIMIT).expect("correct").expect("a frame");
        assert_eq!((got.frame, a.mac()), (frame, mac(1)));
        disconnect([a, b]);
    }
}

#[test]
fn a_worker_that_never_sleeps_hears_of_everything() {
    let mut host = Host::with_settings(SwitchSettings {
        poll: Poll::Always,
        ..SwitchSettings::default()
    });
    host.add_port(1, 1);
    host.add_port(2, 1);
    for round in 0..3 {
        // Without a queue the worker sleeps, with one it does not; jobs and answers are handled in
        // both cases.
        let mut a = host.guest(1, GuestConfig::default());
        let mut b = host.guest(2, GuestConfig::default().packed());
        let kicks = |guest: &FakeGuest| guest.stats().kicks;
        talk(&mut a, &mut b, 50);
        let before = kicks(&a);
        for _ in 0..20 {
            talk(&mut a, &mut b, 1);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(kicks(&a), before, "no kicks are enabled, round {round}");
        disconnect([a, b]);
    }
}

const CHILD: &str = "LASTHOP_IDLE_TEST";

#[test]
fn an_idle_switch_uses_no_processor() {
    if std::env::var_os(CHILD).is_some() {
        return idle();
    }
    let output = Command::new(std::env::current_exe().expect("a path"))
        .args([
            "--exact",
            "load::an_idle_switch_uses_no_processor",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .expect("a child");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn idle() {
    let host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, GuestConfig::default());
    let mut b = host.guest(2, GuestConfig::default().packed());
    talk(&mut a, &mut b, 200);
    // It polls for a while before it sleeps, and longer on a busy machine.
    wait_for("half a second of rest", || {
        let before = cpu();
        std::thread::sleep(Duration::from_millis(500));
        cpu() - before < Duration::from_millis(25)
    });
    talk(&mut a, &mut b, 20);
}
