//! Processes die and are upgraded while senders wait at scheduled ports, a guest's and an uplink:
//! frames that wait are not lost, each sender continues, and none gets more than it may have, but
//! for one burst for each death of the switch.
//!
//! `LASTHOP_KILLS` and `LASTHOP_UPGRADES` increase the numbers of kills and upgrades.

use std::net::UdpSocket;
use std::process::Stdio;
use std::time::{Duration, Instant};

use e2e::lasthop::Lasthop;
use e2e::numbered::{Sender, introduce};
use e2e::uplinks::{OWN_PROCESS, driver_pid, uplink, wire};
use e2e::{Turn, machine, repetitions};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::netns::Netns;
use testkit::packets::{Flow, mac, payload_of, udp};
use testkit::process::send as signal;
use testkit::wait::{LIMIT, wait_for};
use testkit::{FakeGuest, GuestConfig};

/// Payload of a frame, bytes, and bits of the frame with it.
const PAYLOAD: usize = 1000;
const FRAME_BITS: u64 = (PAYLOAD as u64 + 42) * 8;
/// Bits of a frame on the wire behind the uplink beside its own.
const OVERHEAD_BITS: u64 = 24 * 8;
/// Frames of a sender that are on their way at most: receivers have buffers for two senders.
const WINDOW: u64 = 100;
/// Rate of each scheduled port, and the ceiling of one of its two senders, bits a second.
const RATE: u64 = 16_000_000;
const CEILING: u64 = 6_000_000;
/// Bits of a sender at once after a pause.
const BURST: u64 = 1_000_000;
/// Bits of a scheduled port at once after a pause: two of the longest frames.
const DEPTH: u64 = 2 * 65_553 * 8;
/// Bits that a sender may have been granted and not used.
const GRANTED: u64 = 300_000;
/// Kills and upgrades at most: a driver that dies often is not started at once.
const MOST: usize = 300;
/// Time in which frames arrive that have left the switch.
const QUIET: Duration = Duration::from_millis(50);

/// The scheduled guest, and its senders.
const RECEIVER: u8 = 2;
/// The host at the other end of the wire.
const FAR: u8 = 9;
/// Guests that send, and to whom. Each pair has one with a ceiling.
const SENDERS: [(u8, u8); 4] = [(1, RECEIVER), (3, RECEIVER), (4, FAR), (5, FAR)];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Control,
    Switch,
    Driver,
}

fn config(host: &Netns) -> String {
    let port = |n: u8, more: &str| {
        format!(
            "[[port]]\nname = \"vm{n}\"\nkind = \"vhost-user\"\nsocket = \"vm{n}.sock\"\n\
             port_security = {{ macs = \"any\" }}\n{more}\n"
        )
    };
    let egress = format!("[port.egress]\nrate = {RATE}\n");
    let limited = format!("[port.qos]\nmax = {CEILING}\nburst = {BURST}\n");
    [
        "[switch]\nname = \"host1\"\nworkers = 2\n".to_owned(),
        port(RECEIVER, &egress),
        port(1, &limited),
        port(3, ""),
        port(4, &limited),
        port(5, ""),
        uplink(
            &host.path(),
            &format!("driver = \"packet\"\n{OWN_PROCESS}port_security = {{ macs = \"any\" }}"),
        ),
        egress,
    ]
    .concat()
}

/// Senders and their receivers.
struct World {
    turn: Turn,
    lasthop: Lasthop,
    senders: Vec<Sender>,
    receiver: FakeGuest,
    far: UdpSocket,
    /// Time at which the senders began.
    began: Instant,
    switch_deaths: u64,
    _namespaces: ([Netns; 2], TempDir),
}

