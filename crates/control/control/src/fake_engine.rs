//! An engine without a switch, for tests of the API server and of its clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::v1::{
    AccountStatus, CONNECTIONS_DEFAULT, CaptureQuery, ConnectionDirection, ConnectionEntry,
    ConnectionFlag, ConnectionLimit, ConnectionTable, ConnectionsCount, ConnectionsDocument,
    ConnectionsFilter, ConnectionsFlush, DesiredState, EgressDocument, EgressPortsDocument,
    EgressShare, EgressSpec, EgressStatus, FdbDocument, FdbEntry, FdbFilter, FdbFlushResult,
    FlowsDocument, ForwardState, GuestStateStatus, GuestStates, Iommu, MirrorStats, Notifications,
    PipesDocument, PortConnections, PortKind, PortSpec, PortState, PortStats, PortStatus,
    PortsDocument, PrefilterDocument, PrefilterEntry, Problem, ProblemKind, ProcessState,
    ProcessStatus, ProcessUsage, QueueFault, RingFormat, Role, SegmentStatus, StatsDocument,
    StatusDocument, SwitchStatus, Trace, TraceAction, TraceDocument, TraceOutcome, TraceRequest,
    Traffic, UserFlowEntry, UserFlowTcp, UserFlowTimer, UserFlowWait, UserFlowsDocument,
    UserForwardEntry, UserForwardsDocument, UserLeaseEntry, UserLeasesDocument, VcpuSearch,
    VcpuSource, Work,
};
use config::desired::qos;
use ipc::capture::{FrameMetadata, Region, Way};
use ipc::rules::{RuleId, RuleUse};
use port::Offload;

use crate::command::{
    Answer, ChangeOutcome, Command, DesiredSnapshot, EngineHandle, StartedCapture, engine_channel,
};
use crate::events::Events;
use crate::metrics::Facts;
use crate::plan::{Basis, Plan, Request};
use crate::rule_counts::CountSnapshot;

/// CPU time and memory of the switch.
const SWITCH_USAGE: ProcessUsage = ProcessUsage {
    cpu_ms: 1500,
    wake_ups: 70,
    resident_bytes: 9 << 20,
    anonymous_bytes: 2 << 20,
    mapped_bytes: 16 << 30,
};

/// The table of connections.
const TABLE: ConnectionTable = ConnectionTable {
    max: 262_144,
    used: 130_000,
};

/// An engine with a desired state, and with documents that a test knows beforehand. If it starts
/// with ports, they have traffic.
pub struct FakeEngine {
    desired: DesiredState,
    dir: PathBuf,
    /// The first port of the initial state, if any, whose guest has made a mistake.
    faulted: Option<String>,
    samples: u64,
}

