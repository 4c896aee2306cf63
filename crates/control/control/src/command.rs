//! Commands of the API server to the engine: one message for a request, the reply over a channel of
//! its own.
//!
//! The engine owns all state and is one task; it receives one [`Command`] after the other and never
//! waits for a client.

use std::sync::Arc;

use api::v1::{
    CaptureQuery, ConnectionsCount, ConnectionsDocument, ConnectionsFilter, ConnectionsFlush,
    ConnectionsSelection, DesiredState, EgressPortsDocument, EventKind, FdbDocument, FdbFilter,
    FdbFlushResult, FlowsDocument, FlowsFilter, PipesDocument, PortStatus, PortsDocument,
    PrefilterDocument, Problem, Progress, Requester, StatsDocument, StatusDocument, Step,
    TraceDocument, TraceRequest, UserFlowsDocument, UserFlowsFilter, UserForwardsDocument,
    UserLeasesDocument,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use ipc::capture::Reader;
use ipc::peer::Peer;
use ipc::timeouts;

use crate::capture::CaptureSlots;
use crate::events::{self, Events};
use crate::metrics::Facts;
pub use crate::plan::{Basis, Condition, Plan, Request};
use crate::rule_counts::CountSnapshot;
use config::desired::{Difference, version};

/// Most attempts to plan a change when other changes are made meanwhile.
const MAX_PLANS: usize = 16;

/// Result of a command.
pub type Answer<T> = Result<T, Problem>;

/// Channel for the engine's reply. Sending fails when the client is gone, which is not an error.
pub type Reply<T> = oneshot::Sender<Answer<T>>;

/// The desired state, and the effects of a change of it.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredSnapshot {
    /// The state; after a preview, the state that the change would lead to.
    pub state: DesiredState,
    /// Version of the desired state in effect.
    pub version: String,
    /// The port that a change was about, if there is one.
    pub port: Option<PortStatus>,
    /// Differences that a change makes, where the client requests them.
    pub changes: Option<Vec<Step>>,
}

/// Result of a planned change. It returns everything that is not needed any more to the requester:
/// freeing many rules would take the engine too long.
#[derive(Debug)]
pub struct ChangeOutcome {
    /// The new desired state; `None` if another change was made since the planning, and nothing was
    /// done.
    pub desired: Option<DesiredSnapshot>,
    /// The state before the change, or the current one.
    pub basis: Basis,
    /// The request and its plan.
    pub planned: Box<(Request, Plan)>,
}

/// A started capture.
#[derive(Debug)]
pub struct StartedCapture {
    /// Number of the capture.
    pub number: u32,
    /// Reader of its frames.
    pub reader: Reader,
    /// Keeps the capture alive: it ends when the last clone is dropped.
    pub held: Arc<()>,
}

/// A command to the engine.
#[derive(Debug)]
pub enum Command {
    /// Returns the status of processes, switch, segments and ports.
    Status(Reply<StatusDocument>),
    /// Returns the status of the ports.
    Ports(Reply<PortsDocument>),
    /// Returns the pipes with their ends.
    Pipes(Reply<PipesDocument>),
    /// Returns the data of the metrics page.
    Metrics(Reply<Facts>),
    /// Returns the desired state.
    Desired(Reply<DesiredSnapshot>),
    /// Returns the basis for planning a change.
    Basis(Reply<Basis>),
    /// Applies a planned change; see [`config::desired::changed`] for its errors.
    Change(Box<(Request, Plan)>, Reply<ChangeOutcome>),
    /// Returns traffic and drops.
    Stats(Reply<StatsDocument>),
    /// Returns the use of the scheduled ports.
    Egress(Reply<EgressPortsDocument>),
    /// Returns the forwarding database.
    Fdb(FdbFilter, Reply<FdbDocument>),
    /// Flushes learned FDB entries.
    FlushFdb(FdbFilter, Reply<FdbFlushResult>),
    /// Purges the cached flows, of the port of this name or all.
    PurgeFlows(Option<String>, Reply<()>),
    /// Traces frames.
    Trace(TraceRequest, Reply<TraceDocument>),
    /// Returns the busiest flows.
    Flows(FlowsFilter, Reply<FlowsDocument>),
    /// Returns connections.
    Connections(ConnectionsFilter, Reply<ConnectionsDocument>),
    /// Returns the number of connections.
    ConnectionsCount(ConnectionsSelection, Reply<ConnectionsCount>),
    /// Flushes connections, and publishes the event, with this requester.
    FlushConnections(
        ConnectionsSelection,
        Option<Requester>,
        Reply<ConnectionsFlush>,
    ),
    /// Returns the entries of the prefilter of the port of this name.
    Prefilter(String, Reply<PrefilterDocument>),
    /// Returns flows of the user port of this name.
    UserFlows(String, UserFlowsFilter, Reply<UserFlowsDocument>),
    /// Returns the leases of the user port of this name.
    UserLeases(String, Reply<UserLeasesDocument>),
    /// The forwards of a user port.
    UserForwards(String, Reply<UserForwardsDocument>),
    /// Returns the counters of rules.
    RuleCounts(Reply<CountSnapshot>),
    /// Starts to capture the frames of the port of this name.
    Capture(String, Box<CaptureQuery>, Reply<StartedCapture>),
    /// Ends the capture of this number.
    EndCapture(u32, Reply<()>),
}

