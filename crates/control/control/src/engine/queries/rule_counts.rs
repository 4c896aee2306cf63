//! Counters of rules, requested from the switch: periodically, so that little is lost with a switch
//! that crashes, and for clients. The switch needs some time to count.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::v1::{AccessModel, Problem};
use ipc::rules::RuleUse;
use ipc::switching::SwitchCommand;
use policy::acl::RuleId;

use crate::command::Reply;
use crate::engine::links::switch::SwitchLink;
use crate::engine::unavailable;
use crate::rule_counts::{Count, CountSnapshot, Counts};

/// Requests for counters of rules; see the module documentation.
#[derive(Debug, Default)]
pub(in crate::engine) struct RuleCountRequests {
    counts: Arc<Counts>,
    /// The open request: the command's number, and the clients that wait for it.
    open: Option<(u64, Vec<Reply<CountSnapshot>>)>,
    /// Counters have changed since the last save.
    any_new: bool,
    /// Clients that arrived since.
    next: Vec<Reply<CountSnapshot>>,
}

impl RuleCountRequests {
    /// Starts with the saved counters.
    pub(in crate::engine) fn restore(&mut self, saved: &[(RuleId, Count)]) {
        self.counts = Arc::new(Counts::saved(saved));
    }

    /// Returns the counters as of the last reply of the switch.
    pub(in crate::engine) fn counted(
        &self,
        access: &Arc<AccessModel>,
        now: Duration,
    ) -> CountSnapshot {
        CountSnapshot {
            access: Arc::clone(access),
            counts: Arc::clone(&self.counts),
            now,
        }
    }

    /// Queues a client that requests the counters.
    pub(in crate::engine) fn queue(
        &mut self,
        reply: Reply<CountSnapshot>,
        switch: &mut SwitchLink,
    ) {
        self.next.push(reply);
        if let Err(error) = self.request(false, switch) {
            let problem = unavailable(error);
            for reply in std::mem::take(&mut self.next) {
                drop(reply.send(Err(problem.clone())));
            }
        }
    }

    /// Sends the request to the switch, if there are rules or clients and no request is open.
    ///
    /// # Errors
    /// The switch is gone.
    pub(in crate::engine) fn request(
        &mut self,
        any_rules: bool,
        switch: &mut SwitchLink,
    ) -> io::Result<()> {
        if (any_rules || !self.next.is_empty()) && self.open.is_none() {
            let number = switch.send(SwitchCommand::CountRules)?;
            self.open = Some((number, std::mem::take(&mut self.next)));
        }
        Ok(())
    }

    /// Adds a part of the reply.
    pub(in crate::engine) fn add(&mut self, uses: &[RuleUse], now: Duration) {
        Arc::make_mut(&mut self.counts).add(uses, now);
        self.any_new = true;
    }

    /// Returns the clients that have waited for this command, if it is the one of the request.
    pub(in crate::engine) fn take_done(
        &mut self,
        number: u64,
    ) -> Option<Vec<Reply<CountSnapshot>>> {
        let (_, replies) = self.open.take_if(|(open, _)| *open == number)?;
        Some(replies)
    }

    /// Returns the counters to save, if any has changed since the last call.
    pub(in crate::engine) fn take_new(
        &mut self,
        access: &AccessModel,
    ) -> Option<Vec<(RuleId, Count)>> {
        let any_new = std::mem::take(&mut self.any_new);
        any_new.then(|| {
            let counts = Arc::make_mut(&mut self.counts);
            counts.forget_others(access);
            counts.latest()
        })
    }
}

/// Replies to the clients that have waited.
pub(in crate::engine) fn reply_all(
    replies: Vec<Reply<CountSnapshot>>,
    error: Option<&str>,
    counted: impl Fn() -> CountSnapshot,
) {
    for reply in replies {
        let counted = match error {
            Some(reason) => Err(Problem::unavailable(reason)),
            None => Ok(counted()),
        };
        // Sending fails when the client is gone; nothing is to be done then.
        drop(reply.send(counted));
    }
}
