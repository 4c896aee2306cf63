//! Interfaces that the switch itself serves, while the switch is replaced and killed under traffic
//! of a guest, two TAP devices and a packet socket, with every frame numbered.
//!
//! ```text
//! guest 1 ---+        +--- t2, a TAP device
//!            | switch |--- t3, a TAP device
//!            +--------+--- up0, a packet socket -- wire0, end 4
//! ```
//! A test holds the other end of each interface. Each end sends to the next one, in one direction
//! of the ring, and with another Lasthop in the other one: frames of several senders to a receiver
//! might be dropped for its share of the worker. Fewer are on their way than each queue has room
//! for. `LASTHOP_UPGRADES` and `LASTHOP_KILLS` are the numbers of upgrades and kills.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use e2e::lasthop::Lasthop;
use e2e::uplinks::{tap, uplink, wire};
use e2e::{Turn, machine};
use tempfile::TempDir;
use testkit::FakeGuest;
use testkit::netns::{Netns, Wire};
use testkit::packets::{
    Flow, Numbered, SequenceChecker, numbered_payload, numbered_read, payload_of, udp,
};
use testkit::stop::Stop;
use testkit::wait::wait_until;

/// Frames of a lane on their way at most.
const WINDOW: u64 = 64;
/// Frames of a lane that are sent in a row.
const BURST: u64 = 16;
/// Time without an arrival after which all frames on their way seem lost.
const SEEMS_LOST: Duration = Duration::from_millis(100);
/// Frames of each lane from one interruption to the next, at least.
const BETWEEN: u64 = 300;
/// Frames of a batch.
const BATCH: u64 = 64;

/// Returns how often a test interrupts.
fn times(variable: &str, usual: usize) -> usize {
    let desired = std::env::var(variable).ok();
    desired.map_or(usual, |n| n.parse().expect("a number"))
}

/// Where frames come from and go to.
enum End {
    Guest(Box<FakeGuest>),
    Wire(Wire),
}

impl End {
    fn send(&mut self, frame: &[u8]) {
        match self {
            Self::Guest(guest) => guest.send(frame).expect("room"),
            Self::Wire(wire) => wire.send(frame),
        }
    }

    fn take_all(&mut self) -> Vec<Vec<u8>> {
        match self {
            Self::Guest(guest) => {
                let got = guest.recv_all().expect("the device keeps the rules");
                got.into_iter().map(|packet| packet.frame).collect()
            }
            Self::Wire(wire) => std::iter::from_fn(|| wire.take()).collect(),
        }
    }
}

/// Numbered frames from one end to another.
struct Lane {
    id: u16,
    from: u8,
    to: u8,
    sent: u64,
    checker: SequenceChecker,
    last: Instant,
}

impl Lane {
    fn new(id: u16, (from, to): (u8, u8)) -> Self {
        Self {
            id,
            from,
            to,
            sent: 0,
            checker: SequenceChecker::default(),
            last: Instant::now(),
        }
    }

    fn next(&mut self) -> Vec<u8> {
        let (stream, seq) = (self.id, self.sent);
        self.sent += 1;
        let len = 64 + (seq as usize * 37) % 600;
        let payload = numbered_payload(Numbered { stream, seq }, len);
        udp(&Flow::v4(self.from, self.to), &payload)
    }

    /// Returns how many frames are to be sent now. When all on their way seem lost, the next one
    /// opens the window.
    fn due(&mut self) -> u64 {
        let end = self.checker.next_of(self.id) + WINDOW;
        if end <= self.sent && self.last.elapsed() > SEEMS_LOST {
            self.last = Instant::now();
            return 1;
        }
        end.saturating_sub(self.sent).min(BURST)
    }

    fn see(&mut self, payload: &[u8]) {
        self.checker.see(payload);
        self.last = Instant::now();
    }

    fn record(&self) -> Record {
        Record {
            from: self.from,
            sent: self.sent,
            next: self.checker.next_of(self.id),
            lost: self.checker.lost(),
            twice: self.checker.duplicated,
        }
    }
}

/// Frames of a lane by their fate.
#[derive(Clone, Copy, Debug)]
struct Record {
    from: u8,
    sent: u64,
    next: u64,
    lost: u64,
    twice: u64,
}

