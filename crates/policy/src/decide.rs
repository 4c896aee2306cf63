//! The decision for one flow.

use std::collections::BTreeMap;

use port::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use wire::{FlowKey, FlowMask, MacAddr};

use crate::acl::{ClassKey, Direction, ProfileId, RuleId, Rules, Ruling, Scope, Wildcards};
use crate::explain::{self, DecisionTrace, Destination, NoTrace, Step};
use crate::model::SegmentId;
use crate::port_security::Bindings;
use crate::program::{Ingress, Member, Program};
use crate::qos_class::{ClassOrigin, DEFAULT_CLASS};

/// Action for the frames of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Deliver to one port.
    Unicast {
        /// The receiver.
        port: PortId,
        /// The tag that the frame leaves with; `None`: untagged. Replaces the tag it came with.
        tag: Option<u16>,
    },
    /// Deliver to all ports of the segment but the sender and the excluded ones, each with its own
    /// tag: see [`Program::flood`].
    Flood {
        /// The segment.
        segment: SegmentId,
        /// The set of excluded ports.
        excluded: Excluded,
    },
    /// Deliver to no port.
    Drop(DropReason),
}

/// Index of the ports that a flood excludes, in a table of the executing side. [`decide`] returns
/// [`NONE`](Self::NONE) here, and the ports beside the action: [`Decision::excluded`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Excluded(pub u16);

// One is copied for each frame, in one word.
const _: () = assert!(size_of::<Action>() == 8);

impl Excluded {
    /// The flood excludes no port but its sender.
    pub const NONE: Self = Self(0);
}

impl Action {
    /// For tests: the action to a port, without a tag.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub const fn to(port: u32) -> Self {
        let port = PortId(port);
        Self::Unicast { port, tag: None }
    }

    /// A flood to all others in a segment.
    #[must_use]
    pub const fn flood(segment: SegmentId) -> Self {
        Self::Flood {
            segment,
            excluded: Excluded::NONE,
        }
    }

    /// Returns the same action; a flood excludes these ports.
    #[must_use]
    pub const fn excluding(self, excluded: Excluded) -> Self {
        match self {
            Self::Flood { segment, .. } => Self::Flood { segment, excluded },
            other => other,
        }
    }

    /// Returns the excluded ports.
    #[must_use]
    pub const fn excluded(&self) -> Excluded {
        match self {
            Self::Flood { excluded, .. } => *excluded,
            Self::Unicast { .. } | Self::Drop(_) => Excluded::NONE,
        }
    }
}

/// An [`Action`] and its reasons.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The action.
    pub action: Action,
    /// Class of the frames, by number; that of dropped frames means nothing.
    pub class: u8,
    /// Bits of the key on which the decision depends: all flows that agree in these bits share it.
    pub mask: FlowMask,
    /// The segment in which it was decided; `None` if it was dropped before classification.
    pub segment: Option<SegmentId>,
    /// The source address to learn at the ingress port, also if the frame is dropped as a
    /// reflection. `None`: there is nothing to learn from this frame.
    pub learn: Option<(SegmentId, MacAddr)>,
    /// Ruling of the sender's access lists. `None`: they were not evaluated, because the frame is
    /// dropped anyway, or because there are none.
    pub from_guest: Option<Ruling>,
    /// Rulings of the receivers' access lists: of the only receiver; or of those receivers of a
    /// flood that do not get the frame, or for which a logged rule decides, in ascending order.
    pub to_guest: Vec<Receiver>,
    /// Rules that let a flood pass to receivers that `to_guest` does not list, each once.
    pub passing: Vec<RuleId>,
}

/// Ruling of a receiver's access lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receiver {
    /// The receiver.
    pub port: PortId,
    /// The ruling.
    pub ruling: Ruling,
}

impl Decision {
    /// Returns the members of the segment that do not get the flood, in ascending order. The
    /// executor of [`Action::Flood`] must exclude them.
    pub fn excluded(&self) -> impl Iterator<Item = PortId> + '_ {
        let denied = self.to_guest.iter().filter(|r| !r.ruling.allows());
        denied.map(|receiver| receiver.port)
    }

    /// Returns all rulings about the frame: if a rule among them is logged, this decision's frames
    /// are.
    pub fn rulings(&self) -> impl Iterator<Item = &Ruling> {
        let receivers = self.to_guest.iter().map(|receiver| &receiver.ruling);
        self.from_guest.iter().chain(receivers)
    }

    /// Returns the class that access rules give the frame: that of the sender's rule, or else that
    /// of the only receiver's. Receivers of a flood may have different rules, which give it none.
    fn class_by_rules(&self) -> Option<(u8, ClassOrigin)> {
        let class = |ruling: &Ruling| ruling.rule()?.class;
        let from_guest = self.from_guest.as_ref().and_then(class);
        let to_guest = || match (self.action, self.to_guest.as_slice()) {
            (Action::Unicast { .. }, [receiver]) => class(&receiver.ruling),
            _ => None,
        };
        from_guest
            .map(|class| (class, ClassOrigin::FromGuest))
            .or_else(|| Some((to_guest()?, ClassOrigin::ToGuest)))
    }

    /// Returns every rule that decided anything about the frame, once.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleId> {
        let named = self.rulings().filter_map(|ruling| Some(ruling.rule()?.id));
        let mut rules: Vec<_> = named.chain(self.passing.iter().copied()).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

