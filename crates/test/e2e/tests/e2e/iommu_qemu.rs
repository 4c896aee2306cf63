//! Guests of QEMU with an IOMMU: every buffer is translated, and revoked when the driver has it
//! back. `make test` has a strict guest with split queues; other IOMMUs, modes and queues, and a
//! hundred kills run with `LASTHOP_LONG=1`. A migration is in `migration.rs`.
//!
//! The guests' addresses are 10.0.0.1 (`vm1`, with the IOMMU) and 10.0.0.2 (`vm2`).

use serde_json::Value;

use e2e::guest::{Guest, GuestSpec, boot};
use e2e::iommu::Iommu;
use e2e::lasthop::{Lasthop, guest_ports};
use e2e::traffic::{
    PingRun, Transfer, checksum_errors, echo_replies, iperf_bytes, ping, reachable, send_checked,
    serve_iperf,
};
use e2e::{Turn, is_long, machine};
use testkit::wait::{LIMIT, wait_until, within};

/// Receive buffers of a guest with the shortest rings, each of which is mapped for itself.
const BUFFERS: u64 = 256;
/// Kills of the switch under one flow.
const KILLS: u32 = 4;

/// Two guests that talk, the first with an IOMMU.
struct World {
    turn: Turn,
    lasthop: Lasthop,
    vm1: Guest,
    vm2: Guest,
    iommus: [Iommu; 2],
}

impl World {
    /// Boots both. Returns nothing where there is no guest image.
    fn new(iommus: [Iommu; 2], config: impl Fn(GuestSpec) -> GuestSpec) -> Option<World> {
        let turn = machine();
        if !iommus.iter().all(|iommu| iommu.has_image()) {
            return None;
        }
        let ports = guest_ports("", &["vm1", "vm2"]);
        let lasthop = Lasthop::start(&ports.replace("[[port]]", "[[port]]\nqueues = 2"));
        turn.step(&format!("boot two guests: {iommus:?}"));
        let vm1 = config(GuestSpec::at(&lasthop, "vm1", 1).iommu(iommus[0]));
        let vm2 = GuestSpec::at(&lasthop, "vm2", 2).iommu(iommus[1]);
        let [vm1, vm2] = boot([vm1, vm2]);
        let mut world = World {
            turn,
            lasthop,
            vm1,
            vm2,
            iommus,
        };
        world.check_iommus();
        Some(world)
    }

    fn check_iommus(&mut self) {
        self.vm1.check_iommu(self.iommus[0]);
        self.vm2.check_iommu(self.iommus[1]);
    }

    /// One of the counts at vm1's table.
    fn count(&self, name: &str) -> u64 {
        let shown = self.lasthop.json(&["port", "show", "vm1"]);
        count(&shown, name).unwrap_or_else(|| panic!("no {name} at vm1: {shown}"))
    }

    /// Checks that both reach each other and lose nothing.
    fn talk(&mut self) {
        let reached = reachable(&mut self.vm1, "10.0.0.2");
        assert!(reached, "{}", self.lasthop.log());
        let before = self.lasthop.stats();
        let lost =
            ping(&mut self.vm1, "10.0.0.2", 50).lost() + ping(&mut self.vm2, "10.0.0.1", 50).lost();
        let moved = self.lasthop.stats().since(&before);
        assert_eq!(lost, 0, "{moved:?}");
    }

    /// TCP both ways, by iperf3 and with checked sums.
    fn streams(&mut self) {
        self.turn.step("TCP both ways");
        serve_iperf(&mut self.vm1);
        serve_iperf(&mut self.vm2);
        for options in ["", "-R"] {
            let run = iperf_bytes(&mut self.vm1, "10.0.0.2", options);
            self.turn.step(&format!("    {options} {run:?}"));
            assert!(run.is_sound(), "{run:?}");
        }
        let (vm1, vm2) = (&mut self.vm1, &mut self.vm2);
        send_checked(vm1, "10.0.0.1", vm2, 2);
        send_checked(vm2, "10.0.0.2", vm1, 2);
        assert_eq!([checksum_errors(vm1), checksum_errors(vm2)], [0, 0]);
    }

