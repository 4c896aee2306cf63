//! A million flows through a real control and a real switch: all of them are cached, control
//! remembers stations alone, and moves, restarts and removals take effect as with few.

use std::time::{Duration, Instant};

use e2e::lasthop::Lasthop;
use e2e::{Turn, machine};
use testkit::net::NetHeader;
use testkit::packets::{BROADCAST, ethernet};
use testkit::procfs;
use testkit::wait::{LIMIT, wait_for};
use testkit::{FakeGuest, GuestConfig};

const CONFIG: &str = r#"
[switch]
name = "host1"
workers = 1

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

[[port]]
name = "vm3"
kind = "vhost-user"
socket = "vm3.sock"
port_security = { macs = "any" }
"#;

/// Stations behind each of the first two ports; each of one port speaks to each of the other.
const STATIONS: u32 = 1000;
const FLOWS: u32 = STATIONS * STATIONS;
/// Frames under way: fewer than may wait for control.
const WINDOW: u32 = 200;
/// Frames that may have lost their flow to another when the table is nearly full.
const UNLUCKY: u64 = 1000;
/// Memory of control for FDB entries, and an allocator's tolerance, in KiB.
const CONTROL_KIB: u64 = 8 << 10;

/// Station `n` behind the port with this number.
fn mac(port: u8, n: u32) -> [u8; 6] {
    let [_, _, high, low] = n.to_be_bytes();
    [2, 0, port, 0, high, low]
}

fn frame(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    ethernet(to, from, 0x88b5, &[0x42; 46])
}

struct World {
    turn: Turn,
    lasthop: Lasthop,
    a: FakeGuest,
    b: FakeGuest,
    c: FakeGuest,
}

impl World {
    fn new() -> World {
        let turn = machine();
        let lasthop = Lasthop::start(CONFIG);
        let connect = |name: &str| {
            let config = GuestConfig {
                queue_size: 512,
                busy: true,
                ..GuestConfig::default()
            };
            let mut guest = lasthop.connect_as(name, config);
            guest.wait_link().expect("a link");
            guest
        };
        let [a, b, c] = ["vm1", "vm2", "vm3"].map(connect);
        World {
            turn,
            lasthop,
            a,
            b,
            c,
        }
    }

    /// All stations speak once.
    fn introduce(&mut self) {
        for n in 0..STATIONS {
            self.a.send(&frame(mac(1, n), BROADCAST)).expect("room");
            self.b.send(&frame(mac(2, n), BROADCAST)).expect("room");
            if n % WINDOW == 0 || n + 1 == STATIONS {
                wait_for("all to receive from all", || {
                    self.c.recv_all().expect("a correct device");
                    self.a.recv_all().expect("a correct device");
                    self.b.recv_all().expect("a correct device");
                    (self.c.stats().received == 2 * u64::from(n + 1)).then_some(())
                });
            }
        }
    }

    /// Each station of the first port sends to each of the second, which all arrives.
    fn all_speak(&mut self, what: &str) {
        let started = Instant::now();
        let mut got = Vec::new();
        for first in (0..FLOWS).step_by(WINDOW as usize) {
            let count = WINDOW.min(FLOWS - first);
            let pair = &mut self.a.pairs[0];
            for n in first..first + count {
                let frame = frame(mac(1, n / STATIONS), mac(2, n % STATIONS));
                let staged = pair.stage(&frame, &NetHeader::default());
                assert!(staged.expect("a correct device"), "room for a window");
            }
            pair.flush();
            receive(&mut self.b, &mut got, count);
        }
        let took = started.elapsed();
        self.turn
            .step(&format!("{what}: {FLOWS} frames in {took:.1?}"));
    }

    fn status(&self, what: &str) -> u64 {
        let status = self.lasthop.json(&["status"]);
        let value = status["switch"][what].as_u64();
        value.unwrap_or_else(|| panic!("no {what} in {status}"))
    }

    fn control_kib(&self) -> u64 {
        procfs::private_kib(self.lasthop.pid("lasthop-control").expect("control runs"))
    }
}

fn receive(guest: &mut FakeGuest, got: &mut Vec<u8>, count: u32) {
    let end = Instant::now() + LIMIT;
    let mut left = count;
    while left > 0 {
        match guest.pairs[0].try_recv_into(got).expect("a correct device") {
            Some(_) => left -= 1,
            None => {
                assert!(Instant::now() < end, "{left} of {count} frames are missing");
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn a_million_flows_are_cached_and_control_does_not_feel_them() {
    let mut world = World::new();
    world.introduce();
    let (kib, asked) = (world.control_kib(), world.status("upcalls"));

    world.all_speak("for the first time");
    let upcalls = world.status("upcalls") - asked;
    assert!(upcalls >= FLOWS.into(), "{upcalls} upcalls");
    let flows = world.status("flows");
    assert!(flows + UNLUCKY >= FLOWS.into(), "{flows} flows");

    world.all_speak("for the second time");
    let again = world.status("upcalls") - asked - upcalls;
    assert!(again <= UNLUCKY, "{again} upcalls for flows that exist");
    let grown = world.control_kib().saturating_sub(kib);
    assert!(grown <= CONTROL_KIB, "control grew by {grown} KiB");

    world.turn.step("a new control takes over");
    world.lasthop.replace_control();
    let kept = world.status("flows");
    assert!(kept + UNLUCKY >= flows, "{kept} flows of {flows}");
    world.all_speak("under a new control");
    let again = world.status("upcalls");
    assert!(again <= UNLUCKY, "{again} upcalls for flows that exist");
    let kib = world.control_kib();
    assert!(kib <= 2 * CONTROL_KIB, "the new control has {kib} KiB");

    world.turn.step("a station moves");
    let moving = mac(2, 7);
    world.c.send(&frame(moving, BROADCAST)).expect("room");
    let to_it = frame(mac(1, 500), moving);
    world.c.recv_all().expect("a correct device");
    wait_for("frames to arrive where it is now", || {
        world.a.send(&to_it).expect("room");
        world.b.recv_all().expect("a correct device");
        let got = world.c.recv(Duration::from_millis(5));
        let got = got.expect("a correct device")?;
        (got.frame == to_it).then_some(())
    });
    let left = world.status("flows");
    assert!(left + u64::from(STATIONS) <= kept + 10, "{left} of {kept}");

    world.turn.step("the port with all the others goes");
    world.lasthop.ok(&["port", "remove", "vm2"]);
    let left = world.status("flows");
    assert!(left <= 2 * u64::from(STATIONS), "{left} flows to nowhere");
    world.turn.step("stop");
    world.lasthop.stop();
}
