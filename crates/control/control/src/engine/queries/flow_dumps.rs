//! Flow dumps: requests for the busiest flows. The switch needs some time to count them, so the
//! engine does not wait: one request is sent to the switch at a time, others are queued, and equal
//! ones share a reply.

use std::collections::VecDeque;

use api::v1::{FLOWS_DEFAULT, FLOWS_MAX, FlowsDocument, FlowsFilter, Problem, ProblemKind};
use ipc::flows::{CachedFlow, FlowDumpRequest};
use ipc::switching::SwitchCommand;

use crate::command::Reply;
use crate::engine::links::switch::SwitchLink;
use crate::engine::unavailable;
use crate::saved::Numbers;
use crate::trace::{Names, flow};

/// Different requests that may be queued.
const MAX_WAITING: usize = 8;

/// A request, and the clients that wait for it.
#[derive(Debug)]
struct FlowDump {
    request: FlowDumpRequest,
    replies: Vec<Reply<FlowsDocument>>,
}

/// Queue of flow dumps; see the module documentation.
#[derive(Debug, Default)]
pub(in crate::engine) struct FlowDumpQueue {
    waiting: VecDeque<FlowDump>,
    /// The open request: the command's number and the flows received so far.
    open: Option<(u64, FlowDump, Vec<CachedFlow>)>,
}

impl FlowDumpQueue {
    /// Adds a part of the reply.
    pub(in crate::engine) fn add(&mut self, number: u64, part: Vec<CachedFlow>) {
        if let Some((open, _, flows)) = &mut self.open
            && *open == number
        {
            flows.extend(part);
        }
    }

    fn push(&mut self, request: FlowDumpRequest, reply: Reply<FlowsDocument>) {
        let same = self.waiting.iter_mut().find(|q| q.request == request);
        if let Some(dump) = same {
            dump.replies.push(reply);
        } else if self.waiting.len() < MAX_WAITING {
            let replies = vec![reply];
            self.waiting.push_back(FlowDump { request, replies });
        } else {
            let busy = Problem::unavailable("too many requests for flows");
            drop(reply.send(Err(busy)));
        }
    }

    /// Queues a request for the busiest flows.
    pub(in crate::engine) fn queue(
        &mut self,
        filter: &FlowsFilter,
        reply: Reply<FlowsDocument>,
        numbers: &Numbers,
        switch: &mut SwitchLink,
    ) {
        match request_of(filter, numbers) {
            Ok(request) => self.push(request, reply),
            // Sending fails when the client is gone; nothing is to be done then.
            Err(problem) => drop(reply.send(Err(problem))),
        }
        self.send_next(switch);
    }

    fn send_next(&mut self, switch: &mut SwitchLink) {
        while self.open.is_none()
            && let Some(dump) = self.waiting.pop_front()
        {
            match switch.send(SwitchCommand::Flows(dump.request)) {
                Ok(number) => self.open = Some((number, dump, Vec::new())),
                Err(error) => reply_all(dump, &Err(unavailable(error))),
            }
        }
    }

    /// Completes the flow dump, if this command is the one for it.
    pub(in crate::engine) fn finish(
        &mut self,
        number: u64,
        error: Option<String>,
        numbers: &Numbers,
        switch: &mut SwitchLink,
    ) {
        let is_this = |open: &mut (u64, FlowDump, Vec<CachedFlow>)| open.0 == number;
        if let Some((_, dump, flows)) = self.open.take_if(is_this) {
            let names = Names::new(&numbers.ports, &numbers.segments, &numbers.classes);
            let document = match error {
                Some(reason) => Err(Problem::unavailable(reason)),
                None => Ok(FlowsDocument {
                    flows: flows.iter().map(|f| flow::entry(f, &names)).collect(),
                }),
            };
            reply_all(dump, &document);
            self.send_next(switch);
        }
    }
}

fn request_of(filter: &FlowsFilter, numbers: &Numbers) -> Result<FlowDumpRequest, Problem> {
    let limit = filter.limit.unwrap_or(FLOWS_DEFAULT);
    if !(1..=FLOWS_MAX).contains(&limit) {
        let detail = format!("must be from 1 to {FLOWS_MAX}");
        return Err(Problem::new(ProblemKind::Invalid, detail).with_field("limit"));
    }
    let number = |name: &String| {
        let id = numbers.ports.get(name).copied();
        id.ok_or_else(|| Problem::no_such("port", name).with_field("port"))
    };
    let port = filter.port.as_ref().map(number).transpose()?;
    Ok(FlowDumpRequest { port, limit })
}

fn reply_all(dump: FlowDump, document: &Result<FlowsDocument, Problem>) {
    for reply in dump.replies {
        drop(reply.send(document.clone()));
    }
}