    /// Checks the counts of `lasthop port show` after traffic.
    fn counts(&self) {
        self.turn.step("what the switch has counted");
        let names = ["misses", "updates", "invalidations", "evictions", "entries"];
        let counts = names.map(|name| (name, self.count(name)));
        self.turn.step(&format!("    {counts:?}"));
        assert_eq!(self.count("refused"), 0, "QEMU makes no mistakes");
        assert!(self.count("updates") > 0);
        if self.iommus[0] == Iommu::PassThrough {
            assert!(self.count("entries") > 0);
        } else {
            assert!(self.count("invalidations") > 0);
        }
        if self.iommus[1] == Iommu::PlatformOnly {
            let shown = self.lasthop.json(&["port", "show", "vm2"]);
            assert!(count(&shown, "updates").unwrap_or(0) == 0, "{shown}");
        }
        assert_eq!(self.lasthop.stats().sum("drops.not-granted"), 0);
    }

    /// The driver leaves the card and takes it again, and the guest boots again: each time all
    /// mappings go, and the same addresses lead elsewhere.
    fn driver_changes(&mut self) {
        for round in 1..=2 {
            self.turn.step(&format!("another driver, time {round}"));
            self.vm1.rebind();
            self.talk();
        }
        self.turn.step("reboot");
        self.vm1.reboot();
        self.check_iommus();
        self.talk();
    }

    /// The switch dies under a ping and a TCP flow; no guest notices.
    fn kills(&mut self, kills: u32) {
        self.turn
            .step(&format!("{kills} times kill -9 of the switch"));
        let links = [self.vm1.link_changes(), self.vm2.link_changes()];
        let before = self.lasthop.stats();
        let answered = echo_replies(&mut self.vm2);
        let steady = PingRun::endless(&mut self.vm2, "10.0.0.1");
        let stream = Transfer::start(&mut self.vm1, "10.0.0.2", &self.lasthop, "vm2");
        for _ in 0..kills {
            self.lasthop.replace_switch();
            stream.goes_on();
        }
        stream.end(&mut self.vm1);
        let steady = steady.stop(&mut self.vm2);
        self.turn.step(&format!("    {steady:?}"));
        // What waited in the switch for an answer dies with it.
        let moved = self.lasthop.stats().since(&before);
        let kept = u64::from(steady.sent - 4 * kills);
        // Behind the TCP flow some are so late that `ping` has given up.
        let all = within(LIMIT, || {
            (echo_replies(&mut self.vm2) - answered >= kept).then_some(())
        });
        assert!(all.is_some(), "{steady:?}, {moved:?}");
        assert_eq!([self.vm1.link_changes(), self.vm2.link_changes()], links);
        let log = self.lasthop.log();
        assert!(!log.contains("disconnected"), "{log}");
        self.talk();
    }

    /// Waits until the switch has asked for the receive buffers, which Linux has offered when its
    /// interface came up. No frame has come yet, and none would be there for the first.
    fn buffers_are_asked_for(&self) {
        self.turn.step("receive buffers");
        if self.iommus[0] != Iommu::PassThrough {
            wait_until("they are asked for", || self.count("misses") >= BUFFERS);
        }
        let stats = self.lasthop.stats();
        assert_eq!([stats.received("vm1"), stats.received("vm2")], [0, 0]);
    }

    /// All of it.
    fn exercise(mut self) {
        self.buffers_are_asked_for();
        self.talk();
        self.streams();
        self.counts();
        self.driver_changes();
        self.kills(KILLS);
        self.lasthop.stop();
    }
}

/// A count of a port's table. None for a port without.
fn count(shown: &Value, name: &str) -> Option<u64> {
    shown["translation"][name].as_u64()
}

