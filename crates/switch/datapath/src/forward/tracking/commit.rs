//! Commits of single frames.

use conntrack::table::Rule;
use conntrack::tracker::{CommitResult, Place, Probe, Tracking as Session};
use conntrack::{Ingress, Millis, Reading};
use flow_table::Class;
use policy::Action;

use super::Zone;

/// Terms of a decision for the connections that it lets in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The mark of the connection.
    mark: u8,
    /// Whether their frames come from the answering side.
    answers: bool,
    /// Number of the stateful rule that lets them in.
    rule: u32,
    /// See [`Tracking::grace`](super::Tracking::grace).
    grace: Millis,
}

impl Terms {
    /// Returns those of a decision with this class by this rule.
    pub(crate) const fn new(class: Class, rule: u32, grace: Millis) -> Self {
        Self {
            mark: class.mark(),
            answers: class.is_answer(),
            rule,
            grace,
        }
    }

    /// The rule, for a connection of a zone; `None` if frames come from the answering side.
    #[inline]
    pub(crate) fn rule_of_opener(&self, zone: Zone) -> Option<Rule> {
        (!self.answers).then_some(self.rule(zone))
    }

    #[inline]
    fn rule(&self, zone: Zone) -> Rule {
        Rule {
            epoch: zone.epoch,
            number: self.rule,
            mark: self.mark.into(),
        }
    }
}

/// Opens or renews the connection of a frame; `place`: it is known. An unknown one is opened by its
/// answer, if the decision says so and one of its ports is new.
#[inline]
pub(crate) fn commit_one(
    session: &mut Session<'_>,
    (read, probe, place): (&Reading, Probe, Option<Place>),
    (from, far): (Ingress, Option<u16>),
    zone: Zone,
    terms: &Terms,
) -> CommitResult {
    let rule = terms.rule(zone);
    if !terms.answers || place.is_some() {
        return session.commit(read, probe, (from, far), rule);
    }
    match far {
        Some(opener) if session.may_answer(from, far, terms.grace) => {
            session.commit_answer(read, probe, (from, opener), rule)
        }
        _ => CommitResult::Nothing,
    }
}

/// Returns the port that frames of an action go to, if that is one.
pub(crate) fn receiver_of(action: Action) -> Option<u16> {
    match action {
        Action::Unicast { port, .. } => Some(port.0 as u16),
        Action::Flood { .. } | Action::Drop(_) => None,
    }
}
