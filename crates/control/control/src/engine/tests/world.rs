//! The engine's environment: a switch and a supervisor in threads of their own, at the other ends
//! of real links, and a clock that the test sets.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use api::v1::{
    CaptureQuery, DesiredState, EgressPortsDocument, FdbFilter, FdbFlushResult, FlowsDocument,
    FlowsFilter, PortSecuritySpec, PortSpec, PortStatus, Problem, SegmentSpec, StatsDocument,
    StatusDocument, TraceDocument, TraceRequest, UserFlowsDocument, UserFlowsFilter,
    UserForwardsDocument, UserLeasesDocument,
};
use ipc::capture::{self, CaptureCommand, Writer};
use ipc::connections::ConnectionSettings;
use ipc::driving::{BackEnd, DriverCounters, DriverSpec, DriverState, PrefilterBackEnd};
use ipc::flows::{CachedFlow, FoundFlow};
use ipc::forwards::ForwardReach;
use ipc::limits::Limits;
use ipc::link::{self, Link, LinkEvent};
use ipc::mirrors::Mirror;
use ipc::names::PortName;
use ipc::owners::{NoSocket, SocketKey, SocketOwner};
use ipc::records::{Answer, SourceRole, StaleFlows, Upcall, key_from_words};
use ipc::rules::RuleUse;
use ipc::shared::{Receiver, Region, Sender};
use ipc::state::StateFile;
use ipc::supervision::{
    ControlRequest, EventToControl, FoundVcpus, GuestAnswer, GuestRequest, PortDriverAnswer,
    PortDriverRequest, PortVcpus, ProcessInfo, ProcessUsage, SocketAnswer, SocketDir,
    SocketRequest, UserPortAnswer, UserPortRequest, WatchedGuests,
};
use ipc::switching::{
    ConnectionFlush, FrontEnds, Iommu, PortConfig, PortPhase, PortState, Request, Role, Station,
    StationUse, SwitchCommand, SwitchEvent, SwitchFigures,
};
use ipc::user_reports::{UserFigures, UserPage, UserQuestion, UserRows};
use mapping::SharedWords;
use policy::port_security::Bindings;
use policy::{Action, DECISION_MASK, Lookup, OutdatedFlows, Program, SegmentId, decide};
use port::PortId;
use tokio::runtime::Runtime;
use wire::MacAddr;
use wire::flow::FlowKey;

use super::scheduling::Scheduling;
use super::tracked::TestTable;
use crate::command::{Condition, DesiredSnapshot, Reply, Request as AskedFor, StartedCapture};
use crate::engine::event_log::EventLog;
use crate::engine::queries::{captures, egress, flush, status, trace, user, user_forwards};
use crate::engine::{Clock, Engine, EngineParts, SharedEngine, changes, receive_start};
use crate::gate::ApiGate;
use crate::metrics::Facts;
use crate::pipes::PipeServer;
use crate::plan::Plan;
use crate::rule_counts::CountSnapshot;
use crate::saved::SavedState;
use config::desired::Change;

/// Timeout, 20 s, of the engine's requests in these tests, long enough for a busy machine.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(20);

/// A cached flow.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) action: Action,
    pub(super) segment: Option<SegmentId>,
    pub(super) source: SourceRole,
    pub(super) idle_ms: u32,
}

/// Returns whether a flow is to be removed as stale.
fn is_stale(rule: StaleFlows, key: &FlowKey, flow: &Flow) -> bool {
    match rule {
        StaleFlows::Station { segment, mac } => {
            let ours = flow.segment == Some(segment);
            ours && (key.dmac().0 == mac || key.smac().0 == mac)
        }
        StaleFlows::Port(port) => {
            let to = matches!(flow.action, Action::Unicast { port: to, .. } if to == port);
            to || key.in_port() == port.0
        }
    }
}

/// Returns whether a program change outdates a flow.
fn is_outdated(outdated: &OutdatedFlows, key: &FlowKey, flow: &Flow) -> bool {
    let OutdatedFlows { ports, segments } = outdated;
    let to = match flow.action {
        Action::Unicast { port, .. } => Some(port),
        Action::Flood { .. } | Action::Drop(_) => None,
    };
    let concerned = |port: PortId| ports.contains(&port);
    let segment = flow.segment.filter(|_| to.is_none());
    concerned(PortId(key.in_port()))
        || to.is_some_and(concerned)
        || segment.is_some_and(|segment| segments.contains(&segment))
}

/// FDB entries and bindings, as control sends them.
struct KnownAddresses(Vec<Station>, Vec<(PortId, Bindings)>);

impl Lookup for KnownAddresses {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        let mut stations = self.0.iter();
        let found = stations.find(|s| (s.segment, s.mac) == (segment, mac.0))?;
        Some(found.port)
    }

    fn is_barred(&self, _: SegmentId, _: MacAddr, _: PortId) -> bool {
        false
    }

    fn bound(&self, port: PortId) -> Bindings {
        let found = self.1.iter().find(|(at, _)| *at == port);
        found.map(|(_, bound)| *bound).unwrap_or_default()
    }
}

/// A switch without guests.
#[derive(Default)]
pub(super) struct Switch {
    /// All commands but queries, in short.
    pub(super) orders: Vec<String>,
    pub(super) ports: BTreeMap<PortId, PortConfig>,
    pub(super) limits: BTreeMap<PortId, Limits>,
    /// Users that alone may connect.
    pub(super) peers: BTreeMap<PortId, u32>,
    /// Ports that lack their listening sockets.
    pub(super) without_listener: BTreeSet<PortId>,
    pub(super) mirrors: Vec<Mirror>,
    pub(super) tracking: Option<ConnectionSettings>,
    pub(super) scheduling: Scheduling,
    pub(super) program: Program,
    /// Counters of rules that were not sent yet.
    pub(super) rules: Vec<RuleUse>,
    /// Outdated flows that came with each program.
    pub(super) outdated: Vec<Option<OutdatedFlows>>,
    /// All ports are up.
    pub(super) guests_are_there: bool,
    /// Flows by key: all flows of control have the same mask.
    pub(super) flows: BTreeMap<[u64; 8], Flow>,
    /// Flows that control has removed so far.
    pub(super) removed: Vec<FlowKey>,
    pub(super) rings: Option<(Sender, Receiver)>,
    /// Prefix of the next command to refuse, and the reason.
    pub(super) refuse: Option<(&'static str, &'static str)>,
    /// It closes its link when it receives a message.
    pub(super) ends: bool,
    /// Commands are read and not replied to.
    pub(super) stalled: bool,
    /// Prefix of the commands whose replies are held back.
    pub(super) hold: Option<&'static str>,
    /// Replies that are held back.
    pub(super) held: Vec<SwitchEvent>,
    /// Upcalls to send before the next [`SwitchCommand::RemovePort`] is done.
    pub(super) last_upcalls: Vec<Upcall>,
    /// The intervals for which control requested FDB entries in use.
    pub(super) within: Vec<u32>,
    /// Entries of the largest report.
    pub(super) largest: usize,
    /// Number of the command under way.
    now_done: u64,
    /// The table of connections.
    pub(super) tracked: Option<TestTable>,
    /// Captures by number, with the writers of their rings.
    pub(super) captures: Vec<(u32, Writer)>,
}

