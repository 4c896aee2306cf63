//! Scheduled ports whose interface is slower than what is sent to them: with `full = "hold"`
//! senders wait, in the order of service, and nothing is lost; with `full = "drop"` frames are
//! dropped.
//!
//! ```text
//! vm1, vm3 - uplink - up0, which a shaper slows down -- wire0 - far - vm2
//! ```
//! Everything is in network namespaces of the test's own; where they cannot be had, a test says so
//! and ends.

use std::process::Command;
use std::time::{Duration, Instant};

use e2e::lasthop::Lasthop;
use e2e::numbered::{Competitor, Shares, Stream, collect, compete, introduce, settles};
use e2e::stats::Stats;
use e2e::uplinks::{OWN_PROCESS, driver_pid, uplink, wire};
use e2e::{Turn, machine};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use testkit::netns::Netns;
use testkit::packets::{Flow, SequenceChecker};
use testkit::process::send as signal;
use testkit::wait::{LIMIT, wait_for};
use testkit::{FakeGuest, GuestConfig};

/// Longer than a frame takes through the shaper.
const REST: Duration = Duration::from_millis(100);
/// Payload of frames, bytes.
const LEN: usize = 1000;
/// Bits of a frame.
const FRAME_BITS: f64 = (LEN as f64 + 42.0) * 8.0;
/// Frames of a sender that are on their way at most: the receiver has buffers for two senders.
const WINDOW: u64 = 120;
/// The shaper: bits a second, and the bytes that it keeps of more than that. It is slow, so that a
/// switch that does not run for a while on a busy machine finds an interface that is still full:
/// into an empty one a sender without priority may put a quantum, too.
const SHAPER: &str = "rate 4mbit burst 16k limit 1m";
/// As few bytes as may wait in an interface.
const ROOM: &str = "room = 65553";

struct World {
    turn: Turn,
    netns: [Netns; 2],
    _folder: TempDir,
    lasthop: Lasthop,
    a: FakeGuest,
    c: FakeGuest,
    b: FakeGuest,
    streams: [Stream; 2],
    checker: SequenceChecker,
}