/// All ends and lanes.
struct Traffic {
    /// End `n` is the one with index `n - 1`.
    ends: Vec<End>,
    lanes: Vec<Lane>,
}

/// Both directions of the ring.
const RINGS: [[(u8, u8); 4]; 2] = [
    [(1, 2), (2, 3), (3, 4), (4, 1)],
    [(1, 4), (4, 3), (3, 2), (2, 1)],
];

impl Traffic {
    /// Begins with new lanes, whose numbers begin here. Frames of others are forgotten.
    fn begin(&mut self, first: u16, ring: [(u8, u8); 4]) {
        let lanes = (first..).zip(ring);
        self.lanes = lanes.map(|(id, way)| Lane::new(id, way)).collect();
    }

    fn records(&self) -> Vec<Record> {
        self.lanes.iter().map(Lane::record).collect()
    }

    fn send(&mut self) {
        for lane in &mut self.lanes {
            for _ in 0..lane.due() {
                let frame = lane.next();
                self.ends[usize::from(lane.from) - 1].send(&frame);
            }
        }
    }

    fn receive(&mut self) {
        for (at, end) in (1..).zip(&mut self.ends) {
            for frame in end.take_all() {
                // The kernel sends frames of its own.
                let payload = payload_of(&frame).ok();
                let Some((payload, key)) = payload.and_then(|p| Some((p, numbered_read(p)?)))
                else {
                    continue;
                };
                let mut lanes = self.lanes.iter_mut();
                let lane = lanes.find(|lane| lane.id == key.stream && lane.to == at);
                if let Some(lane) = lane {
                    lane.see(payload);
                }
            }
        }
    }

    /// Sends and receives until the stop, and then until all has arrived or nothing does.
    fn run(&mut self, stop: &Stop, records: &Mutex<Vec<Record>>) {
        while !stop.is_set() {
            self.send();
            self.receive();
            *records.lock().expect("no panic") = self.records();
        }
        let mut last = Instant::now();
        while last.elapsed() < 3 * SEEMS_LOST {
            let received = |traffic: &Self| -> u64 {
                let lanes = traffic.lanes.iter();
                lanes.map(|lane| lane.checker.received).sum()
            };
            let before = received(self);
            self.receive();
            if received(self) > before {
                last = Instant::now();
            }
        }
    }
}

struct World {
    turn: Turn,
    lasthop: Lasthop,
    traffic: Traffic,
    _netns: [Netns; 4],
    _folder: TempDir,
}

impl World {
    /// Starts with traffic of all lanes.
    fn start(ring: [(u8, u8); 4]) -> Self {
        let turn = machine();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let netns = ["t2", "t3", "near", "far"].map(|name| Netns::new(name, folder.path()));
        for netns in &netns {
            // Frames of IPv6's own would fill queues.
            let key = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
            netns.run(|| drop(std::fs::write(key, "1")));
        }
        let [t2, t3, near, far] = &netns;
        wire(near, far);
        let open = "port_security = { macs = \"any\" }\n";
        let config = [
            "[switch]\nname = \"host1\"\n[[port]]\nname = \"vm1\"\nkind = \"vhost-user\"\n\
             socket = \"vm1.sock\"\n",
            open,
            &tap(
                "t2",
                &t2.path(),
                "10.2.0.1/24",
                &format!("interface = \"t2\"\n{open}"),
            ),
            &tap(
                "t3",
                &t3.path(),
                "10.3.0.1/24",
                &format!("interface = \"t3\"\n{open}"),
            ),
            &uplink(&near.path(), &format!("driver = \"packet\"\n{open}")),
        ];
        let lasthop = Lasthop::start(&config.concat());
        for port in ["t2", "t3", "uplink"] {
            lasthop.wait_port(port, "up");
            let status = &lasthop.port(port)["driver_status"];
            assert!(status["pid"].is_null(), "{status}");
        }
        let guest = lasthop.connect("vm1", 1);
        let wires = [(t2, "t2"), (t3, "t3"), (far, "wire0")];
        let wires = wires.map(|(netns, name)| End::Wire(netns.wire(name)));
        let guest = [End::Guest(Box::new(guest))].into_iter();
        let traffic = Traffic {
            ends: guest.chain(wires).collect(),
            lanes: Vec::new(),
        };
        let mut world = Self {
            turn,
            lasthop,
            traffic,
            _netns: netns,
            _folder: folder,
        };
        // Until everybody is learned.
        world.traffic.begin(100, ring);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until || !world.traffic.lanes.iter().all(|lane| lane.sent > BETWEEN)
        {
            world.traffic.send();
            world.traffic.receive();
        }
        world.traffic.begin(1, ring);
        world
    }

