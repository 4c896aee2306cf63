//! The decision for one flow.

use std::collections::BTreeMap;

use port::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use wire::{FlowKey, FlowMask, MacAddr};

use crate::acl::{Direction, Looked, Point, ProfileId, RuleId, Rules, Ruling};
use crate::explain::{self, Destination, Nobody, Step, Witness};
use crate::guard::Bound;
use crate::model::SegmentId;
use crate::program::{Ingress, Member, Program};

/// What to do with the frames of a flow.
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
    /// Deliver to all ports of the segment but the sender and those that are left out, each with its own tag: see
    /// [`Program::flood`].
    Flood {
        /// The segment.
        segment: SegmentId,
        /// Whose list of ports is left out.
        left_out: LeftOut,
    },
    /// Deliver to nobody.
    Drop(DropReason),
}

/// Names the ports that a flood leaves out, in a table of whoever carries actions out. Who decides says
/// [`NOBODY`](Self::NOBODY) here, and the ports beside the action: [`Decision::excluded`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct LeftOut(pub u16);

// Each frame's is copied, in one word.
const _: () = assert!(size_of::<Action>() == 8);

impl LeftOut {
    /// The flood goes to all others.
    pub const NOBODY: Self = Self(0);
}

impl Action {
    /// A flood to all others in a segment.
    #[must_use]
    pub const fn flood(segment: SegmentId) -> Self {
        Self::Flood {
            segment,
            left_out: LeftOut::NOBODY,
        }
    }

    /// The same action; a flood leaves these out.
    #[must_use]
    pub const fn leaving_out(self, left_out: LeftOut) -> Self {
        match self {
            Self::Flood { segment, .. } => Self::Flood { segment, left_out },
            other => other,
        }
    }

    /// Which ports it leaves out.
    #[must_use]
    pub const fn left_out(&self) -> LeftOut {
        match self {
            Self::Flood { left_out, .. } => *left_out,
            Self::Unicast { .. } | Self::Drop(_) => LeftOut::NOBODY,
        }
    }
}

/// An [`Action`] and its reasons.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// What of the key the decision depends on: all flows that agree in these bits share it.
    pub mask: FlowMask,
    /// The segment in which it was decided; `None` if it was dropped before that was known.
    pub segment: Option<SegmentId>,
    /// The source address to be learned at the ingress port, also if the frame is dropped as a
    /// reflection. `None`: nothing to be learned from this frame.
    pub learn: Option<(SegmentId, MacAddr)>,
    /// What the sender's access lists say. `None`: they were not asked, because the frame is dropped anyway, or because there
    /// are none.
    pub from_guest: Option<Ruling>,
    /// What the receivers' access lists say: of the one receiver; or of those receivers of a flood that do not get the
    /// frame, or for which a rule decides that is logged, in ascending order.
    pub to_guest: Vec<Receiver>,
    /// Rules that let a flood pass to those of its receivers of which nothing is said there, each once.
    pub passing: Vec<RuleId>,
}

/// What a receiver's access lists say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receiver {
    /// The receiver.
    pub port: PortId,
    /// The ruling.
    pub ruling: Ruling,
}

impl Decision {
    /// Members of the segment that do not get the flood, in ascending order. Whoever carries out [`Action::Flood`] must leave
    /// them out.
    pub fn excluded(&self) -> impl Iterator<Item = PortId> + '_ {
        let denied = self.to_guest.iter().filter(|r| !r.ruling.allows());
        denied.map(|receiver| receiver.port)
    }

    /// All that rules said of the frame: where one of them is logged, this decision's frames are.
    pub fn rulings(&self) -> impl Iterator<Item = &Ruling> {
        let receivers = self.to_guest.iter().map(|receiver| &receiver.ruling);
        self.from_guest.iter().chain(receivers)
    }

    /// Every rule that has decided anything about the frame, once.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleId> {
        let named = self.rulings().filter_map(|ruling| Some(ruling.rule()?.id));
        let mut rules: Vec<_> = named.chain(self.passing.iter().copied()).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

/// What [`decide`] needs to know of the forwarding database.
pub trait Lookup {
    /// The port behind which the station is, if that is known.
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId>;

    /// Whether frames of `port` must not use `mac` as their source now, because the address
    /// belongs to another port that still uses it.
    fn is_barred(&self, segment: SegmentId, mac: MacAddr, port: PortId) -> bool;