/// Handle of the engine for other threads. Clones refer to the same engine.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    capture_slots: CaptureSlots,
    events: Events,
    /// The process that the commands come from, if it is known.
    peer: Option<Peer>,
}

/// Returns a handle, and the receiver of its commands; at most `depth` of them are queued. Changes
/// are published to `events`.
///
/// # Panics
/// When `depth` is 0.
pub fn engine_channel(depth: usize, events: Events) -> (EngineHandle, mpsc::Receiver<Command>) {
    let (commands, receiver) = mpsc::channel(depth);
    let handle = EngineHandle {
        commands,
        capture_slots: CaptureSlots::default(),
        events,
        peer: None,
    };
    (handle, receiver)
}

impl EngineHandle {
    /// Returns the slots for captures.
    #[must_use]
    pub fn capture_slots(&self) -> &CaptureSlots {
        &self.capture_slots
    }

    /// Returns the events.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Returns a handle of the same engine for a process.
    #[must_use]
    pub fn on_behalf_of(&self, peer: Option<Peer>) -> Self {
        Self {
            peer,
            ..self.clone()
        }
    }

    fn requester(&self) -> Option<Requester> {
        self.peer.map(events::requester)
    }

    /// Sends [`Command::Capture`], and publishes the event.
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; and 404 without such a port.
    pub async fn capture(&self, port: String, query: CaptureQuery) -> Answer<StartedCapture> {
        let (name, filter) = (port.clone(), query.filter.clone());
        let query = Box::new(query);
        let started = self
            .call(|reply| Command::Capture(port, query, reply))
            .await?;
        self.emit_capture(started.number, &name, &filter, Progress::Started);
        Ok(started)
    }

    /// Ends a capture whose client needs no more frames, and publishes the event.
    pub fn capture_ended(&self, number: u32, port: &str, filter: &str) {
        self.end_capture_nowait(number);
        self.emit_capture(number, port, filter, Progress::Done);
    }

    fn emit_capture(&self, number: u32, port: &str, filter: &str, progress: Progress) {
        let what = EventKind::Capture {
            by: self.requester(),
            port: port.to_owned(),
            number,
            filter: events::printable(filter),
            progress,
        };
        self.events.emit(what, 0);
    }

    /// Sends [`Command::EndCapture`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; and 404 without such a capture.
    pub async fn end_capture(&self, id: u32) -> Answer<()> {
        self.call(|reply| Command::EndCapture(id, reply)).await
    }

    /// Sends [`Command::EndCapture`] without waiting.
    fn end_capture_nowait(&self, id: u32) {
        let (reply, _) = oneshot::channel();
        // An engine that is gone has no captures; a busy one finds that the capture is not held any
        // more.
        let _ = self.commands.try_send(Command::EndCapture(id, reply));
    }

    /// Sends [`Command::Status`].
    ///
    /// # Errors
    /// The engine's problem, or 503 when it is gone, busy or does not reply; the same for all
    /// commands.
    pub async fn status(&self) -> Answer<StatusDocument> {
        self.call(Command::Status).await
    }