impl Switch {
    /// Reads and follows all answers; returns them.
    fn read_answers(&mut self) -> Vec<Answer> {
        let mut all = Vec::new();
        if let Some((_, answers)) = &mut self.rings {
            while let Some(answer) = answers.recv::<Answer>().unwrap() {
                all.push(answer);
            }
        }
        for answer in &all {
            self.follow_answer(answer);
        }
        all
    }

    fn follow_answer(&mut self, answer: &Answer) {
        match *answer {
            Answer::Install {
                key,
                action,
                segment,
                source,
                epoch,
                ..
            } => {
                if epoch != self.program.epoch() {
                    return;
                }
                let flow = Flow {
                    action,
                    segment,
                    source,
                    idle_ms: 0,
                };
                self.flows.insert(key, flow);
            }
            Answer::Forget(rule) => self.forget(|key, flow| is_stale(rule, key, flow)),
            Answer::Once { .. } | Answer::Reply { .. } => {}
        }
    }

    fn forget(&mut self, which: impl Fn(&FlowKey, &Flow) -> bool) {
        let removed = &mut self.removed;
        self.flows.retain(|words, flow| {
            let key = key_from_words(words);
            let stale = which(&key, flow);
            removed.extend(stale.then_some(key));
            !stale
        });
    }

    fn state_of(&self, config: &PortConfig) -> PortState {
        PortState {
            config: config.clone(),
            phase: match config.role {
                _ if self.guests_are_there => PortPhase::Up,
                Role::Server => PortPhase::Waiting,
                Role::Client => PortPhase::Dialing,
            },
            reason: None,
            features: 0,
            protocol_features: 0,
            memory: 0,
            queues: Vec::new(),
            connections: 0,
            front_ends: FrontEnds::default(),
            client: None,
            iommu: self.guests_are_there.then(Iommu::default),
            translation: None,
        }
    }

    /// Returns a flow as in a flow dump.
    fn dumped(&self, key: FlowKey) -> Option<CachedFlow> {
        let flow = self.flows.get(key.words())?;
        Some(CachedFlow {
            key: *key.words(),
            mask: *DECISION_MASK.words(),
            action: flow.action,
            except: Vec::new(),
            segment: flow.segment,
            packets: 17,
            recent: 3,
            recent_ms: 2000,
            idle_ms: flow.idle_ms,
            age_ms: 90_000,
        })
    }

    fn adopt(&mut self, link: &Link<SwitchEvent, Request>) {
        let region = Region::create().unwrap();
        let copy = region.try_clone().unwrap();
        self.rings = Some(region.switch_ends().unwrap());
        let report = SwitchEvent::Adopted {
            epoch: self.program.epoch(),
            ports: self.ports.values().cloned().collect(),
            limits: self.limits.clone().into_iter().collect(),
            mirrors: self.mirrors.clone(),
            peers: self.peers.clone().into_iter().collect(),
            without_listener: self.without_listener.iter().copied().collect(),
        };
        let fds = [
            copy.memory.as_fd(),
            copy.upcall_bell.as_fd(),
            copy.answer_bell.as_fd(),
        ];
        link.send(&report, &fds).unwrap();
        self.report_stations(link, u32::MAX);
    }

    fn report_stations(&mut self, link: &Link<SwitchEvent, Request>, within_ms: u32) {
        let used = |(words, flow): (&[u64; 8], &Flow)| {
            let key = key_from_words(words);
            let station = Station {
                segment: flow.segment?,
                mac: key.smac().0,
                port: PortId(key.in_port()),
            };
            let idle_ms = flow.idle_ms;
            let reported = flow.source != SourceRole::Unlearned && idle_ms <= within_ms;
            reported.then_some(StationUse {
                station,
                held: flow.source == SourceRole::Holder,
                idle_ms,
            })
        };
        let uses: Vec<_> = self.flows.iter().filter_map(used).collect();
        self.largest = self.largest.max(uses.len());
        for part in uses.chunks(100) {
            link.send(&SwitchEvent::Stations(part.to_vec()), &[])
                .unwrap();
        }
    }

    /// Removes flows that would be decided differently.
    fn check(&mut self, stations: Vec<Station>, bound: Vec<(PortId, Bindings)>) {
        let (known, program) = (KnownAddresses(stations, bound), self.program.clone());
        self.forget(|key, flow| {
            let right = decide(&program, &known, key);
            (right.action, right.segment) != (flow.action, flow.segment)
        });
    }

    fn capture(&mut self, link: &Link<SwitchEvent, Request>, order: &CaptureCommand) {
        let (region, file) = capture::Region::create(1, order.ring).unwrap();
        self.captures.push((order.id, region.writer(0).unwrap()));
        let report = SwitchEvent::Capture {
            id: order.id,
            threads: 1,
        };
        link.send(&report, &[file.as_fd()]).unwrap();
    }

