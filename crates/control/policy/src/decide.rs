//! The decision for one flow.

mod within;

use port::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use wire::{FlowKey, FlowMask, MacAddr};

use within::decide_within;

use crate::acl::{RuleId, Ruling, Verdict};
use crate::connection::ConnectionChange;
use crate::explain::{DecisionTrace, Destination, NoTrace, Step};
use crate::model::SegmentId;
use crate::port_security::Bindings;
use crate::program::{Ingress, Program};
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
        excluded: ExcludeSetId,
    },
    /// Deliver to no port.
    Drop(DropReason),
}

/// Number of an exclude set, the ports that a flood must not reach, in a table of the executing
/// side. [`decide`] returns [`NONE`](Self::NONE) here, and the ports beside the action:
/// [`Decision::excluded`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct ExcludeSetId(pub u16);

// One is copied for each frame, in one word.
const _: () = assert!(size_of::<Action>() == 8);

impl ExcludeSetId {
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
            excluded: ExcludeSetId::NONE,
        }
    }

    /// Returns the same action; a flood excludes these ports.
    #[must_use]
    pub const fn excluding(self, excluded: ExcludeSetId) -> Self {
        match self {
            Self::Flood { segment, .. } => Self::Flood { segment, excluded },
            other => other,
        }
    }

    /// Returns the excluded ports.
    #[must_use]
    pub const fn excluded(&self) -> ExcludeSetId {
        match self {
            Self::Flood { excluded, .. } => *excluded,
            Self::Unicast { .. } | Self::Drop(_) => ExcludeSetId::NONE,
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
    /// Bits of the key that the decision depends on: all flows that agree in these bits share it.
    pub mask: FlowMask,
    /// The segment of the frame; `None` if it was dropped before classification.
    pub segment: Option<SegmentId>,
    /// The source address to learn at the ingress port, also if the frame is dropped as a
    /// reflection. `None`: there is nothing to learn from this frame.
    pub learn: Option<(SegmentId, MacAddr)>,
    /// Ruling of the sender's access lists. `None`: they were not evaluated, because the frame is
    /// dropped anyway, or because there are none.
    pub from_guest: Option<Ruling>,
    /// Rulings of the receivers' access lists: of the only receiver; or of those receivers of a
    /// flood that do not get the frame, or that a logged rule decides about, in ascending order.
    pub to_guest: Vec<Receiver>,
    /// Rules that let a flood pass to receivers that `to_guest` does not list, each once.
    pub passing: Vec<RuleId>,
    /// Effect on the connection of the frames.
    pub connection: ConnectionChange,
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

    /// Returns every rule that decided anything about the frame, once: those that count it. That
    /// which [lets the connection in](Self::lets_in) comes first. A frame
    /// that is dropped because its headers cannot be parsed counts for none, also if a rule of its
    /// sender let it pass before.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleId> {
        if self.action == Action::Drop(DropReason::Unparseable) {
            return Vec::new();
        }
        let named = self.rulings().filter_map(|ruling| Some(ruling.rule()?.id));
        let mut rules: Vec<_> = named.chain(self.passing.iter().copied()).collect();
        rules.sort_unstable();
        rules.dedup();
        if let Some(at) = rules.iter().position(|rule| Some(*rule) == self.lets_in()) {
            rules.swap(0, at);
        }
        rules
    }

    /// Returns the stateful rule that lets the connection of the frames in, if the decision commits
    /// it: the sender's, or else a receiver's.
    #[must_use]
    pub fn lets_in(&self) -> Option<RuleId> {
        if !matches!(self.connection, ConnectionChange::Commit { .. }) {
            return None;
        }
        let mut stateful = self
            .rulings()
            .filter(|ruling| ruling.verdict == Verdict::Stateful);
        let named = stateful.find_map(|ruling| Some(ruling.rule()?.id));
        named.or_else(|| self.passing.first().copied())
    }
}

/// Access to the forwarding database.
pub trait Lookup {
    /// Returns the port of the MAC address, if that is known.
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId>;

    /// Returns whether frames of `port` must not use `mac` as their source now, because the address
    /// belongs to other ports.
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

/// Part of a key that every decision depends on, whatever port security and access lists are:
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
    decide_traced(program, fdb, key, (Precision::Rounded, &mut NoTrace))
}

/// Decides like [`decide`], with the narrowest mask: it is not rounded up to one of a few. For
/// tables that choose their own masks.
#[must_use]
pub fn decide_exact(program: &Program, fdb: &dyn Lookup, key: &FlowKey) -> Decision {
    decide_traced(program, fdb, key, (Precision::Exact, &mut NoTrace))
}

/// Precision of a decision's mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Precision {
    /// One of the few masks of the rules.
    Rounded,
    /// The bits that decide.
    Exact,
}

/// Decides like [`decide`] and records each step.
pub(crate) fn decide_traced(
    program: &Program,
    fdb: &dyn Lookup,
    key: &FlowKey,
    (precision, trace): (Precision, &mut impl DecisionTrace),
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
            let (decision, class) = decide_within(program, fdb, segment, key, (precision, trace));
            with_class(decision, class, program, key, trace)
        }
    };
    Decision {
        mask: decision.mask.union(&wildcards),
        ..decision
    }
}

/// Adds the class to a decision, that of rules or else that of the DSCP, and the bits that it
/// depends on.
fn with_class(
    decision: Decision,
    by_rules: Option<(u8, ClassOrigin)>,
    program: &Program,
    key: &FlowKey,
    trace: &mut impl DecisionTrace,
) -> Decision {
    let (found, wildcards) = match by_rules {
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

/// Returns the drop reason of a frame with such addresses.
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
        connection: ConnectionChange::None,
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

/// Returns the location of the destination of a frame with a permitted source.
fn destination(
    program: &Program,
    fdb: &dyn Lookup,
    segment: SegmentId,
    key: &FlowKey,
) -> Destination {
    if key.dmac().is_multicast() {
        return Destination::Group(key.dmac());
    }
    // A station that sends to itself is at its own port, learned or not.
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