    /// The addresses that were heard first at a port where they are learned once; none where nobody says so.
    fn bound(&self, _port: PortId) -> Bound {
        Bound::default()
    }
}

/// The part of a key that [`decide`] looks at whatever guards and access lists are: ingress port, VLAN, conduct, both Ethernet
/// addresses.
pub const DECISION_MASK: FlowMask = FlowMask::NONE
    .with_in_port()
    .with_vlan()
    .with_conduct()
    .with_smac()
    .with_dmac();

/// Decides what happens to the frames of the flow `key`.
#[must_use]
pub fn decide(program: &Program, fdb: &dyn Lookup, key: &FlowKey) -> Decision {
    decide_telling(program, fdb, key, &mut Nobody)
}

/// The same; `told` hears of each step.
pub(crate) fn decide_telling(
    program: &Program,
    fdb: &dyn Lookup,
    key: &FlowKey,
    told: &mut impl Witness,
) -> Decision {
    let ingress = PortId(key.in_port());
    if let Some(reason) = refused_address(key) {
        told.note(|| Step::Addresses(reason));
        return refuse(reason, None);
    }
    let segment = classify(program.ingress(ingress), key.vlan());
    told.note(|| Step::Segment(segment));
    let segment = match segment {
        Ok(segment) => segment,
        Err(reason) => return refuse(reason, None),
    };
    let (refused, looked) = program.guard(ingress).check(&fdb.bound(ingress), key);
    let decision = match refused {
        Some(reason) => {
            told.note(|| Step::Guard(reason));
            refuse(reason, Some(segment))
        }
        None => decide_within(program, fdb, segment, key, told),
    };
    Decision {
        mask: decision.mask.union(&looked),
        ..decision
    }
}

/// Decides about a frame that its port's guest may send, in its segment.
fn decide_within(
    program: &Program,
    fdb: &dyn Lookup,
    segment: SegmentId,
    key: &FlowKey,
    told: &mut impl Witness,
) -> Decision {
    let ingress = PortId(key.in_port());
    let barred = fdb.is_barred(segment, key.smac(), ingress);
    told.note(|| Step::Source { barred });
    if barred {
        return refuse(DropReason::MacClaim, Some(segment));
    }
    if program.rules().allow_all(segment) {
        told.note(|| Step::Unfiltered);
        let action = forward(program, fdb, segment, key, told);
        return Decision {
            learn: Some((segment, key.smac())),
            ..unasked(action, Some(segment))
        };
    }
    let mut asked = Asked::new(program.rules(), segment, key);
    let from_guest = asked.sender(ingress, told);
    if !from_guest.allows() {
        let refused = refuse(denial([&from_guest]), Some(segment));
        return Decision {
            mask: asked.mask(),
            from_guest: Some(from_guest),
            ..refused
        };
    }
    let action = forward(program, fdb, segment, key, told);
    let (action, Said { to_guest, passing }) = asked.receivers(program, action, told);
    Decision {
        action,
        mask: asked.mask(),
        segment: Some(segment),
        learn: Some((segment, key.smac())),
        from_guest: Some(from_guest),
        to_guest,
        passing,
    }
}

/// Why nobody gets frames with such addresses.
fn refused_address(key: &FlowKey) -> Option<DropReason> {
    if !key.smac().is_station() {
        return Some(DropReason::BadSource);
    }
    let reserved = key.dmac().is_link_local_reserved();
    reserved.then_some(DropReason::LinkLocal)
}

fn refuse(reason: DropReason, segment: Option<SegmentId>) -> Decision {
    unasked(Action::Drop(reason), segment)
}

/// Why a frame is dropped that nobody may get: its sender is told if any rule says so; and it is unreadable if nothing else is said.
fn denial<'r>(rulings: impl IntoIterator<Item = &'r Ruling>) -> DropReason {
    let reasons: Vec<_> = rulings
        .into_iter()
        .filter_map(Ruling::drop_reason)
        .collect();
    let said = |reason| reasons.contains(&reason).then_some(reason);
    said(DropReason::AclRejected)
        .or_else(|| said(DropReason::AclDenied))
        .unwrap_or(DropReason::Unreadable)
}