    fn follow(&mut self, link: &Link<SwitchEvent, Request>, order: SwitchCommand, fds: &[OwnedFd]) {
        match order {
            SwitchCommand::Adopt => self.adopt(link),
            SwitchCommand::Program { program, outdated } => {
                self.program = program;
                self.outdated.push(outdated.clone());
                let outdated = outdated.unwrap_or_default();
                self.forget(|key, flow| is_outdated(&outdated, key, flow));
            }
            SwitchCommand::AddPort(config) => {
                let listens = config.role == Role::Server;
                assert_eq!(fds.len(), usize::from(listens), "{config:?}");
                let old = self.ports.insert(config.id, config);
                assert_eq!(old, None, "the number is taken");
            }
            SwitchCommand::Listen(id) => {
                assert_eq!(fds.len(), 1);
                assert!(self.without_listener.remove(&id), "it listens");
            }
            SwitchCommand::SetPort(config) => {
                let old = self.ports.insert(config.id, config);
                assert!(old.is_some(), "no such port");
            }
            SwitchCommand::SetPeer(id, peer) => {
                self.peers.remove(&id);
                self.peers.extend(peer.map(|user| (id, user)));
            }
            SwitchCommand::SetLimits(id, limits) => {
                assert!(self.ports.contains_key(&id), "no such port");
                self.limits.insert(id, limits);
            }
            SwitchCommand::SetClasses(classes) => self.scheduling.classes = classes,
            SwitchCommand::SetQos(id, qos) => {
                assert!(self.ports.contains_key(&id), "no such port");
                self.scheduling.senders.insert(id, qos);
            }
            SwitchCommand::SetEgress(id, output) => {
                let senders = output.iter().flat_map(|output| &output.senders);
                for id in senders.map(|sender| PortId(sender.port)).chain([id]) {
                    assert!(self.ports.contains_key(&id), "no such port");
                }
                self.scheduling.outputs.remove(&id);
                self.scheduling
                    .outputs
                    .extend(output.map(|output| (id, output)));
            }
            SwitchCommand::EgressUse => self.scheduling.report(link),
            SwitchCommand::SetMirrors(mirrors) => {
                let known = |id: &PortId| self.ports.contains_key(id);
                let all = |m: &Mirror| known(&m.to) && m.ports.iter().all(known);
                assert!(mirrors.iter().all(all), "no such port");
                self.mirrors = mirrors;
            }
            SwitchCommand::RemovePort(id) => {
                self.limits.remove(&id);
                self.peers.remove(&id);
                self.scheduling.remove(id);
                let all = std::mem::take(&mut self.mirrors).into_iter();
                self.mirrors = all.filter_map(|m| m.without(id)).collect();
                assert!(self.ports.remove(&id).is_some(), "no such port");
                for upcall in std::mem::take(&mut self.last_upcalls) {
                    assert!(self.rings.as_mut().unwrap().0.send(&upcall));
                }
            }
            SwitchCommand::Stations { within_ms } => {
                self.within.push(within_ms);
                self.report_stations(link, within_ms);
            }
            SwitchCommand::FindFlows(keys) => {
                let keys = keys.iter().enumerate();
                let found = keys.filter_map(|(question, words)| {
                    let flow = self.dumped(key_from_words(words).masked(&DECISION_MASK))?;
                    let question = question as u16;
                    Some(FoundFlow {
                        question,
                        worker: 1,
                        flow,
                    })
                });
                link.send(&SwitchEvent::Found(found.collect()), &[])
                    .unwrap();
            }
            SwitchCommand::Flows(desired) => {
                let keys = self.flows.keys().map(key_from_words);
                let flows: Vec<_> = keys.filter_map(|key| self.dumped(key)).collect();
                let number = self.now_done;
                for part in flows[..flows.len().min(desired.limit.into())].chunks(2) {
                    link.send(&SwitchEvent::Flows(number, part.to_vec()), &[])
                        .unwrap();
                }
            }
            SwitchCommand::CountRules => {
                let uses = std::mem::take(&mut self.rules);
                for part in uses.chunks(2) {
                    link.send(&SwitchEvent::Rules(part.to_vec()), &[]).unwrap();
                }
            }
            SwitchCommand::FlushConnections(flush) => {
                self.tracked
                    .iter_mut()
                    .for_each(|table| table.flush(&flush));
            }
            SwitchCommand::Track(settings) => self.tracking = Some(settings),
            SwitchCommand::Capture(order) => self.capture(link, &order),
            SwitchCommand::EndCapture(id) => self.captures.retain(|(of, ..)| *of != id),
            SwitchCommand::Check(stations, bound) => self.check(stations, bound),
            SwitchCommand::PortStates => {
                let states: Vec<_> = self
                    .ports
                    .values()
                    .map(|port| self.state_of(port))
                    .collect();
                let figures = SwitchFigures {
                    flows: self.flows.len() as u64,
                    ..SwitchFigures::default()
                };
                link.send(&SwitchEvent::PortStates(states, figures, Vec::new()), &[])
                    .unwrap();
            }
        }
    }
}

/// Returns a command as in [`Switch::orders`].
fn short(order: &SwitchCommand) -> Option<String> {
    Some(match order {
        SwitchCommand::Adopt => "adopt".into(),
        SwitchCommand::Program { program, .. } => format!("program {}", program.epoch()),
        SwitchCommand::AddPort(config) => format!("add {} {}", config.id.0, config.name),
        SwitchCommand::Listen(id) => format!("listen {}", id.0),
        SwitchCommand::SetPort(config) => format!("set {} {}", config.id.0, config.name),
        SwitchCommand::SetLimits(id, _) => format!("limit {}", id.0),
        SwitchCommand::SetClasses(classes) => format!("classes {classes:?}"),
        SwitchCommand::SetQos(id, _) => format!("qos {}", id.0),
        SwitchCommand::SetEgress(id, output) => match output {
            Some(output) => format!("egress {} of {} senders", id.0, output.senders.len()),
            None => format!("no egress {}", id.0),
        },
        SwitchCommand::SetMirrors(mirrors) => format!("mirrors {}", mirrors.len()),
        SwitchCommand::RemovePort(id) => format!("remove {}", id.0),
        SwitchCommand::Stations { .. }
        | SwitchCommand::Check(..)
        | SwitchCommand::PortStates
        | SwitchCommand::FindFlows(_)
        | SwitchCommand::CountRules
        | SwitchCommand::EgressUse
        | SwitchCommand::Flows(_) => return None,
        SwitchCommand::FlushConnections(ConnectionFlush::Named(names)) => {
            format!("flush {} connections", names.len())
        }
        SwitchCommand::FlushConnections(flush) => format!("flush {flush:?}"),
        SwitchCommand::Capture(order) => format!("capture {} of {}", order.id, order.port.0),
        SwitchCommand::EndCapture(id) => format!("end capture {id}"),
        SwitchCommand::SetPeer(id, peer) => format!("peer {} {peer:?}", id.0),
        SwitchCommand::Track(settings) => format!("track {}", settings.max),
    })
}

