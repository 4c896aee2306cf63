//! Programs of the netmap API on ports of a real Lasthop: every frame arrives once and whole, also
//! while processes die.

use std::path::Path;
use std::time::{Duration, Instant};

use e2e::lasthop::Lasthop;
use e2e::slotgen::Slotgen;
use e2e::stats::Stats;
use e2e::{beside, machine, repetitions};
use rustix::process::Signal;
use testkit::wait::{LIMIT, wait_until};

fn port(name: &str, segment: &str, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"netmap\"\nsegment = \"{segment}\"\n\
         port_security = {{ macs = \"any\" }}\n{more}\n"
    )
}

fn config(ports: &[String]) -> String {
    let segments = "[[segment]]\nname = \"s\"\n\n[[segment]]\nname = \"t\"\n\n";
    format!("{segments}{}", ports.concat())
}

fn two_ports() -> Lasthop {
    Lasthop::start(&config(&[port("a", "s", ""), port("b", "s", "")]))
}

/// Starts a receiver on a port, and waits until it is there.
fn receiver(lasthop: &Lasthop, name: &str, more: &str) -> Slotgen {
    let arguments = format!("rx -i netmap:{name} -V -T 60 -q 20 {more}");
    let rx = Slotgen::start(lasthop.folder(), arguments.trim());
    lasthop.wait_port(name, "up");
    rx
}

fn send(folder: impl AsRef<Path>, arguments: &str) -> Slotgen {
    Slotgen::start(folder, &format!("tx -i netmap:a -V {arguments}"))
}

/// Frames that the switch dropped since these counts because their receiver's ring was full: on a
/// busy machine a receiver may not run for a while. None may be lost for another reason.
fn dropped_since(lasthop: &Lasthop, before: &Stats) -> u64 {
    let moved = lasthop.stats().since(before);
    moved.drops().get("receiver-full").copied().unwrap_or(0)
}

/// Checks that a receiver got so many frames, once and whole, but for those that were dropped.
fn all_arrived(lasthop: &Lasthop, before: &Stats, rx: Slotgen, frames: u64) {
    let printed = rx.printed();
    let [received, lost, twice, bad] = printed.counts();
    let dropped = dropped_since(lasthop, before);
    assert_eq!((twice, bad), (0, 0), "{printed:?}");
    assert!(
        lost <= dropped && received <= frames && frames - received <= dropped.min(frames / 2),
        "{printed:?} of {frames}, {dropped} dropped"
    );
}

#[test]
fn frames_of_all_lengths_arrive_once_and_whole() {
    let turn = beside();
    let lasthop = two_ports();
    for len in [60, 61, 1514, 2048, 2049, 9000] {
        turn.step(&format!("{len} bytes"));
        let before = lasthop.stats();
        let rx = receiver(&lasthop, "b", "-n 3000");
        let tx = send(
            lasthop.folder(),
            &format!("-n 3000 -l {len} -R 20000 -b 10"),
        );
        assert_eq!(tx.printed().counts(), [3000, 0, 0, 0]);
        all_arrived(&lasthop, &before, rx, 3000);
    }
    let stats = lasthop.stats();
    assert_eq!(stats.sent("a"), 6 * 3000);
    lasthop.stop();
}

/// A run in which the receiver had no time for as long as its ring has room says nothing about the
/// kills: then all is done anew.
#[test]
fn the_switch_may_die_under_load() {
    let turn = beside();
    let lasthop = two_ports();
    let kills = repetitions("LASTHOP_KILLS", 3) as u64;
    let frames = 50_000 * (kills + 1);
    let limit = 60 + 10 * kills;
    let since = Instant::now();
    let mut runs = 0;
    let printed = loop {
        runs += 1;
        let before = lasthop.stats();
        let rx = receiver(&lasthop, "b", &format!("-q 8 -C 0,4096 -T {limit}"));
        let tx = send(lasthop.folder(), &format!("-n {frames} -R 100000 -b 50"));
        for kill in 1..=kills {
            std::thread::sleep(Duration::from_millis(400));
            turn.step(&format!("kill -9 of the switch, time {kill}"));
            lasthop.replace_switch();
        }
        assert_eq!(tx.printed().counts(), [frames, 0, 0, 0]);
        let printed = rx.printed();
        let dropped = dropped_since(&lasthop, &before);
        if dropped == 0 || since.elapsed() > LIMIT {
            break printed;
        }
        turn.step(&format!("anew: {dropped} frames found their ring full"));
    };
    let [received, lost, twice, bad] = printed.counts();
    assert_eq!((lost, bad), (0, 0), "{printed:?}");
    // One batch a kill, at most.
    assert!(twice <= kills * 64, "{printed:?}");
    assert_eq!(received, frames + twice, "{printed:?}");
    let log = lasthop.log();
    let connections = log.matches("front end connected").count();
    assert_eq!(connections, 2 * runs, "{log}");
    lasthop.stop();
}

