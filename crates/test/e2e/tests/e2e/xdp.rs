//! Uplinks with `AF_XDP` sockets, over veth pairs, which have XDP in copy mode.
//!
//! Everything is in network namespaces of the test's own; where they cannot be had, a test says so
//! and ends.

use e2e::beside;
use e2e::lasthop::{Lasthop, same_footprint};
use e2e::uplinks::{
    LOAD, TIMEOUT, ask, both_ways, driver_pid, ethtool_off, pattern, tap, transfer, uplink, wire,
};
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::netns::Netns;
use testkit::process::send as signal;
use testkit::wait::wait_for;

/// Three namespaces: the uplink's, the one at the other end of its wire, and one with a TAP port.
struct World {
    host: Netns,
    far: Netns,
    near: Netns,
    folder: TempDir,
}

/// None where the machine does not let us.
fn world() -> Option<World> {
    if !Netns::allowed() {
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [host, far, near] = ["host", "far", "near"].map(|name| Netns::new(name, folder.path()));
    Some(World {
        host,
        far,
        near,
        folder,
    })
}

impl World {
    /// With a wire, which has these options at the uplink's end.
    fn wire(&self) {
        wire(&self.host, &self.far);
        self.far.ip("address add 10.1.0.9/24 dev wire0");
        self.far.ip("address add fd00::9/64 dev wire0 nodad");
    }

    fn config(&self, more: &str) -> String {
        [
            tap("t0", &self.near.path(), "10.1.0.1/24", "mtu = 1500"),
            uplink(&self.host.path(), more),
        ]
        .concat()
    }

    /// Lasthop with an uplink that moves frames this way.
    fn lasthop(&self, more: &str, back_end: &str) -> Lasthop {
        let lasthop = Lasthop::start(&self.config(more));
        let status = lasthop.wait_port("uplink", "up");
        let log = lasthop.log();
        assert_eq!(
            status["driver_status"]["back_end"], back_end,
            "{status}: {log}"
        );
        lasthop
    }

    fn both_ways(&self, size: usize) {
        both_ways((&self.near, "10.1.0.1"), (&self.far, "10.1.0.9"), size);
    }
}

const XDP: &str = "driver = \"xdp\"";
const COPY: &str = "xdp (copy)";

#[test]
fn an_xdp_uplink_leads_to_the_wire() {
    let Some(world) = world() else { return };
    let turn = beside();
    world.wire();
    let lasthop = world.lasthop(XDP, COPY);
    turn.step("TCP both ways, whose checksums the other end leaves to the wire");
    let before = lasthop.stats();
    world.both_ways(LOAD);
    turn.step(&format!("{:?}", lasthop.stats().since(&before)));
    turn.step("UDP in fragments, both ways");
    let (near, far) = (world.near.udp("10.1.0.1:0"), world.far.udp("10.1.0.9:0"));
    ask(&near, &far);
    for (from, to) in [(&near, &far), (&far, &near)] {
        to.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
        let sent: Vec<u8> = (0..20_000).map(pattern).collect();
        from.send_to(&sent, to.local_addr().expect("bound"))
            .expect("a way");
        let mut got = vec![0; 30_000];
        let (len, _) = to.recv_from(&mut got).expect("all fragments");
        assert!(got[..len] == sent, "{len} bytes");
    }
    turn.step("IPv6");
    world.near.ip("address add fd00::1/64 dev t0 nodad");
    transfer(&world.near, &world.far, "[fd00::9]:5001", LOAD / 8);
    transfer(&world.far, &world.near, "[fd00::1]:5001", LOAD / 8);
    turn.step("with checksums completed by the sender");
    ethtool_off(&world.far, "wire0", "tx tso gso gro");
    world.both_ways(LOAD / 8);
    let driver = &lasthop.port("uplink")["driver_status"];
    assert_eq!(driver["restarts"], 0);
    let number = |key| driver[key].as_u64().unwrap_or_default();
    assert!(
        (1..number("sent_frames")).contains(&number("send_calls")),
        "{driver}"
    );
    assert!(
        (1..number("received_frames")).contains(&number("receive_calls")),
        "{driver}"
    );
    let (moved, copied) = (lasthop.stats().since(&before), &lasthop.port("t0"));
    let few = moved.received("t0") / 10;
    let misaligned = copied["misaligned_frames"].as_u64();
    assert!(
        misaligned.is_some_and(|frames| frames <= few),
        "{misaligned:?} of {moved:?}"
    );
    // Under load a veth pair may be full for a moment, and says so; TCP has sent that again.
    let refused = driver["rejected_by_interface"].as_u64();
    assert!(refused.is_some_and(|frames| frames <= 64), "{driver}");
    turn.step("frames without a free buffer are not oversized");
    let stopped = driver_pid(&lasthop, "uplink").expect("a driver");
    signal(stopped, Signal::STOP);
    let (near, far) = (world.near.udp("10.1.0.1:0"), world.far.udp("10.1.0.9:0"));
    for _ in 0..5000 {
        far.send_to(&[0; 64], near.local_addr().expect("bound"))
            .expect("a way");
    }
    signal(stopped, Signal::CONT);
    world.both_ways(1 << 20);
    // The driver reports its counts with each heartbeat.
    let driver = wait_for("frames that the kernel dropped", || {
        let driver = lasthop.port("uplink")["driver_status"].clone();
        (driver["dropped_by_kernel"].as_u64() > Some(0)).then_some(driver)
    });
    assert_eq!(
        (&driver["restarts"], &driver["oversized_frames"]),
        (&0.into(), &0.into())
    );
    turn.step("the interface goes back to the host");
    let shown = || world.host.ip("-d link show up0");
    assert!(shown().contains("prog/xdp"), "{}", shown());
    lasthop.stop();
    assert!(!shown().contains("xdp"), "{}", shown());
}

#[test]
fn every_queue_of_the_interface_has_a_socket() {
    let Some(world) = world() else { return };
    let turn = beside();
    let queues = "numrxqueues 2 numtxqueues 2";
    let far = world.far.pid();
    world.host.ip(&format!(
        "link add up0 {queues} type veth peer name wire0 {queues} netns {far}"
    ));
    world.host.ip("link set up0 up");
    world.far.ip("link set wire0 up");
    world.far.ip("address add 10.1.0.9/24 dev wire0");
    turn.step("more than the port has");
    let lasthop = world.lasthop(XDP, "packet");
    let complaint = "it has 2 receive queues, the port queues = 1; \"packet\" is used";
    assert!(lasthop.log().contains(complaint), "{}", lasthop.log());
    lasthop.stop();
    turn.step("fewer");
    let lasthop = world.lasthop(&format!("{XDP}\nqueues = 4"), COPY);
    wait_for("two queue pairs run", || {
        (lasthop.port("uplink")["queue_pairs"] == 2).then_some(())
    });
    // Each connection keeps to one queue; both see some.
    for _ in 0..8 {
        world.both_ways(LOAD / 32);
    }
    lasthop.stop();
}

#[test]
fn a_trunk_carries_tags() {
    let Some(world) = world() else { return };
    let turn = beside();
    wire(&world.host, &world.far);
    let netns = |name| Netns::new(name, world.folder.path());
    let [blue, far_blue, far_near] = ["blue", "far_blue", "far_near"].map(netns);
    // The sender's tags are to be in the frames, as they are on a wire.
    ethtool_off(&world.far, "wire0", "txvlan");
    let trunk = "trunk = [\"blue\", \"default\"]";
    let config = |blue: &Netns, near: &Netns, host: &Netns, number: u8, driver: &str| {
        let tap = |name, netns: &Netns, net: u8, more: &str| {
            let address = format!("10.{net}.0.{number}/24");
            tap(name, &netns.path(), &address, more)
        };
        [
            "[[segment]]\nname = \"blue\"\nvlan = 10\n",
            &tap("blue0", blue, 2, "segment = \"blue\""),
            &tap("near0", near, 1, ""),
            &uplink(&host.path(), &format!("{driver}\n{trunk}")),
        ]
        .concat()
    };
    let here = Lasthop::start(&config(&blue, &world.near, &world.host, 1, XDP));
    let there = config(&far_blue, &far_near, &world.far, 9, "driver = \"packet\"");
    let there = Lasthop::start(&there.replace("up0", "wire0"));
    there.wait_port("uplink", "up");
    let status = here.wait_port("uplink", "up");
    assert_eq!(status["driver_status"]["back_end"], COPY, "{status}");
    turn.step("the tagged segment");
    transfer(&blue, &far_blue, "10.2.0.9:5001", LOAD / 8);
    transfer(&far_blue, &blue, "10.2.0.1:5001", LOAD / 8);
    turn.step("the untagged one");
    transfer(&world.near, &far_near, "10.1.0.9:5001", LOAD / 8);
    transfer(&far_near, &world.near, "10.1.0.1:5001", LOAD / 8);
    here.stop();
    there.stop();
}

#[test]
fn a_driver_that_dies_is_replaced() {
    let Some(world) = world() else { return };
    let turn = beside();
    world.wire();
    let lasthop = world.lasthop(XDP, COPY);
    let (near, far) = (world.near.udp("10.1.0.1:0"), world.far.udp("10.1.0.9:0"));
    ask(&near, &far);
    let before = lasthop.footprint();
    for (count, how) in (1..).zip([Signal::KILL, Signal::STOP, Signal::KILL]) {
        let old = driver_pid(&lasthop, "uplink").expect("a driver");
        signal(old, how);
        lasthop.other_driver("uplink", old);
        let questions = ask(&near, &far);
        turn.step(&format!("after {how:?}: {questions} questions"));
        let driver = &lasthop.wait_port("uplink", "up")["driver_status"];
        assert_eq!(driver["restarts"], count);
        assert_eq!(driver["back_end"], COPY);
    }
    same_footprint("drivers", &before, &lasthop);
    turn.step("in the middle of a transfer");
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.both_ways(LOAD));
        for _ in 0..3 {
            let old = driver_pid(&lasthop, "uplink").expect("a driver");
            signal(old, Signal::KILL);
            lasthop.other_driver("uplink", old);
            ask(&near, &far);
            if load.is_finished() {
                break;
            }
        }
    });
    assert_eq!(lasthop.port("uplink")["driver_status"]["back_end"], COPY);
    lasthop.stop();
}

