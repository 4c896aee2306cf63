//! A control without a switch: the real API server in front of an engine that makes its answers up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use api::v1::{
    FdbDocument, FdbEntry, FdbFlushed, FlowsDocument, GuestStateStatus, GuestStates, MirrorStats,
    PortState, PortStats, PortStatus, PortsDocument, Problem, ProblemKind, ProcessState,
    ProcessStatus, QueueFault, RingFormat, SegmentStatus, StatsDocument, StatusDocument,
    SwitchStatus, Trace, TraceAction, TraceDocument, TraceOutcome, Traffic, WantedState, Work,
};
use assert_cmd::Command;
use channel::rules::{RuleId, RuleUse};
use control::command::{Changed, Command as Order, Request, Wanted, engine_channel};
use control::engine::{Basis, Plan};
use control::events::Events;
use control::metrics::Facts;
use control::rule_counts::Counted;
use control::{server, wanted};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// The command line, in an environment that says nothing.
pub(crate) fn lasthop() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    command.env_remove("LASTHOP_RUNTIME_DIR");
    command
}

/// A configuration with two segments and two ports.
const CONFIG: &str = r#"
[switch]
name = "host1"
[[segment]]
name = "blue"
vlan = 10
[[segment]]
name = "red"
[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
queues = 2
segment = "blue"
[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
role = "client"
trunk = ["blue", "red"]
"#;

/// A running fake; ends when dropped.
pub(crate) struct Fake {
    dir: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Starts it in a runtime directory of its own.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let socket = std::os::unix::net::UnixListener::bind(path.join("api.sock")).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let (handle, mut orders) = engine_channel(4, Events::default());
                let mut engine = Engine::new(path);
                tokio::spawn(async move {
                    while let Some(order) = orders.recv().await {
                        engine.obey(order);
                    }
                });
                let listener = server::listener(socket.into()).unwrap();
                let shutdown = async { drop(stopped.await) };
                server::serve(listener, handle, shutdown).await;
            });
        });
        Self {
            dir,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Its runtime directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A command to it.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = lasthop();
        command.arg("--runtime-dir").arg(self.dir());
        command.args(line.split(' '));
        command
    }

    /// What a command prints that has to succeed and to say nothing on standard error.
    pub(crate) fn prints(&self, line: &str) -> String {
        let done = self.command(line).assert().success().stderr("");
        String::from_utf8(done.get_output().stdout.clone()).unwrap()
    }

    /// The document that a command prints with `--json`.
    pub(crate) fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.prints(&format!("{line} --json"))).unwrap()
    }

    /// Exit status and complaint of a command that has to fail and to print nothing.
    pub(crate) fn fails(&self, line: &str) -> (i32, String) {
        let done = self.command(line).assert().failure().stdout("");
        let output = done.get_output();
        let complaint = String::from_utf8(output.stderr.clone()).unwrap();
        (output.status.code().unwrap(), complaint)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Knows what is wanted; makes the rest up.
struct Engine {
    wanted: WantedState,
    dir: PathBuf,
    looks: u64,
}

impl Engine {
    fn new(dir: PathBuf) -> Self {
        let wanted = control::config::parse(CONFIG, Path::new("fake.toml"), &dir);
        Self {
            wanted: wanted.unwrap(),
            dir,
            looks: 0,
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Status(reply) => drop(reply.send(Ok(self.status()))),
            Order::Ports(reply) => drop(reply.send(Ok(PortsDocument {
                ports: self.ports(),
            }))),
            Order::Metrics(reply) => drop(reply.send(Ok(Facts::default()))),
            Order::Wanted(reply) => drop(reply.send(Ok(self.wanted(None)))),
            Order::Basis(reply) => drop(reply.send(Ok(self.basis()))),
            Order::Change(planned, reply) => {
                let basis = self.basis();
                let wanted = self.change(&planned.0, &planned.1);
                drop(reply.send(Ok(Changed {
                    wanted: Some(wanted),
                    basis,
                    planned,
                })));
            }
            Order::Stats(reply) => drop(reply.send(Ok(self.stats()))),
            Order::Capture(port, _, reply) => {
                drop(reply.send(Err(Problem::no_such_port(&port))));
            }
            Order::EndCapture(_, reply) => drop(reply.send(Ok(()))),
            Order::Fdb(filter, reply) => {
                let mut entries = fdb();
                entries.retain(|entry| filter.accepts(entry));
                let found = filter.check(&self.wanted);
                drop(reply.send(found.map(|()| FdbDocument { entries })));
            }
            Order::FlushFdb(filter, reply) => {
                let mut entries = fdb();
                entries.retain(|entry| filter.accepts(entry) && !entry.is_static);
                let flushed = entries.len() as u64;
                let found = filter.check(&self.wanted);
                drop(reply.send(found.map(|()| FdbFlushed { flushed })));
            }
            Order::PurgeFlows(port, reply) => {
                let missing = port.filter(|name| self.wanted.port(name).is_none());
                let done = missing.map_or(Ok(()), |name| Err(Problem::no_such_port(&name)));
                drop(reply.send(done));
            }
            Order::Trace(request, reply)
                if matches!(request.expression.as_deref(), Some("drop" | "deliver")) =>
            {
                let drops = request.expression.as_deref() == Some("drop");
                drop(reply.send(Ok(traced(request.port, drops))));
            }
            Order::Trace(_, reply) => {
                let column = 17;
                let problem = Problem::new(ProblemKind::Invalid, "column 17: nonsense");
                drop(reply.send(Err(problem.with_column("expression", column))));
            }
            Order::RuleCounts(reply) => drop(reply.send(Ok(self.counted()))),
            Order::Flows(_, reply) => drop(reply.send(Ok(FlowsDocument::default()))),
        }
    }

    fn wanted(&self, port: Option<PortStatus>) -> Wanted {
        Wanted {
            state: self.wanted.clone(),
            version: wanted::version(&self.wanted),
            port,
            changes: None,
        }
    }

    /// The first rule of each list has decided about three frames.
    fn counted(&self) -> Counted {
        let mut counted = Counted {
            access: Arc::clone(&self.wanted.access),
            now: Duration::from_secs(100),
            ..Counted::default()
        };
        for list in &self.wanted.access.lists {
            let uses = list.rules.iter().take(1).map(|rule| RuleUse {
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

    fn basis(&self) -> Basis {
        Basis::new(self.wanted.clone(), &self.dir)
    }

    fn change(&mut self, request: &Request, plan: &Plan) -> Wanted {
        self.wanted = plan.after().clone();
        let name = request.change.port();
        let port = name.and_then(|name| self.ports().into_iter().find(|port| port.name == name));
        self.wanted(port)
    }

    fn status(&self) -> StatusDocument {
        let process = |name: &str, pid, restarts| ProcessStatus {
            name: name.to_owned(),
            state: ProcessState::Running,
            pid: Some(pid),
            uptime_seconds: 3700,
            restarts,
            usage: None,
        };
        let segments = self.wanted.segments.iter().map(|segment| SegmentStatus {
            name: segment.name.clone(),
            vlan: segment.vlan,
            neighbour_suppression: segment.neighbour_suppression,
            ports: self.members(&segment.name),
        });
        StatusDocument {
            version: "0.1.0".to_owned(),
            name: self.wanted.switch.name.clone(),
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
                upcalls_dropped: 0,
                workers: 1,
                helpers: 0,
                helped: 0,
                poll: self.wanted.switch.poll,
                guest_state: GuestStateStatus {
                    by: GuestStates::Proc,
                    reason: Some("no rights".to_owned()),
                },
            },
            segments: segments.collect(),
            ports: self.ports(),
        }
    }

    fn members(&self, segment: &str) -> Vec<String> {
        let ports = self.wanted.ports.iter();
        let members = ports.filter(|port| port.segments().any(|name| name == segment));
        members.map(|port| port.name.clone()).collect()
    }

    /// The first port is up with a stopped queue, the others wait or dial.
    fn ports(&self) -> Vec<PortStatus> {
        let ports = self.wanted.ports.iter();
        let mut ports: Vec<_> = ports
            .map(|port| match port.role {
                api::v1::Role::Server => PortStatus::new(port, PortState::Waiting),
                api::v1::Role::Client => PortStatus::new(port, PortState::Dialing),
            })
            .collect();
        if let Some(port) = ports.first_mut() {
            port.state = PortState::Faulted;
            port.reason = Some("queue 1: descriptor loop".to_owned());
            port.queue_pairs = 2;
            port.ring = Some(RingFormat::Split);
            port.features = vec!["NET_F_CSUM".to_owned(), "F_VERSION_1".to_owned()];
            port.memory_bytes = 512 << 20;
            port.vcpu_threads = 4;
            port.queue_faults = vec![QueueFault {
                queue: 1,
                reason: "descriptor loop".to_owned(),
            }];
        }
        ports
    }

    /// Every look finds 1000 packets more.
    fn stats(&mut self) -> StatsDocument {
        self.looks += 1;
        let packets = 1000 * self.looks;
        let drops = [("runt".to_owned(), 7), ("unused".to_owned(), 0)];
        let mut ports = vec![PortStats {
            name: "vm1".to_owned(),
            state: PortState::Up,
            from_guest: Traffic {
                packets,
                bytes: packets * 1024,
            },
            to_guest: Traffic::default(),
            drops: drops.clone().into(),
            work: Work {
                cpu_us: 500_000 * self.looks,
                ..Work::default()
            },
        }];
        ports.push(PortStats {
            name: "vm2".to_owned(),
            state: PortState::Dialing,
            ..PortStats::default()
        });
        let mirrors = self.wanted.mirrors.iter().map(|mirror| MirrorStats {
            name: mirror.name.clone(),
            copied: Traffic {
                packets: 3,
                bytes: 3 << 10,
            },
            lost: match mirror.filter {
                Some(_) => BTreeMap::new(),
                None => [("receiver-full".to_owned(), 5)].into(),
            },
        });
        StatsDocument {
            ports,
            drops: drops.into(),
            mirrors: mirrors.collect(),
        }
    }
}

/// What becomes of a frame that is dropped, or goes to one port.
fn traced(port: String, drops: bool) -> TraceDocument {
    let action = match drops {
        true => TraceAction::Drop,
        false => TraceAction::Deliver,
    };
    let outcome = TraceOutcome {
        action,
        text: "made up".to_owned(),
        reason: None,
        receivers: Vec::new(),
    };
    let trace = Trace {
        frame: "a frame".to_owned(),
        filled: Vec::new(),
        steps: Vec::new(),
        outcome,
        limits: Vec::new(),
        mirrors: Vec::new(),
        flows: Vec::new(),
    };
    TraceDocument {
        port,
        traces: vec![trace],
        ..TraceDocument::default()
    }
}

fn fdb() -> Vec<FdbEntry> {
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
    vec![
        entry("blue", "52:54:00:00:00:01", "vm1"),
        entry("red", "52:54:00:00:00:02", "vm2"),
        own,
    ]
}