    /// Interrupts the traffic so many times. `check` gets the records before each time, and when
    /// all frames that were sent before have arrived or are lost.
    fn interrupt(
        &mut self,
        times: usize,
        interrupt: impl Fn(&Lasthop),
        check: impl Fn(&[Record], &[Record], &Lasthop),
    ) {
        let (stop, records) = (Stop::new(), Mutex::new(self.traffic.records()));
        let now = || records.lock().expect("no panic").clone();
        let settled = || {
            let marks = now();
            wait_until("all lanes go on", || {
                let mut both = marks.iter().zip(now());
                both.all(|(mark, now)| now.next >= mark.sent + BETWEEN)
            });
            now()
        };
        let (traffic, lasthop) = (&mut self.traffic, &self.lasthop);
        std::thread::scope(|scope| {
            scope.spawn(|| traffic.run(&stop, &records));
            let _end = stop.at_end();
            let mut before = settled();
            for _ in 0..times {
                interrupt(lasthop);
                let after = settled();
                check(&before, &after, lasthop);
                before = after;
            }
        });
        let lanes = &self.traffic.lanes;
        let sum = |of: fn(&Lane) -> u64| lanes.iter().map(of).sum::<u64>();
        let (sent, lost) = (sum(|lane| lane.sent), sum(|lane| lane.checker.lost()));
        let twice = sum(|lane| lane.checker.duplicated);
        let said = format!("{times} times, {sent} frames, {lost} lost, {twice} twice");
        self.turn.step(&said);
    }

    /// Ends Lasthop; it has dropped nothing.
    fn end(self) {
        let stats = self.lasthop.stats();
        assert!(stats.drops().is_empty(), "{stats:?}");
        self.lasthop.stop();
    }
}

#[test]
fn upgrades_lose_no_frame_and_repeat_and_reorder_none() {
    if !Netns::allowed() {
        return;
    }
    let upgrade = |lasthop: &Lasthop| {
        let said = lasthop.ok(&["upgrade"]);
        assert!(said.contains(": 1 connection kept, "), "{said}");
    };
    for ring in RINGS {
        let mut world = World::start(ring);
        let upgrades = times("LASTHOP_UPGRADES", 6).div_ceil(2);
        world.interrupt(upgrades, upgrade, |_, after, lasthop| {
            let clean = after.iter().all(|lane| (lane.lost, lane.twice) == (0, 0));
            assert!(clean, "{after:?}, {:?}", lasthop.stats().drops());
        });
        for lane in &world.traffic.lanes {
            let is_clean = lane.checker.is_clean(lane.id, lane.sent);
            assert!(is_clean, "{} of {:?}", lane.sent, lane.checker);
        }
        world.end();
    }
}

/// Frames that were read from an interface are lost, and those of a guest are sent again: a batch
/// of each queue at most.
#[test]
fn a_death_of_the_switch_costs_a_batch_of_each_queue_at_most() {
    if !Netns::allowed() {
        return;
    }
    for ring in RINGS {
        let mut world = World::start(ring);
        let kills = times("LASTHOP_KILLS", 8).div_ceil(2);
        world.interrupt(kills, Lasthop::replace_switch, |before, after, lasthop| {
            for (before, after) in before.iter().zip(after) {
                let (lost, twice) = (after.lost - before.lost, after.twice - before.twice);
                let most = if after.from == 1 {
                    (0, BATCH)
                } else {
                    (BATCH, 0)
                };
                let is_bounded = lost <= most.0 && twice <= most.1;
                let stats = || lasthop.stats();
                assert!(is_bounded, "{before:?}, {after:?}, {:?}", stats().drops());
            }
        });
        for lane in &world.traffic.lanes {
            let checker = &lane.checker;
            assert_eq!((checker.reordered, checker.damaged), (0, 0), "{checker:?}");
        }
        world.end();
    }
}
