//! Counters of rules, requested from the switch: periodically, so that little is lost with a switch
//! that crashes, and for clients. The switch needs some time to count, so the engine does not wait.

use std::io;
use std::sync::Arc;

use api::v1::Problem;
use channel::rules::{MAX_RULES, RuleUse};
use channel::switching::SwitchCommand;
use policy::Decision;
use policy::acl::RuleId;

use super::{Engine, unavailable};
use crate::command::Reply;
use crate::rule_counts::{Counted, Counts};

/// Requests for counters of rules; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct RuleCountRequests {
    counts: Arc<Counts>,
    /// The open request: the command's number, and the clients that wait for it.
    open: Option<(u64, Vec<Reply<Counted>>)>,
    /// Counters have changed since the last save.
    any_new: bool,
    /// Clients that arrived since.
    next: Vec<Reply<Counted>>,
}

/// Returns the rules for which a decision's frames are counted.
pub(super) fn deciding(decision: &Decision) -> Vec<RuleId> {
    let mut rules = decision.rules();
    rules.truncate(MAX_RULES);
    rules
}

impl Engine {
    /// Starts with the saved counters.
    pub(super) fn restore_rule_counts(&mut self) {
        let saved = Counts::saved(&self.saved.rule_counts);
        self.rule_count_requests.counts = Arc::new(saved);
    }

    /// Returns the counters as of the last reply of the switch.
    pub(super) fn counted(&self) -> Counted {
        Counted {
            access: self.saved.desired.access.clone(),
            counts: Arc::clone(&self.rule_count_requests.counts),
            now: self.now(),
        }
    }

    /// Queues a client that requests the counters.
    pub(super) fn queue_rule_counts(&mut self, reply: Reply<Counted>) {
        self.rule_count_requests.next.push(reply);
        if let Err(error) = self.request_rule_counts() {
            let problem = unavailable(error);
            for reply in std::mem::take(&mut self.rule_count_requests.next) {
                drop(reply.send(Err(problem.clone())));
            }
        }
    }

    /// Sends the request to the switch, if there are rules or clients and no request is open.
    ///
    /// # Errors
    /// The switch is gone.
    pub(super) fn request_rule_counts(&mut self) -> io::Result<()> {
        let requests = &mut self.rule_count_requests;
        let any = !self.program.rules().is_empty() || !requests.next.is_empty();
        if any && requests.open.is_none() {
            let number = self.switch.send(SwitchCommand::CountRules, &[])?;
            requests.open = Some((number, std::mem::take(&mut requests.next)));
        }
        Ok(())
    }

    /// Adds a part of the reply.
    pub(super) fn add_rule_counts(&mut self, uses: &[RuleUse]) {
        let now = self.now();
        Arc::make_mut(&mut self.rule_count_requests.counts).add(uses, now);
        self.rule_count_requests.any_new = true;
    }

    /// Completes the request, if this command is the one for it.
    ///
    /// # Errors
    /// The switch is gone, or the system refuses a write of the state file.
    pub(super) fn finish_rule_counts(
        &mut self,
        number: u64,
        error: Option<&str>,
    ) -> io::Result<()> {
        let is_this = |open: &mut (u64, _)| open.0 == number;
        let Some((_, replies)) = self.rule_count_requests.open.take_if(is_this) else {
            return Ok(());
        };
        let requests = &mut self.rule_count_requests;
        if std::mem::take(&mut requests.any_new) {
            let counts = Arc::make_mut(&mut requests.counts);
            counts.forget_others(&self.saved.desired.access);
            self.saved.rule_counts = counts.latest();
            // The switch sends each difference once.
            self.save()?;
        }
        for reply in replies {
            let counted = match error {
                Some(reason) => Err(Problem::unavailable(reason)),
                None => Ok(self.counted()),
            };
            // Sending fails when the client is gone; nothing is to be done then.
            drop(reply.send(counted));
        }
        if self.rule_count_requests.next.is_empty() {
            return Ok(());
        }
        self.request_rule_counts()
    }
}
