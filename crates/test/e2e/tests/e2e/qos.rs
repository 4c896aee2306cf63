//! Scheduled ports: frames wait in their senders, guarantees, weights and priorities hold, and all
//! of it can be changed at run time and outlives control and switch.

use std::time::Instant;

use e2e::lasthop::Lasthop;
use e2e::numbered::{Competitor, Shares, Stream, collect, compete, introduce, settle};
use e2e::{Turn, machine};
use testkit::packets::{BROADCAST, Flow, SequenceChecker, ethernet, mac};
use testkit::wait::{LIMIT, wait_for};
use testkit::{FakeGuest, GuestConfig};

/// Length of frames, bytes.
const LEN: usize = 1000;
/// Bits of a frame.
const FRAME_BITS: f64 = (LEN as f64 + 42.0) * 8.0;
/// Frames of a sender that wait at most: its queue takes more.
const WAITING: u64 = 120;

struct World {
    turn: Turn,
    lasthop: Lasthop,
    /// Guests of vm1 and vm3, which send to vm2.
    a: FakeGuest,
    c: FakeGuest,
    b: FakeGuest,
}

/// Two senders and their streams, and the receiver.
struct Streams {
    a: Stream,
    c: Stream,
    checker: SequenceChecker,
}

impl World {
    /// Starts with these tables of vm1, vm2 and vm3.
    fn start(tables: [&str; 3]) -> Self {
        let turn = machine();
        let mut config = "[switch]\nname = \"host1\"\n".to_owned();
        for (name, table) in ["vm1", "vm2", "vm3"].iter().zip(tables) {
            config += &format!(
                "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n\
                 port_security = {{ macs = \"any\" }}\n{table}\n"
            );
        }
        let lasthop = Lasthop::start(&config);
        let [a, b, c] = [1, 2, 3]
            .map(|n| lasthop.connect_as(&format!("vm{n}"), GuestConfig::default().guest(n)));
        let mut world = Self {
            turn,
            lasthop,
            a,
            c,
            b,
        };
        introduce(&mut world.a, &mut world.b, Flow::v4(1, 2));
        introduce(&mut world.c, &mut world.b, Flow::v4(3, 2));
        world
    }

    fn streams() -> Streams {
        Streams {
            a: Stream::new(1, Flow::v4(1, 2)),
            c: Stream::new(2, Flow::v4(3, 2)),
            checker: SequenceChecker::default(),
        }
    }

    /// Has both senders always send, until the switch has taken so many frames.
    fn compete(&mut self, streams: &mut Streams, frames: u64) -> Shares {
        let Streams { a, c, checker } = streams;
        let senders = [(&mut self.a, a), (&mut self.c, c)];
        let senders = senders.map(|(guest, stream)| Competitor { guest, stream });
        compete(senders, &mut self.b, checker, (LEN, WAITING, frames))
    }

    /// Waits for all frames that were sent.
    fn settle(&mut self, streams: &mut Streams) {
        for stream in [&streams.a, &streams.c] {
            settle(&mut self.b, &mut streams.checker, stream, LIMIT);
        }
    }
}

#[test]
fn frames_beyond_the_rate_wait_and_none_is_lost() {
    let mut world = World::start(["", "[port.egress]\nrate = \"20M\"", ""]);
    let before = world.lasthop.stats();
    let mut streams = World::streams();
    let began = Instant::now();
    world.turn.step("two senders of equal weight");
    let got = world.compete(&mut streams, 1500).frames;
    world.settle(&mut streams);
    let seconds = began.elapsed().as_secs_f64();
    let moved = world.lasthop.stats().since(&before);
    let sent = streams.a.sent() + streams.c.sent();
    assert_eq!(
        (moved.received("vm2"), moved.drops().len()),
        (sent, 0),
        "{moved:?}"
    );
    // The output's own bucket and a quantum of each sender come on top.
    let bits = (sent * LEN as u64 * 8) as f64;
    let most = 20e6 * seconds + 3e6;
    assert!(bits <= most, "{bits} in {seconds} s, at most {most}");
    let ratio = got[0] as f64 / got[1] as f64;
    world
        .turn
        .step(&format!("{got:?}, {:.1} Mbit/s", bits / seconds / 1e6));
    assert!((0.8..1.25).contains(&ratio), "{got:?}");

    let shown = world.lasthop.json(&["egress", "show", "vm2"]);
    let held: u64 = shown["shares"]
        .as_array()
        .expect("shares")
        .iter()
        .filter_map(|share| share["held_us"].as_u64())
        .sum();
    assert!(held > 0, "{shown}");
    let metrics = world.lasthop.metrics();
    let key = |sender| {
        format!("lasthop_egress_bits_total{{port=\"vm2\",sender=\"{sender}\",class=\"default\"}}")
    };
    let sent = metrics.get(&key("vm1")) + metrics.get(&key("vm3"));
    assert!(sent >= bits, "{sent} of {bits}");
    world.lasthop.stop();
}

