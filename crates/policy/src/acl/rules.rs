//! The compiled access model, and what it says of a frame.

use std::fmt;
use std::sync::Arc;

use port::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use wire::flow::{FlowKey, FlowMask};

use super::list::AccessList;
use super::matcher::Rule;
use super::order::Order;
use super::palette::Palette;
use super::point::{Looked, Point};
use super::resolve::Context;
use super::wiring::Overlap;
use crate::model::SegmentId;
use api::v1::{Direction, Otherwise};

/// Names a rule for as long as it and its list have their names, over restarts too: for counters and logs. A hash of both names.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct RuleId(pub u64);

impl RuleId {
    /// The id of a rule. (FNV-1a of the names with a zero between them; of two rules with the same one the second is refused.)
    #[must_use]
    pub fn of(list: &str, rule: &str) -> Self {
        let bytes = list.bytes().chain([0]).chain(rule.bytes());
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, step))
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What happens to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It passes.
    Allow,
    /// It is dropped.
    Drop,
    /// It is dropped and its sender told so.
    Reject,
}

/// How often uses of a rule are logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LogLimit {
    /// Frames a second at most; at least 1.
    pub per_second: u32,
}

/// What is to be known of a rule that has decided.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RuleInfo {
    /// Its id.
    pub id: RuleId,
    /// Its list's name.
    pub list: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What it does.
    pub verdict: Verdict,
    /// Whether its uses are logged.
    pub log: Option<LogLimit>,
}

/// Who has decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// No rule matched: the segment's default.
    Default,
    /// The lists look at headers that could not be read; no rule is asked then.
    Unreadable,
    /// The first rule that matched.
    Rule(Arc<RuleInfo>),
}

/// What the lists of one side of a frame's way say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ruling {
    /// What happens.
    pub verdict: Verdict,
    /// Who says so.
    pub by: By,
}

impl Ruling {
    /// Whether the frame passes.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.verdict == Verdict::Allow
    }

    /// Why frames are dropped of which nothing else is said; `None` if they pass.
    #[must_use]
    pub fn drop_reason(&self) -> Option<DropReason> {
        match (self.verdict, &self.by) {
            (Verdict::Allow, _) => None,
            (_, By::Unreadable) => Some(DropReason::Unreadable),
            (Verdict::Drop, _) => Some(DropReason::AclDenied),
            (Verdict::Reject, _) => Some(DropReason::AclRejected),
        }
    }

    /// The rule that has decided.
    #[must_use]
    pub fn rule(&self) -> Option<&Arc<RuleInfo>> {
        match &self.by {
            By::Rule(rule) => Some(rule),
            By::Default | By::Unreadable => None,
        }
    }
}

/// Lists by number, for either direction, in the order in which they are asked.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Attached {
    pub(super) from_guest: Vec<u32>,
    pub(super) to_guest: Vec<u32>,
}

impl Attached {
    pub(super) fn of(&self, direction: Direction) -> &[u32] {
        match direction {
            Direction::FromGuest => &self.from_guest,
            Direction::ToGuest => &self.to_guest,
        }
    }

    pub(super) fn of_mut(&mut self, direction: Direction) -> &mut Vec<u32> {
        match direction {
            Direction::FromGuest => &mut self.from_guest,
            Direction::ToGuest => &mut self.to_guest,
        }
    }

    fn is_empty(&self) -> bool {
        self.from_guest.is_empty() && self.to_guest.is_empty()
    }
}

/// What a segment adds to its ports' lists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct SegmentRules {
    pub(super) attached: Attached,
    pub(super) from_guest: Otherwise,
    pub(super) to_guest: Otherwise,
}

/// What is attached to what.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Wiring {
    /// What ports have attached, themselves and by their groups: each only once. The first is nothing.
    pub(super) profiles: Vec<Attached>,
    /// By port id: its profile.
    pub(super) ports: Vec<u32>,
    /// By segment id.
    pub(super) segments: Vec<SegmentRules>,
    /// Lists between the rules of which only priorities decide.
    pub(super) overlaps: Vec<Overlap>,
}

