//! Guests that are reset, vanish, come back or move to another port while their frames wait at a
//! scheduled port: what waits is in their queues, so it is lost with the queue alone, and the other
//! senders continue.

use std::time::Instant;

use e2e::lasthop::Lasthop;
use e2e::numbered::{Sender, introduce};
use e2e::{Turn, machine};
use testkit::packets::{BROADCAST, Flow, ethernet, mac, payload_of};
use testkit::wait::{LIMIT, wait_for};
use testkit::{FakeGuest, GuestConfig};

/// Payload of a frame, bytes.
const PAYLOAD: usize = 1000;
/// Frames of a sender that are on their way at most: the receiver has buffers for both.
const WINDOW: u64 = 100;
/// Frames that a switch may deliver again after a connection broke: a batch.
const BATCH: u64 = 64;

/// Ports: `vm2` is scheduled; the guest of `vm3` may move to `vm4`.
const CONFIG: &str = r#"
[switch]
name = "host1"
workers = 2

[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
port_security = { macs = "any" }

[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
port_security = { macs = "any" }
[port.egress]
rate = "8M"

[[port]]
name = "vm3"
kind = "vhost-user"
socket = "vm3.sock"
port_security = { macs = "any" }

[[port]]
name = "vm4"
kind = "vhost-user"
socket = "vm4.sock"
port_security = { macs = "any" }
"#;

/// A sender that stays, one that something happens to, and their receiver.
struct World {
    turn: Turn,
    lasthop: Lasthop,
    stays: Sender,
    moves: Sender,
    receiver: FakeGuest,
}

impl World {
    fn start(packed: bool) -> Self {
        let turn = machine();
        let lasthop = Lasthop::start(CONFIG);
        let guest = |n: u8| {
            let plain = GuestConfig {
                enables_first: true,
                ..GuestConfig::default().guest(n)
            };
            let config = if packed { plain.packed() } else { plain };
            lasthop.connect_as(&format!("vm{n}"), config)
        };
        let mut receiver = guest(2);
        let mut sender = |n: u8| {
            let flow = Flow::v4(n, 2);
            let mut guest = guest(n);
            introduce(&mut guest, &mut receiver, flow);
            Sender::new(guest, n.into(), flow)
        };
        Self {
            stays: sender(1),
            moves: sender(3),
            receiver,
            turn,
            lasthop,
        }
    }

    /// Lets the receiver receive.
    fn pass(&mut self) {
        let received = self.receiver.recv_all();
        for packet in received.expect("the device keeps the rules") {
            if let Ok(payload) = payload_of(&packet.frame)
                && !self.stays.see(payload)
            {
                self.moves.see(payload);
            }
        }
        let flooded = self.stays.guest.recv_all();
        flooded.expect("the device keeps the rules");
        std::thread::yield_now();
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + LIMIT;
        while !holds(self) {
            self.pass();
            assert!(Instant::now() < end, "{what}: {}", self.summary());
        }
    }

    /// Frames of each sender that are missing, those that wait in its queue, and dropped ones.
    fn summary(&mut self) -> String {
        let senders = [&mut self.stays, &mut self.moves];
        let left = senders.map(|sender| (sender.missing(), sender.waiting()));
        let (stats, shown) = (
            self.lasthop.stats(),
            self.lasthop.ok(&["egress", "show", "vm2"]),
        );
        format!("{left:?}, dropped {:?}\n{shown}", stats.drops())
    }

    /// Has both senders send, until frames of the second one wait in its queue.
    fn load(&mut self) {
        let before = [self.stays.arrived(), self.moves.arrived()];
        self.until("both have to wait", |world| {
            world.stays.fill(WINDOW, PAYLOAD);
            world.moves.fill(WINDOW, PAYLOAD);
            let more = [world.stays.arrived(), world.moves.arrived()];
            let both = std::iter::zip(more, before).all(|(more, before)| more > before + 20);
            both && world.moves.waiting() > WINDOW as u16 / 2
        });
    }

    /// Has the first sender send until it had so many more frames through.
    fn continues(&mut self) {
        let aim = self.stays.arrived() + 80;
        self.until("the other sender continues", |world| {
            world.stays.fill(WINDOW, PAYLOAD);
            world.stays.arrived() >= aim
        });
    }

    /// Waits until all frames of both have arrived but for so many of the second one.
    fn settle(&mut self, lost: u64) {
        self.until("all frames to arrive", |world| {
            world.stays.missing() == 0 && world.moves.missing() <= lost
        });
        self.until("no frame to wait", |world| world.moves.waiting() == 0);
        for sender in [&self.stays, &self.moves] {
            let checker = &sender.checker;
            assert_eq!((checker.reordered, checker.damaged), (0, 0), "{checker:?}");
        }
        assert_eq!(self.stays.checker.duplicated, 0);
    }

    /// Bits of a frame of a port that waits at the scheduled port.
    fn waiting_bits(&self, port: &str) -> u64 {
        let shown = self.lasthop.json(&["egress", "show", "vm2"]);
        let shares = shown["shares"].as_array().expect("shares").iter();
        let own = shares.filter(|share| share["sender"] == port);
        own.filter_map(|share| share["waiting_bits"].as_u64()).sum()
    }

    /// Waits until nothing of a port waits at the scheduled port, while the other one sends.
    fn forgotten(&mut self, port: &str) {
        self.until("its turn to be forgotten", |world| {
            world.stays.fill(WINDOW, PAYLOAD);
            world.waiting_bits(port) == 0
        });
    }

    fn vanish(&mut self) {
        self.moves.guest.crash();
        self.continues();
        self.forgotten("vm3");
    }

    fn come_back(&mut self, port: &str) {
        let path = self.lasthop.socket_of(port);
        let back = self.moves.guest.reconnect(&path);
        back.expect("the port takes it again");
    }
}

fn guests_leave_while_they_wait(packed: bool) {
    let mut world = World::start(packed);
    world.turn.step("a reset: what is in the queue is lost");
    world.load();
    world.moves.guest.reset().expect("a session");
    world.continues();
    world.load();
    world.settle(WINDOW);
    let lost = world.moves.missing();

    world.turn.step("stopped and continued: nothing is lost");
    world.load();
    world.moves.guest.disconnect().expect("a session");
    world.continues();
    world.forgotten("vm3");
    world.come_back("vm3");
    world.settle(lost);
    assert_eq!(world.moves.checker.duplicated, 0);

    world
        .turn
        .step("it vanishes, and comes back with its queue");
    world.load();
    world.vanish();
    world.come_back("vm3");
    world.settle(lost);
    assert!(world.moves.checker.duplicated <= BATCH);

    world.turn.step("it vanishes in debt, after floods");
    let flood = ethernet(BROADCAST, mac(3), 0x88b5, &[7; PAYLOAD]);
    for _ in 0..200 {
        world.moves.guest.send(&flood).expect("room");
        world.pass();
    }
    world.until("all floods are switched", |world| {
        world.moves.waiting() == 0
    });
    world.vanish();
    world.come_back("vm3");

    world.turn.step("it moves to another port");
    world.load();
    let twice = world.moves.checker.duplicated;
    let _log = world.moves.guest.start_log().expect("a session");
    world.moves.guest.disconnect().expect("a session");
    world.continues();
    world.forgotten("vm3");
    world.come_back("vm4");
    world.settle(lost);
    world.load();
    world.settle(lost);
    assert_eq!(world.moves.checker.duplicated, twice);
    assert!(world.lasthop.stats().sent("vm4") > 0);
    let stats = world.lasthop.stats();
    let dropped = stats.drops_of("vm2");
    assert!(
        dropped.keys().all(|why| *why == "rate-limited"),
        "{dropped:?}"
    );
    world.lasthop.stop();
}

#[test]
fn guests_with_split_queues_leave_while_they_wait() {
    guests_leave_while_they_wait(false);
}

#[test]
fn guests_with_packed_queues_leave_while_they_wait() {
    guests_leave_while_they_wait(true);
}

/// Its turn would not come for as long as the other one sends.
#[test]
fn a_guest_that_vanishes_before_its_turn_is_forgotten() {
    let mut world = World::start(false);
    world.load();
    world.turn.step("the other one has a priority");
    let first = ["port", "set", "vm1", "--qos", "priority=5"];
    world.lasthop.ok(&first);
    world.continues();
    world.until("it waits", |world| {
        world.stays.fill(WINDOW, PAYLOAD);
        world.moves.fill(WINDOW, PAYLOAD);
        world.waiting_bits("vm3") > 0
    });
    world.vanish();
    world.come_back("vm3");
    world.continues();
    world.settle(0);
    let waits = wait_for("nothing to wait", || {
        let all = ["vm1", "vm3"].map(|port| world.waiting_bits(port));
        (all == [0; 2]).then_some(all)
    });
    assert_eq!(waits, [0; 2]);
    world.lasthop.stop();
}