/// Access to the forwarding database.
pub trait Lookup {
    /// Returns the port behind which the MAC address is, if that is known.
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId>;

    /// Returns whether frames of `port` must not use `mac` as their source now, because the address
    /// belongs to another port that still uses it.
    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool;

    /// Returns the addresses bound to a port with sticky port security; none by default.
    fn bound(&self, _port: PortId) -> Bindings {
        Bindings::default()
    }
}

/// For tests: a function of segment and address is a forwarding database that bars no address.
#[cfg(any(test, feature = "test-utils"))]
impl<F: Fn(SegmentId, MacAddr) -> Option<PortId>> Lookup for F {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self(segment, mac)
    }

    fn is_barred(&self, _: SegmentId, _: MacAddr, _: PortId) -> bool {
        false
    }
}

/// Part of a key on which every decision depends, whatever port security and access lists are:
/// ingress port, VLAN, frame class, both Ethernet addresses.
pub const DECISION_MASK: FlowMask = FlowMask::NONE
    .with_in_port()
    .with_vlan()
    .with_frame_class()
    .with_smac()
    .with_dmac();

/// Decides what happens to the frames of the flow `key`.
#[must_use]
pub fn decide(program: &Program, fdb: &dyn Lookup, key: &FlowKey) -> Decision {
    decide_traced(program, fdb, key, &mut NoTrace)
}

/// Decides like [`decide`] and records each step.
pub(crate) fn decide_traced(
    program: &Program,
    fdb: &dyn Lookup,
    key: &FlowKey,
    trace: &mut impl DecisionTrace,
) -> Decision {
    let ingress = PortId(key.in_port());
    if let Some(reason) = refused_address(key) {
        trace.record(|| Step::Addresses(reason));
        return refuse(reason, None);
    }
    let segment = classify(program.ingress(ingress), key.vlan());
    trace.record(|| Step::Segment(segment));
    let segment = match segment {
        Ok(segment) => segment,
        Err(reason) => return refuse(reason, None),
    };
    let (refused, wildcards) = program
        .port_security(ingress)
        .check(&fdb.bound(ingress), key);
    let decision = match refused {
        Some(reason) => {
            trace.record(|| Step::PortSecurity(reason));
            refuse(reason, Some(segment))
        }
        None => {
            let decision = decide_within(program, fdb, segment, key, trace);
            with_class(decision, program, key, trace)
        }
    };
    Decision {
        mask: decision.mask.union(&wildcards),
        ..decision
    }
}

/// Decides in its segment about a frame that port security permits.
fn decide_within(
    program: &Program,
    fdb: &dyn Lookup,
    segment: SegmentId,
    key: &FlowKey,
    trace: &mut impl DecisionTrace,
) -> Decision {
    let ingress = PortId(key.in_port());
    let barred = fdb.is_barred(segment, key.smac(), ingress);
    trace.record(|| Step::Source { barred });
    if barred {
        return refuse(DropReason::SpoofedSource, Some(segment));
    }
    if program.rules().allow_all(segment) {
        trace.record(|| Step::Unfiltered);
        let action = forward(program, fdb, segment, key, trace);
        return Decision {
            learn: Some((segment, key.smac())),
            ..without_lists(action, Some(segment))
        };
    }
    let mut evaluation = Evaluation::new(program.rules(), segment, key);
    let from_guest = evaluation.port(Direction::FromGuest, ingress, trace);
    if !from_guest.allows() {
        let refused = refuse(denial([&from_guest]), Some(segment));
        return Decision {
            mask: evaluation.mask(),
            from_guest: Some(from_guest),
            ..refused
        };
    }
    let action = forward(program, fdb, segment, key, trace);
    let (action, ReceiverRulings { to_guest, passing }) =
        evaluation.receivers(program, action, trace);
    Decision {
        action,
        class: DEFAULT_CLASS,
        mask: evaluation.mask(),
        segment: Some(segment),
        learn: Some((segment, key.smac())),
        from_guest: Some(from_guest),
        to_guest,
        passing,
    }
}

/// Adds the class to a decision, and the bits on which it depends.
fn with_class(
    decision: Decision,
    program: &Program,
    key: &FlowKey,
    trace: &mut impl DecisionTrace,
) -> Decision {
    let (found, wildcards) = match decision.class_by_rules() {
        _ if matches!(decision.action, Action::Drop(_)) => return decision,
        Some(found) => (Some(found), FlowMask::NONE),
        None => {
            let (found, wildcards) = program.dscp_classes().of(key);
            let named = found.map(|(class, dscp)| (class, ClassOrigin::Dscp(dscp)));
            (named, wildcards)
        }
    };
    if let Some((class, origin)) = found {
        trace.record(|| Step::Class(class, origin));
    }
    Decision {
        class: found.map_or(DEFAULT_CLASS, |(class, _)| class),
        mask: decision.mask.union(&wildcards),
        ..decision
    }
}

