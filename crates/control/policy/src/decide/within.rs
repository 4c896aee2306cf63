//! The decision in a segment about a frame that port security permits: access lists, destination,
//! connection.

use std::collections::BTreeMap;

use port::{DropReason, PortId};
use wire::flow::{Ct, CtState, KeyState};
use wire::{FlowKey, FlowMask};

use super::{
    Action, DECISION_MASK, Decision, Lookup, Precision, Receiver, destination, refuse,
    without_lists,
};
use crate::acl::{
    ClassKey, Direction, ProfileId, RuleId, Rules, Ruling, Scope, Verdict, Wildcards,
};
use crate::connection::{ConnectionChange, Standing, class_of, first_of, mark_of, reversed};
use crate::explain::{self, DecisionTrace, Destination, Step};
use crate::model::SegmentId;
use crate::program::{Member, Program};
use crate::qos_class::ClassOrigin;

/// Decides in its segment about a frame that port security permits. Returns the class too, where
/// rules name one.
pub(super) fn decide_within(
    program: &Program,
    fdb: &dyn Lookup,
    segment: SegmentId,
    key: &FlowKey,
    (precision, trace): (Precision, &mut impl DecisionTrace),
) -> (Decision, Option<(u8, ClassOrigin)>) {
    let barred = fdb.is_barred(segment, key.smac(), PortId(key.in_port()));
    trace.record(|| Step::Source { barred });
    if barred {
        return (refuse(DropReason::SpoofedSource, Some(segment)), None);
    }
    let is_tracked = program.tracks(segment).is_some();
    let mut frame = Frame {
        program,
        fdb,
        segment,
        // Elsewhere the state does not count.
        key: if is_tracked {
            *key
        } else {
            key.with_ct(Ct::UNTRACKED)
        },
        least: if is_tracked {
            TRACKED_MASK
        } else {
            DECISION_MASK
        },
        action: None,
        precision,
    };
    if program.rules().allow_all(segment) {
        trace.record(|| Step::Unfiltered);
        let action = frame.forward(trace);
        let learn = Some((segment, key.smac()));
        let decision = without_lists(action, Some(segment));
        return (Decision { learn, ..decision }, None);
    }
    let standing = Standing::of(frame.key.ct());
    if is_tracked {
        trace.record(|| Step::Connection(standing));
    }
    let decision = match standing {
        Standing::Known => {
            let class = class_of(frame.key.ct().mark());
            let class = class.map(|class| (class, ClassOrigin::Connection));
            return (frame.known(trace), class);
        }
        Standing::New { maybe_reply } => frame.new_connection(maybe_reply, trace),
        Standing::Anew { reply } => frame.anew(reply, trace),
        Standing::Untracked | Standing::Invalid => {
            let mut evaluation = frame.evaluation(&frame.key);
            frame.ask(&mut evaluation, trace).decision
        }
    };
    let class = decision.class_by_rules();
    (decision, class)
}

/// Mask of decisions in a tracked segment without lists.
const TRACKED_MASK: FlowMask = DECISION_MASK.with_ct();

/// A frame in its segment.
struct Frame<'a> {
    program: &'a Program,
    fdb: &'a dyn Lookup,
    segment: SegmentId,
    key: FlowKey,
    /// Mask of its decision without lists.
    least: FlowMask,
    /// The action without receivers' lists, once it is known.
    action: Option<Action>,
    precision: Precision,
}

/// Answer of the lists of both sides.
struct Answer {
    decision: Decision,
    /// Both sides allow, at least one of them by a stateful rule.
    is_stateful: bool,
    /// The lists of one side deny.
    is_denied: bool,
}

