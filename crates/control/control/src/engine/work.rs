//! Commands under way. Those that need a peer are futures: reads run beside each other, changes one
//! after the other, in the order in which they came.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;

use super::changes::prefilters;
use super::queries::prefilters as documents;
use super::queries::{captures, connections, egress, flush, status, trace, user, user_forwards};
use super::{Engine, SharedEngine, changes};
use crate::command::{Answer, Command, Reply};

/// Changes that may be queued, and reads that may be under way.
const MAX_TASKS: usize = 64;

/// Time after a start until ports of saved connections get their listening sockets, 100
/// milliseconds: their guests have the network first.
const LISTEN_DELAY: Duration = Duration::from_millis(100);

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// See the module documentation.
pub(super) struct Work<'a, 'e> {
    engine: &'a SharedEngine<'e>,
    /// The change that is made, and those that wait for it.
    changes: VecDeque<Task<'a>>,
    reads: Vec<Task<'a>>,
    /// Flushes of connections, which are made one after the other.
    flushes: VecDeque<Task<'a>>,
}

/// Sends the result of a command. That fails when the client is gone; nothing is to be done then.
fn task<'a, T: 'a>(reply: Reply<T>, work: impl Future<Output = Answer<T>> + 'a) -> Task<'a> {
    Box::pin(async move { drop(reply.send(work.await)) })
}

impl<'a, 'e> Work<'a, 'e> {
    pub(super) fn new(engine: &'a SharedEngine<'e>) -> Self {
        Self {
            engine,
            changes: VecDeque::new(),
            reads: Vec::new(),
            flushes: VecDeque::new(),
        }
    }

    /// Gives ports that lack their listening sockets theirs, if there are some, after
    /// [`LISTEN_DELAY`].
    pub(super) fn listen_again(&mut self) {
        let engine = self.engine;
        if engine.with(|e| e.ports.without_listener.is_empty()) {
            return;
        }
        self.changes.push_back(Box::pin(async move {
            sleep(LISTEN_DELAY).await;
            if let Err(problem) = changes::listen_again(engine).await {
                tracing::error!("ports that do not listen: {problem}");
            }
        }));
    }

    /// Queues a look at the speeds of interfaces, where they count and no change is under way,
    /// which would do the same.
    pub(super) fn follow_speeds(&mut self) {
        let engine = self.engine;
        let counts = |e: &mut Engine| changes::has_speeds(&e.store.saved.desired);
        let is_frozen = engine.with(|e| e.store.frozen);
        if self.is_changing() || is_frozen || !engine.with(counts) {
            return;
        }
        self.changes.push_back(Box::pin(async move {
            if let Err(problem) = changes::follow_speeds(engine).await {
                tracing::warn!("speeds of interfaces: {problem}");
            }
        }));
    }

    /// Returns the time until the next changes of prefilters. At a start their take-over is queued:
    /// counters lack the frames that have ended at the wire before.
    pub(super) fn until_prefilters(&mut self) -> Option<Duration> {
        if self.engine.with(|e| prefilters::awaits_any(e)) {
            self.take_prefilters();
        }
        self.engine.with(|e| e.forwarding.until_prefilters())
    }

    /// Returns whether another command is taken.
    pub(super) fn takes_commands(&self) -> bool {
        self.has_room() && !self.engine.with(|e| prefilters::awaits_any(e))
    }

    /// Queues the take-over of prefilters that control does not know, where no change is under way,
    /// which would do the same.
    pub(super) fn take_prefilters(&mut self) {
        let engine = self.engine;
        if self.is_changing() || !engine.with(|e| prefilters::lacks_any(e)) {
            return;
        }
        self.changes.push_back(Box::pin(async move {
            if let Err(problem) = prefilters::follow(engine).await {
                tracing::warn!("prefilters: {problem}");
            }
        }));
    }

    /// Starts a command, or executes it if it needs no peer. Sending a reply fails when the client
    /// is gone; nothing is to be done then.
    pub(super) fn execute(&mut self, command: Command) {
        let engine = self.engine;
        if engine.with(|e| e.store.frozen) && !matches!(command, Command::EndCapture(..)) {
            // A connection that outlived the closing of the gate: its client gets the error that
            // control is shutting down.
            return;
        }
        match command {
            Command::Change(planned, reply) => {
                let change = task(reply, changes::execute(engine, planned));
                self.changes.push_back(change);
            }
            Command::PurgeFlows(port, reply) => {
                let purge = async move { flush::purge_flows(engine, port.as_deref()).await };
                self.changes.push_back(task(reply, purge));
            }
            Command::Status(reply) => self.reads.push(task(reply, status::status(engine))),
            Command::Ports(reply) => self.reads.push(task(reply, status::ports(engine))),
            Command::Metrics(reply) => self.reads.push(task(reply, status::facts(engine))),
            Command::Stats(reply) => self.reads.push(task(reply, status::traffic_stats(engine))),
            Command::Egress(reply) => self.reads.push(task(reply, egress::ports(engine))),
            Command::Trace(request, reply) => {
                let traced = async move { trace::trace(engine, &request).await };
                self.reads.push(task(reply, traced));
            }
            Command::UserFlows(port, filter, reply) => {
                let flows = async move { user::flows(engine, &port, &filter).await };
                self.reads.push(task(reply, flows));
            }
            Command::UserForwards(port, reply) => {
                let forwards = async move { user_forwards::forwards(engine, &port).await };
                self.reads.push(task(reply, forwards));
            }
            Command::UserLeases(port, reply) => {
                let leases = async move { user::leases(engine, &port).await };
                self.reads.push(task(reply, leases));
            }
            Command::Connections(filter, reply) => {
                let list = async move { connections::list(engine, &filter).await };
                self.reads.push(task(reply, list));
            }
            Command::ConnectionsCount(selection, reply) => {
                let count = async move { connections::count(engine, &selection).await };
                self.reads.push(task(reply, count));
            }
            Command::FlushConnections(selection, by, reply) => {
                let flush = async move { connections::flush(engine, &selection, by, reply).await };
                self.flushes.push_back(Box::pin(flush));
            }
            Command::Capture(port, query, reply) => {
                let capture = async move { captures::capture(engine, &port, &query).await };
                self.reads.push(task(reply, capture));
            }
            Command::Desired(reply) => drop(reply.send(Ok(engine.with(|e| e.desired())))),
            Command::Prefilter(port, reply) => {
                drop(reply.send(engine.with(|e| documents::document(e, &port))));
            }
            Command::Basis(reply) => drop(reply.send(Ok(engine.with(|e| e.store.basis())))),
            Command::Pipes(reply) => drop(reply.send(Ok(engine.with(|e| e.pipes.document())))),
            Command::Fdb(filter, reply) => {
                drop(reply.send(engine.with(|e| e.fdb_document(&filter))));
            }
            Command::FlushFdb(filter, reply) => {
                let flush =
                    |e: &mut Engine| flush::flush_fdb(&mut e.store, &mut e.forwarding, &filter);
                drop(reply.send(engine.with(flush)));
            }
            Command::RuleCounts(reply) => {
                engine.with(|e| e.rule_counts.queue(reply, &mut e.links.switch));
            }
            Command::Flows(filter, reply) => engine.with(|e| {
                let (numbers, switch) = (&e.store.saved.numbers, &mut e.links.switch);
                e.flow_dumps.queue(&filter, reply, numbers, switch);
            }),
            Command::EndCapture(id, reply) => {
                let end = |e: &mut Engine| e.captures.end(id, &mut e.links.switch);
                drop(reply.send(engine.with(end)));
            }
        }
        engine.with(|e| e.forwarding.answers.ring_bell());
    }

    /// Advances the commands; completes when one is done, or has made something for the loop to do.
    pub(super) fn progress(&mut self) -> impl Future<Output = ()> {
        poll_fn(|context| {
            let before = self.engine.with(|e| loads(e));
            let change = self.changes.front_mut();
            let is_changed = change.is_some_and(|change| change.as_mut().poll(context).is_ready());
            if is_changed {
                self.changes.pop_front();
            }
            let reads = self.reads.len();
            self.reads
                .retain_mut(|read| read.as_mut().poll(context).is_pending());
            let flush = self.flushes.front_mut();
            let is_flushed = flush.is_some_and(|flush| flush.as_mut().poll(context).is_ready());
            if is_flushed {
                self.flushes.pop_front();
            }
            let is_done = is_changed || is_flushed || self.reads.len() < reads;
            if is_done || self.engine.with(|e| loads(e)) != before {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.reads.is_empty() && self.flushes.is_empty()
    }

    /// Returns whether a change is under way or waits.
    pub(super) fn is_changing(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns whether another command may be started.
    pub(super) fn has_room(&self) -> bool {
        let tasks = [self.changes.len(), self.reads.len(), self.flushes.len()];
        tasks.iter().all(|tasks| *tasks < MAX_TASKS)
    }

    /// Drops the changes that have not begun.
    pub(super) fn finish(&mut self) {
        self.changes.truncate(1);
    }
}

/// Returns how much is queued for the loop: upcalls, answers and messages.
fn loads(engine: &Engine) -> (usize, usize, bool) {
    let forwarding = &engine.forwarding;
    (
        forwarding.upcalls.waiting(),
        forwarding.answers.queued(),
        engine.links.has_unsent(),
    )
}