/// A decision without access lists.
fn unasked(action: Action, segment: Option<SegmentId>) -> Decision {
    Decision {
        action,
        mask: DECISION_MASK,
        segment,
        learn: None,
        from_guest: None,
        to_guest: Vec::new(),
        passing: Vec::new(),
    }
}

/// What the receivers' access lists say: see [`Decision`].
#[derive(Default)]
struct Said {
    to_guest: Vec<Receiver>,
    passing: Vec<RuleId>,
}

/// What the access lists were asked about one key, and what of it they looked at.
struct Asked<'p> {
    rules: &'p Rules,
    segment: SegmentId,
    point: Point,
    looked: Looked,
}

impl<'p> Asked<'p> {
    fn new(rules: &'p Rules, segment: SegmentId, key: &FlowKey) -> Self {
        Self {
            rules,
            segment,
            point: Point::new(key),
            looked: Looked::default(),
        }
    }

    fn judge(&mut self, direction: Direction, profile: ProfileId) -> Ruling {
        let (point, looked) = (&self.point, &mut self.looked);
        self.rules
            .judge(direction, self.segment, profile, point, looked)
    }

    fn sender(&mut self, port: PortId, told: &mut impl Witness) -> Ruling {
        let ruling = self.judge(Direction::FromGuest, self.rules.profile(port));
        told.note(|| self.told(port, Direction::FromGuest, &ruling));
        ruling
    }

    fn receiver(&mut self, port: PortId, told: &mut impl Witness) -> Ruling {
        let ruling = self.judge(Direction::ToGuest, self.rules.profile(port));
        told.note(|| self.told(port, Direction::ToGuest, &ruling));
        ruling
    }

    fn told(&self, port: PortId, direction: Direction, ruling: &Ruling) -> Step {
        let profile = self.rules.profile(port);
        Step::Lists(explain::Asked {
            port,
            direction,
            lists: self.rules.names(direction, self.segment, profile),
            ruling: ruling.clone(),
        })
    }

    /// What is left of an action when the receivers have been asked, and what they said.
    fn receivers(
        &mut self,
        program: &Program,
        action: Action,
        told: &mut impl Witness,
    ) -> (Action, Said) {
        match action {
            Action::Drop(_) => (action, Said::default()),
            Action::Unicast { port, .. } => {
                let ruling = self.receiver(port, told);
                let denied = || Action::Drop(denial([&ruling]));
                let action = if ruling.allows() { action } else { denied() };
                let said = Said {
                    to_guest: vec![Receiver { port, ruling }],
                    ..Said::default()
                };
                (action, said)
            }
            Action::Flood { segment, .. } => {
                let (gets_it, said) = self.flooded(program, segment, told);
                let rulings = || said.to_guest.iter().map(|receiver| &receiver.ruling);
                let denied = || Action::Drop(denial(rulings()));
                (if gets_it { action } else { denied() }, said)
            }
        }
    }

    /// Whether anybody gets a flood, or it has no receivers at all; and what is to be said of some of them. Receivers
    /// with the same lists are asked once.
    fn flooded(
        &mut self,
        program: &Program,
        segment: SegmentId,
        told: &mut impl Witness,
    ) -> (bool, Said) {
        let ingress = PortId(self.point.in_port());
        let mut known: BTreeMap<ProfileId, Ruling> = BTreeMap::new();
        let mut to_guest = Vec::new();
        let mut members = 0;
        for member in program.flood(segment, ingress) {
            members += 1;
            let profile = self.rules.profile(member.port);
            let ruling = known
                .entry(profile)
                .or_insert_with(|| self.judge(Direction::ToGuest, profile));
            told.note(|| self.told(member.port, Direction::ToGuest, ruling));
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
        (gets_it, Said { to_guest, passing })
    }

    fn mask(&self) -> FlowMask {
        let looked = self.rules.round(&self.point, &self.looked);
        looked.add_to(DECISION_MASK, self.point.ethertype())
    }
}

/// The segment of a frame with this tag.
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

/// Where a frame with a good source goes.
fn forward(
    program: &Program,
    fdb: &dyn Lookup,
    segment: SegmentId,
    key: &FlowKey,
    told: &mut impl Witness,
) -> Action {
    let destination = destination(program, fdb, segment, key);
    told.note(|| Step::Destination(destination));
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