#[test]
fn lasthop_may_be_started_anew() {
    let turn = beside();
    let mut lasthop = two_ports();
    let rx = receiver(&lasthop, "b", "-q 8 -n 3000");
    // So few that all of them fit the rings of sender and receiver, and for six seconds: neither
    // program ends before Lasthop is back.
    let tx = send(lasthop.folder(), "-n 3000 -R 500 -b 1");
    lasthop.wait_port("a", "up");
    std::thread::sleep(Duration::from_millis(300));
    turn.step("kill -9 of the supervisor, and a start");
    lasthop.start_again();
    for name in ["a", "b"] {
        lasthop.wait_port(name, "up");
    }
    assert_eq!(tx.printed().counts(), [3000, 0, 0, 0]);
    let [_, lost, twice, bad] = rx.printed().counts();
    // The receiver may come back behind the sender: a frame for a port that is not up is dropped,
    // and counted.
    let stats = lasthop.stats();
    let dropped: u64 = stats.drops().values().sum();
    assert!(
        lost <= dropped && twice <= 64 && bad == 0,
        "{lost} {twice} {bad}: {stats:?}"
    );
    lasthop.stop();
}

#[test]
fn a_client_that_is_killed_is_replaced() {
    let _turn = beside();
    let lasthop = two_ports();
    for _ in 0..3 {
        let rx = receiver(&lasthop, "b", "");
        rx.signal(Signal::KILL);
        drop(rx);
        lasthop.wait_port("b", "waiting");
    }
    let before = lasthop.stats();
    let rx = receiver(&lasthop, "b", "-n 500");
    let second = Slotgen::start(lasthop.folder(), "rx -i netmap:b -T 5").fails();
    assert!(second.contains("another process has the port"), "{second}");
    send(lasthop.folder(), "-n 500 -R 10000 -b 10").printed();
    all_arrived(&lasthop, &before, rx, 500);
    lasthop.stop();
}

#[test]
fn a_bridge_swaps_buffers_between_two_ports_or_copies() {
    let turn = beside();
    let ports = [("a", "s"), ("b", "s"), ("c", "t"), ("d", "t")];
    let lasthop = Lasthop::start(&config(&ports.map(|(name, of)| port(name, of, ""))));
    for copy in ["", " -c"] {
        turn.step(&format!("bridge{copy}"));
        let bridge = format!("bridge -i netmap:b -i netmap:c -T 60{copy}");
        let bridge = Slotgen::start(lasthop.folder(), &bridge);
        lasthop.wait_port("c", "up");
        let before = lasthop.stats();
        let rx = receiver(&lasthop, "d", "-n 20000");
        let tx = send(lasthop.folder(), "-n 20000 -R 40000 -b 32 -l 200");
        assert_eq!(tx.printed().counts(), [20_000, 0, 0, 0]);
        all_arrived(&lasthop, &before, rx, 20_000);
        bridge.signal(Signal::INT);
        let bridged = bridge.printed();
        assert!(bridged.0.contains("zerocopy supported"), "{bridged:?}");
        let dropped = dropped_since(&lasthop, &before);
        let frames = bridged.number("frames");
        assert!(
            frames <= 20_000 && frames + dropped >= 20_000,
            "{frames}, {dropped}"
        );
        lasthop.wait_port("b", "waiting");
        lasthop.wait_port("c", "waiting");
    }
    lasthop.stop();
}

