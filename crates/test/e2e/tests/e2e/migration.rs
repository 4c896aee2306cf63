//! Live migration between two QEMUs, each at a port of its own with the same address, under checked
//! traffic both ways.
//!
//! ```text
//!   station --- peer     here, there, farther --- one guest after the other
//! ```
//! The guest is given up once, moves, and moves again while the switch and control are killed.

use std::path::PathBuf;
use std::time::Duration;

use e2e::Turn;
use e2e::echo::{Echo, Report};
use e2e::guest::{Guest, GuestSpec};
use e2e::iommu::Iommu;
use e2e::lasthop::Lasthop;
use e2e::migration::Migrated;
use e2e::numbered::{Stream, collect, introduce, settles};
use e2e::traffic::{echo_replies, unsent_replies};
use e2e::{is_long, machine};
use testkit::packets::{Flow, SequenceChecker};
use testkit::precopy::Precopy;
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};

const CONFIG: &str = r#"
[switch]
name = "host1"

[[port]]
name = "peer"
kind = "vhost-user"
socket = "peer.sock"

[[port]]
name = "here"
kind = "vhost-user"
socket = "here.sock"
mac = "52:54:00:00:00:77"

[[port]]
name = "there"
kind = "vhost-user"
socket = "there.sock"
mac = "52:54:00:00:00:77"

[[port]]
name = "farther"
kind = "vhost-user"
socket = "farther.sock"
mac = "52:54:00:00:00:77"
"#;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0x77];

/// The guest that moves, and the station that it talks to.
#[derive(Clone, Copy)]
enum Kind {
    Split,
    Packed,
    /// Without `VERSION_1`; the guest has the header of ten bytes.
    Legacy,
    /// Split, with translated addresses: the log is of guest-physical ones all the same.
    Translated,
}

/// A guest at a port, and what goes with it.
struct World {
    turn: Turn,
    lasthop: Lasthop,
    spec: GuestSpec,
    guest: Guest,
    /// The fake guest that talks to it.
    station: Option<FakeGuest>,
}

impl World {
    fn new(turn: Turn, kind: Kind) -> World {
        let lasthop = Lasthop::start(CONFIG);
        turn.step("boot a guest");
        let spec = GuestSpec::dialing("mover", lasthop.socket("here.sock"))
            .mac("52:54:00:00:00:77")
            .ip("10.0.0.2/24");
        let config = GuestConfig::default().guest(1);
        let (spec, config) = match kind {
            Kind::Split => (spec, config),
            Kind::Packed => (spec.packed(), config.packed()),
            Kind::Translated => (spec.iommu(Iommu::Strict), config),
            Kind::Legacy => {
                let spec = spec.device_option("disable-modern=on");
                (spec.device_option("mrg_rxbuf=off"), config.legacy())
            }
        };
        let guest = spec.clone().start().ready();
        let station = lasthop.connect_as("peer", config);
        World {
            turn,
            lasthop,
            spec,
            guest,
            station: Some(station),
        }
    }

    /// Returns the path where a QEMU waits for the guest.
    fn way_to(&self, port: &str) -> PathBuf {
        self.lasthop.socket(&format!("{port}.migration"))
    }

    /// Starts a QEMU at this port that waits for the guest.
    fn expect_at(&self, port: &str) -> Guest {
        let socket = self.lasthop.socket(&format!("{port}.sock"));
        let waiting = self.spec.clone().arriving(socket, &self.way_to(port));
        let mut guest = waiting.start();
        guest.wait_ready_for_arrival();
        self.lasthop.wait_port(port, "connected");
        guest
    }

    /// Both ways, until [`World::quiet`].
    fn talk(&mut self) -> Echo {
        let flow = Flow {
            dst_mac: MAC,
            ..Flow::v4(1, 2)
        };
        Echo::start(self.station.take().expect("the station is idle"), flow)
    }

    fn quiet(&mut self, echo: Echo) -> Report {
        let (station, report) = echo.end();
        self.station = Some(station);
        let requests = report.requests();
        let gaps = report.gaps();
        let asked = report.asked.len();
        self.turn.step(&format!(
            "    {requests} requests, unanswered: {gaps:?}; {asked} of the guest's"
        ));
        let damaged = report.answers.damaged;
        assert_eq!(damaged, 0, "{report:?}");
        report
    }

    /// The guest's kernel has sent a reply to all that it received: what is missing was lost on the
    /// way.
    fn answered_all(&mut self) {
        assert_eq!(unsent_replies(&mut self.guest), 0);
    }

    /// Behind which port the guest was learned.
    fn learned_at(&self) -> String {
        let fdb = self.lasthop.json(&["fdb", "list"]);
        let entries = fdb["entries"].as_array().expect("a list");
        let entry = entries
            .iter()
            .find(|entry| entry["mac"] == "52:54:00:00:00:77");
        entry.map_or_else(String::new, |entry| {
            entry["port"].as_str().unwrap_or_default().to_owned()
        })
    }

    /// Lets the guest move to `port` under traffic. Does one thing under traffic before that, and
    /// another meanwhile.
    fn move_to(
        &mut self,
        port: &str,
        before: impl FnOnce(&mut Guest),
        meanwhile: impl FnOnce(&World),
    ) -> (Migrated, Report) {
        let next = self.expect_at(port);
        let echo = self.talk();
        before(&mut self.guest);
        let way = self.way_to(port);
        self.guest.migrate(&way);
        meanwhile(self);
        self.guest.let_go();
        let migrated = self.guest.wait_migrated();
        self.turn.step(&format!("    {migrated:?}"));
        let report = self.quiet(echo);
        let drops = self.lasthop.stats();
        self.turn
            .step(&format!("    dropped so far: {:?}", drops.drops()));
        assert_eq!(self.learned_at(), port);
        assert!(report.announced > 0, "{report:?}");
        self.guest = next;
        self.answered_all();
        (migrated, report)
    }
}