fn run_switch(mut link: Link<SwitchEvent, Request>, switch: &Mutex<Switch>) {
    while let Ok(LinkEvent::Message(Request { number, order }, fds)) = link.recv() {
        let mut switch = switch.lock().unwrap();
        let name = short(&order);
        if switch.ends {
            rustix::net::shutdown(&link, rustix::net::Shutdown::Both).unwrap();
            return;
        }
        if switch.stalled {
            continue;
        }
        let refused = name
            .as_ref()
            .and_then(|name| switch.refuse.take_if(|(start, _)| name.starts_with(*start)));
        let hold = switch.hold;
        let is_held = |name: &String| hold.is_some_and(|start| name.starts_with(start));
        let is_held = name.as_ref().is_some_and(is_held);
        switch.orders.extend(name);
        let error = match refused {
            Some((_, reason)) => Some(reason.to_owned()),
            None => {
                switch.now_done = number;
                {
                    let fds = fds.into_iter().map(sys::foreign::ForeignFd::vouch);
                    switch.follow(&link, order, &fds.collect::<Vec<_>>());
                }
                None
            }
        };
        let done = SwitchEvent::Done { number, error };
        if is_held {
            switch.held.push(done);
            continue;
        }
        // The engine may be gone by now.
        if link.send(&done, &[]).is_err() {
            return;
        }
    }
}

/// A supervisor that binds nothing.
#[derive(Default)]
pub(super) struct Supervisor {
    pub(super) listening: BTreeSet<String>,
    /// Paths of sockets that were requested for ports, one for each request.
    pub(super) requested: Vec<String>,
    /// The owner that was requested last, by path.
    pub(super) owners: BTreeMap<String, SocketOwner>,
    pub(super) drivers: Vec<DriverSpec>,
    /// Bytes that may wait in interfaces, by port.
    pub(super) rooms: Vec<(String, u64)>,
    /// Sockets that more than one user can connect to.
    pub(super) shared: Vec<(String, Vec<String>)>,
    /// Reasons why CPU weights have no effect, by port.
    pub(super) cpu_weight_errors: BTreeMap<String, String>,
    /// Figures of user ports, by port.
    pub(super) user_figures: Vec<(String, UserFigures)>,
    /// Tables of user ports, part by part.
    pub(super) user_pages: Vec<UserRows>,
    /// Speeds of interfaces by port, in bits a second.
    pub(super) speeds: Vec<(String, u64)>,
    pub(super) dials: Vec<(PortId, String)>,
    /// Paths and interfaces that are in use by others.
    pub(super) taken: BTreeSet<String>,
    /// Names of vCPU threads, by port.
    pub(super) watch: Vec<(PortId, String)>,
    pub(super) ready: u32,
    pub(super) frozen: u32,
    /// Reason why no port has a prefilter, if none can have one.
    pub(super) no_prefilter: Option<&'static str>,
    /// Reports that control ends because the switch is gone.
    pub(super) losses: u32,
    /// Reason why there can be no table of connections.
    pub(super) no_table: Option<&'static str>,
    /// The table of connections.
    pub(super) table: Option<OwnedFd>,
    /// Tables of prefilters, by port.
    pub(super) prefilters: BTreeMap<String, OwnedFd>,
    /// Requests are read and not replied to.
    pub(super) stalled: bool,
    /// Requests without a reply.
    pub(super) unanswered: u32,
}

impl Supervisor {
    /// Returns the table of a port's prefilter.
    pub(super) fn prefilter(&mut self, port: &str) -> &OwnedFd {
        self.prefilters.entry(port.to_owned()).or_insert_with(|| {
            let file = sys::file::fixed("table", offload::layout::SIZE as u64).unwrap();
            offload::create(
                SharedWords::<{ offload::layout::SIZE }>::map(file.as_fd(), true).unwrap(),
            );
            file
        })
    }

    fn driver_state(&self, spec: &DriverSpec) -> DriverState {
        let is_its = |name: &str| *name == *spec.name;
        let figures = self.user_figures.iter().find(|(port, _)| is_its(port));
        DriverState {
            prefilter: spec.has_prefilter().then_some(Ok(PrefilterBackEnd::Socket)),
            name: spec.name.to_string(),
            back_end: Some(BackEnd::Packet),
            mac: Some([2, 0, 0, 0, 0, 1]),
            user: figures.map(|(_, figures)| *figures),
            cpu_weight_error: self.cpu_weight_errors.get(&*spec.name).cloned(),
            in_switch: false,
            pid: Some(20),
            restarts: 1,
            counters: DriverCounters {
                dropped_by_kernel: Some(5),
                ..DriverCounters::from_array([3, 4, 640, 10, 128, 2])
            },
            reason: None,
            refused: Vec::new(),
        }
    }

    fn table_for_readers(&mut self, bytes: u64) -> OwnedFd {
        let made = || sys::file::fixed("table", bytes).unwrap();
        sys::file::read_only(self.table.get_or_insert_with(made)).unwrap()
    }

    /// Each part is at the place of its number.
    fn user_page(&self, port: &str, question: UserQuestion) -> Result<UserPage, String> {
        let rows = self.user_pages.get(question.from as usize);
        let rows = rows.ok_or_else(|| format!("nothing of {port}"))?;
        let next = question.from + 1;
        Ok(UserPage {
            question,
            rows: rows.clone(),
            next: ((next as usize) < self.user_pages.len()).then_some(next),
        })
    }

    /// Users are numbers here.
    fn listen_for(&mut self, path: &str, owner: SocketOwner) -> Result<Option<u32>, NoSocket> {
        self.requested.push(path.to_owned());
        let number = |name: &String| name.parse::<u32>().ok();
        let no = |key, found: String| NoSocket {
            key,
            expected: String::new(),
            found,
        };
        if self.taken.contains(path) {
            let found = format!("{path}, in use by another process");
            return Err(no(SocketKey::Socket, found));
        }
        if owner
            .user
            .as_ref()
            .is_some_and(|name| number(name).is_none())
        {
            return Err(no(SocketKey::User, "nobody".to_owned()));
        }
        self.listening.insert(path.to_owned());
        let peer = owner.peer_user.as_ref().and_then(number);
        self.owners.insert(path.to_owned(), owner);
        Ok(peer)
    }
}

