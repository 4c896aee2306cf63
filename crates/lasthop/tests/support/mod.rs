//! A control without a switch: the API server with a test engine, which returns fixed states.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use api::v1::{
    DesiredState, FdbDocument, FdbEntry, FdbFlushed, FlowsDocument, GuestStateStatus, GuestStates,
    MirrorStats, PortState, PortStats, PortStatus, PortsDocument, Problem, ProblemKind,
    ProcessState, ProcessStatus, QueueFault, RingFormat, SegmentStatus, StatsDocument,
    StatusDocument, SwitchStatus, Trace, TraceAction, TraceDocument, TraceOutcome, Traffic, Work,
};
use assert_cmd::Command;
use channel::rules::{RuleId, RuleUse};
use config::desired;
use control::command::{
    Changed, Command as Request, Desired, Request as ChangeRequest, engine_channel,
};
use control::events::Events;
use control::metrics::Facts;
use control::plan::{Basis, Plan};
use control::rule_counts::Counted;
use control::server;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Returns the command `lasthop` without its environment variables.
pub(crate) fn lasthop() -> Command {
    let mut command = Command::new(testkit::programs::program("lasthop"));
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

/// A running test server; dropping it ends it.
pub(crate) struct Fake {
    dir: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Starts it in its own runtime directory.
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
                let (handle, mut commands) = engine_channel(4, Events::default());
                let mut engine = Engine::new(path);
                tokio::spawn(async move {
                    while let Some(command) = commands.recv().await {
                        engine.run(command);
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

    /// Returns the runtime directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a command for this server.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = lasthop();
        command.arg("--runtime-dir").arg(self.dir());
        command.args(line.split(' '));
        command
    }

    /// Runs a command that must succeed without errors; returns its output.
    pub(crate) fn prints(&self, line: &str) -> String {
        let done = self.command(line).assert().success().stderr("");
        String::from_utf8(done.get_output().stdout.clone()).unwrap()
    }

    /// Runs a command with `--json`; returns the document.
    pub(crate) fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.prints(&format!("{line} --json"))).unwrap()
    }

    /// Runs a command that must fail without output; returns its exit status and error.
    pub(crate) fn fails(&self, line: &str) -> (i32, String) {
        let done = self.command(line).assert().failure().stdout("");
        let output = done.get_output();
        let error = String::from_utf8(output.stderr.clone()).unwrap();
        (output.status.code().unwrap(), error)
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

/// An engine with a desired state and fixed counters.
struct Engine {
    desired: DesiredState,
    dir: PathBuf,
    samples: u64,
}

impl Engine {
    fn new(dir: PathBuf) -> Self {
        let desired = config::parse(CONFIG, Path::new("fake.toml"), &dir);
        Self {
            desired: desired.unwrap(),
            dir,
            samples: 0,
        }
    }

    fn run(&mut self, command: Request) {
        match command {
            Request::Status(reply) => drop(reply.send(Ok(self.status()))),
            Request::Ports(reply) => drop(reply.send(Ok(PortsDocument {
                ports: self.ports(),
            }))),
            Request::Metrics(reply) => drop(reply.send(Ok(Facts::default()))),
            Request::Desired(reply) => drop(reply.send(Ok(self.desired(None)))),
            Request::Basis(reply) => drop(reply.send(Ok(self.basis()))),
            Request::Change(planned, reply) => {
                let basis = self.basis();
                let desired = self.change(&planned.0, &planned.1);
                drop(reply.send(Ok(Changed {
                    desired: Some(desired),
                    basis,
                    planned,
                })));
            }
            Request::Stats(reply) => drop(reply.send(Ok(self.stats()))),
            Request::Capture(port, _, reply) => {
                drop(reply.send(Err(Problem::no_such("port", &port))));
            }
            Request::EndCapture(_, reply) => drop(reply.send(Ok(()))),
            Request::Fdb(filter, reply) => {
                let mut entries = fdb();
                entries.retain(|entry| filter.accepts(entry));
                let found = filter.check(&self.desired);
                drop(reply.send(found.map(|()| FdbDocument { entries })));
            }
            Request::FlushFdb(filter, reply) => {
                let mut entries = fdb();
                entries.retain(|entry| filter.accepts(entry) && !entry.is_static);
                let flushed = entries.len() as u64;
                let found = filter.check(&self.desired);
                drop(reply.send(found.map(|()| FdbFlushed { flushed })));
            }
            Request::PurgeFlows(port, reply) => {
                let missing = port.filter(|name| self.desired.port(name).is_none());
                let done = missing.map_or(Ok(()), |name| Err(Problem::no_such("port", &name)));
                drop(reply.send(done));
            }
            Request::Trace(request, reply)
                if matches!(request.expression.as_deref(), Some("drop" | "deliver")) =>
            {
                let drops = request.expression.as_deref() == Some("drop");
                drop(reply.send(Ok(traced(request.port, drops))));
            }
            Request::Trace(_, reply) => {
                let column = 17;
                let problem = Problem::new(ProblemKind::Invalid, "column 17: nonsense");
                drop(reply.send(Err(problem.with_column("expression", column))));
            }
            Request::RuleCounts(reply) => drop(reply.send(Ok(self.counted()))),
            Request::Flows(_, reply) => drop(reply.send(Ok(FlowsDocument::default()))),
        }
    }

    fn desired(&self, port: Option<PortStatus>) -> Desired {
        Desired {
            state: self.desired.clone(),
            version: desired::version(&self.desired),
            port,
            changes: None,
        }
    }

    /// Returns rule counters: three frames for the first rule of each list.
    fn counted(&self) -> Counted {
        let mut counted = Counted {
            access: Arc::clone(&self.desired.access),
            now: Duration::from_secs(100),
            ..Counted::default()
        };
        for list in &self.desired.access.lists {
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
        Basis::new(self.desired.clone(), &self.dir)
    }

    fn change(&mut self, request: &ChangeRequest, plan: &Plan) -> Desired {
        self.desired = plan.after().clone();
        let name = request.change.port();
        let port = name.and_then(|name| self.ports().into_iter().find(|port| port.name == name));
        self.desired(port)
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
                upcalls_dropped: 0,
                workers: 1,
                helpers: 0,
                helper_frames: 0,
                poll: self.desired.switch.poll,
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
        let ports = self.desired.ports.iter();
        let members = ports.filter(|port| port.segments().any(|name| name == segment));
        members.map(|port| port.name.clone()).collect()
    }

    /// Returns the ports: the first is faulted, the others wait or connect.
    fn ports(&self) -> Vec<PortStatus> {
        let ports = self.desired.ports.iter();
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

    /// Returns statistics, with 1000 packets more each time.
    fn stats(&mut self) -> StatsDocument {
        self.samples += 1;
        let packets = 1000 * self.samples;
        let drops = [("runt".to_owned(), 7), ("unused".to_owned(), 0)];
        let mut ports = vec![PortStats {
            neighbour_replies: 0,
            name: "vm1".to_owned(),
            state: PortState::Up,
            from_guest: Traffic {
                packets,
                bytes: packets * 1024,
            },
            to_guest: Traffic::default(),
            drops: drops.clone().into(),
            work: Work {
                cpu_us: 500_000 * self.samples,
                ..Work::default()
            },
        }];
        ports.push(PortStats {
            neighbour_replies: 0,
            name: "vm2".to_owned(),
            state: PortState::Dialing,
            ..PortStats::default()
        });
        let mirrors = self.desired.mirrors.iter().map(|mirror| MirrorStats {
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

/// Returns a trace of a dropped or delivered frame.
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