/// Returns the reason for which a frame with such addresses is dropped.
fn refused_address(key: &FlowKey) -> Option<DropReason> {
    if !key.smac().is_station() {
        return Some(DropReason::BadSource);
    }
    let reserved = key.dmac().is_link_local_reserved();
    reserved.then_some(DropReason::LinkLocal)
}

fn refuse(reason: DropReason, segment: Option<SegmentId>) -> Decision {
    without_lists(Action::Drop(reason), segment)
}

/// Returns the drop reason of a frame that no port gets: rejected if any rule rejects it, since
/// then its sender gets an answer; unparseable if there is no other reason.
fn denial<'r>(rulings: impl IntoIterator<Item = &'r Ruling>) -> DropReason {
    let reasons: Vec<_> = rulings
        .into_iter()
        .filter_map(Ruling::drop_reason)
        .collect();
    let given = |reason| reasons.contains(&reason).then_some(reason);
    given(DropReason::AclRejected)
        .or_else(|| given(DropReason::AclDenied))
        .unwrap_or(DropReason::Unparseable)
}

/// Returns a decision without access lists.
fn without_lists(action: Action, segment: Option<SegmentId>) -> Decision {
    Decision {
        action,
        class: DEFAULT_CLASS,
        mask: DECISION_MASK,
        segment,
        learn: None,
        from_guest: None,
        to_guest: Vec::new(),
        passing: Vec::new(),
    }
}

/// Rulings of the receivers' access lists: see [`Decision`].
#[derive(Default)]
struct ReceiverRulings {
    to_guest: Vec<Receiver>,
    passing: Vec<RuleId>,
}

/// Evaluation of the access lists for one key, with the bits of the key on which it depends so far.
struct Evaluation<'p> {
    rules: &'p Rules,
    segment: SegmentId,
    class_key: ClassKey,
    wildcards: Wildcards,
}

impl<'p> Evaluation<'p> {
    fn new(rules: &'p Rules, segment: SegmentId, key: &FlowKey) -> Self {
        Self {
            rules,
            segment,
            class_key: ClassKey::new(key),
            wildcards: Wildcards::default(),
        }
    }

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
        let mut passing = known.values().filter(|ruling| ruling.allows()).peekable();
        let gets_it = members == 0 || passing.peek().is_some();
        let passing = passing.filter_map(|ruling| Some(ruling.rule()?.id));
        let passing = passing.collect();
        (gets_it, ReceiverRulings { to_guest, passing })
    }

    fn mask(&self) -> FlowMask {
        let wildcards = self.rules.round(&self.class_key, &self.wildcards);
        wildcards.add_to(DECISION_MASK, self.class_key.ethertype())
    }
}

/// Returns the segment of a frame with this tag.
pub(crate) fn classify(ingress: &Ingress, vlan: Option<u16>) -> Result<SegmentId, DropReason> {
    let vid = vlan.unwrap_or(0);
    match ingress {
        Ingress::Closed => Err(DropReason::VlanUnknown),
        Ingress::Down => Err(DropReason::PortDown),
        Ingress::Access(segment) if vid == 0 => Ok(*segment),
        Ingress::Access(_) => Err(DropReason::VlanNotAllowed),
        Ingress::Trunk { native, .. } if vid == 0 => native.ok_or(DropReason::VlanUnknown),
        Ingress::Trunk { tagged, .. } => tagged
            .binary_search_by_key(&vid, |entry| entry.vid)
            .ok()
            .and_then(|at| tagged.get(at))
            .map(|entry| entry.segment)
            .ok_or(DropReason::VlanUnknown),
    }
}

/// Returns the action for a frame with a permitted source.
fn forward(
    program: &Program,
    fdb: &dyn Lookup,
    segment: SegmentId,
    key: &FlowKey,
    trace: &mut impl DecisionTrace,
) -> Action {
    let destination = destination(program, fdb, segment, key);
    trace.record(|| Step::Destination(destination));
    match destination {
        Destination::Itself | Destination::Reflected => Action::Drop(DropReason::Reflection),
        Destination::Behind(Member { port, tag }) => Action::Unicast { port, tag },
        Destination::Group(_) | Destination::Unknown | Destination::Left(_) => {
            Action::flood(segment)
        }
    }
}

fn destination(
    program: &Program,
    fdb: &dyn Lookup,
    segment: SegmentId,
    key: &FlowKey,
) -> Destination {
    if key.dmac().is_multicast() {
        return Destination::Group(key.dmac());
    }
    // A station that sends to itself is behind its own port, learned or not.
    if key.dmac() == key.smac() {
        return Destination::Itself;
    }
    let Some(port) = fdb.port_of(segment, key.dmac()) else {
        return Destination::Unknown;
    };
    if port == PortId(key.in_port()) {
        return Destination::Reflected;
    }
    // A port that has left the segment since it was learned counts as unknown.
    let member = program.member(segment, port);
    member.map_or(Destination::Left(port), Destination::Behind)
}
