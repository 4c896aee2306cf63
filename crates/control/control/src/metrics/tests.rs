//! Tests of the page, and of the names that the dashboard and the alerts use.

mod alerts;
mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::v1::{
    AccountStatus, ConnectionLimit, ConnectionTable, DriverStatus, EgressDocument, EgressShare,
    EgressStatus, FloodLimit, FullAction, LimitsSpec, MirrorStats, PortConnections, PortKind,
    PortSpec, PortState as State, PortStatus, PrefilterStatus, ProcessState, ProcessStatus,
    ProcessUsage, RateLimit, SegmentStatus, StatusDocument, UserFlowCount, UserPortStatus,
};
use ipc::figures::{QueueCounts, TranslationFigures, Waits, WorkerFigures};
use ipc::rules::RuleUse;
use ipc::switching::{
    Clients, FrontEnds, Iommu, PortConfig, PortPhase, PortState, QueueState, Role, SwitchFigures,
};
use policy::acl::RuleId;
use port::counters::{PortCounts, Ticks, Traffic};
use port::{DropReason, PortId, REASONS};
use serde_json::Value;
use testkit::metrics::Metrics;
use testkit::table::rows;

use super::*;

/// A scheduled port with a sender and one of its classes.
fn egress() -> EgressDocument {
    let whole = EgressShare {
        sender: "vm1".to_owned(),
        min: 500_000_000,
        ..EgressShare::default()
    };
    let of_class = EgressShare {
        class: "storage".to_owned(),
        min: 200_000_000,
        bits: 12_304,
        held_us: 1_500_000,
        dropped_frames: 5,
        ..whole.clone()
    };
    EgressDocument {
        port: "t0".to_owned(),
        output: EgressStatus {
            rate: Some(1_000_000_000),
            link: Some(400_000_000),
            overhead: 0,
            full: FullAction::Hold,
            promised: 500_000_000,
            scaled: true,
        },
        shares: vec![whole, of_class],
    }
}