#[test]
fn pings_come_back_however_the_library_waits() {
    let turn = beside();
    let lasthop = two_ports();
    for mode in ["sleep", "adaptive", "spin"] {
        turn.step(mode);
        let folder = lasthop.folder();
        let pong = Slotgen::start_waiting(mode, &folder, "pong -i netmap:b -n 300 -T 60");
        lasthop.wait_port("b", "up");
        let before = lasthop.stats();
        let ping = Slotgen::start_waiting(mode, folder, "ping -i netmap:a -n 300");
        let [frames, lost, twice, bad] = ping.printed().counts();
        let dropped = dropped_since(&lasthop, &before);
        assert_eq!((frames + lost, twice, bad), (300, 0, 0), "{mode}");
        assert!(lost <= dropped, "{mode}: {lost} lost, {dropped} dropped");
        pong.printed();
        lasthop.wait_port("a", "waiting");
        lasthop.wait_port("b", "waiting");
    }
    lasthop.stop();
}

#[test]
fn ports_with_and_without_a_header_talk() {
    let turn = beside();
    let lasthop = two_ports();
    for (sender, receiver_has) in [(0, 12), (12, 0), (10, 12), (12, 10)] {
        turn.step(&format!(
            "header of {sender} bytes to one of {receiver_has}"
        ));
        let before = lasthop.stats();
        let rx = receiver(&lasthop, "b", &format!("-n 1000 -H {receiver_has}"));
        let tx = send(
            lasthop.folder(),
            &format!("-H {sender} -n 1000 -l 500 -R 20000 -b 10"),
        );
        assert_eq!(tx.printed().counts(), [1000, 0, 0, 0]);
        all_arrived(&lasthop, &before, rx, 1000);
        lasthop.wait_port("b", "waiting");
    }
    lasthop.stop();
}

#[test]
fn a_port_has_several_rings_of_the_configured_size() {
    let _turn = beside();
    let four = port("b", "s", "queues = 4\nslots = 256");
    let lasthop = Lasthop::start(&config(&[port("a", "s", ""), four]));
    let before = lasthop.stats();
    let rx = receiver(&lasthop, "b", "-n 1000");
    assert_eq!(lasthop.wait_port("b", "up")["queue_pairs"], 4);
    send(lasthop.folder(), "-n 1000 -R 10000 -b 10").printed();
    all_arrived(&lasthop, &before, rx, 1000);
    lasthop.stop();
}

#[test]
fn a_program_that_breaks_a_rule_gets_an_error_and_harms_no_other() {
    let turn = beside();
    let ports = ["a", "b", "c"].map(|name| port(name, "s", ""));
    let lasthop = Lasthop::start(&config(&ports));
    let rx = receiver(&lasthop, "b", "-n 400 -q 30");
    for rule in ["buffer", "length", "chain", "head"] {
        turn.step(rule);
        let breaks = format!("tx -i netmap:c -S 02:00:00:00:00:09 -n 10 -X {rule}");
        let said = Slotgen::start(lasthop.folder(), &breaks).fails();
        assert!(
            said.contains("POLLERR") || said.contains("Invalid argument"),
            "{said}"
        );
        let port = lasthop.wait_port("c", "waiting");
        // The switch's reason outlives the program.
        if said.contains("POLLERR") {
            let reason = port["reason"].as_str().unwrap_or_default();
            assert!(reason.contains(" stopped: "), "{rule}: {port}");
        }
    }
    send(lasthop.folder(), "-n 400 -R 10000 -b 10").printed();
    rx.printed();
    lasthop.stop();
}

#[test]
fn a_name_that_is_no_port_is_enxio() {
    let _turn = beside();
    let lasthop = two_ports();
    let said = Slotgen::start(lasthop.folder(), "rx -i netmap:z").fails();
    assert!(said.contains("z: there is no such port"), "{said}");
    assert!(said.contains("No such device or address"), "{said}");
    // VALE's names mean ports, too.
    let before = lasthop.stats();
    let rx = Slotgen::start(lasthop.folder(), "rx -i vale3:b -V -n 10 -T 60 -q 20");
    lasthop.wait_port("b", "up");
    // The first frame waits for control's decision, and is lost with its port.
    send(lasthop.folder(), "-n 10 -R 100 -b 1").printed();
    all_arrived(&lasthop, &before, rx, 10);
    lasthop.stop();
}

