//! What the API server asks of the engine: one message a request, the answer over a channel of its own.
//!
//! The engine owns all state and is one task; it takes a [`Command`] after the other from its receiver and
//! never waits for a client.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::v1::{
    Asker, CaptureQuery, EventKind, FdbDocument, FdbFilter, FdbFlushed, FlowsDocument, FlowsFilter,
    PortStatus, PortsDocument, Problem, ProblemKind, Progress, StatsDocument, StatusDocument, Step,
    TraceDocument, TraceRequest, WantedState,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use channel::capture::Reader;
use channel::peer::Peer;

use crate::capture::Places;
use crate::engine::{Basis, Plan};
use crate::events::{self, Events};
use crate::metrics::Facts;
use crate::rule_counts::Counted;
use crate::wanted::{Change, Difference, changed, version};

/// How long a client waits for the engine.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a change is planned anew because another one was faster.
const PLANS: usize = 16;

/// What came of a command.
pub type Answer<T> = Result<T, Problem>;

/// Where the engine puts its answer. Sending fails when the client is gone, which is not an error.
pub type Reply<T> = oneshot::Sender<Answer<T>>;

/// A change that a client asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which.
    pub change: Change,
    /// On what condition.
    pub condition: Condition,
}

impl Request {
    /// What is wanted after it, where `state` is wanted before; checked and normalised.
    ///
    /// # Errors
    /// 412 when the condition does not hold, and what [`crate::wanted::changed`] says.
    pub fn against(&self, state: &WantedState, runtime_dir: &Path) -> Answer<WantedState> {
        self.condition.check(&version(state))?;
        changed(state, &self.change, runtime_dir)
    }
}

/// Which versions of the wanted state a client means to change (`If-Match`, RFC 9110, 13.1.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Whatever it is by now.
    #[default]
    Any,
    /// One of these ([`crate::wanted::version`]); without any, none.
    OneOf(Vec<String>),
}

impl Condition {
    /// 412 unless it holds.
    fn check(&self, version: &str) -> Result<(), Problem> {
        match self {
            Self::OneOf(versions) if !versions.iter().any(|v| v == version) => {
                let detail = format!(
                    "what is wanted has changed: its ETag is \"{version}\", which is not the one of If-Match"
                );
                Err(Problem::new(ProblemKind::Outdated, detail))
            }
            _ => Ok(()),
        }
    }
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// All of it; or what would be, where a change was only looked at.
    pub state: WantedState,
    /// The version of what is wanted.
    pub version: String,
    /// The port that a change was about, if there is one.
    pub port: Option<PortStatus>,
    /// What a change has altered, or would, where the client asks for that.
    pub changes: Option<Vec<Step>>,
}

/// What came of a planned change. It brings back all that is not needed any more: to let go of many rules takes time that the engine
/// has not.
#[derive(Debug)]
pub struct Changed {
    /// What is wanted now; `None` where something else has changed since it was planned, and nothing was done.
    pub wanted: Option<Wanted>,
    /// How everything was before, or is.
    pub basis: Basis,
    /// What was ordered.
    pub planned: Box<(Request, Plan)>,
}

/// A capture that has begun.
#[derive(Debug)]
pub struct Begun {
    /// Its number.
    pub number: u32,
    /// Where its frames come.
    pub reader: Reader,
    /// When nobody has this any more, the capture ends.
    pub held: Arc<()>,
}