impl<'a> Frame<'a> {
    fn evaluation(&self, key: &FlowKey) -> Evaluation<'a> {
        Evaluation {
            rules: self.program.rules(),
            segment: self.segment,
            class_key: ClassKey::new(key),
            wildcards: Wildcards::default(),
            precision: self.precision,
        }
    }

    fn mask(&self, wildcards: &Wildcards) -> FlowMask {
        wildcards.add_to(self.least, self.key.ethertype())
    }

    /// Returns the action for a frame with a permitted source; its step is recorded once.
    fn forward(&mut self, trace: &mut impl DecisionTrace) -> Action {
        if let Some(action) = self.action {
            return action;
        }
        let destination = destination(self.program, self.fdb, self.segment, &self.key);
        trace.record(|| Step::Destination(destination));
        let action = match destination {
            Destination::Itself | Destination::Reflected => Action::Drop(DropReason::Reflection),
            Destination::Behind(Member { port, tag }) => Action::Unicast { port, tag },
            Destination::Group(_) | Destination::Unknown | Destination::Left(_) => {
                Action::flood(self.segment)
            }
        };
        self.action = Some(action);
        action
    }

    /// Returns a decision with this action, by no list.
    fn unasked(&self, action: Action) -> Decision {
        Decision {
            mask: self.least,
            learn: Some((self.segment, self.key.smac())),
            ..without_lists(action, Some(self.segment))
        }
    }

    /// Asks the lists of both sides, with the key and the bits of an evaluation.
    fn ask(&mut self, evaluation: &mut Evaluation<'_>, trace: &mut impl DecisionTrace) -> Answer {
        let from_guest = evaluation.port(Direction::FromGuest, self.ingress(), trace);
        if !from_guest.allows() {
            let refused = refuse(denial([&from_guest]), Some(self.segment));
            return Answer {
                decision: Decision {
                    mask: self.mask(&evaluation.rounded()),
                    from_guest: Some(from_guest),
                    ..refused
                },
                is_stateful: false,
                is_denied: true,
            };
        }
        let forwarded = self.forward(trace);
        let (action, receivers) = evaluation.receivers(self.program, forwarded, trace);
        let passes = !matches!(action, Action::Drop(_));
        let by_state = from_guest.verdict == Verdict::Stateful || receivers.is_stateful;
        Answer {
            decision: Decision {
                mask: self.mask(&evaluation.rounded()),
                from_guest: Some(from_guest),
                to_guest: receivers.to_guest,
                passing: receivers.passing,
                ..self.unasked(action)
            },
            is_stateful: passes && by_state,
            is_denied: !passes && action != forwarded,
        }
    }

    fn ingress(&self) -> PortId {
        PortId(self.key.in_port())
    }

    /// Decides a frame of a connection that stands: it goes to the far port, and nowhere else. Its
    /// key need not have anything above Ethernet.
    fn known(&mut self, trace: &mut impl DecisionTrace) -> Decision {
        let action = match self.forward(trace) {
            // Rules decide what is flooded. The far port is not known: nothing may tell it.
            Action::Flood { .. } => Action::Drop(DropReason::ConnectionInvalid),
            action => action,
        };
        self.unasked(action)
    }

    /// Decides a frame that may open a connection. If its rules do not let it pass, it may be a
    /// reply.
    fn new_connection(&mut self, maybe_reply: bool, trace: &mut impl DecisionTrace) -> Decision {
        let mut evaluation = self.evaluation(&self.key);
        let answer = self.ask(&mut evaluation, trace);
        if answer.is_stateful {
            return committed(answer.decision, false);
        }
        if !maybe_reply {
            return answer.decision;
        }
        if let action @ Action::Flood { .. } = self.forward(trace) {
            return self.flooded_reply((action, answer.decision), evaluation, trace);
        }
        if !answer.is_denied {
            return answer.decision;
        }
        let (found, wildcards) = self.ask_original(trace);
        evaluation.wildcards = evaluation.wildcards.union(&wildcards);
        let mask = self.mask(&evaluation.rounded());
        let decision = match found {
            Original::LetIn(decision) => committed(*decision, true),
            Original::Refused | Original::Unknown => answer.decision,
        };
        Decision { mask, ..decision }
    }

    /// Decides a flood that may be a reply, since the opener of its connection may not have sent a
    /// frame yet: each port gets it, too, that the opener may have. That lets no connection
    /// in: the opener's answer does, by rules.
    fn flooded_reply(
        &self,
        (action, new): (Action, Decision),
        mut evaluation: Evaluation<'_>,
        trace: &mut impl DecisionTrace,
    ) -> Decision {
        let refusal = new.from_guest.as_ref().filter(|ruling| !ruling.allows());
        let mut rulings = new.to_guest.iter().peekable();
        let (mut to_guest, mut is_reply) = (Vec::new(), false);
        for member in self.program.flood(self.segment, self.ingress()) {
            let of_new = rulings.next_if(|of| of.port == member.port);
            let of_new = of_new.map(|receiver| &receiver.ruling);
            let ruling = match refusal.or(of_new.filter(|ruling| !ruling.allows())) {
                Some(denial) => {
                    let (let_in, asked) = self.ask_from((member.port, member.tag), trace);
                    let bits = asked.wildcards.reversed();
                    evaluation.wildcards = evaluation.wildcards.union(&bits);
                    is_reply |= let_in.is_some();
                    let_in.is_none().then_some(denial)
                }
                None => of_new,
            };
            to_guest.extend(ruling.map(|ruling| Receiver {
                port: member.port,
                ruling: ruling.clone(),
            }));
        }
        let mask = self.mask(&evaluation.rounded());
        if !is_reply {
            return Decision { mask, ..new };
        }
        Decision {
            mask,
            from_guest: new.from_guest.filter(Ruling::allows),
            to_guest,
            passing: new.passing,
            ..self.unasked(action)
        }
    }

    /// Decides a frame of a connection that is decided as its first frame would be. If rules do not
    /// let that in, the frame is one of no connection.
    fn anew(&mut self, reply: bool, trace: &mut impl DecisionTrace) -> Decision {
        let (found, wildcards) = match reply {
            true => self.ask_original(trace),
            false => self.ask_first(trace),
        };
        if let Original::LetIn(decision) = found {
            return committed(*decision, reply);
        }
        let of_no_connection = Ct::new(CtState::TRACKED.union(CtState::INVALID), 0);
        let mut evaluation = self.evaluation(&self.key.with_ct(of_no_connection));
        evaluation.wildcards = wildcards.with_fragments();
        let Answer {
            decision,
            is_denied,
            ..
        } = self.ask(&mut evaluation, trace);
        // A later fragment lacks what rules match: a whole frame decides the connection.
        let decides = !self.key.state().contains(KeyState::LATER_FRAGMENT);
        let connection = match found {
            Original::Refused if is_denied && decides => ConnectionChange::Deny,
            _ => ConnectionChange::None,
        };
        Decision {
            connection,
            ..decision
        }
    }

    /// Asks as for the first frame of the connection of this frame, which is of the original
    /// direction. Returns the bits of the key that decide the answer, too.
    fn ask_first(&mut self, trace: &mut impl DecisionTrace) -> (Original, Wildcards) {
        let mut evaluation = self.evaluation(&first_of(&self.key));
        let Answer {
            decision,
            is_stateful,
            ..
        } = self.ask(&mut evaluation, trace);
        evaluation.wildcards = evaluation.wildcards.without_flags();
        if !is_stateful {
            return (Original::Refused, evaluation.wildcards);
        }
        let mask = self.mask(&evaluation.rounded());
        let decision = Decision { mask, ..decision };
        (Original::LetIn(Box::new(decision)), evaluation.wildcards)
    }

    /// Asks as for the first frame of the connection of this reply: the receiver of the reply was
    /// its sender. Returns the bits of the reply's key that decide the answer, too.
    fn ask_original(&mut self, trace: &mut impl DecisionTrace) -> (Original, Wildcards) {
        let action = self.forward(trace);
        let Action::Unicast { port, tag } = action else {
            return (Original::Unknown, Wildcards::default());
        };
        let (let_in, evaluation) = self.ask_from((port, tag), trace);
        let wildcards = evaluation.wildcards.reversed();
        let Some([from_guest, to_guest]) = let_in else {
            return (Original::Refused, wildcards);
        };
        let decision = Decision {
            mask: self.mask(&evaluation.rounded().reversed()),
            from_guest: Some(from_guest),
            to_guest: vec![Receiver {
                port: self.ingress(),
                ruling: to_guest,
            }],
            ..self.unasked(action)
        };
        (Original::LetIn(Box::new(decision)), wildcards)
    }

    /// Asks as for the first frame of the connection of this reply, if that has come from a port,
    /// with this tag. Returns the rulings of both sides if they let it in, and the evaluation.
    fn ask_from(
        &self,
        (port, tag): (PortId, Option<u16>),
        trace: &mut impl DecisionTrace,
    ) -> (Option<[Ruling; 2]>, Evaluation<'a>) {
        let original = first_of(&reversed(&self.key, port, tag));
        let mut evaluation = self.evaluation(&original);
        let from_guest = evaluation.port(Direction::FromGuest, port, trace);
        let to_guest = from_guest
            .allows()
            .then(|| evaluation.port(Direction::ToGuest, self.ingress(), trace));
        evaluation.wildcards = evaluation.wildcards.without_flags();
        let by_state = |ruling: &Ruling| ruling.verdict == Verdict::Stateful;
        let rulings = to_guest.map(|to_guest| [from_guest, to_guest]);
        let let_in =
            rulings.filter(|both| both.iter().all(Ruling::allows) && both.iter().any(by_state));
        (let_in, evaluation)
    }
}

