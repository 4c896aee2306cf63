//! Limits of a port: what is sent waits in the guest, what is received is dropped, storms are, and
//! changes take effect at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use e2e::guest::{Guest, two_guests};
use e2e::lasthop::Lasthop;
use e2e::numbered::{Stream, collect, introduce, settle};
use e2e::traffic::{iperf, iperf_bytes, ping, serve_iperf};
use e2e::uplinks::{tap, uplink, wire};
use e2e::{Turn, machine};
use testkit::net::NetHeader;
use testkit::netns::Netns;
use testkit::packets::{
    BROADCAST, Flow, SequenceChecker, ethernet, mac, payload_of, tcp_super, udp,
};
use testkit::table::rows;
use testkit::wait::{LIMIT, wait_for};
use testkit::{FakeGuest, GuestConfig};

fn config(limits: &str) -> String {
    let port = |name: &str, more: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n\
             port_security = {{ macs = \"any\" }}\n{more}\n"
        )
    };
    let ports = [
        port("vm1", limits),
        port("vm2", ""),
        port("vm3", ""),
        port("vm4", ""),
    ];
    format!("[switch]\nname = \"host1\"\n{}", ports.concat())
}

struct World {
    turn: Turn,
    lasthop: Lasthop,
    a: FakeGuest,
    b: FakeGuest,
    c: FakeGuest,
}

impl World {
    fn start(limits: &str) -> World {
        Self::start_with(&config(limits), 1)
    }

    /// With another configuration, and guests that use so many queue pairs.
    fn start_with(config: &str, pairs: u16) -> World {
        let turn = machine();
        let lasthop = Lasthop::start(config);
        let [a, b, c] = [1, 2, 3].map(|n| {
            let config = GuestConfig::default().guest(n).pairs(pairs);
            lasthop.connect_as(&format!("vm{n}"), config)
        });
        let mut world = World {
            turn,
            lasthop,
            a,
            b,
            c,
        };
        introduce(&mut world.a, &mut world.b, Flow::v4(1, 2));
        introduce(&mut world.c, &mut world.b, Flow::v4(3, 2));
        world
    }

    fn limit(&self, limits: &[&str]) {
        let mut args = vec!["port", "set", "vm1"];
        for limit in limits {
            args.extend(["--limit", limit]);
        }
        self.lasthop.ok(&args);
    }
}

/// A bound that holds in any time: so many at once, and so many a second.
struct Most {
    began: Instant,
    per_second: f64,
    burst: f64,
}

impl Most {
    fn from_now(per_second: u32, burst: u32) -> Most {
        Most {
            began: Instant::now(),
            per_second: per_second.into(),
            burst: burst.into(),
        }
    }

    fn holds(&self, count: u64) {
        let seconds = self.began.elapsed().as_secs_f64();
        let most = self.burst + self.per_second * seconds;
        assert!(
            count as f64 <= most,
            "{count} in {seconds:.3} s, at most {most:.0} may be"
        );
    }
}

/// Frames on their way, so that no receiver runs out of buffers.
const WINDOW: u64 = 100;

/// Sends so many frames; their receiver reads them meanwhile.
fn pump(
    (from, to): (&mut FakeGuest, &mut FakeGuest),
    stream: &mut Stream,
    checker: &mut SequenceChecker,
    frames: usize,
) {
    let end = Instant::now() + LIMIT;
    for _ in 0..frames {
        stream.send(from, 64);
        while stream.sent() > checker.next_of(stream.id()) + WINDOW {
            assert!(Instant::now() < end, "{:?}", checker.lost());
            collect(to, checker);
        }
    }
}

/// Sends without waiting for frames that get lost.
fn spray(
    (from, to): (&mut FakeGuest, &mut FakeGuest),
    stream: &mut Stream,
    checker: &mut SequenceChecker,
    frames: usize,
) {
    for n in 0..frames {
        stream.send(from, 64);
        if n % 16 == 0 {
            collect(to, checker);
        }
    }
}

