//! The compiled access model, and its evaluation.

use std::fmt;
use std::sync::Arc;

use port::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use wire::flow::{FlowKey, FlowMask};

use super::attachments::Overlap;
use super::class_key::{ClassKey, Wildcards};
use super::compile::name_of;
use super::error::{AccessError, Place, Reason};
use super::list::AccessList;
use super::mask_set::MaskSet;
use super::matcher::Rule;
use super::order::Order;
use super::resolve::{Context, at};
use crate::model::SegmentId;
use model::{Direction, Otherwise};
use wire::hash::{BASIS, fnv1a};

/// Identifier of a rule for as long as it and its list keep their names, also over restarts: for
/// counters and logs. A hash of both names.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct RuleId(pub u64);

impl RuleId {
    /// Returns the id of a rule: FNV-1a of the names with a zero between them. (Of two rules with
    /// the same id the second is refused.)
    #[must_use]
    pub fn of(list: &str, rule: &str) -> Self {
        let bytes = list.bytes().chain([0]).chain(rule.bytes());
        Self(fnv1a(BASIS, bytes))
    }

    /// Returns the number of the rule in the table of connections, which has 32 bits for it: two
    /// rules may have one. It is never zero, which is no rule.
    #[must_use]
    pub const fn number(self) -> u32 {
        match (self.0 ^ self.0 >> 32) as u32 {
            0 => 1,
            number => number,
        }
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Verdict for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Pass.
    Allow,
    /// Drop.
    Drop,
    /// Drop, and notify the sender (ICMP error or TCP reset).
    Reject,
    /// Pass, and all later frames of the connection, in both directions.
    Stateful,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Self; 4] = [Self::Allow, Self::Drop, Self::Reject, Self::Stateful];

    /// Returns whether the frame passes.
    #[must_use]
    pub const fn allows(self) -> bool {
        matches!(self, Self::Allow | Self::Stateful)
    }
}

/// Rate limit of a rule's log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LogLimit {
    /// Frames per second at most; at least 1.
    pub per_second: u32,
}

/// Description of a rule, for statistics and logs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RuleInfo {
    /// Its id.
    pub id: RuleId,
    /// Its list's name.
    pub list: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its verdict.
    pub verdict: Verdict,
    /// Its log, if any.
    pub log: Option<LogLimit>,
    /// Class of the frames that it lets pass, by number, if it gives them one.
    pub class: Option<u8>,
}

/// Origin of a verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// No rule matched: the segment's default.
    Default,
    /// Headers that the lists match on could not be parsed; then no rule is evaluated.
    Unparseable,
    /// The first rule that matched.
    Rule(Arc<RuleInfo>),
    /// The frame belongs to no connection and opens none. Without that this stateful rule would
    /// have let it pass, and nothing else does.
    Invalid(Arc<RuleInfo>),
}

/// Ruling of the lists in one direction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ruling {
    /// The verdict.
    pub verdict: Verdict,
    /// Its origin.
    pub by: By,
}

impl Ruling {
    /// Returns whether the frame passes.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.verdict.allows()
    }

    /// Returns the drop reason; `None` if frames pass.
    #[must_use]
    pub fn drop_reason(&self) -> Option<DropReason> {
        match (self.verdict, &self.by) {
            (Verdict::Allow | Verdict::Stateful, _) => None,
            (_, By::Unparseable) => Some(DropReason::Unparseable),
            (_, By::Invalid(_)) => Some(DropReason::ConnectionInvalid),
            (Verdict::Drop, _) => Some(DropReason::AclDenied),
            (Verdict::Reject, _) => Some(DropReason::AclRejected),
        }
    }

    /// Returns the rule that decided.
    #[must_use]
    pub fn rule(&self) -> Option<&Arc<RuleInfo>> {
        match &self.by {
            By::Rule(rule) => Some(rule),
            By::Default | By::Unparseable | By::Invalid(_) => None,
        }
    }
}