impl FakeEngine {
    /// Starts it in a task of the current runtime; it ends with the last handle.
    pub fn start(desired: DesiredState, dir: &Path) -> EngineHandle {
        let (handle, mut commands) = engine_channel(4, Events::default());
        let mut engine = Self {
            faulted: desired.ports.first().map(|port| port.name.clone()),
            desired,
            dir: dir.to_owned(),
            samples: 0,
        };
        tokio::spawn(async move {
            while let Some(command) = commands.recv().await {
                engine.execute(command);
            }
        });
        handle
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Status(reply) => drop(reply.send(Ok(self.status()))),
            Command::Ports(reply) => drop(reply.send(Ok(PortsDocument {
                ports: self.ports(),
            }))),
            Command::Pipes(reply) => drop(reply.send(Ok(PipesDocument::default()))),
            Command::Metrics(reply) => drop(reply.send(Ok(Facts::default()))),
            Command::Desired(reply) => drop(reply.send(Ok(self.desired(None)))),
            Command::Basis(reply) => drop(reply.send(Ok(self.basis()))),
            Command::Change(planned, reply) => {
                let basis = self.basis();
                let desired = Some(self.change(&planned.0, &planned.1));
                drop(reply.send(Ok(ChangeOutcome {
                    desired,
                    basis,
                    planned,
                })));
            }
            Command::Stats(reply) => drop(reply.send(Ok(self.stats()))),
            Command::Egress(reply) => drop(reply.send(Ok(self.egress()))),
            Command::Fdb(filter, reply) => {
                let entries = self.entries(&filter);
                drop(reply.send(entries.map(|entries| FdbDocument { entries })));
            }
            Command::FlushFdb(filter, reply) => {
                let learned = |all: Vec<FdbEntry>| all.iter().filter(|e| !e.is_static).count();
                let flushed = self.entries(&filter).map(|all| learned(all) as u64);
                drop(reply.send(flushed.map(|flushed| FdbFlushResult { flushed })));
            }
            Command::PurgeFlows(port, reply) => {
                let missing = port.filter(|name| self.desired.port(name).is_none());
                let done = missing.map_or(Ok(()), |name| Err(Problem::no_such("port", &name)));
                drop(reply.send(done));
            }
            Command::Trace(request, reply) => drop(reply.send(traced(request))),
            Command::RuleCounts(reply) => drop(reply.send(Ok(self.counted()))),
            Command::Connections(filter, reply) => drop(reply.send(self.connections(&filter))),
            Command::ConnectionsCount(selection, reply) => {
                let count = selection.check(&self.desired).map(|()| ConnectionsCount {
                    count: 123_456,
                    table: Some(TABLE),
                });
                drop(reply.send(count));
            }
            Command::FlushConnections(selection, _, reply) => {
                let whole = selection.port.is_none() && selection.filter.is_none();
                let done = selection.check(&self.desired);
                drop(reply.send(done.map(|()| ConnectionsFlush { done: whole })));
            }
            Command::Flows(_, reply) => drop(reply.send(Ok(FlowsDocument::default()))),
            Command::Prefilter(port, reply) => drop(reply.send(self.prefilter(&port))),
            Command::UserFlows(port, _, reply) => drop(reply.send(self.user_flows(&port))),
            Command::UserLeases(port, reply) => drop(reply.send(self.user_leases(&port))),
            Command::UserForwards(port, reply) => drop(reply.send(self.user_forwards(&port))),
            Command::Capture(port, query, reply) => drop(reply.send(begin_capture(&port, &query))),
            Command::EndCapture(_, reply) => drop(reply.send(Ok(()))),
        }
    }

    /// One entry, if the port is an uplink.
    fn prefilter(&self, port: &str) -> Answer<PrefilterDocument> {
        self.check_port(port)?;
        let entry = PrefilterEntry {
            matches: "untagged, any > 52:54:00:00:00:01, IPv4, 192.0.2.0/24 > any".to_owned(),
            rules: vec!["web/others".to_owned()],
            frames: 1_234_567,
            bytes: 74_074_020,
            age_ms: 14_000,
            idle_ms: 0,
        };
        let kind = self.desired.port(port).map(|port| port.kind);
        Ok(PrefilterDocument {
            port: port.to_owned(),
            entries: if kind == Some(PortKind::Uplink) {
                vec![entry]
            } else {
                Vec::new()
            },
        })
    }

    /// One connection of the first guest.
    fn user_flows(&self, port: &str) -> Answer<UserFlowsDocument> {
        self.check_port(port)?;
        let flow = UserFlowEntry {
            protocol: "tcp".to_owned(),
            state: "established".to_owned(),
            guest: "10.0.2.15:40000".to_owned(),
            mac: "52:54:00:00:00:01".to_owned(),
            port: Some("vm1".to_owned()),
            peer: "192.0.2.1:443".to_owned(),
            age_ms: Some(61_500),
            from_guest_bytes: Some(2048),
            to_guest_bytes: None,
            waits_for: UserFlowWait::GuestWindow,
            progress_ms: 61_000,
            timer: Some(UserFlowTimer::Probe),
            timer_ms: Some(4200),
            tcp: Some(UserFlowTcp {
                unacknowledged_bytes: 0,
                window_bytes: 0,
                pending_bytes: 300 << 10,
                queued_bytes: 0,
                room_bytes: 43 << 10,
                retransmissions: 2,
            }),
        };
        Ok(UserFlowsDocument { flows: vec![flow] })
    }

    /// The lease of the first guest.
    fn user_leases(&self, port: &str) -> Answer<UserLeasesDocument> {
        self.check_port(port)?;
        let lease = UserLeaseEntry {
            mac: "52:54:00:00:00:01".to_owned(),
            address: "10.0.2.15".to_owned(),
            port: None,
            seconds: 3590,
        };
        Ok(UserLeasesDocument {
            leases: vec![lease],
        })
    }

    /// The forwards lead to guests, but for those on port 2299, which is taken, and to `vm2`.
    fn user_forwards(&self, port: &str) -> Answer<UserForwardsDocument> {
        self.check_port(port)?;
        let kind = self.desired.port(port).map(|port| port.kind);
        if kind != Some(PortKind::User) {
            let detail = format!("port `{port}` is not of kind `user`");
            return Err(Problem::new(ProblemKind::NotFound, detail));
        }
        let forwards = self.desired.port(port).map(|port| port.forward.clone());
        let forwards = forwards.unwrap_or_default().into_iter().map(|spec| {
            let (state, reason) = if spec.listen.ends_with(":2299") {
                (ForwardState::Refused, Some("Address already in use"))
            } else if spec.to.starts_with("vm2:") {
                (ForwardState::Waiting, Some("vm2 has no address yet"))
            } else {
                (ForwardState::Ready, None)
            };
            UserForwardEntry {
                listen: spec.listen,
                to: spec.to,
                state,
                reason: reason.map(str::to_owned),
                ports: 1,
                refused: u32::from(state == ForwardState::Refused),
            }
        });
        Ok(UserForwardsDocument {
            forwards: forwards.collect(),
        })
    }

    fn check_port(&self, name: &str) -> Answer<()> {
        let missing = || Problem::no_such("port", name);
        self.desired.port(name).map(drop).ok_or_else(missing)
    }

    fn desired(&self, port: Option<PortStatus>) -> DesiredSnapshot {
        DesiredSnapshot {
            state: self.desired.clone(),
            version: config::desired::version(&self.desired),
            port,
            changes: None,
        }
    }

    fn basis(&self) -> Basis {
        Basis::new(self.desired.clone(), &self.dir)
    }

    fn change(&mut self, request: &Request, plan: &Plan) -> DesiredSnapshot {
        self.desired = plan.after().clone();
        let name = request.change.port();
        let port = name.and_then(|name| self.ports().into_iter().find(|port| port.name == name));
        self.desired(port)
    }

    fn has_traffic(&self) -> bool {
        self.faulted.is_some()
    }

    /// To each scheduled port, each other one sends 1 Mbit of the default class between two
    /// requests, and 1500 bytes wait.
    fn egress(&mut self) -> EgressPortsDocument {
        self.samples += 1;
        let all = self.desired.ports.iter();
        let ports = all.filter_map(|port| Some(self.egress_of(port, port.egress.as_ref()?)));
        EgressPortsDocument {
            ports: ports.collect(),
        }
    }

    fn egress_of(&self, port: &PortSpec, spec: &EgressSpec) -> EgressDocument {
        let all = self.desired.ports.iter();
        let others = all.filter(|other| other.name != port.name);
        let share = |other: &PortSpec| EgressShare {
            sender: other.name.clone(),
            class: "default".to_owned(),
            weight: other.qos.weight,
            min: other.qos.min.unwrap_or_default(),
            max: other.qos.max,
            bits: 1_000_000 * self.samples,
            waiting_bits: 12_000,
            ..EgressShare::default()
        };
        EgressDocument {
            port: port.name.clone(),
            output: EgressStatus {
                rate: spec.rate,
                link: None,
                overhead: qos::overhead_of(port, spec),
                full: qos::full_of(port, spec),
                promised: others.clone().filter_map(|other| other.qos.min).sum(),
                scaled: false,
            },
            shares: others.map(share).collect(),
        }
    }

    /// Three frames for the first rule of each list.
    fn counted(&self) -> CountSnapshot {
        let mut counted = CountSnapshot {
            access: Arc::clone(&self.desired.access),
            now: Duration::from_secs(100),
            ..CountSnapshot::default()
        };
        for list in &self.desired.access.lists {
            let uses = list
                .rules
                .iter()
                .take(self.has_traffic().into())
                .map(|rule| RuleUse {
                    rule: RuleId::of(&list.name, &rule.name),
                    packets: 3,
                    bytes: 3072,
                    idle_ms: 65_000,
                });
            let uses: Vec<_> = uses.collect();
            Arc::make_mut(&mut counted.counts).add(&uses, counted.now);
        }
        counted
    }

    fn status(&self) -> StatusDocument {
        let process = |name: &str, pid, restarts| ProcessStatus {
            name: name.to_owned(),
            state: ProcessState::Running,
            pid: Some(pid),
            uptime_seconds: 3700,
            restarts,
            usage: (name == "switch").then_some(SWITCH_USAGE),
        };
        let segments = self.desired.segments.iter().map(|segment| SegmentStatus {
            name: segment.name.clone(),
            vlan: segment.vlan,
            neighbour_suppression: segment.neighbour_suppression,
            ports: self.members(&segment.name),
        });
        StatusDocument {
            version: "0.1.0".to_owned(),
            name: self.desired.switch.name.clone(),
            uptime_seconds: 3700,
            processes: vec![
                process("supervisor", 100, 0),
                process("control", 101, 1),
                process("switch", 102, 0),
            ],
            switch: SwitchStatus {
                connected: true,
                epoch: 3,
                flows: 12,
                upcalls: 40,
                workers: 1,
                poll: self.desired.switch.poll,
                guest_state: GuestStateStatus {
                    by: GuestStates::Off,
                    reason: Some("no rights".to_owned()),
                    no_halts: None,
                    missing: vec!["debugfs is not mounted".to_owned()],
                },
                ..SwitchStatus::default()
            },
            segments: segments.collect(),
            ports: self.ports(),
            warnings: Vec::new(),
        }
    }

    fn members(&self, segment: &str) -> Vec<String> {
        let ports = self.desired.ports.iter();
        let members = ports.filter(|port| port.segments().any(|name| name == segment));
        members.map(|port| port.name.clone()).collect()
    }

    /// The ports: one may be faulted, the others wait or connect.
    fn ports(&self) -> Vec<PortStatus> {
        let ports = self.desired.ports.iter().map(|port| {
            let state = match port.role {
                Role::Server => PortState::Waiting,
                Role::Client => PortState::Dialing,
            };
            let waits = PortStatus::new(port, state);
            if self.faulted.as_ref() != Some(&port.name) {
                return waits;
            }
            let reason = "descriptor loop".to_owned();
            PortStatus {
                state: PortState::Faulted,
                reason: Some(format!("queue 1: {reason}")),
                queue_pairs: 2,
                ring: Some(RingFormat::Split),
                features: vec!["NET_F_CSUM".to_owned(), "F_VERSION_1".to_owned()],
                memory_bytes: 512 << 20,
                vcpus: 4,
                vcpu_search: VcpuSearch {
                    by: VcpuSource::Names,
                    reason: None,
                },
                notifications: Notifications {
                    to_guest: 1200,
                    deferred: 30,
                    slept_through: 2,
                    kicks: 40,
                    suppressed_kicks: 5,
                    coalesced_kicks: 6,
                },
                queue_faults: vec![QueueFault { queue: 1, reason }],
                connections: Some(tracked()),
                iommu_of_connection: (port.iommu != Iommu::default()).then(Iommu::default),
                ..waits
            }
        });
        ports.collect()
    }

    /// Statistics, with 1000 frames more each time.
    fn stats(&mut self) -> StatsDocument {
        if !self.has_traffic() {
            return StatsDocument {
                ports: vec![PortStats::default()],
                ..StatsDocument::default()
            };
        }
        self.samples += 1;
        let traffic = |packets| Traffic {
            packets,
            bytes: packets * 1024,
        };
        let drops = [("runt".to_owned(), 7), ("unused".to_owned(), 0)];
        let admin_state = |name: &str| {
            let port = self.desired.ports.iter().find(|port| port.name == name);
            port.map(|port| port.admin_state).unwrap_or_default()
        };
        let up = PortStats {
            name: "vm1".to_owned(),
            state: PortState::Up,
            admin_state: admin_state("vm1"),
            from_guest: traffic(1000 * self.samples),
            drops: drops.clone().into(),
            work: Work {
                cpu_us: 500_000 * self.samples,
                ..Work::default()
            },
            ..PortStats::default()
        };
        let dialing = PortStats {
            name: "vm2".to_owned(),
            state: PortState::Dialing,
            admin_state: admin_state("vm2"),
            ..PortStats::default()
        };
        let mirrors = self.desired.mirrors.iter().map(|mirror| {
            let full = mirror.filter.is_none();
            MirrorStats {
                name: mirror.name.clone(),
                copied: traffic(3),
                lost: full
                    .then(|| ("receiver-full".to_owned(), 5))
                    .into_iter()
                    .collect(),
            }
        });
        StatsDocument {
            ports: vec![up, dialing],
            drops: drops.into(),
            mirrors: mirrors.collect(),
        }
    }

    /// A connection of TCP and one of ICMP, if there is traffic; else no table.
    fn connections(&self, filter: &ConnectionsFilter) -> Answer<ConnectionsDocument> {
        filter.selection().check(&self.desired)?;
        if !self.has_traffic() {
            return Ok(ConnectionsDocument::default());
        }
        let direction =
            |source: &str, destination: &str, port: Option<&str>, packets| ConnectionDirection {
                source: source.to_owned(),
                destination: destination.to_owned(),
                port: port.map(str::to_owned),
                traffic: Traffic {
                    packets,
                    bytes: packets * 1024,
                },
            };
        let web = ConnectionEntry {
            protocol: "tcp".to_owned(),
            state: Some("ESTABLISHED".to_owned()),
            segment: "default".to_owned(),
            original: direction("10.0.0.1:40000", "10.0.0.2:80", Some("vm1"), 5),
            reply: direction("10.0.0.2:80", "10.0.0.1:40000", Some("vm2"), 7),
            list: Some("web-in".to_owned()),
            rule: Some("http".to_owned()),
            age_ms: 65_000,
            expires_ms: 86_399_000,
            flags: vec![ConnectionFlag::Assured],
            ..ConnectionEntry::default()
        };
        let ping = ConnectionEntry {
            protocol: "icmp".to_owned(),
            segment: "default".to_owned(),
            original: direction("10.0.0.1", "10.0.0.9", Some("vm1"), 1),
            reply: direction("10.0.0.9", "10.0.0.1", None, 0),
            identifier: Some(7),
            age_ms: 900,
            expires_ms: 29_100,
            flags: vec![ConnectionFlag::Unreplied],
            ..ConnectionEntry::default()
        };
        let mut connections = vec![web, ping];
        let limit = usize::from(filter.limit.unwrap_or(CONNECTIONS_DEFAULT));
        let more = connections.len() > limit;
        connections.truncate(limit);
        Ok(ConnectionsDocument {
            connections,
            more,
            table: Some(TABLE),
        })
    }

    /// The FDB entries that a filter selects.
    fn entries(&self, filter: &FdbFilter) -> Answer<Vec<FdbEntry>> {
        filter.check(&self.desired)?;
        let entry = |segment: &str, mac: &str, port: &str| FdbEntry {
            segment: segment.to_owned(),
            mac: mac.to_owned(),
            port: port.to_owned(),
            age_seconds: 3,
            is_static: false,
        };
        let own = FdbEntry {
            age_seconds: 0,
            is_static: true,
            ..entry("red", "52:54:00:00:00:03", "vm2")
        };
        let mut entries = vec![
            entry("blue", "52:54:00:00:00:01", "vm1"),
            entry("red", "52:54:00:00:00:02", "vm2"),
            own,
        ];
        entries.retain(|entry| filter.accepts(entry));
        Ok(entries)
    }
}