/// Answer of the lists about the first frame of a connection.
enum Original {
    /// Both sides let it in, at least one of them by a stateful rule.
    LetIn(Box<Decision>),
    Refused,
    /// Its sender is not known.
    Unknown,
}

/// Returns the decision with its connection let in.
fn committed(decision: Decision, reply: bool) -> Decision {
    let class = decision.class_by_rules().map(|(class, _)| class);
    let mark = mark_of(class);
    Decision {
        connection: ConnectionChange::Commit { mark, reply },
        ..decision
    }
}

/// Returns the drop reason of a frame that no port gets: rejected if any rule rejects it, since
/// then its sender gets an answer; unparseable if there is no other reason.
fn denial<'r>(rulings: impl IntoIterator<Item = &'r Ruling>) -> DropReason {
    let reasons: Vec<_> = rulings
        .into_iter()
        .filter_map(Ruling::drop_reason)
        .collect();
    let order = [
        DropReason::AclRejected,
        DropReason::AclDenied,
        DropReason::ConnectionInvalid,
    ];
    let found = order.into_iter().find(|reason| reasons.contains(reason));
    found.unwrap_or(DropReason::Unparseable)
}

/// Rulings of the receivers' access lists: see [`Decision`].
#[derive(Default)]
struct ReceiverRulings {
    to_guest: Vec<Receiver>,
    /// Stateful ones come first.
    passing: Vec<RuleId>,
    /// A stateful rule lets a receiver have the frame.
    is_stateful: bool,
}

