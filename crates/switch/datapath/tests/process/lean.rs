//! The lean client of the benchmarks, through the real switch.

use std::time::Duration;

use ipc::switching::{Clients, PortConfig, Role};
use load::lean::{Grants, Lean, LeanConfig, LeanReport, Until};

use crate::host::{Host, LIMIT, wait_for};

const FRAMES: u64 = 3000;
/// More than a ring has entries; each may cost two messages or more.
const FEW: u64 = 400;

fn config(host: &Host) -> LeanConfig {
    LeanConfig {
        sockets: [1, 2].map(|id| host.socket(id)).into(),
        queue_size: 256,
        batch: 16,
        window: Some(64),
        touch: true,
        flows: 100,
        timeout: LIMIT,
        patience: LIMIT,
        ..LeanConfig::default()
    }
}

#[track_caller]
fn all_there(report: &LeanReport, len: u64) {
    let totals = (report.sent, report.received, report.lost);
    assert_eq!(totals, (2 * FRAMES, 2 * FRAMES, 0), "{report:?}");
    let (one, two) = (&report.ports[0], &report.ports[1]);
    for (from, to) in [(one, two), (two, one)] {
        assert_eq!((to.bytes, to.strange), (len * FRAMES, 0));
        assert_eq!(to.flows_received, from.flows_sent);
    }
}

#[test]
fn frames_that_fit_the_rings_arrive_whole() {
    for (packed, in_order) in [(false, true), (false, false), (true, true), (true, false)] {
        for frame_len in [64, 1500] {
            let host = Host::with_ports(1..=2);
            let config = LeanConfig {
                packed,
                in_order,
                frame_len,
                ..config(&host)
            };
            let mut lean = Lean::connect(config).expect("sessions");
            let report = lean.run(Until::Sent(FRAMES)).expect("a correct device");
            all_there(&report, frame_len.into());
            assert_eq!(host.totals(), (2 * FRAMES, 2 * FRAMES, 0));
        }
    }
}

/// A host with two ports for netmap clients.
fn netmap_host() -> Host {
    let mut host = Host::new();
    for id in [1, 2] {
        let config = PortConfig {
            clients: Clients::Netmap { slots: 256 },
            ..host.config(id, 1, Role::Server)
        };
        host.add(config);
    }
    host
}

#[test]
fn frames_in_slot_queues_arrive_whole() {
    for frame_len in [64, 1500] {
        let host = netmap_host();
        let config = LeanConfig {
            slots: true,
            frame_len,
            ..config(&host)
        };
        let mut lean = Lean::connect(config).expect("sessions");
        let report = lean.run(Until::Sent(FRAMES)).expect("a correct device");
        all_there(&report, frame_len.into());
        assert_eq!(host.totals(), (2 * FRAMES, 2 * FRAMES, 0));
    }
}

#[test]
fn a_port_for_netmap_clients_refuses_guests() {
    let mut host = netmap_host();
    let config = LeanConfig {
        slots: false,
        ..config(&host)
    };
    Lean::connect(config).expect_err("its rings are virtqueues");
    wait_for("the reason", || {
        let reason = host.state(1).reason;
        reason.is_some_and(|reason| reason.contains("for netmap clients"))
    });
}

/// Frames wait in the ring of a sender whose pages are not mapped yet; at a receiver they do not.
#[test]
fn frames_of_ports_behind_an_iommu_arrive_whole() {
    let modes = [
        Grants::Persistent { huge: true },
        Grants::Persistent { huge: false },
        Grants::Reuse { drained: None },
        Grants::Reuse { drained: Some(128) },
        Grants::Batched(16),
        Grants::Strict,
        Grants::OnDemand,
    ];
    for mode in modes {
        for packed in [false, true] {
            let host = Host::with_ports(1..=2);
            let receiver = Some(mode).filter(|mode| *mode != Grants::OnDemand);
            let config = LeanConfig {
                packed,
                in_order: false,
                grants: vec![Some(mode), receiver],
                ..config(&host)
            };
            let mut lean = Lean::connect(config).expect("sessions");
            if receiver.is_none() {
                lean.one_way();
            }
            let report = lean.run(Until::Sent(FEW)).expect("a correct device");
            assert_eq!(report.ports[0].sent, FEW, "{mode:?}: {report:?}");
            assert_eq!(report.ports[1].received, FEW, "{mode:?}: {report:?}");
            assert_eq!(report.ports[1].strange, 0);
        }
    }
}

/// As a port behind an IOMMU sends.
fn behind_an_iommu(host: &Host, mode: Grants) -> Lean {
    let config = LeanConfig {
        in_order: false,
        grants: vec![Some(mode), None],
        ..config(host)
    };
    let mut lean = Lean::connect(config).expect("sessions");
    lean.one_way();
    lean
}

#[test]
fn messages_are_answered_while_frames_flow() {
    let host = Host::with_ports(1..=2);
    let mut lean = behind_an_iommu(&host, Grants::Persistent { huge: false });
    assert!(lean.probe(true).expect("an IOMMU").is_none());
    let mut answers = 0;
    while answers < 10 {
        lean.run(Until::Sent(FEW)).expect("a correct device");
        let probed = lean.probe(true).expect("answers").expect("messages");
        answers += probed.question.count().min(probed.invalidate.count());
    }
}

#[test]
fn frames_one_by_one_have_their_pages_asked_for() {
    for (mode, asked) in [
        (Grants::Persistent { huge: false }, false),
        (Grants::OnDemand, true),
    ] {
        let host = Host::with_ports(1..=2);
        let mut lean = behind_an_iommu(&host, mode);
        let report = lean
            .singly(Duration::from_millis(20))
            .expect("a correct device");
        assert!(report.frame.count() > 0);
        let questions = report.question.count();
        assert_eq!(questions, if asked { report.frame.count() } else { 0 });
    }
}

#[test]
fn a_listening_client_is_called() {
    let mut host = Host::new();
    for id in [1, 2] {
        let config = host.config(id, 1, Role::Client);
        host.add(config);
    }
    let config = LeanConfig {
        listen: true,
        ..config(&host)
    };
    let mut lean = Lean::connect(config).expect("sessions");
    let report = lean.run(Until::Sent(FRAMES)).expect("a correct device");
    all_there(&report, 64);
}