/// The connections of a port that has reached its limit.
fn tracked() -> PortConnections {
    PortConnections {
        opened: AccountStatus {
            connections: 20_000,
            unreplied: 3,
            limit: 20_000,
            bound: ConnectionLimit::Limit,
            unreplied_limit: 16_384,
        },
        opened_to: AccountStatus {
            connections: 7,
            unreplied: 0,
            limit: 65_536,
            bound: ConnectionLimit::Share,
            unreplied_limit: 16_384,
        },
        opened_total: 20_107,
        refused: 12,
        ..PortConnections::default()
    }
}

/// A trace of a dropped or delivered frame, as the expression says; any other expression is wrong.
fn traced(request: TraceRequest) -> Answer<TraceDocument> {
    let action = match request.expression.as_deref() {
        Some("drop") => TraceAction::Drop,
        Some("deliver") => TraceAction::Deliver,
        _ => {
            let problem = Problem::new(ProblemKind::Invalid, "column 17: nonsense");
            return Err(problem.with_column("expression", 17));
        }
    };
    let outcome = TraceOutcome {
        action,
        text: "made up".to_owned(),
        reason: None,
        receivers: Vec::new(),
    };
    let trace = Trace {
        prefilter: None,
        frame: "a frame".to_owned(),
        filled: Vec::new(),
        steps: Vec::new(),
        outcome,
        limits: Vec::new(),
        mirrors: Vec::new(),
        flows: Vec::new(),
    };
    Ok(TraceDocument {
        port: request.port,
        traces: vec![trace],
        ..TraceDocument::default()
    })
}

/// A capture of one frame, which has ended.
fn begin_capture(port: &str, query: &CaptureQuery) -> Answer<StartedCapture> {
    if port != "vm1" {
        return Err(Problem::no_such("port", port));
    }
    let (region, file) = Region::create(1, query.buffer).expect("a ring");
    let seen = FrameMetadata {
        at_ns: 1,
        len: 60,
        way: Way::In,
        dropped: None,
        offload: Offload::default(),
    };
    region.writer(0).expect("a writer").write(&seen, &[7; 60]);
    region.end();
    let mapped = Region::map(&file, 1, query.buffer).expect("the same ring");
    Ok(StartedCapture {
        number: 5,
        reader: mapped.reader().expect("a reader"),
        held: Arc::default(),
    })
}