fn facts() -> Facts {
    let mut tap = PortStatus::new(&PortSpec::new("t0", PortKind::Tap), State::Up);
    tap.prefilter = Some(PrefilterStatus {
        back_end: Some("socket".to_owned()),
        entries: 3,
        frames: 700,
        bytes: 42_000,
        ..PrefilterStatus::default()
    });
    tap.driver_status = Some(DriverStatus {
        in_switch: true,
        restarts: 3,
        rejected_by_interface: 4,
        dropped_by_kernel: Some(5),
        user: Some(UserPortStatus {
            kept: 4,
            states: vec![UserFlowCount {
                protocol: "tcp".to_owned(),
                state: "half-open".to_owned(),
                flows: 5,
            }],
            results: BTreeMap::from([("failed".to_owned(), 3)]),
            refused: BTreeMap::from([("user-denied".to_owned(), 2)]),
            to_guests_bytes: 80,
            dns_questions: 6,
            ..UserPortStatus::default()
        }),
        ..DriverStatus::default()
    });
    let mut vm1 = PortStatus::new(&PortSpec::vhost_user("vm1", "vm1.sock"), State::Faulted);
    vm1.limits = LimitsSpec {
        from_guest: Some(RateLimit {
            bits_per_second: Some(12_000),
            ..RateLimit::default()
        }),
        multicast: Some(FloodLimit {
            packets_per_second: 200,
            packets_burst: None,
        }),
        ..LimitsSpec::default()
    };
    vm1.connections = Some(PortConnections {
        opened: AccountStatus {
            connections: 9,
            unreplied: 2,
            limit: 9,
            bound: ConnectionLimit::Limit,
            unreplied_limit: 64,
        },
        opened_to: AccountStatus {
            limit: 256,
            unreplied_limit: 64,
            ..AccountStatus::default()
        },
        opened_total: 11,
        evicted_unreplied: 3,
        evicted: 1,
        refused: 5,
        invalid: 6,
    });
    let state = |id: u32, name: &str| PortState {
        config: PortConfig {
            id: PortId(id),
            name: name.to_owned(),
            socket: String::new(),
            role: Role::Server,
            queues: 1,
            mtu: None,
            weight: 100,
            mac: None,
            clients: Clients::default(),
            iommu: Iommu::default(),
        },
        phase: PortPhase::Up,
        reason: None,
        features: 0,
        protocol_features: 0,
        memory: 0,
        queues: vec![QueueState {
            index: 1,
            size: 256,
            enabled: true,
            fault: None,
            counts: QueueCounts {
                frames: 10,
                bytes: 600,
                drops: vec![(DropReason::AclDenied, 3), (DropReason::Runt, 1)],
                notifications: 4,
                deferred: 3,
                slept_through: 1,
                coalesced: 6,
                full_ns: 2_500_000_000,
                misaligned: 7,
            },
        }],
        connections: 2,
        client: None,
        iommu: None,
        translation: Some(TranslationFigures {
            entries: 1,
            updates: 2,
            invalidations: 3,
            evictions: 4,
            refusals: 5,
            misses: 6,
            denied: 7,
            unanswered: 8,
            waits: {
                let mut waits = Waits::default();
                waits.note(30_000);
                waits
            },
        }),
        front_ends: FrontEnds {
            rejected_connections: 5,
            last_rejected_ms_ago: Some(10),
            last_rejected_uid: None,
            refused_messages: 6,
            pauses: 7,
            pause_ms: 800,
            suppressed_log_lines: 9,
        },
    };
    let counts = PortCounts {
        from_guest: Traffic {
            packets: 10,
            bytes: 600,
        },
        drops: (1..=REASONS.len() as u64).collect(),
        ticks: Ticks {
            switching: 5_000,
            copying: 10_000,
        },
        ..PortCounts::default()
    };
    let counted = |id, name| PortFacts {
        counts: counts.clone(),
        state: Some(state(id, name)),
    };
    Facts {
        egress: vec![egress()],
        connections: Some(ConnectionTable { max: 1024, used: 9 }),
        status: StatusDocument {
            version: "1.0".to_owned(),
            name: "a".to_owned(),
            processes: vec![ProcessStatus {
                name: "switch".to_owned(),
                state: ProcessState::Restarting,
                pid: None,
                uptime_seconds: 0,
                restarts: 2,
                usage: Some(ProcessUsage {
                    cpu_ms: 1_500,
                    wake_ups: 70,
                    resident_bytes: 4096,
                    anonymous_bytes: 1024,
                    mapped_bytes: 8192,
                }),
            }],
            segments: vec![SegmentStatus {
                name: "blue".to_owned(),
                vlan: None,
                neighbour_suppression: false,
                ports: vec!["vm1".to_owned()],
            }],
            ports: vec![vm1, tap],
            ..StatusDocument::default()
        },
        figures: SwitchFigures {
            hits: 7,
            waits: {
                let mut waits = Waits::default();
                for ns in [5_000, 60_000, 60_000, 3_000_000_000] {
                    waits.note(ns);
                }
                waits
            },
            ..SwitchFigures::default()
        },
        workers: vec![
            WorkerFigures {
                busy_ticks: 5_000,
                cpu_ns: 1_500_000_000,
                queue_lock_wait_ns: 250_000_000,
            };
            2
        ],
        ports: vec![counted(0, "vm1"), counted(1, "t0")],
        ticks_per_second: Some(10_000),
        stations: 5,
        mirrors: vec![MirrorStats {
            name: "m1".to_owned(),
            copied: api::v1::Traffic {
                packets: 8,
                bytes: 800,
            },
            lost: [("receiver-full".to_owned(), 2)].into(),
        }],
        rules: rules(),
    }
}

/// Returns counters of two rules: only one has decided frames.
fn rules() -> CountSnapshot {
    let model = r#"{"lists": [{"name": "in", "direction": "to-guest", "ports": ["vm1"],
        "rules": [{"name": "web", "action": "allow"}, {"name": "rest", "action": "drop"}]}]}"#;
    let uses = RuleUse {
        rule: RuleId::of("in", "web"),
        packets: 4,
        bytes: 240,
        idle_ms: 0,
    };
    let mut counted = CountSnapshot {
        access: Arc::new(serde_json::from_str(model).unwrap()),
        ..CountSnapshot::default()
    };
    Arc::make_mut(&mut counted.counts).add(&[uses], Duration::ZERO);
    counted
}