fn run_supervisor(mut link: Link<EventToControl, ControlRequest>, supervisor: &Mutex<Supervisor>) {
    while let Ok(LinkEvent::Message(ask, _)) = link.recv() {
        let mut supervisor = supervisor.lock().unwrap();
        if supervisor.stalled {
            supervisor.unanswered += 1;
            continue;
        }
        let (answer, fd) = match ask {
            ControlRequest::Ready => {
                supervisor.ready += 1;
                continue;
            }
            ControlRequest::Frozen => {
                supervisor.frozen += 1;
                continue;
            }
            ControlRequest::SwitchGone => {
                supervisor.losses += 1;
                continue;
            }
            ControlRequest::Sockets(SocketRequest::Unlisten { path }) => {
                assert!(supervisor.listening.remove(&*path), "{path} did not listen");
                continue;
            }
            ControlRequest::Sockets(SocketRequest::Listen { path })
                if supervisor.taken.contains(&*path) =>
            {
                let error = Some(format!("{path}, in use by another process"));
                (
                    EventToControl::Sockets(SocketAnswer::Listening { path, error }),
                    None,
                )
            }
            ControlRequest::Sockets(SocketRequest::Listen { path }) => {
                supervisor.listening.insert(path.to_string());
                let fd = memory_file(1);
                (
                    EventToControl::Sockets(SocketAnswer::Listening { path, error: None }),
                    Some(fd),
                )
            }
            ControlRequest::Sockets(SocketRequest::ListenFor { path, owner, .. }) => {
                match supervisor.listen_for(&path, owner) {
                    Ok(peer) => {
                        let outcome = Ok(peer);
                        (
                            EventToControl::Sockets(SocketAnswer::ListeningFor { path, outcome }),
                            Some(memory_file(1)),
                        )
                    }
                    Err(no) => {
                        let outcome = Err(no);
                        (
                            EventToControl::Sockets(SocketAnswer::ListeningFor { path, outcome }),
                            None,
                        )
                    }
                }
            }
            ControlRequest::Processes => (EventToControl::Processes(processes()), None),
            ControlRequest::ProcessUsage => {
                (EventToControl::ProcessUsage(vec![CONTROL_USAGE]), None)
            }
            ControlRequest::Sockets(SocketRequest::Dirs) => {
                let all = SocketDir {
                    path: "/".to_owned(),
                    below: true,
                };
                (EventToControl::Sockets(SocketAnswer::Dirs(vec![all])), None)
            }
            ControlRequest::Sockets(SocketRequest::Shared) => {
                let shared = supervisor.shared.clone();
                (EventToControl::Sockets(SocketAnswer::Shared(shared)), None)
            }
            ControlRequest::Users(UserPortRequest::ForwardReach) => (
                EventToControl::Users(UserPortAnswer::ForwardReach(ForwardReach::default())),
                None,
            ),
            ControlRequest::Sockets(SocketRequest::Dials(all)) => {
                let mut beyond = all
                    .iter()
                    .filter(|(_, path)| supervisor.taken.contains(&**path));
                let error = beyond.next().map(|(_, path)| format!("{path}: not there"));
                if error.is_none() {
                    let all = all.into_iter();
                    supervisor.dials = all.map(|(port, path)| (port, path.to_string())).collect();
                }
                (EventToControl::Sockets(SocketAnswer::Dials { error }), None)
            }
            ControlRequest::Drivers(PortDriverRequest::Set(specs)) => {
                let bad = |s: &&DriverSpec| supervisor.taken.contains(&interface_of(s));
                let reason = |s: &DriverSpec| format!("interface {}: busy", interface_of(s));
                let error = specs
                    .iter()
                    .find(bad)
                    .map(|s| (s.name.to_string(), reason(s)));
                if error.is_none() {
                    supervisor.drivers = specs;
                }
                (
                    EventToControl::Drivers(PortDriverAnswer::Set { error }),
                    None,
                )
            }
            ControlRequest::Guests(GuestRequest::Watch(threads)) => {
                supervisor.watch = threads;
                continue;
            }
            ControlRequest::Drivers(PortDriverRequest::Rooms(rooms)) => {
                supervisor.rooms = texts(rooms);
                continue;
            }
            // Tests send the events themselves.
            ControlRequest::Events { .. } => continue,
            ControlRequest::Guests(GuestRequest::Watched) => (
                EventToControl::Guests(GuestAnswer::Watched(watched(&supervisor.watch))),
                None,
            ),
            ControlRequest::Guests(GuestRequest::FoundVcpus) => {
                let found = found(&supervisor.watch);
                (EventToControl::Guests(GuestAnswer::FoundVcpus(found)), None)
            }
            ControlRequest::Drivers(PortDriverRequest::States) => {
                let specs = supervisor.drivers.iter();
                let states = specs.map(|spec| supervisor.driver_state(spec)).collect();
                (
                    EventToControl::Drivers(PortDriverAnswer::States(states)),
                    None,
                )
            }
            ControlRequest::Users(UserPortRequest::Networks(_)) => continue,
            ControlRequest::Users(UserPortRequest::Table { port, question }) => {
                let page = supervisor.user_page(&port, question);
                let event = EventToControl::Users(UserPortAnswer::Page {
                    port: port.to_string(),
                    question,
                    page,
                });
                (event, None)
            }
            ControlRequest::Drivers(PortDriverRequest::Speeds) => {
                let speeds = supervisor.speeds.clone();
                (
                    EventToControl::Drivers(PortDriverAnswer::Speeds(speeds)),
                    None,
                )
            }
            ControlRequest::Drivers(PortDriverRequest::Prefilter(port)) => {
                let refused = supervisor.no_prefilter.map(ToOwned::to_owned);
                let table = supervisor.prefilter(&port).try_clone().unwrap();
                let fd = refused.is_none().then_some(table);
                let answer = PortDriverAnswer::Prefilter {
                    port: port.to_string(),
                    table: refused.map_or(Ok(()), Err),
                };
                (EventToControl::Drivers(answer), fd)
            }
            ControlRequest::ConnectionTable { bytes } => {
                let made = supervisor
                    .no_table
                    .map_or(Ok(()), |why| Err(why.to_owned()));
                let reader = made.is_ok().then(|| supervisor.table_for_readers(bytes));
                (EventToControl::ConnectionTable(made), reader)
            }
            other => panic!("control does not say {other:?}"),
        };
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        // A control that is gone may have sent more before.
        let _ = link.send(&answer, &fds);
    }
}