#[test]
fn what_a_guest_sends_waits_and_nothing_is_lost() {
    let limits = "[port.limits]\nfrom_guest = { packets_per_second = \"2k\", packets_burst = 100 }";
    let mut world = World::start(limits);
    let switch = world.lasthop.pid("lasthop-switch");
    let mut checker = SequenceChecker::default();
    let mut stream = Stream::new(1, Flow::v4(1, 2));
    let before = world.lasthop.stats();
    let most = Most::from_now(2000, 100);

    world
        .turn
        .step("2000 frames from a port that may send 2000 a second");
    pump(
        (&mut world.a, &mut world.b),
        &mut stream,
        &mut checker,
        1000,
    );
    most.holds(world.lasthop.stats().since(&before).sent("vm1"));
    pump(
        (&mut world.a, &mut world.b),
        &mut stream,
        &mut checker,
        1000,
    );
    settle(&mut world.b, &mut checker, &stream, LIMIT);
    let moved = world.lasthop.stats().since(&before);
    most.holds(moved.sent("vm1"));
    assert_eq!(
        (moved.sent("vm1"), moved.drops().len()),
        (2000, 0),
        "{moved:?}"
    );
    let rate = 1900.0 / most.began.elapsed().as_secs_f64();
    world
        .turn
        .step(&format!("it was {rate:.0} frames a second"));

    world
        .turn
        .step("another port of the same worker does not wait");
    let mut other = Stream::new(2, Flow::v4(3, 2));
    let began = Instant::now();
    pump((&mut world.a, &mut world.b), &mut stream, &mut checker, 90);
    pump((&mut world.c, &mut world.b), &mut other, &mut checker, 2000);
    settle(&mut world.b, &mut checker, &other, LIMIT);
    world
        .turn
        .step(&format!("2000 frames in {:?}", began.elapsed()));
    settle(&mut world.b, &mut checker, &stream, LIMIT);

    world.turn.step("a frame of many segments counts as many");
    world.limit(&["from-guest:packets=1k,packets-burst=64"]);
    let most = Most::from_now(1000, 64);
    let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[7; 20 * 1448], 1448);
    for _ in 0..20 {
        world
            .a
            .send_on(0, &frame, &header)
            .expect("the guest can send");
        world.b.recv_all().expect("the device keeps the rules");
    }
    let sent = |world: &World| world.lasthop.stats().sent("vm1");
    let all = before.sent("vm1") + stream.sent() + 20;
    wait_for("all are taken", || (sent(&world) == all).then_some(()));
    most.holds(20 * 20);
    world.b.recv_all().expect("the device keeps the rules");

    world
        .turn
        .step("without a limit again, and everybody was connected all the time");
    world.limit(&["from-guest:none"]);
    pump(
        (&mut world.a, &mut world.b),
        &mut stream,
        &mut checker,
        5000,
    );
    settle(&mut world.b, &mut checker, &stream, LIMIT);
    let shown = world.lasthop.port("vm1");
    assert!(shown.get("limits").is_none(), "{shown}");
    assert_eq!(switch, world.lasthop.pid("lasthop-switch"));
    world.lasthop.stop();
}