/// Nothing is missing but what was sent while the guest stood still.
fn lost_only_once(report: &Report) {
    let gaps = report.gaps();
    assert!(gaps.len() <= 1, "{gaps:?}");
    assert_eq!(report.answers.reordered, 0, "{report:?}");
    assert_eq!(report.answers.duplicated, 0, "{report:?}");
    assert_eq!((report.asked_lost(), report.asked_again), (0, 0));
}

fn guests_move(turn: Turn, kind: Kind) {
    let mut world = World::new(turn, kind);
    world.turn.step("a migration that is given up");
    let waiting = world.expect_at("there");
    let echo = world.talk();
    let way = world.way_to("there");
    world.guest.migrate(&way);
    std::thread::sleep(Duration::from_millis(300));
    world.guest.cancel_migration();
    std::thread::sleep(Duration::from_millis(200));
    let report = world.quiet(echo);
    world.answered_all();
    assert_eq!(report.gaps(), [], "no guest stopped");
    assert_eq!(world.learned_at(), "here");
    drop(waiting);
    world.lasthop.wait_port("there", "waiting");

    world
        .turn
        .step("one that is not, while the guest pings too");
    // A guest that moves must not write much: commands run before.
    let ping = |guest: &mut Guest| {
        guest.run("ping -q -i 0.01 -s 1400 10.0.0.1 >/dev/null 2>&1 &");
        wait_until("the guest's pings are answered", || echo_replies(guest) > 1);
    };
    let (_, report) = world.move_to("there", ping, |_| {});
    lost_only_once(&report);
    assert!(report.asked.len() > 1, "{report:?}");
    world.guest.run("killall ping");

    world
        .turn
        .step("once more, while the switch and control are killed");
    let before = world.lasthop.stats();
    let kill = |world: &World| {
        world.lasthop.replace_switch();
        world.lasthop.replace_control();
    };
    let (_, report) = world.move_to("farther", |_| {}, kill);
    let moved = world.lasthop.stats().since(&before);
    let mut gaps: Vec<usize> = report.gaps().iter().map(|gap| gap.count).collect();
    gaps.sort_unstable();
    gaps.pop();
    // Both ways have flows when the switch dies, so nothing waits in it. A batch that dies is taken
    // again. In the next switch frames wait for control, and those that it drops are counted.
    let lost: usize = gaps.iter().sum();
    let undecided = moved.get("drops.upcall-full") + moved.get("drops.upcall-timeout");
    assert!(lost as u64 <= undecided, "{:?}, {moved:?}", report.gaps());

    world.turn.step("the guest is as it was");
    assert_eq!(world.guest.run("cat /sys/class/net/eth0/carrier"), "1\n");
    let echo = world.talk();
    let report = world.quiet(echo);
    assert_eq!(report.gaps(), []);
    world.lasthop.stop();
}

#[test]
fn a_guest_moves_and_loses_what_came_while_it_stood_still() {
    guests_move(machine(), Kind::Split);
}

#[test]
fn a_guest_with_packed_queues_moves_too() {
    guests_move(machine(), Kind::Packed);
}

#[test]
fn a_legacy_guest_moves_too() {
    let turn = machine();
    if is_long() {
        guests_move(turn, Kind::Legacy);
    }
}

#[test]
fn a_guest_with_an_iommu_moves_too() {
    let turn = machine();
    if is_long() {
        guests_move(turn, Kind::Translated);
    }
}

/// A VMM that logs while the switch dies: the successor continues the log, and no written page is
/// missing.
#[test]
fn the_dirty_log_continues_in_the_next_switch() {
    let turn = machine();
    // These guests have other addresses.
    let mac = "mac = \"52:54:00:00:00:77\"";
    let lasthop = Lasthop::start(&CONFIG.replace(mac, "port_security = { macs = \"any\" }"));
    for packed in [false, true] {
        turn.step("two fake guests, one of them to be moved");
        let connect = |name: &str, number| {
            let config = GuestConfig::default().guest(number);
            let config = if packed { config.packed() } else { config };
            lasthop.connect_as(name, config)
        };
        let (mut station, mut mover) = (connect("peer", 1), connect("here", 2));
        introduce(&mut station, &mut mover, Flow::v4(1, 2));
        let mut vmm = Precopy::begin(&mut mover).expect("a log");
        let (mut checker, mut stream) =
            (SequenceChecker::default(), Stream::new(0, Flow::v4(1, 2)));
        for kill in 1..=3 {
            turn.step(&format!("kill -9 of the switch, time {kill}"));
            let control = lasthop.pid("lasthop-control").expect("control runs");
            // More than the rings hold: every buffer that the death left half written is written
            // again.
            for count in 0..1500 {
                if count == 500 {
                    lasthop.kill_switch();
                }
                stream.send(&mut station, 1000);
                collect(&mut mover, &mut checker);
            }
            lasthop.wait_control(control);
            // Frames that came while no switch ran are lost.
            settles(&mut mover, &mut checker, &stream, Duration::from_secs(2));
            vmm.pass();
        }
        assert_eq!(checker.damaged, 0, "{checker:?}");
        mover.stop().expect("positions");
        vmm.pass();
        let [here, there] = vmm.checksums();
        assert_eq!(here, there, "pages {:x?}", vmm.differing());
        station.disconnect().expect("a good end");
        mover.crash();
        for port in ["peer", "here"] {
            lasthop.wait_port(port, "waiting");
        }
    }
    lasthop.stop();
}
