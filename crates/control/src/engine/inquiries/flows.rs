//! Questions for the busiest flows. To count them takes the switch a while, so nobody waits here: one question is on its way at a
//! time, others wait for their turn, and who asks the same gets the same answer.

use std::collections::VecDeque;

use api::v1::{FLOWS_DEFAULT, FLOWS_MAX, FlowsDocument, FlowsFilter, Problem, ProblemKind};
use channel::flows::{CachedFlow, FlowsWanted};
use channel::switching::Order;

use crate::command::Reply;
use crate::engine::{Engine, unavailable};
use crate::trace::{Names, flow};

/// Different questions that wait.
const WAITING: usize = 8;

/// What somebody, or several, want to know.
#[derive(Debug)]
struct Question {
    wanted: FlowsWanted,
    replies: Vec<Reply<FlowsDocument>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::engine) struct FlowQuestions {
    waiting: VecDeque<Question>,
    /// The order's number, and what came so far.
    asked: Option<(u64, Question, Vec<CachedFlow>)>,
}

impl FlowQuestions {
    /// Part of an answer has come.
    pub(in crate::engine) fn note(&mut self, number: u64, part: Vec<CachedFlow>) {
        if let Some((asked, _, flows)) = &mut self.asked
            && *asked == number
        {
            flows.extend(part);
        }
    }

    fn push(&mut self, wanted: FlowsWanted, reply: Reply<FlowsDocument>) {
        let same = self.waiting.iter_mut().find(|q| q.wanted == wanted);
        if let Some(question) = same {
            question.replies.push(reply);
        } else if self.waiting.len() < WAITING {
            let replies = vec![reply];
            self.waiting.push_back(Question { wanted, replies });
        } else {
            let busy = Problem::unavailable("too many ask for flows now");
            drop(reply.send(Err(busy)));
        }
    }
}

impl Engine {
    /// Somebody asks for the busiest flows.
    pub(in crate::engine) fn ask_for_flows(
        &mut self,
        filter: &FlowsFilter,
        reply: Reply<FlowsDocument>,
    ) {
        match self.flows_wanted(filter) {
            Ok(wanted) => self.inquiries.flows.push(wanted, reply),
            // A client that has gone away does not want its answer; here and below.
            Err(problem) => drop(reply.send(Err(problem))),
        }
        self.ask_next_for_flows();
    }

    fn flows_wanted(&self, filter: &FlowsFilter) -> Result<FlowsWanted, Problem> {
        let limit = filter.limit.unwrap_or(FLOWS_DEFAULT);
        if !(1..=FLOWS_MAX).contains(&limit) {
            let detail = format!("1 to {FLOWS_MAX} flows can be asked for");
            return Err(Problem::new(ProblemKind::Invalid, detail).with_field("limit"));
        }
        let number = |name: &String| {
            let id = self.saved.numbers.ports.get(name).copied();
            id.ok_or_else(|| Problem::no_such_port(name).with_field("port"))
        };
        let port = filter.port.as_ref().map(number).transpose()?;
        Ok(FlowsWanted { port, limit })
    }

    fn ask_next_for_flows(&mut self) {
        while self.inquiries.flows.asked.is_none()
            && let Some(question) = self.inquiries.flows.waiting.pop_front()
        {
            match self.switch.order(Order::Flows(question.wanted), &[]) {
                Ok(number) => self.inquiries.flows.asked = Some((number, question, Vec::new())),
                Err(error) => answer(question, &Err(unavailable(error))),
            }
        }
    }

    /// An order is done, perhaps that for flows.
    pub(in crate::engine) fn flows_are_told(&mut self, number: u64, error: Option<String>) {
        let mine = |asked: &mut (u64, Question, Vec<CachedFlow>)| asked.0 == number;
        if let Some((_, question, flows)) = self.inquiries.flows.asked.take_if(mine) {
            let names = Names::new(&self.saved.numbers.ports, &self.saved.numbers.segments);
            let document = match error {
                Some(reason) => Err(Problem::unavailable(reason)),
                None => Ok(FlowsDocument {
                    flows: flows.iter().map(|f| flow::entry(f, &names)).collect(),
                }),
            };
            answer(question, &document);
            self.ask_next_for_flows();
        }
    }
}

fn answer(question: Question, document: &Result<FlowsDocument, Problem>) {
    for reply in question.replies {
        drop(reply.send(document.clone()));
    }
}