#[test]
fn both_formats_keep_their_rules_and_say_the_same() {
    let plain = Metrics::read(&page(&facts(), Format::Plain)).unwrap();
    let open = Metrics::read(&page(&facts(), Format::OpenMetrics)).unwrap();
    assert_eq!(plain.samples, open.samples);
    for [key, value] in &rows(
        r#"
        lasthop_build_info{version="1.0",name="a"}                                   | 1.0
        lasthop_process_up{process="switch"}                                         | 0.0
        lasthop_process_restarts_total{process="switch"}                             | 2.0
        lasthop_process_cpu_seconds_total{process="switch"}                          | 1.5
        lasthop_process_wakeups_total{process="switch"}                              | 70.0
        lasthop_process_resident_memory_bytes{process="switch"}                      | 4096.0
        lasthop_process_anonymous_memory_bytes{process="switch"}                     | 1024.0
        lasthop_process_mapped_memory_bytes{process="switch"}                        | 8192.0
        lasthop_port_limit_bytes_per_second{port="vm1",limit="from-guest"}           | 1500.0
        lasthop_port_limit_frames_per_second{port="vm1",limit="multicast"}           | 200.0
        lasthop_egress_bits_total{port="t0",sender="vm1",class="storage"}            | 12304.0
        lasthop_egress_held_seconds_total{port="t0",sender="vm1",class="storage"}    | 1.5
        lasthop_egress_dropped_frames_total{port="t0",sender="vm1",class="storage"}  | 5.0
        lasthop_egress_guaranteed_bits{port="t0",sender="vm1",class="storage"}       | 200000000.0
        lasthop_egress_guaranteed_bits{port="t0",sender="vm1",class=""}              | 500000000.0
        lasthop_egress_scaled{port="t0"}                                             | 1.0
        lasthop_flow_cache_hits_total                                                | 7.0
        lasthop_fdb_entries                                                          | 5.0
        lasthop_port_received_frames_total{port="vm1"}                               | 10.0
        lasthop_port_received_bytes_total{port="t0"}                                 | 600.0
        lasthop_port_dropped_frames_total{port="vm1",reason="oversize"}              | 2.0
        lasthop_cpu_cycles_per_second                                                | 10000.0
        lasthop_port_cpu_cycles_total{port="vm1",stage="copying"}                    | 10000.0
        lasthop_port_connections_total{port="vm1"}                                   | 2.0
        lasthop_port_state{port="vm1",state="faulted"}                               | 1.0
        lasthop_queue_running{port="vm1",queue="1"}                                  | 1.0
        lasthop_queue_frames_total{port="vm1",queue="1"}                             | 10.0
        lasthop_queue_full_seconds_total{port="t0",queue="1"}                        | 2.5
        lasthop_queue_misaligned_frames_total{port="vm1",queue="1"}                  | 7.0
        lasthop_queue_notifications_total{port="vm1",queue="1"}                      | 4.0
        lasthop_queue_deferred_notifications_total{port="vm1",queue="1"}             | 3.0
        lasthop_queue_slept_through_notifications_total{port="vm1",queue="1"}        | 1.0
        lasthop_queue_coalesced_kicks_total{port="vm1",queue="1"}                    | 6.0
        lasthop_queue_dropped_frames_total{port="vm1",queue="1",reason="acl-denied"} | 3.0
        lasthop_worker_busy_cycles_total{worker="0"}                                 | 5000.0
        lasthop_worker_cpu_seconds_total{worker="1"}                                 | 1.5
        lasthop_worker_queue_lock_wait_seconds_total{worker="0"}                     | 0.25
        lasthop_acl_rule_packets_total{list="in",rule="web"}                         | 4.0
        lasthop_acl_rule_bytes_total{list="in",rule="web"}                           | 240.0
        lasthop_upcall_seconds_bucket{le="0.00001"}                                  | 1.0
        lasthop_upcall_seconds_bucket{le="0.00005"}                                  | 1.0
        lasthop_upcall_seconds_bucket{le="0.0001"}                                   | 3.0
        lasthop_upcall_seconds_bucket{le="1"}                                        | 3.0
        lasthop_upcall_seconds_bucket{le="+Inf"}                                     | 4.0
        lasthop_upcall_seconds_count                                                 | 4.0
        lasthop_driver_in_switch{port="t0"}                                          | 1.0
        lasthop_driver_restarts_total{port="t0"}                                     | 3.0
        lasthop_driver_refused_frames_total{port="t0"}                               | 4.0
        lasthop_driver_dropped_by_kernel_frames_total{port="t0"}                     | 5.0
        lasthop_user_flows{port="t0",protocol="tcp",state="half-open"}               | 5.0
        lasthop_user_kept_flows{port="t0"}                                           | 4.0
        lasthop_user_new_flows_total{port="t0",result="failed"}                      | 3.0
        lasthop_user_bytes_total{port="t0",direction="to-guest"}                     | 80.0
        lasthop_user_refused_total{port="t0",reason="user-denied"}                   | 2.0
        lasthop_user_dns_questions_total{port="t0"}                                  | 6.0
        lasthop_segment_ports{segment="blue"}                                        | 1.0
        lasthop_mirror_copied_frames_total{mirror="m1"}                              | 8.0
        lasthop_mirror_copied_bytes_total{mirror="m1"}                               | 800.0
        lasthop_mirror_lost_frames_total{mirror="m1",reason="receiver-full"}         | 2.0
    "#,
    ) {
        assert_eq!(plain.samples.get(key), value.parse().ok().as_ref(), "{key}");
    }
}