impl World {
    /// Starts; none where network namespaces cannot be had.
    fn start() -> Option<Self> {
        if !Netns::allowed() {
            return None;
        }
        let turn = machine();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [host, far] = ["host", "far"].map(|name| Netns::new(name, folder.path()));
        wire(&host, &far);
        let address = |n: u8| mac(n).map(|byte| format!("{byte:02x}")).join(":");
        far.ip(&format!("link set wire0 address {}", address(FAR)));
        far.ip(&format!("address add 10.0.0.{FAR}/24 dev wire0"));
        for (n, _) in SENDERS {
            let neighbour = format!("10.0.0.{n} lladdr {}", address(n));
            far.ip(&format!("neigh replace {neighbour} dev wire0"));
        }
        let lasthop = Lasthop::start(&config(&host));
        lasthop.wait_port("uplink", "up");
        let socket = far.udp(&format!("10.0.0.{FAR}:{}", Flow::v4(1, FAR).dst_port));
        socket.set_nonblocking(true).expect("a socket");
        set_socket_recv_buffer_size_force(&socket, 4 << 20).expect("rights");
        let guest = |n: u8| {
            let plain = GuestConfig::default().guest(n);
            let config = if n.is_multiple_of(2) {
                plain.packed()
            } else {
                plain
            };
            lasthop.connect_as(&format!("vm{n}"), config)
        };
        let sender =
            |(id, (n, to)): (usize, (u8, u8))| Sender::new(guest(n), id as u16, Flow::v4(n, to));
        let mut world = Self {
            senders: SENDERS.into_iter().enumerate().map(sender).collect(),
            receiver: guest(RECEIVER),
            turn,
            lasthop,
            far: socket,
            began: Instant::now(),
            switch_deaths: 0,
            _namespaces: ([host, far], folder),
        };
        world.introduce();
        world.began = Instant::now();
        Some(world)
    }

    /// Teaches the switch where all are, so that no numbered frame is flooded.
    fn introduce(&mut self) {
        for (sender, (n, to)) in self.senders.iter_mut().zip(SENDERS) {
            let flow = Flow::v4(n, to);
            if to == RECEIVER {
                introduce(&mut sender.guest, &mut self.receiver, flow);
                continue;
            }
            let (mut there, mut back) = (false, false);
            wait_for("the far end", || {
                sender.guest.send(&udp(&flow, b"hello")).expect("room");
                greet(&self.far, n);
                there |= self.far.recv(&mut [0; 64]).is_ok();
                back |= !sender
                    .guest
                    .recv_all()
                    .expect("an honest device")
                    .is_empty();
                (there && back).then_some(())
            });
            std::thread::sleep(QUIET);
        }
        while self.far.recv(&mut [0; 64]).is_ok() {}
    }

    /// Lets the receivers send, so that control does not forget where they are.
    fn refresh(&mut self) {
        for (n, to) in SENDERS {
            if to == RECEIVER {
                let flow = Flow::v4(n, to).reversed();
                self.receiver.send(&udp(&flow, b"hello")).expect("room");
            } else {
                greet(&self.far, n);
            }
        }
    }

    /// Lets all receive, and all senders send if `load`. Returns whether a frame arrived.
    fn pass(&mut self, load: bool) -> bool {
        for sender in &mut self.senders {
            if load {
                sender.fill(WINDOW, PAYLOAD);
            }
            sender.guest.recv_all().expect("the device keeps the rules");
        }
        let mut any = false;
        let mut see = |senders: &mut [Sender], payload: &[u8]| {
            any |= senders.iter_mut().any(|sender| sender.see(payload));
        };
        let received = self.receiver.recv_all();
        for packet in received.expect("the device keeps the rules") {
            if let Ok(payload) = payload_of(&packet.frame) {
                see(&mut self.senders, payload);
            }
        }
        let mut datagram = [0; 2 * PAYLOAD];
        while let Ok(len) = self.far.recv(&mut datagram) {
            see(&mut self.senders, &datagram[..len]);
        }
        if !any {
            std::thread::sleep(Duration::from_micros(200));
        }
        any
    }

    /// Lets senders send until each had so many more frames through.
    fn advance(&mut self, frames: u64) {
        let aims = self.senders.iter().map(|sender| sender.arrived() + frames);
        let aims: Vec<u64> = aims.collect();
        let end = Instant::now() + LIMIT;
        let reached = |sender: &Sender, aim: &u64| sender.arrived() >= *aim;
        while !self
            .senders
            .iter()
            .zip(&aims)
            .all(|(s, aim)| reached(s, aim))
        {
            self.pass(true);
            assert!(Instant::now() < end, "a sender sleeps: {:?}", self.state());
        }
    }