/// A question or an order to the engine.
#[derive(Debug)]
pub enum Command {
    /// What is everything doing?
    Status(Reply<StatusDocument>),
    /// What are the ports doing?
    Ports(Reply<PortsDocument>),
    /// What are metrics made of?
    Metrics(Reply<Facts>),
    /// What is wanted?
    Wanted(Reply<Wanted>),
    /// What does a change start from?
    Basis(Reply<Basis>),
    /// Want something else; see [`crate::wanted::changed`] for what may be wrong with it.
    Change(Box<(Request, Plan)>, Reply<Changed>),
    /// How much traffic, how many drops?
    Stats(Reply<StatsDocument>),
    /// What was learned?
    Fdb(FdbFilter, Reply<FdbDocument>),
    /// Forget what was learned.
    FlushFdb(FdbFilter, Reply<FdbFlushed>),
    /// Forget the cached flows, of the port of this name or all.
    PurgeFlows(Option<String>, Reply<()>),
    /// What would become of these frames?
    Trace(TraceRequest, Reply<TraceDocument>),
    /// Which flows are the busiest?
    Flows(FlowsFilter, Reply<FlowsDocument>),
    /// What was counted for rules?
    RuleCounts(Reply<Counted>),
    /// Copy the frames of the port of this name.
    Capture(String, Box<CaptureQuery>, Reply<Begun>),
    /// End the capture of this number.
    EndCapture(u32, Reply<()>),
}

/// The engine, as everyone else sees it. Clones speak to the same engine.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    places: Places,
    events: Events,
    /// On whose behalf it is spoken to.
    peer: Option<Peer>,
}

/// A handle, and the commands that come through it; at most `depth` of them wait. What is done is told to those who watch `events`.
///
/// # Panics
/// When `depth` is 0.
pub fn engine_channel(depth: usize, events: Events) -> (EngineHandle, mpsc::Receiver<Command>) {
    let (commands, receiver) = mpsc::channel(depth);
    let handle = EngineHandle {
        commands,
        places: Places::default(),
        events,
        peer: None,
    };
    (handle, receiver)
}

impl EngineHandle {
    /// Room for captures.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// What has happened.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// The same engine, which is told that this process asks.
    #[must_use]
    pub fn on_behalf_of(&self, peer: Option<Peer>) -> Self {
        Self {
            peer,
            ..self.clone()
        }
    }

    fn by(&self) -> Option<Asker> {
        self.peer.map(events::asker)
    }

    /// Asks [`Command::Capture`], and tells those who watch.
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; and 404 without such a port.
    pub async fn capture(&self, port: String, query: CaptureQuery) -> Answer<Begun> {
        let (name, filter) = (port.clone(), query.filter.clone());
        let query = Box::new(query);
        let begun = self
            .ask(|reply| Command::Capture(port, query, reply))
            .await?;
        self.tell_capture(begun.number, &name, &filter, Progress::Begun);
        Ok(begun)
    }

    /// Nothing is copied any more for a capture.
    pub fn capture_ended(&self, number: u32, port: &str, filter: &str) {
        self.forget_capture(number);
        self.tell_capture(number, port, filter, Progress::Done);
    }

    fn tell_capture(&self, number: u32, port: &str, filter: &str, progress: Progress) {
        let what = EventKind::Capture {
            by: self.by(),
            port: port.to_owned(),
            number,
            filter: events::text(filter),
            progress,
        };
        self.events.tell(what, 0);
    }

    /// Orders [`Command::EndCapture`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; and 404 without such a capture.
    pub async fn end_capture(&self, id: u32) -> Answer<()> {
        self.ask(|reply| Command::EndCapture(id, reply)).await
    }

    /// The same where nobody waits for what comes of it.
    fn forget_capture(&self, id: u32) {
        let (reply, _) = oneshot::channel();
        // An engine that is gone has no captures; one that is busy sees that nobody holds this one.
        let _ = self.commands.try_send(Command::EndCapture(id, reply));
    }

    /// Asks [`Command::Status`].
    ///
    /// # Errors
    /// The engine's problem, or 503 when it is gone, busy or silent; so with all of these.
    pub async fn status(&self) -> Answer<StatusDocument> {
        self.ask(Command::Status).await
    }