/// Reports two vCPUs for each port that names threads.
fn found(threads: &[(PortId, String)]) -> FoundVcpus {
    let vcpus = PortVcpus {
        found: 2,
        by: "names".to_owned(),
        reason: None,
    };
    let ports = threads.iter();
    FoundVcpus {
        ports: ports.map(|(port, _)| (*port, vcpus.clone())).collect(),
        missing: Vec::new(),
    }
}

/// Reports two threads for each port that names threads.
fn watched(threads: &[(PortId, String)]) -> WatchedGuests {
    WatchedGuests {
        by: "off".to_owned(),
        reason: Some("no right".to_owned()),
        no_halts: None,
        threads: threads.iter().map(|(port, _)| (*port, 2)).collect(),
    }
}

/// Returns values by the texts of names.
fn texts<T>(all: Vec<(PortName, T)>) -> Vec<(String, T)> {
    let all = all.into_iter();
    all.map(|(name, value)| (name.to_string(), value)).collect()
}

/// The name of a driver's interface; empty without one.
pub(super) fn interface_of(spec: &DriverSpec) -> String {
    let device = spec.kind.interface();
    device.map_or(String::new(), |device| device.interface.to_string())
}

const CONTROL_USAGE: ProcessUsage = ProcessUsage {
    pid: 11,
    cpu_ms: 1500,
    wake_ups: 70,
    resident_bytes: 8 << 20,
    anonymous_bytes: 2 << 20,
    mapped_bytes: 9 << 20,
};

fn processes() -> Vec<ProcessInfo> {
    let info = |name: &str, pid| ProcessInfo {
        name: name.to_owned(),
        pid,
        restarts: 0,
        uptime_ms: 61_000,
    };
    vec![
        info("supervisor", 10),
        info("control", 11),
        info("switch", 0),
    ]
}