#[test]
fn guarantees_weights_and_priorities_hold_and_change_at_run_time() {
    let mut world = World::start([
        "[port.qos]\nmin = \"15M\"",
        "[port.egress]\nrate = \"20M\"",
        "[port.qos]\nmax = \"19M\"",
    ]);
    let mut streams = World::streams();
    // The first frames have the burst of the output.
    world.compete(&mut streams, 500);
    world
        .turn
        .step("a guarantee of three fourths, and half of the rest");
    let shares = world.compete(&mut streams, 2000);
    assert!(shares.part() > 0.82, "{shares:?}");
    // Half of the rest is no guarantee: what the first has more than the second is.
    let (more, most) = (
        shares.frames[0] - shares.frames[1],
        shares.most_by(15e6, FRAME_BITS),
    );
    assert!(more <= most, "{shares:?}, {most}");

    world.turn.step("weights of 1 to 3");
    world
        .lasthop
        .ok(&["port", "set", "vm1", "--qos", "min=none,weight=100"]);
    world
        .lasthop
        .ok(&["port", "set", "vm3", "--qos", "max=none,weight=300"]);
    world.compete(&mut streams, 200);
    let [a, c] = world.compete(&mut streams, 2000).frames;
    let ratio = c as f64 / a as f64;
    assert!((2.5..3.5).contains(&ratio), "{ratio}");

    world
        .turn
        .step("control and switch are killed: all of it stays");
    world.lasthop.replace_both();
    wait_for("frames flow", || {
        streams.a.send(&mut world.a, LEN);
        let all = collect(&mut world.b, &mut streams.checker);
        (!all.is_empty()).then_some(())
    });
    wait_for("the schedule is back", || {
        let shown = world.lasthop.cli(&["egress", "show", "vm2", "--json"]);
        shown.status.success().then_some(())
    });
    world.settle(&mut streams);
    world.compete(&mut streams, 500);
    let [a, c] = world.compete(&mut streams, 2000).frames;
    let ratio = c as f64 / a as f64;
    assert!((2.5..3.5).contains(&ratio), "{ratio}");

    world.turn.step("a priority goes first");
    world
        .lasthop
        .ok(&["port", "set", "vm3", "--qos", "priority=5"]);
    world.compete(&mut streams, 300);
    let [a, c] = world.compete(&mut streams, 1000).frames;
    assert!(a <= (a + c) / 20, "{a} beside {c}");
    world.settle(&mut streams);
    world.lasthop.stop();
}

#[test]
fn a_flood_is_not_held_and_breaks_no_guarantee() {
    let mut world = World::start([
        "[port.qos]\nmin = \"15M\"",
        "[port.egress]\nrate = \"20M\"",
        "",
    ]);
    let mut streams = World::streams();
    world.compete(&mut streams, 200);
    world.settle(&mut streams);
    let before = world.lasthop.stats();
    let flood = ethernet(BROADCAST, mac(3), 0x88b5, &[7; LEN]);
    for _ in 0..20 {
        for _ in 0..50 {
            world.c.send(&flood).expect("the guest can send");
        }
        streams.a.send(&mut world.a, LEN);
        collect(&mut world.b, &mut streams.checker);
        world.a.recv_all().expect("the device keeps the rules");
    }
    wait_for("all floods are switched", || {
        collect(&mut world.b, &mut streams.checker);
        world.a.recv_all().ok()?;
        (world.lasthop.stats().since(&before).sent("vm3") == 1000).then_some(())
    });
    let moved = world.lasthop.stats().since(&before);
    assert!(moved.get("vm2.drops.rate-limited") > 0, "{moved:?}");
    world.settle(&mut streams);
    world.lasthop.stop();
}