    /// Sends [`Command::Ports`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn ports(&self) -> Answer<PortsDocument> {
        self.call(Command::Ports).await
    }

    /// Sends [`Command::Pipes`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn pipes(&self) -> Answer<PipesDocument> {
        self.call(Command::Pipes).await
    }

    /// Sends [`Command::Metrics`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn metrics(&self) -> Answer<Facts> {
        self.call(Command::Metrics).await
    }

    /// Sends [`Command::Desired`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn desired(&self) -> Answer<DesiredSnapshot> {
        self.call(Command::Desired).await
    }

    /// Sends [`Command::Change`], and publishes the events; returns the desired state before and
    /// after.
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn change(&self, request: Request) -> Answer<(DesiredState, DesiredSnapshot)> {
        let plan = Plan::new(&self.call(Command::Basis).await?, &request)?;
        let mut planned = Box::new((request, plan));
        for _ in 0..MAX_PLANS {
            let changed = self.call(|reply| Command::Change(planned, reply)).await?;
            if let Some(desired) = changed.desired {
                let before = changed.basis.desired().clone();
                let difference = Difference::to_report(&before, &desired.state);
                self.events.emit_difference(self.peer, difference);
                return Ok((before, desired));
            }
            planned = changed.planned;
            planned.1 = planned.1.replan(changed.basis, &planned.0)?;
        }
        let detail = "too many concurrent changes; try again";
        Err(Problem::unavailable(detail))
    }

    /// Returns the desired state, and the one that a change would lead to.
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn preview(&self, request: &Request) -> Answer<(DesiredState, DesiredSnapshot)> {
        let basis = self.call(Command::Basis).await?;
        let plan = Plan::new(&basis, request)?;
        let desired = DesiredSnapshot {
            state: plan.after().clone(),
            version: version(basis.desired()),
            port: None,
            changes: None,
        };
        Ok((basis.desired().clone(), desired))
    }

    /// Sends [`Command::Stats`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn stats(&self) -> Answer<StatsDocument> {
        self.call(Command::Stats).await
    }

    /// Sends [`Command::Egress`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn egress(&self) -> Answer<EgressPortsDocument> {
        self.call(Command::Egress).await
    }

    /// Sends [`Command::Fdb`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn fdb(&self, filter: FdbFilter) -> Answer<FdbDocument> {
        self.call(|reply| Command::Fdb(filter, reply)).await
    }

    /// Sends [`Command::FlushFdb`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; and 404 without such a port or segment.
    pub async fn flush_fdb(&self, filter: FdbFilter) -> Answer<FdbFlushResult> {
        let FdbFilter { segment, port } = filter.clone();
        let flushed = self.call(|reply| Command::FlushFdb(filter, reply)).await?;
        let what = EventKind::FdbFlushed {
            by: self.requester(),
            segment,
            port,
            count: flushed.flushed,
        };
        self.events.emit(what, 0);
        Ok(flushed)
    }

    /// Sends [`Command::PurgeFlows`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; and 404 without such a port.
    pub async fn purge_flows(&self, port: Option<String>) -> Answer<()> {
        let name = port.clone();
        self.call(|reply| Command::PurgeFlows(port, reply)).await?;
        let (by, port) = (self.requester(), name);
        self.events.emit(EventKind::FlowsPurged { by, port }, 0);
        Ok(())
    }

    /// Sends [`Command::Trace`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn trace(&self, request: TraceRequest) -> Answer<TraceDocument> {
        self.call(|reply| Command::Trace(request, reply)).await
    }

    /// Sends [`Command::Flows`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn flows(&self, filter: FlowsFilter) -> Answer<FlowsDocument> {
        self.call(|reply| Command::Flows(filter, reply)).await
    }

    /// Sends [`Command::Connections`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; 404 without such a port or segment, and 422 for a filter that
    /// is none.
    pub async fn connections(&self, filter: ConnectionsFilter) -> Answer<ConnectionsDocument> {
        self.call(|reply| Command::Connections(filter, reply)).await
    }

    /// Sends [`Command::ConnectionsCount`].
    ///
    /// # Errors
    /// As [`EngineHandle::connections`].
    pub async fn count_connections(
        &self,
        selection: ConnectionsSelection,
    ) -> Answer<ConnectionsCount> {
        self.call(|reply| Command::ConnectionsCount(selection, reply))
            .await
    }

    /// Sends [`Command::FlushConnections`].
    ///
    /// # Errors
    /// As [`EngineHandle::connections`].
    pub async fn flush_connections(
        &self,
        selection: ConnectionsSelection,
    ) -> Answer<ConnectionsFlush> {
        let by = self.requester();
        self.call(|reply| Command::FlushConnections(selection, by, reply))
            .await
    }

    /// Sends [`Command::UserFlows`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; and 404 without such a port.
    pub async fn user_flows(
        &self,
        port: String,
        filter: UserFlowsFilter,
    ) -> Answer<UserFlowsDocument> {
        self.call(|reply| Command::UserFlows(port, filter, reply))
            .await
    }

    /// Sends [`Command::Prefilter`].
    ///
    /// # Errors
    /// As [`EngineHandle::user_flows`].
    pub async fn prefilter(&self, port: String) -> Answer<PrefilterDocument> {
        self.call(|reply| Command::Prefilter(port, reply)).await
    }

    /// Sends [`Command::UserLeases`].
    ///
    /// # Errors
    /// As [`EngineHandle::user_flows`].
    pub async fn user_leases(&self, port: String) -> Answer<UserLeasesDocument> {
        self.call(|reply| Command::UserLeases(port, reply)).await
    }

    /// Sends [`Command::UserForwards`].
    ///
    /// # Errors
    /// As [`EngineHandle::user_flows`].
    pub async fn user_forwards(&self, port: String) -> Answer<UserForwardsDocument> {
        self.call(|reply| Command::UserForwards(port, reply)).await
    }

    /// Sends [`Command::RuleCounts`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn rule_counts(&self) -> Answer<CountSnapshot> {
        self.call(Command::RuleCounts).await
    }

    /// Sends one command and waits for its reply, both within [`timeouts::COMMAND`].
    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        let exchange = async {
            let gone = || Problem::unavailable("control is shutting down");
            let command = command(reply);
            self.commands.send(command).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        };
        let timed_out = |_| {
            let seconds = timeouts::COMMAND.as_secs();
            Problem::unavailable(format!("no reply from control within {seconds} s"))
        };
        timeout(timeouts::COMMAND, exchange)
            .await
            .map_err(timed_out)?
    }
}
