//! Flushes of connections. Those of whole segments are done by the switch at once. For others
//! control names connections to the switch, part by part, and reports the end as an event.

use api::v1::{ConnectionsFlush, ConnectionsSelection, EventKind, Problem, Requester};
use conntrack::table::Walk;
use ipc::switching::{ConnectionFlush, MAX_FLUSHED, SwitchCommand};
use policy::SegmentId;

use super::{Selector, read};
use crate::command::Reply;
use crate::engine::SharedEngine;
use crate::events::{self, Events};

/// Flushes connections, and replies as soon as it is known that it can be done.
pub(in crate::engine) async fn flush(
    engine: &SharedEngine<'_>,
    selection: &ConnectionsSelection,
    by: Option<Requester>,
    reply: Reply<ConnectionsFlush>,
) {
    // Sending fails when the client is gone; the flush is made anyway.
    let selector = match engine.with(|e| Selector::new(selection, e)) {
        Ok(selector) => selector,
        Err(problem) => return drop(reply.send(Err(problem))),
    };
    let events = engine.with(|e| e.events());
    let report = Report::new(events, selection, by);
    if selector.port.is_some() || !selector.filter.is_everything() {
        drop(reply.send(Ok(ConnectionsFlush { done: false })));
        return flush_in_parts(engine, &selector, report).await;
    }
    let flush = match selector.zone {
        Some(zone) => ConnectionFlush::Segment(SegmentId(zone)),
        None => ConnectionFlush::All,
    };
    let done = engine.order(SwitchCommand::FlushConnections(flush)).await;
    report.finish(None, done.as_ref().err());
    drop(reply.send(done.map(|()| ConnectionsFlush { done: true })));
}

async fn flush_in_parts(engine: &SharedEngine<'_>, selector: &Selector, mut report: Report) {
    let mut walk = Walk::default();
    loop {
        let mut names = Vec::new();
        let take = |name: conntrack::table::ConnectionId, _: &_| names.push(name.bits());
        let is_last = engine.with(|e| read(e, &mut walk, selector, take));
        for names in names.chunks(MAX_FLUSHED) {
            let flush = ConnectionFlush::Named(names.to_vec());
            let done = engine.order(SwitchCommand::FlushConnections(flush)).await;
            if let Err(problem) = done {
                let count = report.count;
                return report.finish(Some(count), Some(&problem));
            }
            report.count += names.len() as u64;
        }
        if is_last {
            let count = report.count;
            return report.finish(Some(count), None);
        }
        tokio::task::yield_now().await;
    }
}

/// The event of a flush, which is published once: at its end, or when it is given up.
struct Report {
    events: Events,
    by: Option<Requester>,
    of: ConnectionsSelection,
    /// Connections that were removed so far.
    count: u64,
    is_published: bool,
}

impl Report {
    fn new(events: Events, of: &ConnectionsSelection, by: Option<Requester>) -> Self {
        Self {
            events,
            by,
            of: of.clone(),
            count: 0,
            is_published: false,
        }
    }

    fn finish(mut self, count: Option<u64>, problem: Option<&Problem>) {
        self.publish(count, problem.map(ToString::to_string));
    }

    fn publish(&mut self, count: Option<u64>, reason: Option<String>) {
        self.is_published = true;
        let what = EventKind::ConnectionsFlushed {
            by: self.by,
            segment: self.of.segment.clone(),
            port: self.of.port.clone(),
            filter: self.of.filter.as_deref().map(events::printable),
            count,
            reason,
        };
        self.events.emit(what, 0);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !self.is_published {
            let reason = "control has ended meanwhile".to_owned();
            self.publish(Some(self.count), Some(reason));
        }
    }
}