    /// Lets everything arrive that was sent. Nothing wakes the switch meanwhile.
    fn settle(&mut self) {
        let end = Instant::now() + LIMIT;
        while self.senders.iter_mut().any(|sender| sender.waiting() > 0) {
            self.pass(false);
            assert!(Instant::now() < end, "a sender sleeps: {:?}", self.state());
        }
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
            if self.pass(false) {
                last = Instant::now();
            }
        }
    }

    /// For each sender: frames that are missing, that wait, and that came twice.
    fn state(&mut self) -> Vec<(u64, u16, u64)> {
        let all = self.senders.iter_mut();
        all.map(|s| (s.missing(), s.waiting(), s.checker.duplicated))
            .collect()
    }

    /// Frames that are missing on the way to the guest and to the far end.
    fn missing(&self) -> [u64; 2] {
        let of = |two: &[Sender]| two.iter().map(Sender::missing).sum();
        [of(&self.senders[..2]), of(&self.senders[2..])]
    }

    fn twice(&self) -> u64 {
        let all = self.senders.iter();
        all.map(|sender| sender.checker.duplicated).sum()
    }

    /// Waits until no more frames than these are missing beside those that were before: some may
    /// still be on the wire. Returns their numbers.
    fn lost_at_most(&mut self, before: &[u64; 2], most: [u64; 2]) -> [u64; 2] {
        let end = Instant::now() + LIMIT;
        loop {
            let missing = self.missing();
            let lost = [0, 1].map(|way| missing[way].saturating_sub(before[way]));
            if lost[0] <= most[0] && lost[1] <= most[1] {
                return lost;
            }
            assert!(Instant::now() < end, "{lost:?} lost, of {most:?} at most");
            self.pass(false);
        }
    }

    /// Checks that no sender and no scheduled port had more than it may have.
    fn within_rates(&self) {
        let seconds = self.began.elapsed().as_secs_f64();
        let allowed = |rate: u64, burst: u64| {
            let bursts = burst * (1 + self.switch_deaths) + GRANTED;
            (rate as f64 * seconds) as u64 + bursts
        };
        for (pair, (_, to)) in self.senders.chunks(2).zip([SENDERS[0], SENDERS[2]]) {
            let overhead = if to == FAR { OVERHEAD_BITS } else { 0 };
            let bits = |sender: &Sender| sender.checker.received * (FRAME_BITS + overhead);
            let most = allowed(CEILING, BURST);
            assert!(bits(&pair[0]) <= most, "{} of {most}", bits(&pair[0]));
            let (all, most) = (bits(&pair[0]) + bits(&pair[1]), allowed(RATE, DEPTH));
            assert!(all <= most, "{all} of {most} in {seconds} s");
        }
    }

    /// Checks that frames arrived in order and whole, and that nothing is left in the schedules.
    fn finish(mut self) {
        self.settle();
        self.within_rates();
        for sender in &self.senders {
            assert_eq!(sender.checker.reordered, 0, "{:?}", sender.checker);
        }
        for port in ["vm2", "uplink"] {
            wait_for("no frame to wait", || {
                let shown = self.lasthop.json(&["egress", "show", port]);
                let shares = shown["shares"].as_array().expect("shares");
                let idle = shares.iter().all(|share| share["waiting_bits"] == 0);
                idle.then_some(())
            });
        }
        let log = self.lasthop.log();
        assert!(!log.contains("disconnected port=\"vm"), "{log}");
        self.lasthop.stop();
    }

    /// Upgrades while all send.
    fn upgrade(&mut self) {
        let mut upgrade = self.lasthop.command(&["upgrade"]);
        let mut upgrade = upgrade.stdout(Stdio::null()).spawn().expect("it starts");
        let end = Instant::now() + LIMIT;
        let status = loop {
            self.pass(true);
            assert!(Instant::now() < end, "an upgrade does not end");
            if let Some(status) = upgrade.try_wait().expect("a child") {
                break status;
            }
        };
        assert!(status.success(), "{}", self.lasthop.log());
        self.switch_deaths += 1;
    }

    /// Kills a process. Returns its id.
    fn kill(&mut self, victim: Victim) -> u32 {
        let pid = match victim {
            Victim::Control => self.lasthop.pid("lasthop-control"),
            Victim::Switch => self.lasthop.pid("lasthop-switch"),
            Victim::Driver => driver_pid(&self.lasthop, "uplink"),
        };
        let pid = pid.expect("it runs");
        signal(pid, Signal::KILL);
        self.switch_deaths += u64::from(victim == Victim::Switch);
        pid
    }

    /// Waits until everything runs as before a kill.
    fn wait_recovered(&self, victim: Victim, (killed, control): (u32, u32)) {
        match victim {
            Victim::Control => self.lasthop.wait_control(killed),
            // A new switch comes with a new control.
            Victim::Switch => self.lasthop.wait_control(control),
            Victim::Driver => wait_for("a new driver", || {
                driver_pid(&self.lasthop, "uplink")
                    .filter(|pid| *pid != killed)
                    .map(drop)
            }),
        }
        self.lasthop.wait_port("uplink", "up");
    }
}