/// Waits until so many ends of pipes are known.
fn wait_for_ends(lasthop: &Lasthop, count: usize) {
    wait_until("the ends", || {
        let pipes = lasthop.json(&["pipe", "list"]).to_string();
        pipes.matches("slotgen").count() == count
    });
}

/// Pipes run without any process of Lasthop, and ends meet again when it is back.
#[test]
fn a_pipe_does_not_notice_the_death_of_lasthop() {
    let turn = beside();
    let mut lasthop = Lasthop::start("[[pipe]]\nname = \"p\"\nslots = 512\n");
    let folder = lasthop.folder();
    let rx = Slotgen::start(&folder, "rx -i netmap:p}1 -V -n 300000 -q 20 -T 60");
    let tx = Slotgen::start(&folder, "tx -i netmap:p{1 -V -n 300000 -R 100000 -b 50");
    wait_for_ends(&lasthop, 2);
    std::thread::sleep(Duration::from_millis(500));
    turn.step("kill -9 of all of Lasthop");
    lasthop.start_again();
    assert_eq!(tx.printed().counts(), [300_000, 0, 0, 0]);
    assert_eq!(rx.printed().counts(), [300_000, 0, 0, 0]);
    turn.step("an end that was killed is replaced");
    wait_for_ends(&lasthop, 0);
    let rx = Slotgen::start(&folder, "rx -i netmap:p}2 -V -q 60 -T 60");
    wait_for_ends(&lasthop, 1);
    let tx = Slotgen::start(&folder, "tx -i netmap:p{2 -V -n 100000 -R 1000 -b 1");
    wait_for_ends(&lasthop, 2);
    std::thread::sleep(Duration::from_millis(300));
    tx.signal(Signal::KILL);
    drop(tx);
    let again = || Slotgen::start(&folder, "tx -i netmap:p{2 -n 2000 -T 10");
    let printed = again().printed();
    assert!(printed.number("frames") > 0);
    rx.signal(Signal::INT);
    assert!(rx.printed().number("frames") > 200);
    wait_for_ends(&lasthop, 0);
    lasthop.stop();
}

#[test]
fn a_balancer_spreads_frames_over_pipes_in_the_memory_of_its_port() {
    let _turn = machine();
    let balanced = port("b", "s", "pipes = true");
    let lasthop = Lasthop::start(&config(&[port("a", "s", ""), balanced]));
    let folder = lasthop.folder();
    let lb = Slotgen::start(&folder, "lb -i netmap:b -p 2 -B 500 -T 60");
    lasthop.wait_port("b", "up");
    wait_for_ends(&lasthop, 2);
    let before = lasthop.stats();
    let end = |id| format!("rx -i netmap:b}}{id} -n 5001 -T 60 -q 20");
    let ends = [0, 1].map(|id| Slotgen::start(&folder, &end(id)));
    // The first frames wait for control's decision, and only so many of them.
    send(&folder, "-n 2 -b 2").printed();
    send(&folder, "-n 10000 -R 20000 -b 20").printed();
    let received = ends.map(|end| end.printed().number("frames"));
    lb.signal(Signal::INT);
    let printed = lb.printed();
    let [frames, lost, twice, bad] = printed.counts();
    assert_eq!((twice, bad), (0, 0), "{printed:?}");
    let dropped = dropped_since(&lasthop, &before);
    assert!(
        frames <= 10_002 && frames + dropped >= 10_002,
        "{printed:?}, {dropped}"
    );
    assert_eq!(received.iter().sum::<u64>() + lost, frames, "{received:?}");
    let is_fair = |of_end: &u64| of_end + lost >= frames / 2;
    assert!(received.iter().all(is_fair), "{received:?}, {printed:?}");
    lasthop.stop();
}