#[test]
fn what_a_guest_is_sent_beyond_its_limit_is_dropped_by_name() {
    let mut world = World::start("");
    world
        .turn
        .step("5000 frames to a port that may be sent 1000 a second");
    world.limit(&["to-guest:packets=1k,packets-burst=100"]);
    let before = world.lasthop.stats();
    let most = Most::from_now(1000, 100);
    let mut checker = SequenceChecker::default();
    let mut stream = Stream::new(1, Flow::v4(2, 1));
    spray(
        (&mut world.b, &mut world.a),
        &mut stream,
        &mut checker,
        5000,
    );
    let moved = wait_for("all are switched", || {
        let moved = world.lasthop.stats().since(&before);
        (moved.sent("vm2") == 5000).then_some(moved)
    });
    let dropped = moved.get("vm1.drops.rate-limited");
    most.holds(moved.received("vm1"));
    assert_eq!(moved.received("vm1") + dropped, 5000, "{moved:?}");
    assert!(dropped > 0 && moved.drops().len() == 1, "{moved:?}");

    world.turn.step("others get all");
    let mut checker = SequenceChecker::default();
    let mut stream = Stream::new(2, Flow::v4(2, 3));
    pump(
        (&mut world.b, &mut world.c),
        &mut stream,
        &mut checker,
        3000,
    );
    settle(&mut world.c, &mut checker, &stream, LIMIT);

    world
        .turn
        .step("control and switch are killed: the limit stays");
    world.lasthop.replace_both();
    wait_for("frames flow", || {
        world.b.send(&udp(&Flow::v4(2, 3), b"again")).ok()?;
        world.c.recv(Duration::from_millis(50)).ok()?
    });
    let before = world.lasthop.stats();
    let most = Most::from_now(1000, 100);
    let mut stream = Stream::new(3, Flow::v4(2, 1));
    spray(
        (&mut world.b, &mut world.a),
        &mut stream,
        &mut checker,
        3000,
    );
    wait_for("all are switched", || {
        (world.lasthop.stats().since(&before).sent("vm2") >= 3000).then_some(())
    });
    let moved = world.lasthop.stats().since(&before);
    most.holds(moved.received("vm1"));
    assert!(moved.get("vm1.drops.rate-limited") > 0, "{moved:?}");
    world.lasthop.stop();
}