/// A test that takes long, of such a guest and one whose VMM asks for translated addresses but has
/// no IOMMU.
fn variant(iommu: Iommu, config: impl Fn(GuestSpec) -> GuestSpec) {
    if is_long()
        && let Some(world) = World::new([iommu, Iommu::PlatformOnly], config)
    {
        world.exercise();
    }
}

/// Two queue pairs, whose receive rings are several pages each.
fn large_rings(spec: GuestSpec) -> GuestSpec {
    let spec = spec.pairs(2).device_option("rx_queue_size=1024");
    spec.device_option("tx_queue_size=1024")
}

#[test]
fn a_strict_guest() {
    if let Some(world) = World::new([Iommu::Strict, Iommu::PlatformOnly], |spec| spec) {
        world.exercise();
    }
}

#[test]
fn two_guests_that_translate() {
    if is_long()
        && let Some(world) = World::new([Iommu::Strict, Iommu::Lazy], |spec| spec)
    {
        world.exercise();
    }
}

#[test]
fn a_strict_guest_with_packed_queues() {
    variant(Iommu::Strict, GuestSpec::packed);
}

#[test]
fn a_strict_guest_with_large_rings() {
    variant(Iommu::Strict, large_rings);
}

#[test]
fn a_strict_guest_with_large_packed_rings() {
    variant(Iommu::Strict, |spec| large_rings(spec).packed());
}

#[test]
fn a_lazy_guest() {
    variant(Iommu::Lazy, |spec| spec);
}

#[test]
fn a_lazy_guest_with_packed_queues() {
    variant(Iommu::Lazy, GuestSpec::packed);
}

#[test]
fn a_guest_with_persistent_mappings() {
    variant(Iommu::PassThrough, |spec| spec);
}

#[test]
fn a_guest_with_virtio_iommu() {
    variant(Iommu::Virtio, |spec| spec);
}

#[test]
fn a_guest_with_virtio_iommu_and_large_packed_rings() {
    variant(Iommu::Virtio, |spec| large_rings(spec).packed());
}

#[test]
fn a_hundred_deaths_of_the_switch() {
    if !is_long() {
        return;
    }
    let Some(mut world) = World::new([Iommu::Strict; 2], |spec| spec) else {
        return;
    };
    world.talk();
    serve_iperf(&mut world.vm2);
    for _ in 0..5 {
        world.kills(20);
    }
    world.lasthop.stop();
}

/// A guest with a legacy driver cannot take the feature that its port requires: its queues do not
/// start, and `lasthop status` says why. When the port requires it no longer, the guest talks from
/// its next connection on.
#[test]
fn a_legacy_guest_where_an_iommu_is_required() {
    if !is_long() {
        return;
    }
    let turn = machine();
    let ports = guest_ports("", &["vm1", "vm2"]);
    let required = ports.replacen("[[port]]", "[[port]]\niommu = \"required\"", 1);
    let lasthop = Lasthop::start(&required);
    turn.step("boot a legacy guest and a modern one");
    let old = || GuestSpec::at(&lasthop, "vm1", 1).device_option("disable-modern=on");
    let [mut vm1, _vm2] = boot([old(), GuestSpec::at(&lasthop, "vm2", 2)]);
    wait_until("the legacy driver is named", || {
        let status = lasthop.cli(&["status"]).stdout;
        String::from_utf8_lossy(&status).contains("legacy")
    });
    assert_ne!(vm1.status("ping -c 1 -W 1 10.0.0.2"), 0);
    turn.step("the port requires it no longer, and the guest comes again");
    let set = lasthop.cli(&["port", "set", "vm1", "--iommu", "offered"]);
    assert!(set.status.success(), "{set:?}");
    vm1.kill();
    lasthop.wait_port("vm1", "waiting");
    let mut vm1 = old().start().ready();
    assert!(reachable(&mut vm1, "10.0.0.2"), "{}", lasthop.log());
}