    /// Asks [`Command::Ports`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn ports(&self) -> Answer<PortsDocument> {
        self.ask(Command::Ports).await
    }

    /// Asks [`Command::Metrics`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn metrics(&self) -> Answer<Facts> {
        self.ask(Command::Metrics).await
    }

    /// Asks [`Command::Wanted`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn wanted(&self) -> Answer<Wanted> {
        self.ask(Command::Wanted).await
    }

    /// Orders [`Command::Change`], and tells those who watch what was done: what was wanted before, and what is.
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn change(&self, request: Request) -> Answer<(WantedState, Wanted)> {
        let plan = Plan::new(&self.ask(Command::Basis).await?, &request)?;
        let mut planned = Box::new((request, plan));
        for _ in 0..PLANS {
            let changed = self.ask(|reply| Command::Change(planned, reply)).await?;
            if let Some(wanted) = changed.wanted {
                let before = changed.basis.wanted().clone();
                let told = Difference::to_tell(&before, &wanted.state);
                self.events.tell_difference(self.peer, told);
                return Ok((before, wanted));
            }
            planned = changed.planned;
            planned.1 = planned.1.anew(changed.basis, &planned.0)?;
        }
        let detail = "others change what is wanted all the time; try again";
        Err(Problem::unavailable(detail))
    }

    /// What is wanted, and what would be after a change.
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn look_at(&self, request: &Request) -> Answer<(WantedState, Wanted)> {
        let basis = self.ask(Command::Basis).await?;
        let plan = Plan::new(&basis, request)?;
        let wanted = Wanted {
            state: plan.after().clone(),
            version: version(basis.wanted()),
            port: None,
            changes: None,
        };
        Ok((basis.wanted().clone(), wanted))
    }

    /// Asks [`Command::Stats`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn stats(&self) -> Answer<StatsDocument> {
        self.ask(Command::Stats).await
    }

    /// Asks [`Command::Fdb`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn fdb(&self, filter: FdbFilter) -> Answer<FdbDocument> {
        self.ask(|reply| Command::Fdb(filter, reply)).await
    }

    /// Orders [`Command::FlushFdb`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; and 404 without such a port or segment.
    pub async fn flush_fdb(&self, filter: FdbFilter) -> Answer<FdbFlushed> {
        let FdbFilter { segment, port } = filter.clone();
        let flushed = self.ask(|reply| Command::FlushFdb(filter, reply)).await?;
        let what = EventKind::Flushed {
            by: self.by(),
            segment,
            port,
            count: flushed.flushed,
        };
        self.events.tell(what, 0);
        Ok(flushed)
    }

    /// Orders [`Command::PurgeFlows`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`]; and 404 without such a port.
    pub async fn purge_flows(&self, port: Option<String>) -> Answer<()> {
        let name = port.clone();
        self.ask(|reply| Command::PurgeFlows(port, reply)).await?;
        let (by, port) = (self.by(), name);
        self.events.tell(EventKind::Purged { by, port }, 0);
        Ok(())
    }

    /// Asks [`Command::Trace`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn trace(&self, request: TraceRequest) -> Answer<TraceDocument> {
        self.ask(|reply| Command::Trace(request, reply)).await
    }

    /// Asks [`Command::Flows`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn flows(&self, filter: FlowsFilter) -> Answer<FlowsDocument> {
        self.ask(|reply| Command::Flows(filter, reply)).await
    }

    /// Asks [`Command::RuleCounts`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn rule_counts(&self) -> Answer<Counted> {
        self.ask(Command::RuleCounts).await
    }

    /// Sends one command and waits for its answer, both within [`PATIENCE`].
    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        let exchange = async {
            let gone = || Problem::unavailable("control is shutting down");
            let command = command(reply);
            self.commands.send(command).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        };
        let silent = |_| {
            let seconds = PATIENCE.as_secs();
            Problem::unavailable(format!("control did not answer within {seconds} s"))
        };
        timeout(PATIENCE, exchange).await.map_err(silent)?
    }
}