/// A namespace for each end of the wire.
fn namespaces() -> Option<(TempDir, [Netns; 2])> {
    if !Netns::allowed() {
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = ["near", "far"].map(|name| Netns::new(name, folder.path()));
    for netns in &netns {
        // Frames of IPv6's own would arrive among ours.
        set(netns, "ipv6/conf/all/disable_ipv6", "1");
        // Netfilter forgets which TAP device a frame came from.
        set(netns, "bridge/bridge-nf-call-iptables", "0");
    }
    wire(&netns[0], &netns[1]);
    Some((folder, netns))
}

/// Sets a value of the kernel's in a namespace, where the kernel has it.
fn set(netns: &Netns, key: &str, value: &str) {
    netns.run(|| drop(std::fs::write(format!("/proc/sys/net/{key}"), value)));
}

/// Slows an interface down.
fn shape(netns: &Netns, interface: &str, shaper: &str) {
    run_tc(
        netns,
        &format!("qdisc replace dev {interface} root tbf {shaper}"),
    );
}

/// `tc` with these words, which must succeed.
fn run_tc(netns: &Netns, command: &str) {
    netns.run(|| {
        let arguments = command.split(' ');
        let output = Command::new("tc").args(arguments).output();
        let output = output.expect("tc runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tc {command}: {error}");
    });
}

impl World {
    /// Starts with this port, `uplink`, whose interface leads to the wire after `prepare`.
    fn start(
        near: String,
        (folder, netns): (TempDir, [Netns; 2]),
        prepare: impl FnOnce(&Netns),
    ) -> Self {
        let turn = machine();
        let mut config = "[switch]\nname = \"host1\"\n".to_owned();
        for segment in ["near", "far"] {
            config += &format!("[[segment]]\nname = \"{segment}\"\n");
        }
        for (name, segment) in [("vm1", "near"), ("vm2", "far"), ("vm3", "near")] {
            config += &format!(
                "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n\
                 port_security = {{ macs = \"any\" }}\nsegment = \"{segment}\"\n"
            );
        }
        config += &format!(
            "[[port]]\nname = \"far\"\nkind = \"uplink\"\ninterface = \"wire0\"\nnetns = \"{}\"\n\
             segment = \"far\"\ndriver = \"packet\"\n",
            netns[1].path().display()
        );
        let lasthop = Lasthop::start(&(config + &near));
        for port in ["uplink", "far"] {
            lasthop.wait_port(port, "up");
        }
        prepare(&netns[0]);
        let [a, b, c] = [1, 2, 3]
            .map(|n| lasthop.connect_as(&format!("vm{n}"), GuestConfig::default().guest(n)));
        let streams = [Flow::v4(1, 2), Flow::v4(3, 2)];
        let streams = [1, 2].map(|id: u16| Stream::new(id, streams[usize::from(id) - 1]));
        let mut world = Self {
            turn,
            netns,
            _folder: folder,
            lasthop,
            a,
            c,
            b,
            streams,
            checker: SequenceChecker::default(),
        };
        introduce(&mut world.a, &mut world.b, Flow::v4(1, 2));
        introduce(&mut world.c, &mut world.b, Flow::v4(3, 2));
        // A frame of an introduction may still be on the wire.
        while world.b.recv(REST).expect("a sound device").is_some() {}
        world
    }

    /// Starts with an uplink behind the shaper, whose senders wait; `None` without namespaces.
    fn with_held_uplink(more: &str) -> Option<Self> {
        let (folder, netns) = namespaces()?;
        shape(&netns[0], "up0", SHAPER);
        let near = format!("segment = \"near\"\ndriver = \"packet\"\n{more}");
        let held = format!("{near}[port.egress]\nfull = \"hold\"\n{ROOM}");
        let near = uplink(&netns[0].path(), &held);
        Some(Self::start(near, (folder, netns), |_| ()))
    }

    /// Has both senders send, until the switch has taken so many frames.
    fn compete(&mut self, frames: u64) -> Shares {
        let [first, second] = &mut self.streams;
        let senders = [(&mut self.a, first), (&mut self.c, second)];
        let senders = senders.map(|(guest, stream)| Competitor { guest, stream });
        let what = (LEN, WINDOW, frames);
        compete(senders, &mut self.b, &mut self.checker, what)
    }

    /// Waits for all frames that were sent, and checks that none was lost.
    fn settle(&mut self) {
        for stream in &self.streams {
            let all = settles(&mut self.b, &mut self.checker, stream, LIMIT);
            let stats = self.lasthop.stats();
            let drivers = ["uplink", "far"].map(|port| self.driver(port));
            assert!(all, "{:?}, {stats:?}, {drivers:?}", self.checker);
        }
        let stats = self.lasthop.stats();
        assert!(stats.drops().is_empty(), "{stats:?}");
        let driver = self.driver("uplink");
        assert_eq!(driver["rejected_by_interface"], 0, "{driver}");
    }

    /// Returns the report of a port's driver process.
    fn driver(&self, port: &str) -> Value {
        self.lasthop.port(port)["driver_status"].take()
    }

    /// Checks that both senders get the same, once the second has caught up: the first one filled
    /// an empty interface.
    fn check_equal_shares(&mut self) {
        self.compete(200);
        let [a, c] = self.compete(400).frames;
        self.turn.step(&format!("{a} and {c} frames"));
        assert!(a.abs_diff(c) <= (a + c) / 8, "{a} and {c}");
    }

    /// Checks that both senders get the same, then that a priority goes first, then a guarantee.
    fn check_order_of_service(&mut self) {
        self.turn.step("equal senders");
        self.check_equal_shares();
        self.turn.step("a priority");
        let set_qos =
            |world: &Self, port, qos| world.lasthop.ok(&["port", "set", port, "--qos", qos]);
        set_qos(self, "vm3", "priority=5");
        self.compete(60);
        let [a, c] = self.compete(400).frames;
        // Two quanta: one for each time in which the switch did not run for long.
        assert!(a <= (a + c) / 12, "{a} beside {c}");
        self.turn.step("a guarantee before a priority");
        set_qos(self, "vm1", "min=2M");
        let shares = self.compete(800);
        assert!(shares.part() > 0.4, "{shares:?}");
        let most = shares.most_by(2e6, FRAME_BITS);
        assert!(shares.frames[0] <= most, "{shares:?}, {most}");
        self.settle();
        let shown = self.lasthop.json(&["egress", "show", "uplink"]);
        let shares = shown["shares"].as_array().expect("shares");
        let held = shares.iter().filter_map(|share| share["held_us"].as_u64());
        assert!(held.sum::<u64>() > 0, "{shown}");
    }
}

#[test]
fn senders_wait_for_a_full_uplink_in_their_order_and_nothing_is_lost() {
    let Some(mut world) = World::with_held_uplink("") else {
        return;
    };
    world.check_order_of_service();

    world.turn.step("frames are dropped instead");
    world
        .lasthop
        .ok(&["port", "set", "uplink", "--egress", "full=drop"]);
    let (before, first) = (world.lasthop.stats(), world.streams[0].sent());
    let dropped = |moved: &Stats| moved.get("uplink.drops.receiver-full");
    wait_for("frames are dropped", || {
        for _ in 0..20 {
            for _ in 0..50 {
                world.streams[0].send(&mut world.a, LEN);
            }
            collect(&mut world.b, &mut world.checker);
        }
        let moved = world.lasthop.stats().since(&before);
        (dropped(&moved) > 100).then_some(())
    });
    let sent = world.streams[0].sent() - first;
    wait_for("all others arrive", || {
        collect(&mut world.b, &mut world.checker);
        let moved = world.lasthop.stats().since(&before);
        let done = moved.received("vm2") + dropped(&moved);
        (moved.sent("vm1") == sent && done == sent).then_some(())
    });
    collect(&mut world.b, &mut world.checker);
    assert_eq!((world.checker.reordered, world.checker.duplicated), (0, 0));
    world.lasthop.stop();
}

/// The shaper keeps less than may wait in the interface, and takes no more before that is full.
#[test]
fn senders_wait_for_a_full_shaper() {
    let Some((folder, netns)) = namespaces() else {
        return;
    };
    shape(&netns[0], "up0", "rate 4mbit burst 16k limit 8k");
    let held = "segment = \"near\"\ndriver = \"packet\"\n[port.egress]\nfull = \"hold\"\n";
    let near = uplink(&netns[0].path(), &format!("{held}{ROOM}"));
    let mut world = World::start(near, (folder, netns), |_| ());
    world.check_equal_shares();
    world.settle();
    world.lasthop.stop();
}

/// The host passes the frames of a TAP port on by a bridge to a slow interface.
#[test]
fn senders_wait_for_a_tap_port_that_the_host_bridges() {
    let Some((folder, netns)) = namespaces() else {
        return;
    };
    let near = format!(
        "[[port]]\nname = \"uplink\"\nkind = \"tap\"\ninterface = \"tap0\"\nnetns = \"{}\"\n\
         segment = \"near\"\n[port.egress]\nrate = \"10G\"\nfull = \"hold\"\n{ROOM}",
        netns[0].path().display()
    );
    shape(&netns[0], "up0", SHAPER);
    // With multicast snooping it would send frames of its own.
    netns[0].ip("link add br0 type bridge mcast_snooping 0");
    netns[0].ip("link set br0 up");
    netns[0].ip("link set up0 master br0");
    let bridged = |netns: &Netns| drop(netns.ip("link set tap0 master br0"));
    let mut world = World::start(near, (folder, netns), bridged);
    world.check_order_of_service();
    world.lasthop.stop();
}

/// Senders do not wait for a port that is not scheduled: what its interface does not take for long
/// is dropped by name, and what is taken keeps its order.
#[test]
fn an_uplink_that_was_full_for_long_goes_on_in_order() {
    let Some((folder, netns)) = namespaces() else {
        return;
    };
    // Frames wait in the shaper until nothing more may wait in the interface.
    let slow = "rate 64kbit burst 16k limit 256m";
    shape(&netns[0], "up0", slow);
    let near = "segment = \"near\"\ndriver = \"packet\"\n";
    let mut world = World::start(uplink(&netns[0].path(), near), (folder, netns), |_| ());
    // Others would wait with the first one, for a decision.
    world.streams[0].send(&mut world.a, LEN);
    world.settle();
    let before = world.lasthop.stats();
    let dropped = |world: &World| {
        let moved = world.lasthop.stats().since(&before);
        let full = moved.get("uplink.drops.receiver-full");
        // The guest may be late to take what comes fast.
        let late = moved.drops_of("vm2").values().sum::<u64>();
        assert_eq!(
            moved.drops().values().sum::<u64>(),
            full + late,
            "{moved:?}"
        );
        (full, late)
    };
    world.turn.step("it becomes full");
    wait_for("frames are dropped", || {
        for _ in 0..500 {
            world.streams[0].send(&mut world.a, LEN);
        }
        (dropped(&world).0 > 100).then_some(())
    });
    // Far longer than a frame is tried again where the room is bounded.
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(50));
        (0..5).for_each(|_| world.streams[0].send(&mut world.a, LEN));
    }
    let sent = world.streams[0].sent();
    let step = format!("{:?} of {sent} frames dropped", dropped(&world));
    world.turn.step(&step);
    let fast = slow.replace("64kbit", "100mbit");
    run_tc(
        &world.netns[0],
        &format!("qdisc change dev up0 root tbf {fast}"),
    );
    wait_for("all others arrive", || {
        collect(&mut world.b, &mut world.checker);
        let (full, late) = dropped(&world);
        (world.checker.received + full + late == sent).then_some(())
    });
    let checker = &world.checker;
    let wrong = [checker.reordered, checker.duplicated, checker.damaged];
    assert_eq!(wrong, [0; 3], "{checker:?}");
    assert_eq!(world.driver("uplink")["rejected_by_interface"], 0);
    world.lasthop.stop();
}

