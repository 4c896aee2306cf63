//! Prefilters of segments with stateful rules: denied new frames end in the kernel, and no frame of
//! a known connection does.
//!
//! In network namespaces of the test's own; where they cannot be had, or the kernel loads no
//! program, the test says so and ends.

use std::net::UdpSocket;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use e2e::uplinks::{TIMEOUT, ask, transfer};
use e2e::{is_long, machine};
use testkit::netns::Wire;
use testkit::packets::{self, Flow};
use testkit::stop::Stop;
use testkit::wait::wait_for;

use crate::prefilter::{MAC, World};

/// The TAP port opens connections to all, and no other port to it.
const LISTS: &str = r#"
[[acl]]
name = "out"
direction = "from-guest"
ports = ["t0"]
[[acl.rule]]
name = "arp"
action = "allow"
ether_type = "arp"
[[acl.rule]]
name = "own"
action = "allow-stateful"
[[acl]]
name = "in"
direction = "to-guest"
ports = ["t0"]
[[acl.rule]]
name = "arp"
action = "allow"
ether_type = "arp"
priority = 30
[[acl.rule]]
name = "others"
action = "drop"
priority = 10
"#;

/// Denied frames that a flood sends at once, and its pause after that. It leaves room for the
/// frames of others in the queues of the kernel, so whatever is lost is lost by Lasthop.
const BURST: usize = 64;
const PAUSE: Duration = Duration::from_millis(1);

/// A world with a flood.
struct Flooded {
    world: World,
    /// Frames of the flood.
    sent: AtomicU64,
}

impl Deref for Flooded {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Flooded {
    /// `None`: not on this machine.
    fn new(driver: &str) -> Option<Self> {
        Some(Self {
            world: World::with(driver, "", "", LISTS)?,
            sent: AtomicU64::new(0),
        })
    }

    /// Returns how many frames have ended at the wire; `None` while there is no entry, as when
    /// another control has just begun.
    fn ended(&self) -> Option<u64> {
        let status = &self.lasthop.port("uplink")["prefilter"];
        let has_entries = status["entries"]
            .as_u64()
            .is_some_and(|entries| entries > 0);
        has_entries.then(|| status["frames"].as_u64())?
    }

    /// Waits until of 20 000 frames that the flood sends in a row nine of ten end at the wire.
    fn wait_most_end(&self) {
        wait_for("a flood that ends at the wire", || {
            let sent = || self.sent.load(Ordering::Relaxed);
            let (sent_before, ended_before) = (sent(), self.ended()?);
            wait_for("frames", || (sent() >= sent_before + 20_000).then_some(()));
            let (ended, sent) = (self.ended()? - ended_before, sent() - sent_before);
            (10 * ended >= 9 * sent).then_some(())
        });
    }