/// Returns the values of a host that has just started.
fn fresh() -> Facts {
    let mut fresh = facts();
    fresh.figures = SwitchFigures::default();
    for port in &mut fresh.ports {
        port.counts = PortCounts::default();
        for queue in port.state.iter_mut().flat_map(|state| &mut state.queues) {
            queue.counts = QueueCounts::default();
        }
    }
    for port in &mut fresh.status.ports {
        if let Some(connections) = &mut port.connections {
            connections.opened.connections = 1;
        }
        let driver = port.driver_status.as_mut();
        if let Some(user) = driver.and_then(|driver| driver.user.as_mut()) {
            user.refused.clear();
        }
    }
    for mirror in &mut fresh.mirrors {
        mirror.lost.clear();
    }
    for process in &mut fresh.status.processes {
        process.state = ProcessState::Running;
        process.restarts = 0;
    }
    for port in &mut fresh.status.ports {
        port.state = State::Waiting;
    }
    for egress in &mut fresh.egress {
        egress.output.scaled = false;
    }
    fresh
}

#[test]
fn drops_have_series_by_reason_once_there_are_some_and_a_sum_always() {
    let read = |facts: &Facts| Metrics::read(&page(facts, Format::Plain)).unwrap();
    let (before, after) = (read(&fresh()), read(&facts()));
    let of_reasons = |page: &Metrics| {
        let names = [
            "lasthop_port_dropped_",
            "lasthop_mirror_lost_",
            "lasthop_queue_dropped_",
        ];
        let is_one = |key: &&String| names.iter().any(|name| key.starts_with(name));
        page.samples.keys().filter(is_one).count()
    };
    assert_eq!(of_reasons(&before), 0);
    // All of two ports, one of a mirror, and two of each queue.
    assert_eq!(of_reasons(&after), 2 * port::losses().count() + 1 + 4);
    let lost = r#"lasthop_port_lost_frames_total{port="vm1"}"#;
    assert_eq!(before.samples[lost], 0.0);
    // The number of a reason is its place.
    let all: usize = (1..=REASONS.len()).sum();
    let not = [DropReason::NeighbourReply, DropReason::ReceiverDown];
    let no_loss: usize = not.iter().map(|reason| *reason as usize + 1).sum();
    assert_eq!(after.samples[lost], (all - no_loss) as f64);
    assert_eq!(DropReason::ReceiverDown.name(), api::v1::ABSENT_GUEST);
}

#[test]
fn a_port_without_a_guest_takes_few_bytes() {
    let mut idle = fresh();
    let bytes = |facts: &Facts| page(facts, Format::Plain).len();
    let none = bytes(&idle);
    for number in 0..100 {
        let name = format!("vm{number:03}");
        let spec = PortSpec::vhost_user(&name, "vm.sock");
        idle.status
            .ports
            .push(PortStatus::new(&spec, State::Waiting));
        idle.ports.push(PortFacts::default());
    }
    let each = (bytes(&idle) - none) / 100;
    assert!(each < 1400, "{each} bytes for a port");
}

#[test]
fn what_is_not_bounded_has_no_limit() {
    let page = Metrics::read(&page(&facts(), Format::Plain)).unwrap();
    let limits = page
        .samples
        .keys()
        .filter(|key| key.starts_with("lasthop_port_limit_"));
    assert_eq!(limits.count(), 2);
}

#[test]
fn labels_are_escaped_and_an_empty_host_is_a_page() {
    let mut odd = facts();
    odd.status.version = "a\\b\"c\nd".to_owned();
    assert!(page(&odd, Format::Plain).contains(r#"version="a\\b\"c\nd""#));
    assert!(Metrics::read(&page(&Facts::default(), Format::Plain)).is_ok());
    assert_eq!(Format::accepted("*/*"), Format::Plain);
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    assert_eq!(Format::accepted(accept), Format::OpenMetrics);
}

/// Returns all words in a text that begin like our metrics.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let names = text.split(word);
    names.filter(|word| word.starts_with("lasthop_") && *word != "lasthop_")
}

#[test]
fn the_dashboard_asks_for_nothing_that_there_is_not() {
    let text = include_str!("../../../../../packaging/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(text).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 8);
    let page = Metrics::read(&page(&facts(), Format::Plain)).unwrap();
    let known = page.names();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expr = target["expr"].as_str().unwrap();
            for name in names(expr) {
                assert!(known.contains(name), "{name} in {expr}");
                asked += 1;
            }
        }
    }
    assert!(asked > 10);
    let tuning = names(include_str!("../../../../../docs/user/tuning.md"));
    // Targets of the log have such names, too.
    let operations = names(include_str!("../../../../../docs/user/operations.md"));
    let operations = operations.filter(|name| name.starts_with("lasthop_process"));
    for name in tuning.chain(operations) {
        assert!(known.contains(name), "{name} in docs/user");
    }
}