/// Frames in the interface of a driver that is killed are lost, as ever, and none of the others.
#[test]
fn senders_that_wait_go_on_after_the_death_of_a_driver() {
    let Some(mut world) = World::with_held_uplink(OWN_PROCESS) else {
        return;
    };
    for round in 0..3 {
        world.turn.step(&format!("kill {round}"));
        world.compete(150);
        let killed = driver_pid(&world.lasthop, "uplink").expect("a driver");
        signal(killed, Signal::KILL);
        let end = Instant::now() + LIMIT;
        while driver_pid(&world.lasthop, "uplink").is_none_or(|pid| pid == killed) {
            assert!(Instant::now() < end, "no other driver");
            for (guest, stream) in [&mut world.a, &mut world.c]
                .into_iter()
                .zip(&mut world.streams)
            {
                if stream.sent() < world.checker.next_of(stream.id()) + WINDOW {
                    stream.send(guest, LEN);
                }
            }
            collect(&mut world.b, &mut world.checker);
        }
        world.lasthop.wait_port("uplink", "up");
        // What comes now shows what is missing.
        wait_for("frames flow", || {
            {
                let streams = world.streams.iter_mut();
                for (guest, stream) in [&mut world.a, &mut world.c].into_iter().zip(streams) {
                    stream.send(guest, LEN);
                }
                !collect(&mut world.b, &mut world.checker).is_empty()
            }
            .then_some(())
        });
    }
    world.compete(150);
    let stats = world.lasthop.stats();
    let dropped: u64 = stats.drops_of("uplink").values().sum();
    let lost = world.checker.lost();
    world
        .turn
        .step(&format!("{lost} lost, {dropped} of them dropped by name"));
    // Half the room, and what the driver had in its hand.
    assert!(lost <= dropped + 3 * (33 + 64), "{lost}, {stats:?}");
    assert_eq!((world.checker.reordered, world.checker.duplicated), (0, 0));
    world.lasthop.stop();
}
