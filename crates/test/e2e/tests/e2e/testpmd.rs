//! DPDK's testpmd bounces frames between two ports: split and packed, server and client role, 64 to
//! 9000 bytes. Every frame that the switch took from one guest it gave to the other.

use std::time::Duration;

use e2e::lasthop::Lasthop;
use e2e::numbered::Stream;
use e2e::testpmd::{Driver, MACS, Testpmd, TestpmdSpec, bounce_enough};
use e2e::{Turn, machine};
use testkit::iommu::{Answers, IommuConfig, Iovas, Mode, Placement};
use testkit::net::Cuts;
use testkit::packets::{Flow, SequenceChecker, payload_of};
use testkit::wait::{wait_for, wait_until};
use testkit::{FakeGuest, GuestConfig};

const SIZES: [u32; 7] = [64, 65, 128, 512, 1518, 4000, 9000];

fn config(role: &str) -> String {
    let port = |name: &str, iommu: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n\
             role = \"{role}\"\niommu = \"{iommu}\"\n"
        )
    };
    format!(
        "[switch]\nname = \"host1\"\n\n{}\n{}",
        port("p0", "off"),
        port("p1", "offered")
    )
}

fn bounce_all_sizes(turn: &Turn, role: &str, packed: bool) {
    let layout = if packed { "packed" } else { "split" };
    turn.step(&format!("{role} role, {layout} queues"));
    let lasthop = Lasthop::start(&config(role));
    let sockets = ["p0.sock", "p1.sock"].map(|name| lasthop.socket(name));
    let mut testpmd = Testpmd::start(&TestpmdSpec {
        sockets,
        driver: Driver::VirtioUser {
            listen: role == "client",
            packed,
        },
    });
    for port in ["p0", "p1"] {
        assert_eq!(lasthop.wait_port(port, "up")["ring"], layout);
    }
    // A driver without an IOMMU has the same features where one is offered.
    let features = |port: &str| lasthop.port(port)["features"].clone();
    assert_eq!(features("p0"), features("p1"));
    warm_up(&lasthop, &mut testpmd);
    for size in SIZES {
        bounce(turn, &lasthop, &mut testpmd, size);
    }
    testpmd.quit();
    if role == "server" {
        lasthop.wait_port("p0", "waiting");
    }
    lasthop.stop();
}

/// The first frames teach the switch where the two addresses are.
fn warm_up(lasthop: &Lasthop, testpmd: &mut Testpmd) {
    testpmd.bounce(64, 1, Duration::from_millis(300));
    wait_until("both are known", || {
        let fdb = lasthop.json(&["fdb", "list"]).to_string();
        MACS.iter().all(|mac| fdb.contains(mac))
    });
}

fn bounce(turn: &Turn, lasthop: &Lasthop, testpmd: &mut Testpmd, size: u32) {
    bounce_enough(|time| bounce_for(turn, lasthop, testpmd, size, time));
}

/// How many frames each port has sent, all of which have arrived.
fn bounce_for(
    turn: &Turn,
    lasthop: &Lasthop,
    testpmd: &mut Testpmd,
    size: u32,
    time: Duration,
) -> [u64; 2] {
    let before = lasthop.stats();
    // 128 frames in each direction: fewer than the 1024 buffers, also when each takes several.
    let counts = testpmd.bounce(size, 4, time);
    let moved = wait_for("the switch has taken all that testpmd sent", || {
        let moved = lasthop.stats().since(&before);
        let taken = [moved.sent("p0"), moved.sent("p1")] == counts.sent;
        let given = moved.received("p0") + moved.received("p1");
        let dropped: u64 = moved.drops().values().sum();
        (taken && given + dropped >= counts.sent.iter().sum()).then_some(moved)
    });
    turn.step(&format!("    {size} bytes: {counts:?}"));
    assert_eq!(
        [moved.received("p1"), moved.received("p0")],
        counts.sent,
        "lost inside the switch: {moved:?}"
    );
    // Without the names of the traffic itself nothing is left: no drop moved.
    assert!(
        moved.names().iter().all(|name| !name.contains("drops")),
        "{moved:?}"
    );
    let bytes = moved.get("p0.from_guest.bytes");
    assert_eq!(
        bytes,
        counts.sent[0] * u64::from(size),
        "frames of another size"
    );
    counts.sent
}

#[test]
fn server_role_split() {
    bounce_all_sizes(&machine(), "server", false);
}

#[test]
fn server_role_packed() {
    bounce_all_sizes(&machine(), "server", true);
}

#[test]
fn client_role_split() {
    bounce_all_sizes(&machine(), "client", false);
}

#[test]
fn client_role_packed() {
    bounce_all_sizes(&machine(), "client", true);
}

/// Our guests with an IOMMU, checked with a back end that is not ours: DPDK's.
#[test]
fn guests_with_an_iommu_and_another_back_end() {
    let turn = machine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sockets = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
    let mut testpmd = Testpmd::start(&TestpmdSpec {
        sockets: sockets.clone(),
        driver: Driver::Vhost,
    });
    let runs = [
        (false, Mode::Persistent),
        (false, Mode::OnDemand),
        (false, Mode::Strict),
        (false, Mode::Batched(32)),
        (false, Mode::Reuse { pages: 300 }),
        // A packed chain that lacks a translation comes back unsent, so it never has one on demand.
        (true, Mode::Strict),
        (true, Mode::Reuse { pages: 300 }),
    ];
    for (packed, mode) in runs {
        turn.step(&format!("{mode:?}, packed: {packed}"));
        let iommu = IommuConfig {
            // It takes neighbours for contiguous, and asks for more access than it needs.
            placement: Placement::Lenient,
            answers: Answers::Qemu,
            iovas: if packed { Iovas::Fresh } else { Iovas::Reused },
            ..IommuConfig::new(mode)
        };
        let guests = [1, 2].map(|n| {
            let config = GuestConfig::default().guest(n);
            let config = if packed {
                // Such a chain of several descriptors comes back with a wrong id.
                config.packed()
            } else {
                GuestConfig {
                    tx_cuts: Cuts::Every(700),
                    ..config
                }
            };
            let socket = &sockets[usize::from(n) - 1];
            FakeGuest::connect_translated(socket, config, iommu).expect("a back end")
        });
        // It forgets what it is told of before it has the queues.
        guests.iter().for_each(|guest| guest.iommu().tell_all());
        testpmd.connect_ports();
        exchange(guests);
        testpmd.stop_forwarding();
    }
    testpmd.quit();
}

/// Frames of several pieces both ways. What arrives is as it was sent, and no page is touched that
/// was taken back. A frame for which a buffer is not translated yet is lost: that is DPDK's way.
fn exchange(mut guests: [FakeGuest; 2]) {
    for (id, flow) in [(1, Flow::v4(1, 2)), (2, Flow::v4(2, 1))] {
        let [from, to] = &mut guests;
        let (mut stream, mut checker) = (Stream::new(id, flow), SequenceChecker::default());
        wait_until("frames arrive", || {
            for _ in 0..10 {
                stream.send(from, 1400);
            }
            for got in to.recv_all().expect("the device keeps the rules") {
                checker.see(payload_of(&got.frame).expect("a sound frame"));
            }
            checker.received >= 200
        });
        assert_eq!(checker.damaged, 0);
        guests.reverse();
    }
    for guest in &guests {
        assert!(
            guest.iommu().verify().is_ok(),
            "{:?}",
            guest.iommu().verify()
        );
    }
}