/// Has the far end send to a guest.
fn greet(far: &UdpSocket, guest: u8) {
    let to = format!("10.0.0.{guest}:{}", Flow::v4(guest, FAR).src_port);
    far.send_to(b"hello", to).expect("a neighbour");
}

/// Kills a process under load, and checks what was lost.
fn kill_once(world: &mut World, round: usize) {
    let victim = [Victim::Control, Victim::Switch, Victim::Driver][round % 3];
    let (before, stats) = (world.missing(), world.lasthop.stats());
    let twice = world.twice();
    world.refresh();
    // At various moments.
    world.advance(20 + 7 * (round as u64 % 11));
    let control = world.lasthop.pid("lasthop-control").expect("control runs");
    let killed = world.kill(victim);
    if (round / 3).is_multiple_of(2) {
        // Frames that wait go by themselves: nothing kicks.
        world.settle();
    }
    world.advance(30);
    world.settle();
    world.wait_recovered(victim, (killed, control));
    world.within_rates();
    let moved = world.lasthop.stats().since(&stats);
    let dropped: u64 = moved.drops().values().sum();
    let frames = match victim {
        Victim::Control => [0, 0],
        // What it had read, and what was sent while there was none.
        Victim::Driver => [0, dropped + 2 * WINDOW],
        // What waited for control.
        Victim::Switch => [dropped + 2 * WINDOW; 2],
    };
    let lost = world.lost_at_most(&before, frames);
    let twice = world.twice() - twice;
    // The last batch of each worker comes again.
    let most = if victim == Victim::Switch { 2 * 64 } else { 0 };
    assert!(twice <= most, "{victim:?}: {twice} twice");
    if round < 6 {
        let drops = moved.drops();
        let text = format!("{victim:?}: {lost:?} lost, {twice} twice, {drops:?} dropped");
        world.turn.step(&text);
    }
}

#[test]
fn processes_may_die_while_senders_wait() {
    let Some(mut world) = World::start() else {
        return;
    };
    for round in 0..repetitions("LASTHOP_KILLS", 6).min(MOST) {
        kill_once(&mut world, round);
    }
    world.finish();
}

#[test]
fn upgrades_lose_no_frame_that_waits() {
    let Some(mut world) = World::start() else {
        return;
    };
    world.advance(100);
    for _ in 0..repetitions("LASTHOP_UPGRADES", 2).min(MOST) {
        world.settle();
        let (before, stats) = (world.missing(), world.lasthop.stats());
        let pid = world.lasthop.pid("lasthop-switch");
        world.upgrade();
        assert_ne!(world.lasthop.pid("lasthop-switch"), pid);
        world.advance(30);
        world.settle();
        world.within_rates();
        let moved = world.lasthop.stats().since(&stats);
        // While the driver is replaced, frames to the uplink are dropped.
        let dropped: u64 = moved.drops_of("uplink").values().sum();
        world.lost_at_most(&before, [0, dropped]);
        assert_eq!(world.twice(), 0, "{moved:?}");
    }
    world.finish();
}