/// All access lists, compiled: immutable, and cheap to copy, because copies share everything. The default has none and allows
/// everything.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub(super) lists: Vec<Arc<AccessList>>,
    pub(super) wiring: Arc<Wiring>,
    pub(super) palette: Arc<Palette>,
    pub(super) context: Arc<Context>,
}

impl PartialEq for Rules {
    /// Whether they say the same of all frames by the same rules.
    fn eq(&self, other: &Self) -> bool {
        self.wiring == other.wiring
            && self.lists.len() == other.lists.len()
            && self
                .lists
                .iter()
                .zip(&other.lists)
                .all(|(a, b)| Arc::ptr_eq(a, b) || a.is_same(b))
    }
}

impl Eq for Rules {}

/// What the lists of a port in a segment are; for telling receivers apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ProfileId(u32);

impl Rules {
    /// Rules in all lists.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lists.iter().map(|list| list.len).sum()
    }

    /// Whether there is no rule. (A segment may still deny by default.)
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A rule by its list's and its own name.
    #[must_use]
    pub fn rule(&self, list: &str, rule: &str) -> Option<Arc<RuleInfo>> {
        let list = self.lists.iter().find(|l| &*l.name == list)?;
        let found = list.rule(RuleId::of(&list.name, rule))?;
        Some(found.info.clone())
    }

    /// Whether these and other rules say the same of all frames from a port in a segment (`FromGuest`), or of all frames to it
    /// (`ToGuest`). Flows that they do not are to be decided anew: those from the port; those to it, and all floods in the
    /// segment.
    #[must_use]
    pub fn is_same_for(
        &self,
        other: &Self,
        direction: Direction,
        segment: SegmentId,
        port: PortId,
    ) -> bool {
        let lists = |rules: &Self| -> Vec<Arc<AccessList>> {
            let numbers = rules.numbers(direction, segment, rules.profile(port));
            let lists = numbers.filter_map(|number| rules.lists.get(*number as usize));
            lists.cloned().collect()
        };
        let (own, others) = (lists(self), lists(other));
        let same = |(a, b): (&Arc<AccessList>, &Arc<AccessList>)| Arc::ptr_eq(a, b) || a.is_same(b);
        self.otherwise(direction, segment) == other.otherwise(direction, segment)
            && own.len() == others.len()
            && own.iter().zip(&others).all(same)
    }

    /// What the lists of a port in a segment say of a frame with this key, and the bits of the key that say so, besides those
    /// of [`DECISION_MASK`](crate::DECISION_MASK): the narrowest mask. ([`decide`](crate::decide) rounds it up to one of a few.)
    #[must_use]
    pub fn ask(
        &self,
        direction: Direction,
        segment: SegmentId,
        port: PortId,
        key: &FlowKey,
    ) -> (Ruling, FlowMask) {
        let (point, mut looked) = (Point::new(key), Looked::default());
        let ruling = self.judge(direction, segment, self.profile(port), &point, &mut looked);
        (ruling, looked.add_to(FlowMask::NONE, key.ethertype()))
    }

    /// Whether every frame of the segment passes unasked.
    pub(crate) fn allow_all(&self, segment: SegmentId) -> bool {
        let no_port = self.wiring.profiles.iter().all(Attached::is_empty);
        let allows = |rules: &SegmentRules| {
            rules.attached.is_empty()
                && rules.from_guest == Otherwise::Allow
                && rules.to_guest == Otherwise::Allow
        };
        no_port && self.segment(segment).is_none_or(allows)
    }

    fn segment(&self, segment: SegmentId) -> Option<&SegmentRules> {
        self.wiring.segments.get(usize::from(segment.0))
    }

    /// Ports with the same profile get the same rulings in the same segment.
    pub(crate) fn profile(&self, port: PortId) -> ProfileId {
        let profile = self.wiring.ports.get(port.0 as usize);
        ProfileId(profile.copied().unwrap_or(0))
    }

    /// Numbers of the lists that are asked, in their order.
    fn numbers(
        &self,
        direction: Direction,
        segment: SegmentId,
        profile: ProfileId,
    ) -> impl Iterator<Item = &u32> + Clone {
        let profile = self.wiring.profiles.get(profile.0 as usize);
        let segment = self.segment(segment).map(|rules| &rules.attached);
        let attached = profile.into_iter().chain(segment);
        attached.flat_map(move |attached| attached.of(direction))
    }

    fn lists(
        &self,
        direction: Direction,
        segment: SegmentId,
        profile: ProfileId,
    ) -> impl Iterator<Item = &AccessList> + Clone {
        let numbers = self.numbers(direction, segment, profile);
        numbers.filter_map(|number| Some(&**self.lists.get(*number as usize)?))
    }

    /// Names of the lists that are asked, in their order.
    pub(crate) fn names(
        &self,
        direction: Direction,
        segment: SegmentId,
        profile: ProfileId,
    ) -> Vec<Arc<str>> {
        let lists = self.lists(direction, segment, profile);
        lists.map(|list| list.name.clone()).collect()
    }

    fn otherwise(&self, direction: Direction, segment: SegmentId) -> Verdict {
        let otherwise = self.segment(segment).map(|rules| match direction {
            Direction::FromGuest => rules.from_guest,
            Direction::ToGuest => rules.to_guest,
        });
        match otherwise.unwrap_or_default() {
            Otherwise::Allow => Verdict::Allow,
            Otherwise::Deny => Verdict::Drop,
        }
    }

    /// What one side says of a key, and what of the key says so.
    pub(crate) fn judge(
        &self,
        direction: Direction,
        segment: SegmentId,
        profile: ProfileId,
        point: &Point,
        looked: &mut Looked,
    ) -> Ruling {
        let lists = self.lists(direction, segment, profile);
        lists.clone().for_each(|list| list.note_readable(looked));
        if lists.clone().any(|list| list.cannot_read(point)) {
            let (verdict, by) = (Verdict::Drop, By::Unreadable);
            return Ruling { verdict, by };
        }
        let first = first_match(lists.clone(), point);
        if let Some((_, rule)) = first {
            rule.matcher.note_match(point, looked);
        }
        for (turn, list) in lists.enumerate() {
            list.note_misses(point, limit_before(first, turn), looked);
        }
        match first {
            Some((_, rule)) => Ruling {
                verdict: rule.info.verdict,
                by: By::Rule(rule.info.clone()),
            },
            None => Ruling {
                verdict: self.otherwise(direction, segment),
                by: By::Default,
            },
        }
    }

    /// What is to be looked at so that flows have few different masks.
    pub(crate) fn round(&self, point: &Point, looked: &Looked) -> Looked {
        self.palette.cover(point.family, looked)
    }
}

/// The rule of the highest priority; among equals that of the list that is asked first; and that list's turn.
fn first_match<'a>(
    lists: impl Iterator<Item = &'a AccessList>,
    point: &Point,
) -> Option<(usize, &'a Arc<Rule>)> {
    let mut first = None;
    for (turn, list) in lists.enumerate() {
        if let Some(rule) = list.find(point, limit_before(first, turn)) {
            first = Some((turn, rule));
        }
    }
    first
}

/// Before what a rule of a list must come to come before the first one.
fn limit_before(first: Option<(usize, &Arc<Rule>)>, turn: usize) -> Order {
    let Some((turn_of_first, rule)) = first else {
        return Order::NEVER;
    };
    let priority = rule.order.priority();
    match turn.cmp(&turn_of_first) {
        std::cmp::Ordering::Less => Order::behind(priority),
        std::cmp::Ordering::Equal => rule.order,
        std::cmp::Ordering::Greater => Order::before(priority),
    }
}