/// Indices of attached lists by direction, in their order of evaluation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct AttachedLists {
    pub(super) from_guest: Vec<u32>,
    pub(super) to_guest: Vec<u32>,
}

impl AttachedLists {
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

/// Lists and defaults of a segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct SegmentRules {
    pub(super) attached: AttachedLists,
    pub(super) from_guest: Otherwise,
    pub(super) to_guest: Otherwise,
}

/// Attachments of lists to ports and segments.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Attachments {
    /// Sets of lists that ports have, by themselves and by their groups, each only once. The first
    /// is empty.
    pub(super) profiles: Vec<AttachedLists>,
    /// By port id: its profile.
    pub(super) ports: Vec<u32>,
    /// By segment id.
    pub(super) segments: Vec<SegmentRules>,
    /// Pairs of lists with rules that are ordered by priority only.
    pub(super) overlaps: Vec<Overlap>,
}

/// All access lists, compiled: immutable, and cheap to copy, because copies share everything. The
/// default has none and allows everything.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub(super) lists: Vec<Arc<AccessList>>,
    pub(super) attachments: Arc<Attachments>,
    pub(super) masks: Arc<MaskSet>,
    pub(super) context: Arc<Context>,
}

impl PartialEq for Rules {
    /// Returns whether both decide the same for all frames by the same rules.
    fn eq(&self, other: &Self) -> bool {
        self.attachments == other.attachments
            && self.lists.len() == other.lists.len()
            && self
                .lists
                .iter()
                .zip(&other.lists)
                .all(|(a, b)| Arc::ptr_eq(a, b) || a.is_same(b))
    }
}

impl Eq for Rules {}

/// Identifier of a set of lists at ports: receivers with the same one get the same ruling.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ProfileId(u32);

/// Where lists are evaluated: one direction of the ports of a profile, in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) direction: Direction,
    pub(crate) segment: SegmentId,
    pub(crate) profile: ProfileId,
}