    /// Sends denied frames until it is stopped.
    fn flood(&self, stop: &Stop, out: &Wire) {
        let frames: Vec<_> = (0..512).map(denied).collect();
        for burst in frames.chunks(BURST).cycle() {
            if stop.is_set() {
                return;
            }
            burst.iter().for_each(|frame| out.send(frame));
            self.sent.fetch_add(BURST as u64, Ordering::Relaxed);
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns sockets of both ends, with a connection that the near one has opened.
    fn connected(&self, port: u16) -> [UdpSocket; 2] {
        let far = self.far.udp(&format!("10.1.0.9:{port}"));
        let near = self.near.udp(&format!("10.1.0.1:{port}"));
        ask(&near, &far);
        [far, near]
    }
}

/// Returns a frame to the TAP port's interface that no connection has: of UDP, or the first one of
/// TCP, from hosts elsewhere, and from the host that it has connections with.
fn denied(number: u16) -> Vec<u8> {
    let stranger = [192, 0, 2, (number % 200) as u8];
    let flow = Flow {
        dst_mac: [0x52, 0x54, 0, 0, 0, 0x0a],
        src_mac: [2, 0, 0, 0, 0, 0x77],
        src: if number.is_multiple_of(8) {
            [10, 1, 0, 9]
        } else {
            stranger
        }
        .into(),
        dst: [10, 1, 0, 1].into(),
        ..Flow::v4(1, 2)
    };
    let flow = flow.ports(20_000 + number, 7);
    match number % 2 {
        0 => packets::udp(&flow, &[0; 18]),
        _ => begin(packets::tcp(&flow, 7, &[])),
    }
}

/// Makes a segment of TCP over IPv4 the first one of a connection.
fn begin(mut segment: Vec<u8>) -> Vec<u8> {
    const FLAGS: usize = 14 + 20 + 12;
    const CHECKSUM: usize = 14 + 20 + 16;
    let word = |at: usize| u32::from(segment[at]) << 8 | u32::from(segment[at + 1]);
    let (before, after) = (word(FLAGS), 0x5002);
    // RFC 1624, equation 3.
    let sum = (!word(CHECKSUM) & 0xffff) + (!before & 0xffff) + after;
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    segment[FLAGS..FLAGS + 2].copy_from_slice(&(after as u16).to_be_bytes());
    segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    segment
}

/// Asks some questions, each once, and has an answer to each.
fn answers(from: &UdpSocket, to: &UdpSocket) {
    for socket in [from, to] {
        socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    }
    let peer = to.local_addr().expect("bound");
    // What was asked before may still arrive.
    let wait = |socket: &UdpSocket, number: u32| {
        let mut got = [0; 4];
        loop {
            let (_, from) = socket.recv_from(&mut got).expect("no frame is lost");
            if u32::from_ne_bytes(got) == number {
                return from;
            }
        }
    };
    for number in 1_000_000..1_000_500_u32 {
        let question = number.to_ne_bytes();
        from.send_to(&question, peer).expect("a way");
        let back = wait(to, number);
        to.send_to(&question, back).expect("a way");
        wait(from, number);
    }
}

/// A flood, connections of before and of meanwhile, and deaths of processes.
fn known_connections_go_on(driver: &str) {
    let turn = machine();
    let Some(world) = Flooded::new(driver) else {
        return;
    };
    let [far, near] = world.connected(7);
    let (stop, out) = (Stop::default(), world.far.wire("wire0"));
    std::thread::scope(|scope| {
        let _stop = stop.at_end();
        scope.spawn(|| world.flood(&stop, &out));
        turn.step("a flood ends at the wire, and answers to the same guest do not");
        world.wait_most_end();
        answers(&near, &far);
        // The far end speaks first, with a connection that is known by its first frame alone.
        answers(&far, &near);
        turn.step("connections that are opened meanwhile");
        let others: Vec<_> = (100..120).map(|port| world.connected(port)).collect();
        for [far, near] in &others {
            answers(near, far);
        }
        transfer(&world.near, &world.far, "10.1.0.9:5001", 4 << 20);
        world.wait_most_end();
        turn.step("control dies");
        world.lasthop.replace_control();
        world.wait_most_end();
        answers(&far, &near);
        turn.step("the switch dies: its successor knows the connections");
        world.lasthop.replace_switch();
        ask(&far, &near);
        world.wait_most_end();
        answers(&far, &near);
        for [far, near] in &others {
            answers(far, near);
        }
        turn.step("an upgrade");
        world.lasthop.ok(&["upgrade"]);
        world.lasthop.wait_port("uplink", "up");
        ask(&far, &near);
        world.wait_most_end();
        answers(&far, &near);
        turn.step("a stranger is denied as before");
        let stranger = world.far.udp("10.1.0.9:8");
        stranger.send_to(b"none", "10.1.0.1:7").expect("a way");
        near.set_nonblocking(true).expect("a mode");
        std::thread::sleep(Duration::from_millis(100));
        let mut got = [0; 4];
        while let Ok((_, from)) = near.recv_from(&mut got) {
            assert_eq!(from.port(), 7);
        }
        let list = world.lasthop.ok(&["prefilter", "list"]);
        assert!(list.contains("in/others") && list.contains(MAC), "{list}");
    });
}

#[test]
fn with_packet_sockets_a_flood_ends_and_known_connections_go_on() {
    known_connections_go_on("packet");
}

#[test]
fn with_xdp_sockets_a_flood_ends_and_known_connections_go_on() {
    known_connections_go_on("xdp");
}

/// A rule that all versions of the lists have.
const ALWAYS: &str = r#"
[[acl.rule]]
name = "always"
action = "allow"
source = ["10.1.0.9/32"]
protocol = "udp"
destination_ports = [9]
priority = 25
"#;

/// A rule that some versions have, for a part of the flood's sources.
const SOME: &str = r#"
[[acl.rule]]
name = "some"
action = "allow"
source = ["192.0.2.0/26"]
priority = 20
"#;

#[test]
fn what_all_lists_allow_arrives_while_they_change_in_a_flood() {
    let turn = machine();
    let Some(world) = Flooded::new("packet") else {
        return;
    };
    let duration = Duration::from_secs(if is_long() { 600 } else { 5 });
    // Tracked with and without a network that may send, and not tracked.
    let stateless = world.config.replace("allow-stateful", "allow");
    let versions = [
        [&*world.config, ALWAYS].concat(),
        [&*world.config, ALWAYS, SOME].concat(),
        [&*stateless, ALWAYS].concat(),
        [&*stateless, SOME, ALWAYS].concat(),
    ];
    world.apply(&versions[0]);
    let [far, near] = world.connected(9);
    let (stop, out) = (Stop::default(), world.far.wire("wire0"));
    let lasts = {
        let start = std::sync::OnceLock::new();
        move || start.get_or_init(Instant::now).elapsed() < duration
    };
    std::thread::scope(|scope| {
        let _stop = stop.at_end();
        scope.spawn(|| world.flood(&stop, &out));
        world.wait_most_end();
        turn.step("lists change");
        let changes = scope.spawn(|| {
            let mut changes = 0;
            for version in versions.iter().cycle() {
                if stop.is_set() || !lasts() {
                    break;
                }
                world.apply(version);
                changes += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            changes
        });
        let mut rounds = 0;
        while lasts() {
            answers(&far, &near);
            answers(&near, &far);
            rounds += 1;
        }
        let changes = changes.join().expect("no change is refused");
        turn.step(&format!("{changes} changes, {rounds} rounds of questions"));
        assert!(changes >= 10 && rounds >= 2);
        turn.step("the flood still ends at the wire");
        world.apply(&versions[0]);
        world.wait_most_end();
    });
}