#[test]
fn a_limit_that_cannot_be_is_refused_and_nothing_changes() {
    let world = World::start("[port.limits.from_guest]\npackets_per_second = 5000");
    let before = world.lasthop.json(&["port", "show", "vm1"]);
    assert_eq!(before["limits"]["from_guest"]["packets_per_second"], 5000);
    for [limit, field] in &rows(
        r"
        from-guest:packets=0             | limits.from_guest.packets_per_second
        to-guest:bits=0                  | limits.to_guest.bits_per_second
        to-guest:bits=1G,bits-burst=100k | limits.to_guest.bits_burst
        broadcast:packets=0              | limits.broadcast.packets_per_second
        from-guest:packets-burst=100     | limits.from_guest.packets_per_second
    ",
    ) {
        let refused = world.lasthop.cli(&["port", "set", "vm1", "--limit", limit]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{limit}: {said}");
        assert!(said.contains(field), "{limit}: {said}");
    }
    let file = world.lasthop.folder().join("zero.toml");
    let text = config("[port.limits]\nunknown_unicast = { packets_per_second = 0 }");
    std::fs::write(&file, text).expect("a file");
    let refused = world
        .lasthop
        .cli(&["apply", file.to_str().expect("a path")]);
    let said = String::from_utf8_lossy(&refused.stderr);
    let place = "port.limits.unknown_unicast.packets_per_second";
    assert!(said.contains(place) && said.contains("found 0"), "{said}");
    assert!(said.contains("zero.toml:9:"), "{said}");
    assert_eq!(
        world.lasthop.json(&["port", "show", "vm1"])["limits"],
        before["limits"]
    );
    world.lasthop.stop();
}

#[test]
fn a_storm_is_dropped_and_other_traffic_continues() {
    let limits = "[port.limits]\n\
        broadcast = { packets_per_second = 10, packets_burst = 20 }\n\
        unknown_unicast = { packets_per_second = 10, packets_burst = 5 }";
    let mut world = World::start(limits);
    let unknown = [2, 0xff, 0, 0, 0, 1];
    let group = [0x33, 0x33, 0, 0, 0, 9];
    for (what, to, burst) in [
        ("broadcast", BROADCAST, Some(20)),
        ("an unknown station", unknown, Some(5)),
        ("a group, which is not limited", group, None),
    ] {
        world.turn.step(&format!("500 frames for {what}"));
        let before = world.lasthop.stats();
        let most = burst.map(|burst| Most::from_now(10, burst));
        let frame = ethernet(to, mac(1), 0x88b5, &[7; 46]);
        for n in 0..500 {
            world
                .a
                .send_on(0, &frame, &NetHeader::default())
                .expect("the guest can send");
            // All wait for the flow that the first one asks for: no more than there is room for.
            if n % 32 == 0 {
                for guest in [&mut world.b, &mut world.c] {
                    guest.recv_all().expect("the device keeps the rules");
                }
                let sent = n + 1;
                wait_for("they are taken", || {
                    (world.lasthop.stats().since(&before).sent("vm1") >= sent).then_some(())
                });
            }
        }
        let moved = wait_for("all are done with", || {
            let moved = world.lasthop.stats().since(&before);
            let done = moved.received("vm2") + moved.get("vm1.drops.storm-control");
            (done >= 500 && moved.received("vm2") == moved.received("vm3")).then_some(moved)
        });
        match most {
            Some(most) => {
                most.holds(moved.received("vm2"));
                assert!(
                    moved.received("vm2") >= u64::from(burst.unwrap_or(0)),
                    "{moved:?}"
                );
            }
            None => assert_eq!(moved.received("vm2"), 500, "{moved:?}"),
        }
        let dropped = moved.get("vm1.drops.storm-control");
        assert_eq!(moved.received("vm2") + dropped, 500, "{moved:?}");
        for guest in [&mut world.b, &mut world.c] {
            guest.recv_all().expect("the device keeps the rules");
        }
    }
    world.turn.step("known unicast continues");
    let mut checker = SequenceChecker::default();
    let mut stream = Stream::new(2, Flow::v4(1, 2));
    pump(
        (&mut world.a, &mut world.b),
        &mut stream,
        &mut checker,
        1000,
    );
    settle(&mut world.b, &mut checker, &stream, LIMIT);
    world.lasthop.stop();
}

#[test]
fn tcp_continues_under_a_limit_that_changes() {
    let turn = machine();
    let lasthop = Lasthop::start(&config(
        "[port.limits]\nfrom_guest = { bits_per_second = \"20M\" }",
    ));
    turn.step("boot two guests");
    let (mut one, mut two) = two_guests(&lasthop);
    assert_eq!(ping(&mut one, "10.0.0.2", 20).lost(), 0);
    serve_iperf(&mut two);
    for megabits in [20, 60] {
        let limit = format!("from-guest:bits={megabits}M");
        lasthop.ok(&["port", "set", "vm1", "--limit", &limit]);
        tcp_of_vm1(&turn, &lasthop, &mut one, megabits);
    }
    turn.step("a ceiling at a scheduled port");
    lasthop.ok(&["port", "set", "vm1", "--limit", "from-guest:none"]);
    lasthop.ok(&["port", "set", "vm2", "--egress", "rate=200M"]);
    for megabits in [20, 60] {
        let ceiling = format!("max={megabits}M");
        lasthop.ok(&["port", "set", "vm1", "--qos", &ceiling]);
        tcp_of_vm1(&turn, &lasthop, &mut one, megabits);
    }
    lasthop.ok(&["port", "set", "vm2", "--egress", "none"]);
    lasthop.ok(&["port", "set", "vm1", "--qos", "none"]);
    turn.step("a limit to the receiver, which drops");
    for megabits in [10, 100] {
        let limit = format!("to-guest:bits={megabits}M");
        lasthop.ok(&["port", "set", "vm2", "--limit", &limit]);
        let before = lasthop.stats();
        // The default burst: what 400 ms bring, or eight of the longest frames.
        let burst = (megabits * 400_000).max(8 * 524_424);
        let most = Most::from_now(megabits * 1_000_000, burst);
        let run = iperf(&mut one, "10.0.0.2", 2, "");
        let rate = run.bits_per_second / 1e6;
        turn.step(&format!("{megabits} Mbit/s: {rate:.1}"));
        let moved = lasthop.stats().since(&before);
        most.holds(moved.get("vm2.to_guest.bytes") * 8);
        assert!(run.bytes > 0, "{run:?}");
    }
    lasthop.ok(&["port", "set", "vm2", "--limit", "to-guest:none"]);
    turn.step("without a limit");
    let run = iperf_bytes(&mut one, "10.0.0.2", "");
    turn.step(&format!("{:.1} Mbit/s", run.bits_per_second / 1e6));
    assert!(run.is_sound(), "{run:?}");
    assert_eq!(ping(&mut one, "10.0.0.2", 20).lost(), 0);
    lasthop.stop();
}

/// Sends by TCP from vm1, which may send so many megabits a second: it does not send more, and
/// loses nothing.
fn tcp_of_vm1(turn: &Turn, lasthop: &Lasthop, one: &mut Guest, megabits: u32) {
    let before = lasthop.stats();
    // The usual burst: two of the longest frames.
    let most = Most::from_now(megabits * 1_000_000, 2 * 524_424);
    // A run may end early where the guest's clock leaps.
    let mut bytes = 0;
    while bytes < 1_000_000 {
        let run = iperf(one, "10.0.0.2", 2, "");
        bytes += run.bytes;
        let rate = run.bits_per_second / 1e6;
        turn.step(&format!("{megabits} Mbit/s: {rate:.1}"));
        assert!(most.began.elapsed() < 3 * LIMIT, "{run:?}");
    }
    let moved = lasthop.stats().since(&before);
    most.holds(moved.get("vm1.from_guest.bytes") * 8);
    assert_eq!(moved.get("vm1.drops.rate-limited"), 0, "{moved:?}");
    assert_eq!(moved.get("vm2.drops.rate-limited"), 0, "{moved:?}");
}

/// First frames of a guest's new flows, one after the other: how long each took, sorted.
fn first_frames(world: &mut World, stations: std::ops::Range<u32>) -> Vec<Duration> {
    let mut times: Vec<Duration> = stations
        .map(|n| {
            let [_, a, b, c] = n.to_be_bytes();
            let frame = ethernet(mac(2), [2, 0x77, 0, a, b, c], 0x88b5, &n.to_be_bytes());
            let began = Instant::now();
            world.c.send(&frame).expect("the guest can send");
            let end = began + LIMIT;
            loop {
                let left = end.saturating_duration_since(Instant::now());
                let got = world.b.recv(left).expect("the device keeps the rules");
                let got = got.expect("the first frame of a flow arrives");
                if got.frame.get(..18) == frame.get(..18) {
                    return began.elapsed();
                }
            }
        })
        .collect();
    times.sort_unstable();
    times
}

/// A guest that sprays addresses as fast as it can does not keep another's new flows from being set
/// up.
#[test]
fn new_flows_do_not_wait_for_those_of_a_guest_that_sprays() {
    let mut world = World::start("");
    let show = |turn: &Turn, what: &str, times: &[Duration]| {
        let at = |part: usize| times[times.len() * part / 100];
        let (half, most, last) = (at(50), at(99), times[times.len() - 1]);
        turn.step(&format!(
            "{what}: half in {half:?}, 99 % in {most:?}, all in {last:?}"
        ));
    };
    let alone = first_frames(&mut world, 0..200);
    show(&world.turn, "alone", &alone);
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    let mut attacker = world.a;
    let spray = std::thread::spawn(move || {
        let mut n = 0u32;
        while !ended.load(Ordering::Relaxed) {
            n += 1;
            let [a, b, c, d] = n.to_be_bytes();
            // To itself: no queue is filled, and there is only an upcall.
            let frame = ethernet(
                [2, 0x66, a, b, c, d],
                [2, 0x66, a, b, c, d],
                0x88b5,
                &[0; 46],
            );
            attacker.send(&frame).expect("the guest can send");
        }
        (attacker, n)
    });
    world.a = world.lasthop.connect_as("vm4", GuestConfig::default());
    let before = world.lasthop.stats();
    let beside = first_frames(&mut world, 1000..1200);
    let moved = world.lasthop.stats().since(&before);
    stop.store(true, Ordering::Relaxed);
    let (_attacker, sprayed) = spray.join().expect("the attacker keeps the rules");
    show(&world.turn, "beside a guest that sprays", &beside);
    world
        .turn
        .step(&format!("{sprayed} frames were sprayed: {moved:?}"));
    let full = moved.get("vm1.drops.upcall-full") + moved.get("vm1.drops.reflection");
    assert!(full > 0, "nothing was sprayed: {moved:?}");
    assert_eq!(moved.get("vm3.drops.upcall-full"), 0, "{moved:?}");
    assert_eq!(moved.get("vm3.drops.upcall-timeout"), 0, "{moved:?}");
    world.lasthop.stop();
}

/// A limit of a port with an interface behind it, tried from the host's side: the namespace's own
/// address is 10.0.0.`own`, and the guest's 10.0.0.1.
fn an_interface_is_limited(
    world: &mut World,
    port: &str,
    (netns, interface): (&Netns, &str),
    own: u8,
) {
    let limit = |limit: &str| drop(world.lasthop.ok(&["port", "set", port, "--limit", limit]));
    netns.ip(&format!(
        "neigh add 10.0.0.1 lladdr 02:1a:57:00:00:01 dev {interface}"
    ));
    let socket = netns.udp(&format!("10.0.0.{own}:7000"));
    socket.set_broadcast(true).expect("a socket's option");
    socket.set_nonblocking(true).expect("a socket's option");
    // What is sent for the first time asks control, and may not come.
    wait_for("the guest sends and receives", || {
        let _ = socket.send_to(b"hello", "10.0.0.1:7");
        let there = world.a.recv_all().expect("a correct device");
        let flow = Flow::v4(1, own).ports(7, 7000);
        world.a.send(&udp(&flow, b"hello")).expect("room");
        let back = socket.recv(&mut [0; 64]).is_ok();
        (!there.is_empty() && back).then_some(())
    });

    world.turn.step(&format!("{port}: what it is sent"));
    limit("to-guest:packets=500,packets-burst=64");
    let (before, most) = (world.lasthop.stats(), Most::from_now(500, 64));
    let mut got = 0;
    let flow = Flow::v4(1, own).ports(7, 7000);
    for n in 0..2000u32 {
        world.a.send(&udp(&flow, &n.to_ne_bytes())).expect("room");
        while socket.recv(&mut [0; 64]).is_ok() {
            got += 1;
        }
    }
    let reason = format!("{port}.drops.rate-limited");
    let moved = wait_for("all are done with", || {
        let moved = world.lasthop.stats().since(&before);
        let done = moved.received(port) + moved.get(&reason);
        (done >= 2000).then_some(moved)
    });
    most.holds(moved.received(port));
    assert!(moved.get(&reason) > 0, "{moved:?}");
    wait_for("what was delivered is there", || {
        while socket.recv(&mut [0; 64]).is_ok() {
            got += 1;
        }
        // The interface may have had no room for some.
        (got >= 64).then_some(())
    });
    limit("to-guest:none");

    world.turn.step(&format!("{port}: what it sends"));
    limit("from-guest:packets=500,packets-burst=64");
    let (before, most) = (world.lasthop.stats(), Most::from_now(500, 64));
    let mut tried = 0;
    wait_for("much more was sent than may be", || {
        for _ in 0..500 {
            // It may have no room.
            tried += u32::from(socket.send_to(b"x", "10.0.0.1:7").is_ok());
            world.a.recv_all().expect("a correct device");
        }
        let moved = world.lasthop.stats().since(&before);
        most.holds(moved.sent(port));
        let has_waited = u64::from(tried) > moved.sent(port);
        (moved.sent(port) > 200 && has_waited).then_some(())
    });
    let moved = world.lasthop.stats().since(&before);
    most.holds(moved.sent(port));
    assert_eq!(moved.drops().len(), 0, "it waits: {moved:?}");
    limit("from-guest:none");

    world.turn.step(&format!("{port}: a storm"));
    // Frames of one sender keep their order: behind the last one nothing waits any more.
    let mut last = 0_u32;
    wait_for("the last frame", || {
        last += 1;
        let bytes = last.to_be_bytes();
        let _ = socket.send_to(&bytes, "10.0.0.1:7");
        let pause = Duration::from_millis(50);
        let mut next = || world.a.recv(pause).expect("a correct device");
        let came = std::iter::from_fn(&mut next).any(|got| payload_of(&got.frame) == Ok(&bytes));
        came.then_some(())
    });
    limit("broadcast:packets=10,packets-burst=20");
    let (before, most) = (world.lasthop.stats(), Most::from_now(10, 20));
    for _ in 0..200 {
        let sent = || socket.send_to(b"x", "10.0.0.255:7").ok();
        wait_for("room", sent);
        world.a.recv_all().expect("a correct device");
    }
    let moved = wait_for("all are done with", || {
        world.a.recv_all().expect("a correct device");
        let moved = world.lasthop.stats().since(&before);
        let dropped = moved.get(&format!("{port}.drops.storm-control"));
        (moved.received("vm1") + dropped >= 200).then_some(moved)
    });
    most.holds(moved.received("vm1"));
    assert!(moved.received("vm1") >= 20, "{moved:?}");
    limit("broadcast:none");
}

#[test]
fn ports_with_interfaces_are_limited_like_others() {
    if !Netns::allowed() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [near, host, far] = ["near", "host", "far"].map(|name| Netns::new(name, folder.path()));
    wire(&host, &far);
    far.ip("link set wire0 address 02:1a:57:00:00:09");
    far.ip("address add 10.0.0.9/24 broadcast 10.0.0.255 dev wire0");
    // Nothing but the test's own frames, as far as that can be had.
    for netns in [&near, &host, &far] {
        netns
            .run(|| std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"))
            .expect("rights");
        netns
            .run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))
            .expect("rights");
    }
    let more = "mac = \"02:1a:57:00:00:08\"\ninterface = \"t0\"";
    let ports = [
        tap("t0", &near.path(), "10.0.0.8/24", more),
        uplink(&host.path(), "driver = \"packet\""),
    ];
    let config = config("").replace(
        "\n[[port]]\nname = \"vm1\"",
        "\nworkers = 2\n[[port]]\nname = \"vm1\"",
    );
    let mut world = World::start_with(&(config + &ports.concat()), 1);
    for port in ["t0", "uplink"] {
        world.lasthop.wait_port(port, "up");
    }
    an_interface_is_limited(&mut world, "t0", (&near, "t0"), 8);
    an_interface_is_limited(&mut world, "uplink", (&far, "wire0"), 9);
    world.lasthop.stop();
}