fn memory_file(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

/// The engine's environment, which outlives it.
pub(super) struct World {
    switch: Arc<Mutex<Switch>>,
    supervisor: Arc<Mutex<Supervisor>>,
    pub(super) state: StateFile,
    counters: OwnedFd,
    clock: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    /// Copies of the peers' ends; shutting them down is how a peer goes away.
    ends: Vec<OwnedFd>,
    /// Timeout of the engine's requests.
    timeout: Duration,
}

impl World {
    /// A world with these desired ports, in segments blue (10) and red (20).
    pub(super) fn new(ports: Vec<PortSpec>) -> Self {
        let segment = |name: &str, vlan| SegmentSpec {
            name: name.to_owned(),
            vlan: Some(vlan),
            neighbour_suppression: false,
        };
        let mut desired = DesiredState {
            segments: vec![segment("blue", 10), segment("red", 20)],
            ports: ports.into(),
            ..DesiredState::default()
        };
        config::desired::check(&desired, "/run/test".as_ref()).unwrap();
        config::desired::normalise(&mut desired);
        let world = Self::empty();
        SavedState::initial(desired).store(&world.state).unwrap();
        world
    }

    /// A world with an empty state file.
    pub(super) fn empty() -> Self {
        Self {
            switch: Arc::default(),
            supervisor: Arc::default(),
            state: StateFile::create().unwrap(),
            counters: memory_file(port::counters::SIZE),
            clock: Arc::new(AtomicU64::new(1_000_000)),
            threads: Vec::new(),
            ends: Vec::new(),
            timeout: ENGINE_TIMEOUT,
        }
    }

    /// Shortens the timeout, for tests in which a peer does not reply.
    pub(super) fn shorten_timeout(&mut self) {
        self.timeout = Duration::from_secs(1);
    }

    pub(super) fn switch(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock().unwrap()
    }

    pub(super) fn supervisor(&self) -> MutexGuard<'_, Supervisor> {
        self.supervisor.lock().unwrap()
    }

    /// Starts control, for the first time or again.
    pub(super) fn start(&mut self) -> std::io::Result<Engine> {
        let (control_end, switch_end) = link::pair().unwrap();
        let (own, theirs) = link::pair().unwrap();
        self.ends = vec![switch_end.try_clone().unwrap(), theirs.try_clone().unwrap()];
        let supervision: Link<EventToControl, ControlRequest> = Link::new(theirs);
        let start = EventToControl::Start {
            runtime_dir: "/run/test".to_owned(),
            frozen: false,
        };
        let api = memory_file(1);
        let state = self.state.as_fd();
        let fds = [
            control_end.as_fd(),
            api.as_fd(),
            state,
            self.counters.as_fd(),
        ];
        supervision.send(&start, &fds).unwrap();
        let switch = Arc::clone(&self.switch);
        self.threads.push(std::thread::spawn(move || {
            run_switch(Link::new(switch_end), &switch);
        }));
        let supervisor = Arc::clone(&self.supervisor);
        self.threads.push(std::thread::spawn(move || {
            run_supervisor(supervision, &supervisor);
        }));
        let clock = Arc::clone(&self.clock);
        let clock = move || Duration::from_millis(clock.load(Relaxed));
        let mut own = Link::new(own);
        let start = receive_start(&mut own)?;
        let parts = EngineParts {
            events: EventLog::default(),
            api_gate: ApiGate::default(),
            pipes: PipeServer::new()?,
        };
        let clock: (Clock, _) = (Rc::new(clock), self.timeout);
        let started = Engine::start_with(start, own, parts, clock);
        let mut engine = RUNTIME.with(|runtime| runtime.block_on(started))?;
        // The switch executes all earlier commands before anything else happens.
        engine.stats().map_err(std::io::Error::other)?;
        Ok(engine)
    }

    /// Returns the paths on which the supervisor listens, once it has handled all messages.
    pub(super) fn listening(&self, engine: &mut Engine) -> Vec<String> {
        let processes =
            async |e: &SharedEngine<'_>| e.with(|e| e.links.supervisor.processes()).await;
        engine.complete(processes).unwrap();
        self.supervisor().listening.iter().cloned().collect()
    }

    pub(super) fn saved(&self) -> SavedState {
        SavedState::load(&self.state).unwrap()
    }

    /// Returns the state file, opened for reading only.
    pub(super) fn file_that_cannot_be_written(&self) -> StateFile {
        let fd = self.state.as_fd().as_raw_fd();
        let file = std::fs::File::open(format!("/proc/self/fd/{fd}")).unwrap();
        StateFile::from_fd(file.into())
    }

    /// Writes another document to the state file.
    pub(super) fn store(&self, saved: &mut SavedState) {
        saved.store(&self.state).unwrap();
    }

    /// Sends an event of the switch.
    pub(super) fn report(&self, report: &SwitchEvent) {
        let end = self.ends[0].try_clone().unwrap();
        Link::<SwitchEvent, Request>::new(end)
            .send(report, &[])
            .unwrap();
    }

    /// Sends the replies that the switch has held back, and holds back no more.
    pub(super) fn release(&self) {
        let mut switch = self.switch();
        switch.hold = None;
        let held = std::mem::take(&mut switch.held);
        drop(switch);
        held.iter().for_each(|done| self.report(done));
    }

    pub(super) fn pass(&self, time: Duration) {
        self.clock.fetch_add(time.as_millis() as u64, Relaxed);
    }

    /// Closes the switch's end of its link.
    pub(super) fn hang_up_switch(&self) {
        rustix::net::shutdown(&self.ends[0], rustix::net::Shutdown::Both).unwrap();
    }

    /// Closes the supervisor's end of its link.
    pub(super) fn hang_up_supervisor(&self) {
        rustix::net::shutdown(&self.ends[1], rustix::net::Shutdown::Both).unwrap();
    }

    /// Sends an event of the supervisor.
    pub(super) fn tell(&self, tell: &EventToControl) {
        let end = self.ends[1].try_clone().unwrap();
        Link::<EventToControl, ControlRequest>::new(end)
            .send(tell, &[])
            .unwrap();
    }

    /// Sends an upcall; `false` when the ring is full.
    pub(super) fn send_upcall(&self, id: u64, key: FlowKey) -> bool {
        let mut switch = self.switch();
        let (upcalls, _) = switch.rings.as_mut().unwrap();
        let sent = upcalls.send(&upcall(id, key));
        upcalls.ring_bell();
        sent
    }

    /// Returns the answers in the switch's ring, after following them.
    pub(super) fn answers(&self) -> Vec<Answer> {
        self.switch().read_answers()
    }

    /// Sends one frame without a flow, and checks its upcall, the answer, and what control sent
    /// with it.
    pub(super) fn ask(&self, engine: &mut Engine, key: FlowKey) -> Action {
        assert!(self.send_upcall(7, key));
        while engine.handle_upcalls().unwrap() {}
        let mut answers = self.answers();
        let last = answers.pop().expect("an upcall has an answer");
        let Answer::Install {
            upcall,
            action,
            key: of,
            ..
        } = last
        else {
            panic!("the answer comes last, not {last:?}");
        };
        assert_eq!(upcall, Some(7));
        assert_eq!(&of, key.masked(&policy::DECISION_MASK).words());
        action
    }

    /// Returns the answer to this upcall.
    pub(super) fn ask_with(&self, engine: &mut Engine, upcall: &Upcall) -> Answer {
        {
            let mut switch = self.switch();
            let (upcalls, _) = switch.rings.as_mut().unwrap();
            assert!(upcalls.send(upcall));
            upcalls.ring_bell();
        }
        while engine.handle_upcalls().unwrap() {}
        self.answers().pop().expect("an upcall has an answer")
    }

    /// Returns the action for a frame: that of its flow, or of an upcall.
    pub(super) fn frame(&self, engine: &mut Engine, key: FlowKey) -> Action {
        let masked = *key.masked(&policy::DECISION_MASK).words();
        let cached = self.switch().flows.get_mut(&masked).map(|flow| {
            flow.idle_ms = 0;
            flow.action
        });
        cached.unwrap_or_else(|| self.ask(engine, key))
    }

    /// Lets time pass for the engine and for the switch's flows, with ticks.
    pub(super) fn seconds(&self, engine: &mut Engine, n: u64) {
        for _ in 0..n {
            self.pass(Duration::from_secs(1));
            for flow in self.switch().flows.values_mut() {
                flow.idle_ms += 1000;
            }
            engine.tick().unwrap();
            self.settle(engine);
            self.answers();
        }
    }

    /// Waits until the switch has executed all commands, and the engine has read all events.
    pub(super) fn settle(&self, engine: &mut Engine) {
        engine.stats().unwrap();
        engine.handle_switch_events().unwrap();
        assert!(engine.stations.open.is_none());
    }

    /// Returns the commands since the last call.
    pub(super) fn orders(&self) -> Vec<String> {
        std::mem::take(&mut self.switch().orders)
    }

    /// Returns the flows removed since the last call, as "in-port smac > dmac".
    pub(super) fn removed(&self) -> Vec<String> {
        let mut switch = self.switch();
        switch.read_answers();
        let mut all: Vec<_> = switch.removed.drain(..).map(|key| line(&key)).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Returns the flows of the switch.
    pub(super) fn cached(&self) -> Vec<String> {
        let mut switch = self.switch();
        switch.read_answers();
        let flows = switch.flows.keys();
        let mut all: Vec<_> = flows.map(|words| line(&key_from_words(words))).collect();
        all.sort();
        all
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = rustix::net::shutdown(end, rustix::net::Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let done = thread.join();
            assert!(done.is_ok() || std::thread::panicking(), "a peer failed");
        }
    }
}

fn line(key: &FlowKey) -> String {
    let (from, to) = (key.smac().0[5], key.dmac().0[5]);
    format!("{}: {from} > {to}", key.in_port())
}

pub(super) fn upcall(id: u64, key: FlowKey) -> Upcall {
    Upcall {
        id,
        key: *key.words(),
        frame_len: 60,
        headers: vec![0; 60],
        connection: None,
    }
}

/// Returns the MAC address with this number; 255 is broadcast.
pub(super) fn mac(n: u8) -> MacAddr {
    match n {
        255 => MacAddr([255; 6]),
        n => MacAddr([0x52, 0x54, 0, 0, 0, n]),
    }
}

/// Returns the key of an untagged frame that comes in by a port.
pub(super) fn key(port: u32, from: u8, to: u8) -> FlowKey {
    FlowKey::default()
        .with_in_port(port)
        .with_smac(mac(from))
        .with_dmac(mac(to))
}

/// Returns an access port in a segment, whose guest may be many.
pub(super) fn port(name: &str, segment: &str) -> PortSpec {
    PortSpec {
        segment: Some(segment.to_owned()),
        port_security: PortSecuritySpec::open(),
        ..PortSpec::vhost_user(name, format!("{name}.sock"))
    }
}

/// Returns the action to a port, untagged.
pub(super) fn to(port: u32) -> Action {
    let port = PortId(port);
    Action::Unicast { port, tag: None }
}

/// Returns the action to all of the segment: 0 default, 1 blue, 2 red.
pub(super) fn flood(segment: u16) -> Action {
    Action::flood(SegmentId(segment))
}

thread_local! {
    static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
}

/// Commands one by one.
impl Engine {
    /// Completes requests; nothing else is served meanwhile.
    pub(super) fn complete<T>(&mut self, requests: impl AsyncFnOnce(&SharedEngine<'_>) -> T) -> T {
        let done = async {
            let watch = self.links.watch().unwrap();
            let engine = SharedEngine::new(self);
            let receive = || engine.with(|e| e.links.receive());
            watch.complete(receive, requests(&engine)).await.unwrap()
        };
        RUNTIME.with(|runtime| runtime.block_on(done))
    }

    pub(super) fn status(&mut self) -> Result<StatusDocument, Problem> {
        self.complete(async |e: &SharedEngine<'_>| status::status(e).await)
    }

    pub(super) fn stats(&mut self) -> Result<StatsDocument, Problem> {
        self.complete(async |e: &SharedEngine<'_>| status::traffic_stats(e).await)
    }

    pub(super) fn egress(&mut self) -> Result<EgressPortsDocument, Problem> {
        self.complete(async |e: &SharedEngine<'_>| egress::ports(e).await)
    }

    pub(super) fn listen_again(&mut self) -> Result<(), Problem> {
        self.complete(async |e: &SharedEngine<'_>| changes::listen_again(e).await)
    }

    pub(super) fn follow_speeds(&mut self) -> Result<(), Problem> {
        self.complete(async |e: &SharedEngine<'_>| changes::follow_speeds(e).await)
    }

    pub(super) fn user_flows(
        &mut self,
        port: &str,
        limit: Option<u16>,
    ) -> Result<UserFlowsDocument, Problem> {
        let filter = UserFlowsFilter {
            limit,
            stalled_seconds: None,
        };
        self.complete(async |e: &SharedEngine<'_>| user::flows(e, port, &filter).await)
    }

    pub(super) fn user_leases(&mut self, port: &str) -> Result<UserLeasesDocument, Problem> {
        self.complete(async |e: &SharedEngine<'_>| user::leases(e, port).await)
    }

    pub(super) fn user_forwards(&mut self, port: &str) -> Result<UserForwardsDocument, Problem> {
        self.complete(async |e: &SharedEngine<'_>| user_forwards::forwards(e, port).await)
    }

    pub(super) fn facts(&mut self) -> Result<Facts, Problem> {
        self.complete(async |e: &SharedEngine<'_>| status::facts(e).await)
    }

    pub(super) fn trace(&mut self, request: &TraceRequest) -> Result<TraceDocument, Problem> {
        self.complete(async |e: &SharedEngine<'_>| trace::trace(e, request).await)
    }

    pub(super) fn capture(
        &mut self,
        port: &str,
        query: &CaptureQuery,
    ) -> Result<StartedCapture, Problem> {
        self.complete(async |e: &SharedEngine<'_>| captures::capture(e, port, query).await)
    }

    pub(super) fn end_capture(&mut self, id: u32) -> Result<(), Problem> {
        self.captures.end(id, &mut self.links.switch)
    }

    pub(super) fn end_captures(&mut self) -> std::io::Result<()> {
        self.captures.end_all(&mut self.links.switch)
    }

    pub(super) fn flush_fdb(&mut self, filter: &FdbFilter) -> Result<FdbFlushResult, Problem> {
        flush::flush_fdb(&mut self.store, &mut self.forwarding, filter)
    }

    pub(super) fn purge_flows(&mut self, port: Option<&str>) -> Result<(), Problem> {
        self.complete(async |e: &SharedEngine<'_>| flush::purge_flows(e, port).await)
    }

    pub(super) fn queue_rule_counts(&mut self, reply: Reply<CountSnapshot>) {
        self.rule_counts.queue(reply, &mut self.links.switch);
    }

    pub(super) fn queue_flow_dump(&mut self, filter: &FlowsFilter, reply: Reply<FlowsDocument>) {
        let numbers = &self.store.saved.numbers;
        let switch = &mut self.links.switch;
        self.flow_dumps.queue(filter, reply, numbers, switch);
    }

    /// Plans a change and applies it.
    pub(super) fn try_change(&mut self, request: &AskedFor) -> Result<DesiredSnapshot, Problem> {
        let plan = Plan::new(&self.store.basis(), request)?;
        self.change(request, plan)
    }

    /// Applies a planned change, or plans it again, as the API's side does.
    pub(super) fn change(
        &mut self,
        request: &AskedFor,
        plan: Plan,
    ) -> Result<DesiredSnapshot, Problem> {
        let planned = Box::new((request.clone(), plan));
        let changed =
            self.complete(async |e: &SharedEngine<'_>| changes::execute(e, planned).await)?;
        match changed.desired {
            Some(desired) => Ok(desired),
            None => {
                let plan = changed.planned.1.replan(changed.basis, request)?;
                self.change(request, plan)
            }
        }
    }

    pub(super) fn change_to(&mut self, change: Change) -> Result<DesiredSnapshot, Problem> {
        self.try_change(&asked(change))
    }

    pub(super) fn add_port(&mut self, spec: PortSpec) -> Result<PortStatus, Problem> {
        let desired = self.change_to(Change::AddPort(Box::new(spec)))?;
        Ok(desired.port.unwrap())
    }

    pub(super) fn set_port(
        &mut self,
        name: &str,
        patch: &serde_json::Value,
    ) -> Result<PortStatus, Problem> {
        let change = Change::SetPort(name.to_owned(), patch.clone());
        Ok(self.change_to(change)?.port.unwrap())
    }

    pub(super) fn patch_state(&mut self, patch: serde_json::Value) -> Result<(), Problem> {
        self.change_to(Change::PatchState(patch)).map(drop)
    }

    pub(super) fn remove_port(&mut self, name: &str) -> Result<(), Problem> {
        self.change_to(Change::RemovePort(name.to_owned()))
            .map(drop)
    }
}

/// A change without a condition.
pub(super) fn asked(change: Change) -> AskedFor {
    AskedFor {
        change,
        condition: Condition::Any,
    }
}