/// Evaluation of the access lists for one key, with the bits of the key that it depends on so far.
struct Evaluation<'p> {
    rules: &'p Rules,
    segment: SegmentId,
    class_key: ClassKey,
    wildcards: Wildcards,
    precision: Precision,
}

impl<'p> Evaluation<'p> {
    fn evaluate(&mut self, at: Scope) -> Ruling {
        let (class_key, wildcards) = (&self.class_key, &mut self.wildcards);
        self.rules.evaluate_profile(at, class_key, wildcards)
    }

    fn port(
        &mut self,
        direction: Direction,
        port: PortId,
        trace: &mut impl DecisionTrace,
    ) -> Ruling {
        let at = self.rules.scope(direction, self.segment, port);
        let ruling = self.evaluate(at);
        trace.record(|| self.step(port, at, &ruling));
        ruling
    }

    fn step(&self, port: PortId, at: Scope, ruling: &Ruling) -> Step {
        Step::Lists(explain::ListEvaluation {
            port,
            direction: at.direction,
            lists: self.rules.names(at),
            ruling: ruling.clone(),
        })
    }

    /// Applies the receivers' lists to an action. Returns the resulting action and their rulings.
    fn receivers(
        &mut self,
        program: &Program,
        action: Action,
        trace: &mut impl DecisionTrace,
    ) -> (Action, ReceiverRulings) {
        match action {
            Action::Drop(_) => (action, ReceiverRulings::default()),
            Action::Unicast { port, .. } => {
                let ruling = self.port(Direction::ToGuest, port, trace);
                let denied = || Action::Drop(denial([&ruling]));
                let action = if ruling.allows() { action } else { denied() };
                let receivers = ReceiverRulings {
                    is_stateful: ruling.verdict == Verdict::Stateful,
                    to_guest: vec![Receiver { port, ruling }],
                    ..ReceiverRulings::default()
                };
                (action, receivers)
            }
            Action::Flood { segment, .. } => {
                let (gets_it, receivers) = self.flooded(program, segment, trace);
                let rulings = || receivers.to_guest.iter().map(|receiver| &receiver.ruling);
                let denied = || Action::Drop(denial(rulings()));
                (if gets_it { action } else { denied() }, receivers)
            }
        }
    }

    /// Returns whether a flood has no receivers at all or at least one that gets it, and the
    /// rulings to report. Receivers with the same lists are evaluated once.
    fn flooded(
        &mut self,
        program: &Program,
        segment: SegmentId,
        trace: &mut impl DecisionTrace,
    ) -> (bool, ReceiverRulings) {
        let ingress = PortId(self.class_key.in_port());
        let mut known: BTreeMap<ProfileId, Ruling> = BTreeMap::new();
        let mut to_guest = Vec::new();
        let mut members = 0;
        for member in program.flood(segment, ingress) {
            members += 1;
            let at = self
                .rules
                .scope(Direction::ToGuest, self.segment, member.port);
            let ruling = known.entry(at.profile).or_insert_with(|| self.evaluate(at));
            trace.record(|| self.step(member.port, at, ruling));
            let logged = ruling.rule().is_some_and(|rule| rule.log.is_some());
            if logged || !ruling.allows() {
                let (port, ruling) = (member.port, ruling.clone());
                to_guest.push(Receiver { port, ruling });
            }
        }
        let mut passing: Vec<_> = known.values().filter(|ruling| ruling.allows()).collect();
        passing.sort_by_key(|ruling| ruling.verdict != Verdict::Stateful);
        let gets_it = members == 0 || !passing.is_empty();
        let passing = passing.iter().filter_map(|ruling| Some(ruling.rule()?.id));
        let receivers = ReceiverRulings {
            to_guest,
            passing: passing.collect(),
            is_stateful: known.values().any(|r| r.verdict == Verdict::Stateful),
        };
        (gets_it, receivers)
    }

    /// Returns the bits, rounded up to one of the masks of the rules unless they are asked for as
    /// they are.
    fn rounded(&self) -> Wildcards {
        match self.precision {
            Precision::Rounded => self.rules.round(&self.class_key, &self.wildcards),
            Precision::Exact => self.wildcards,
        }
    }
}