/// Sends a frame by one queue pair and waits until it is there.
fn known(from: &mut FakeGuest, pair: usize, frame: &[u8], to: &mut FakeGuest) {
    from.send_on(pair, frame, &NetHeader::default())
        .expect("room");
    wait_for("a first frame comes", || {
        let came = to.recv_all().expect("a correct device");
        (!came.is_empty()).then_some(())
    });
}

#[test]
fn a_limit_is_that_of_all_queues_and_workers_together() {
    let config = config("").replace("name = \"host1\"", "name = \"host1\"\nworkers = 2");
    let config = config.replace("[[port]]\n", "[[port]]\nqueues = 2\n");
    let mut world = World::start_with(&config, 2);
    let header = NetHeader::default();
    let frame = |from, to, n: u32| {
        let flow = Flow::v4(from, to).ports(1000 + (n % 16) as u16, 7);
        udp(&flow, &n.to_ne_bytes())
    };
    world.turn.step("what a guest sends by two queue pairs");
    world.limit(&["from-guest:packets=2k,packets-burst=100"]);
    let (before, most) = (world.lasthop.stats(), Most::from_now(2000, 100));
    let mut got = 0;
    for n in 0..2000 {
        let pair = (n % 2) as usize;
        world
            .a
            .send_on(pair, &frame(1, 2, n), &header)
            .expect("room");
        got += world.b.recv_all().expect("a correct device").len();
    }
    most.holds(world.lasthop.stats().since(&before).sent("vm1"));
    wait_for("all come", || {
        got += world.b.recv_all().expect("a correct device").len();
        (got == 2000).then_some(())
    });
    most.holds(2000);
    let moved = world.lasthop.stats().since(&before);
    assert_eq!(
        (moved.sent("vm1"), moved.drops().len()),
        (2000, 0),
        "{moved:?}"
    );
    // Kicks of both queues were handled: each pair has sent its half.
    let metrics = world.lasthop.metrics();
    for queue in ["1", "3"] {
        let frames = format!("lasthop_queue_frames_total{{port=\"vm1\",queue=\"{queue}\"}}");
        assert!(metrics.get(&frames) >= 1000.0, "{queue}");
    }

    world
        .turn
        .step("what two guests send to it, which are served by two workers");
    // Each worker has a flow cache of its own, and at most 256 frames wait for its first answer:
    // those flows are known before.
    for (from, guest) in [(2, &mut world.b), (3, &mut world.c)] {
        for pair in 0..2 {
            known(guest, pair, &frame(from, 1, 0), &mut world.a);
        }
    }
    world.limit(&["from-guest:none", "to-guest:packets=500,packets-burst=64"]);
    let (before, most) = (world.lasthop.stats(), Most::from_now(500, 64));
    for n in 0..2000 {
        let pair = (n % 2) as usize;
        world
            .b
            .send_on(pair, &frame(2, 1, n), &header)
            .expect("room");
        world
            .c
            .send_on(pair, &frame(3, 1, n), &header)
            .expect("room");
        world.a.recv_all().expect("a correct device");
    }
    let moved = wait_for("all are done with", || {
        world.a.recv_all().expect("a correct device");
        let moved = world.lasthop.stats().since(&before);
        let lost: u64 = ["rate-limited", "receiver-full"]
            .map(|reason| moved.get(&format!("vm1.drops.{reason}")))
            .iter()
            .sum();
        (moved.received("vm1") + lost == 4000).then_some(moved)
    });
    most.holds(moved.received("vm1"));
    assert!(moved.get("vm1.drops.rate-limited") > 3000, "{moved:?}");

    world
        .turn
        .step("what was dropped is counted at the queues that it was for");
    let metrics = world.lasthop.metrics();
    let dropped = |queue: &str| {
        let name = "lasthop_queue_dropped_frames_total";
        let labels = format!("port=\"vm1\",queue=\"{queue}\",reason=\"rate-limited\"");
        metrics.get(&format!("{name}{{{labels}}}")) as u64
    };
    let (first, second) = (dropped("0"), dropped("2"));
    assert!(first > 0 && second > 0, "{first}, {second}");
    assert_eq!(first + second, moved.get("vm1.drops.rate-limited"));
    let busy = |worker: u8| {
        let name = "lasthop_worker_busy_cycles_total";
        metrics.get(&format!("{name}{{worker=\"{worker}\"}}"))
    };
    assert!(busy(0) > 0.0 && busy(1) > 0.0);
    world.lasthop.stop();
}