#[test]
fn a_longer_mtu_counts_without_anybody_s_help() {
    let Some(world) = world() else { return };
    let turn = beside();
    world.wire();
    let lasthop = world.lasthop(XDP, COPY);
    let (near, far) = (world.near.udp("10.1.0.1:0"), world.far.udp("10.1.0.9:0"));
    ask(&near, &far);
    let old = driver_pid(&lasthop, "uplink").expect("a driver");
    for (namespace, interface) in [
        (&world.far, "wire0"),
        (&world.host, "up0"),
        (&world.near, "t0"),
    ] {
        namespace.ip(&format!("link set {interface} mtu 3000"));
    }
    lasthop.other_driver("uplink", old);
    turn.step("a packet that is longer than the MTU before");
    ask(&near, &far);
    far.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let sent: Vec<u8> = (0..2900).map(pattern).collect();
    near.send_to(&sent, far.local_addr().expect("bound"))
        .expect("a way");
    let mut got = vec![0; 4000];
    let (len, _) = far.recv_from(&mut got).expect("the packet");
    assert!(got[..len] == sent, "{len} bytes");
    let driver = &lasthop.wait_port("uplink", "up")["driver_status"];
    assert_eq!(driver["restarts"], 0, "it was replaced, and did not die");
    assert_eq!(driver["rejected_by_interface"], 0);
    lasthop.stop();
}