impl Rules {
    /// Returns the number of rules in all lists.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lists.iter().map(|list| list.len).sum()
    }

    /// Returns whether there is no rule. (A segment may still deny by default.)
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a rule by its list's and its own name.
    #[must_use]
    pub fn rule(&self, list: &str, rule: &str) -> Option<Arc<RuleInfo>> {
        let list = self.lists.iter().find(|l| &*l.name == list)?;
        let found = list.rule(RuleId::of(&list.name, rule))?;
        Some(found.info.clone())
    }

    /// Returns whether these and other rules decide the same for all frames from a port in a
    /// segment (`FromGuest`), or for all frames to it (`ToGuest`). If not, flows must be decided
    /// anew: those from the port; those to it, and all floods in the segment.
    #[must_use]
    pub fn is_same_for(
        &self,
        other: &Self,
        direction: Direction,
        segment: SegmentId,
        port: PortId,
    ) -> bool {
        let lists = |rules: &Self| -> Vec<Arc<AccessList>> {
            let numbers = rules.numbers(rules.scope(direction, segment, port));
            let lists = numbers.filter_map(|number| rules.lists.get(*number as usize));
            lists.cloned().collect()
        };
        let (own, others) = (lists(self), lists(other));
        let same = |(a, b): (&Arc<AccessList>, &Arc<AccessList>)| Arc::ptr_eq(a, b) || a.is_same(b);
        let at = self.scope(direction, segment, port);
        self.otherwise(at) == other.otherwise(at)
            && own.len() == others.len()
            && own.iter().zip(&others).all(same)
    }

    /// Evaluates the lists of a port in a segment for a key. Returns the ruling and the bits of the
    /// key that it depends on, besides those of [`DECISION_MASK`](crate::DECISION_MASK): the
    /// narrowest mask. ([`decide`](crate::decide()) rounds it up to one of a few.)
    #[must_use]
    pub fn evaluate(
        &self,
        direction: Direction,
        segment: SegmentId,
        port: PortId,
        key: &FlowKey,
    ) -> (Ruling, FlowMask) {
        let (class_key, mut wildcards) = (ClassKey::new(key), Wildcards::default());
        let at = self.scope(direction, segment, port);
        let ruling = self.evaluate_profile(at, &class_key, &mut wildcards);
        (ruling, wildcards.add_to(FlowMask::NONE, key.ethertype()))
    }

    /// Returns whether every frame of the segment passes without evaluation.
    pub(crate) fn allow_all(&self, segment: SegmentId) -> bool {
        let no_port = self
            .attachments
            .profiles
            .iter()
            .all(AttachedLists::is_empty);
        let allows = |rules: &SegmentRules| {
            rules.attached.is_empty()
                && rules.from_guest == Otherwise::Allow
                && rules.to_guest == Otherwise::Allow
        };
        no_port && self.segment(segment).is_none_or(allows)
    }

    fn segment(&self, segment: SegmentId) -> Option<&SegmentRules> {
        self.attachments.segments.get(usize::from(segment.0))
    }

    /// Returns the profile of a port: ports with the same one get the same rulings in the same
    /// segment.
    pub(crate) fn profile(&self, port: PortId) -> ProfileId {
        let profile = self.attachments.ports.get(port.0 as usize);
        ProfileId(profile.copied().unwrap_or(0))
    }

    /// Where the lists of a port are evaluated.
    pub(crate) fn scope(&self, direction: Direction, segment: SegmentId, port: PortId) -> Scope {
        let profile = self.profile(port);
        Scope {
            direction,
            segment,
            profile,
        }
    }

    /// Returns the indices of the lists that apply, in their order.
    fn numbers(&self, at: Scope) -> impl Iterator<Item = &u32> + Clone {
        let profile = self.attachments.profiles.get(at.profile.0 as usize);
        let segment = self.segment(at.segment).map(|rules| &rules.attached);
        let attached = profile.into_iter().chain(segment);
        attached.flat_map(move |attached| attached.of(at.direction))
    }

    fn lists(&self, at: Scope) -> impl Iterator<Item = &AccessList> + Clone {
        let numbers = self.numbers(at);
        numbers.filter_map(|number| Some(&**self.lists.get(*number as usize)?))
    }

    /// Returns the names of the lists that apply, in their order.
    pub(crate) fn names(&self, at: Scope) -> Vec<Arc<str>> {
        self.lists(at).map(|list| list.name.clone()).collect()
    }

    fn otherwise(&self, at: Scope) -> Verdict {
        let otherwise = self.segment(at.segment).map(|rules| match at.direction {
            Direction::FromGuest => rules.from_guest,
            Direction::ToGuest => rules.to_guest,
        });
        match otherwise.unwrap_or_default() {
            Otherwise::Allow => Verdict::Allow,
            Otherwise::Deny => Verdict::Drop,
        }
    }

    /// Evaluates the lists in one direction, and adds the bits that the ruling depends on.
    pub(crate) fn evaluate_profile(
        &self,
        at: Scope,
        class_key: &ClassKey,
        wildcards: &mut Wildcards,
    ) -> Ruling {
        let lists = self.lists(at);
        lists
            .clone()
            .for_each(|list| list.unwildcard_state(wildcards));
        if lists.clone().any(|list| list.is_unparseable(class_key)) {
            let (verdict, by) = (Verdict::Drop, By::Unparseable);
            return Ruling { verdict, by };
        }
        let ruling = self.first_ruling(at, lists.clone(), class_key, wildcards);
        match (ruling.verdict, &ruling.by) {
            (Verdict::Stateful, By::Rule(rule)) if class_key.is_invalid => {
                let without = class_key.without_stateful_rules();
                let other = self.first_ruling(at, lists, &without, wildcards);
                if other.allows() {
                    return other;
                }
                let (verdict, by) = (Verdict::Drop, By::Invalid(rule.clone()));
                Ruling { verdict, by }
            }
            _ => ruling,
        }
    }

    /// Returns the ruling of the first matching rule, or that of the segment's default, and adds
    /// the bits that decide it.
    fn first_ruling<'a>(
        &self,
        at: Scope,
        lists: impl Iterator<Item = &'a AccessList> + Clone,
        class_key: &ClassKey,
        wildcards: &mut Wildcards,
    ) -> Ruling {
        let first = first_match(lists.clone(), class_key);
        if let Some((_, rule)) = first {
            rule.matcher.unwildcard_match(class_key, wildcards);
        }
        for (turn, list) in lists.enumerate() {
            list.unwildcard_misses(class_key, limit_before(first, turn), wildcards);
        }
        match first {
            Some((_, rule)) => Ruling {
                verdict: rule.info.verdict,
                by: By::Rule(rule.info.clone()),
            },
            None => Ruling {
                verdict: self.otherwise(at),
                by: By::Default,
            },
        }
    }

    /// Returns whether an attached list has a rule that names source addresses, and one that names
    /// destination addresses, of Ethernet.
    #[must_use]
    pub fn named_macs(&self) -> (bool, bool) {
        let (mut source, mut destination) = (false, false);
        for (number, list) in (0..).zip(&self.lists) {
            if self.is_attached(number) {
                list.for_each(|rule| {
                    source |= rule.matcher.source_mac.mask != 0;
                    destination |= rule.matcher.destination_mac.mask != 0;
                });
            }
        }
        (source, destination)
    }

    /// Returns whether any rule is stateful.
    pub(crate) fn are_stateful(&self) -> bool {
        self.lists.iter().any(|list| list.is_stateful())
    }

    /// Returns whether a stateful rule applies to frames of a port in a segment, in any direction.
    pub(crate) fn is_stateful_for(&self, segment: SegmentId, port: PortId) -> bool {
        [Direction::FromGuest, Direction::ToGuest]
            .into_iter()
            .flat_map(|direction| self.lists(self.scope(direction, segment, port)))
            .any(AccessList::is_stateful)
    }

    /// Returns whether a list has a port or a segment.
    fn is_attached(&self, number: u32) -> bool {
        let Attachments {
            profiles, segments, ..
        } = &*self.attachments;
        let of_segments = segments.iter().map(|rules| &rules.attached);
        let mut all = profiles.iter().chain(of_segments);
        all.any(|lists| lists.from_guest.contains(&number) || lists.to_guest.contains(&number))
    }

    /// Refuses stateful rules that can be asked, because there cannot be a table of connections.
    ///
    /// # Errors
    /// Such a rule, with this reason: the first of the first list that has one.
    pub fn refuse_stateful(&self, why: &str) -> Result<(), AccessError> {
        let mut found: Option<Arc<Rule>> = None;
        let mut lists = (0..).zip(&self.lists);
        let list = lists.find(|(number, list)| list.is_stateful() && self.is_attached(*number));
        if let Some((_, list)) = list {
            list.for_each(|rule| {
                let stateful = rule.info.verdict == Verdict::Stateful;
                if stateful && found.as_ref().is_none_or(|old| rule.order < old.order) {
                    found = Some(rule.clone());
                }
            });
        }
        match found {
            Some(rule) => {
                let place = Place::Rule(name_of(&rule.info));
                Err(at(place, "action")(Reason::NoTable(why.to_owned())))
            }
            None => Ok(()),
        }
    }

    /// Rounds up to one of the masks, so that flows have few different ones.
    pub(crate) fn round(&self, class_key: &ClassKey, wildcards: &Wildcards) -> Wildcards {
        self.masks.cover(class_key.family, wildcards)
    }
}

/// Returns the rule of the highest priority, among equals that of the first list, and the list's
/// position.
fn first_match<'a>(
    lists: impl Iterator<Item = &'a AccessList>,
    class_key: &ClassKey,
) -> Option<(usize, &'a Arc<Rule>)> {
    let mut first = None;
    for (turn, list) in lists.enumerate() {
        if let Some(rule) = list.find(class_key, limit_before(first, turn)) {
            first = Some((turn, rule));
        }
    }
    first
}

/// Returns the limit before which a rule of a list precedes the first match.
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
