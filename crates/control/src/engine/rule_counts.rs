//! Asking the switch what was counted for rules: again and again, so that little is lost with a switch that dies, and for everybody
//! who wants to know. To count takes the switch a while, so nobody waits here.

use std::io;
use std::sync::Arc;

use api::v1::Problem;
use channel::rules::{MAX_RULES, RuleUse};
use channel::switching::Order;
use policy::Decision;
use policy::acl::RuleId;

use super::{Engine, unavailable};
use crate::command::Reply;
use crate::rule_counts::{Counted, Counts};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RuleQuestions {
    counts: Arc<Counts>,
    /// The order's number, and who gets what comes of it.
    asked: Option<(u64, Vec<Reply<Counted>>)>,
    /// Something was counted since that was saved.
    any_new: bool,
    /// Who came since.
    next: Vec<Reply<Counted>>,
}

/// The rules for which a decision's frames are counted.
pub(super) fn deciding(decision: &Decision) -> Vec<RuleId> {
    let mut rules = decision.rules();
    rules.truncate(MAX_RULES);
    rules
}

impl Engine {
    /// Begins with what was saved.
    pub(super) fn adopt_rule_counts(&mut self) {
        let saved = Counts::saved(&self.saved.rule_counts);
        self.rule_questions.counts = Arc::new(saved);
    }

    /// What was counted when the switch was asked last.
    pub(super) fn counted(&self) -> Counted {
        Counted {
            access: self.saved.wanted.access.clone(),
            counts: Arc::clone(&self.rule_questions.counts),
            now: self.now(),
        }
    }

    /// Somebody wants to know what was counted by now.
    pub(super) fn ask_for_rule_counts(&mut self, reply: Reply<Counted>) {
        self.rule_questions.next.push(reply);
        if let Err(error) = self.count_rules() {
            let problem = unavailable(error);
            for reply in std::mem::take(&mut self.rule_questions.next) {
                drop(reply.send(Err(problem.clone())));
            }
        }
    }

    /// Asks the switch, if there are rules or somebody wants to know, and nothing is asked yet.
    ///
    /// # Errors
    /// The switch is gone.
    pub(super) fn count_rules(&mut self) -> io::Result<()> {
        let questions = &mut self.rule_questions;
        let any = !self.program.rules().is_empty() || !questions.next.is_empty();
        if any && questions.asked.is_none() {
            let number = self.switch.order(Order::CountRules, &[])?;
            questions.asked = Some((number, std::mem::take(&mut questions.next)));
        }
        Ok(())
    }

    /// Part of an answer has come.
    pub(super) fn note_rules(&mut self, uses: &[RuleUse]) {
        let now = self.now();
        Arc::make_mut(&mut self.rule_questions.counts).add(uses, now);
        self.rule_questions.any_new = true;
    }

    /// An order is done, perhaps that one.
    ///
    /// # Errors
    /// The switch is gone, or the system's refusal of the state file.
    pub(super) fn rules_are_told(&mut self, number: u64, error: Option<&str>) -> io::Result<()> {
        let mine = |asked: &mut (u64, _)| asked.0 == number;
        let Some((_, replies)) = self.rule_questions.asked.take_if(mine) else {
            return Ok(());
        };
        let questions = &mut self.rule_questions;
        if std::mem::take(&mut questions.any_new) {
            let counts = Arc::make_mut(&mut questions.counts);
            counts.forget_others(&self.saved.wanted.access);
            self.saved.rule_counts = counts.latest();
            // The switch does not tell it again.
            self.save()?;
        }
        for reply in replies {
            let counted = match error {
                Some(reason) => Err(Problem::unavailable(reason)),
                None => Ok(self.counted()),
            };
            // A client that has gone away does not want its answer.
            drop(reply.send(counted));
        }
        match self.rule_questions.next.is_empty() {
            true => Ok(()),
            false => self.count_rules(),
        }
    }
}