#[test]
fn what_makes_xdp_impossible_is_named_and_packet_used() {
    let Some(world) = world() else { return };
    let turn = beside();
    world.wire();
    turn.step("its queues already have sockets");
    let first = world.lasthop(XDP, COPY);
    let second = world.config(XDP).replace("\"t0\"", "\"t1\"");
    let second = Lasthop::start(&second);
    let status = second.wait_port("uplink", "up");
    assert_eq!(status["driver_status"]["back_end"], "packet", "{status}");
    let complaint = "no driver \"xdp\": the queue already has an AF_XDP socket of another process";
    assert!(second.log().contains(complaint), "{}", second.log());
    first.stop();
    second.stop();
    turn.step("a long MTU");
    world.host.ip("link set up0 mtu 9000");
    world.far.ip("link set wire0 mtu 9000");
    let lasthop = world.lasthop(XDP, "packet");
    let complaint = "its MTU is 9000, more than 3810; \"packet\" is used";
    assert!(lasthop.log().contains(complaint), "{}", lasthop.log());
    world.both_ways(LOAD / 8);
    lasthop.stop();
    turn.step("an interface without XDP");
    world.host.ip("link delete up0");
    world.host.ip("link add up0 type bridge");
    world.host.ip("link set up0 up");
    let lasthop = world.lasthop(XDP, "packet");
    let complaint = "its kernel driver knows no XDP";
    assert!(lasthop.log().contains(complaint), "{}", lasthop.log());
    lasthop.stop();
}

#[test]
fn an_uplink_waits_for_its_interface() {
    let Some(world) = world() else { return };
    let turn = beside();
    world.wire();
    world.host.ip("link set up0 down");
    let lasthop = Lasthop::start(&world.config(XDP));
    lasthop.wait_reason("uplink", "interface up0 is down");
    let comes_up = || {
        let status = lasthop.wait_port("uplink", "up");
        assert_eq!(status["driver_status"]["back_end"], COPY, "{status}");
    };
    world.host.ip("link set up0 up");
    comes_up();
    world.both_ways(1 << 20);
    turn.step("switched off");
    world.host.ip("link set up0 down");
    lasthop.wait_reason("uplink", "interface up0 is down");
    world.host.ip("link set up0 up");
    comes_up();
    world.both_ways(1 << 20);
    turn.step("removed");
    world.host.ip("link delete up0");
    lasthop.wait_reason("uplink", "interface up0: No such device");
    world.wire();
    comes_up();
    // The other end has another address now.
    world.near.ip("neigh flush all");
    world.both_ways(1 << 20);
    lasthop.stop();
}

#[test]
fn auto_takes_a_packet_socket_where_there_is_no_zero_copy() {
    let Some(world) = world() else { return };
    let _turn = beside();
    world.wire();
    let lasthop = world.lasthop("", "packet");
    let shown = world.host.ip("-d link show up0");
    assert!(!shown.contains("xdp"), "{shown}");
    assert!(!lasthop.log().contains("WARN"), "{}", lasthop.log());
    lasthop.stop();
}
