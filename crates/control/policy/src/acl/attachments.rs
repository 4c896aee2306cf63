//! Attachments of access lists to ports, groups and segments.

use std::collections::{BTreeMap, BTreeSet};

use port::PortId;

use super::compile::Names;
use super::error::{AccessError, Place, Reason};
use super::resolve::{Context, at};
use super::rules::{AttachedLists, Attachments, SegmentRules};
use crate::model::{MAX_SEGMENTS, SegmentId};
use model::{AccessListSpec, AccessModel, Direction};

/// Limit of lists at a port or a segment.
const MAX_LISTS: usize = 256;
/// Limit of pairs of lists that ports have by different groups: their rules are compared with each
/// other.
const MAX_OVERLAPS: usize = 1 << 15;

/// Targets of a list.
#[derive(Debug)]
pub(super) struct Attachment {
    direction: Direction,
    segments: Vec<SegmentId>,
    groups: Vec<String>,
    ports: Vec<PortId>,
}

impl Attachment {
    pub(super) fn new(
        spec: &AccessListSpec,
        context: &Context,
        names: Names<'_>,
    ) -> Result<Self, AccessError> {
        let fault = |field| at(Place::List(spec.name.clone()), field);
        let segments = each(&spec.segments, |name| segment(names, name));
        let groups = each(&spec.groups, |name| {
            context.group(name).map(|_| name.to_owned())
        });
        Ok(Self {
            direction: spec.direction,
            segments: segments.map_err(fault("segments"))?,
            groups: groups.map_err(fault("groups"))?,
            ports: each(&spec.ports, |name| context.port(name)).map_err(fault("ports"))?,
        })
    }
}

/// Resolves names; each may occur only once.
fn each<T>(names: &[String], find: impl Fn(&str) -> Result<T, Reason>) -> Result<Vec<T>, Reason> {
    let mut seen = BTreeSet::new();
    let found = names.iter().map(|name| {
        if seen.insert(name) {
            find(name)
        } else {
            Err(Reason::Repeated(name.clone()))
        }
    });
    found.collect()
}

fn segment(names: Names<'_>, name: &str) -> Result<SegmentId, Reason> {
    let found = names.segments.iter().find(|(_, s)| s.name == name);
    let found = found.filter(|(id, _)| usize::from(id.0) < MAX_SEGMENTS);
    found.map(|(id, _)| *id).ok_or_else(|| Reason::Unknown {
        kind: "segment",
        name: name.to_owned(),
    })
}

/// Two lists of one direction that a port has by different groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Overlap {
    pub(super) lists: [usize; 2],
    pub(super) port: PortId,
}

impl Overlap {
    pub(super) fn other_than(&self, list: usize) -> Option<usize> {
        match self.lists {
            [one, other] | [other, one] if one == list => Some(other),
            _ => None,
        }
    }
}

/// Collects the lists of each port and segment.
pub(super) fn attach(
    model: &AccessModel,
    context: &Context,
    names: Names<'_>,
    attachments: &[Attachment],
) -> Result<Attachments, AccessError> {
    let mut compiled = Attachments {
        profiles: vec![AttachedLists::default()],
        segments: segments(model, names, attachments)?,
        ..Attachments::default()
    };
    let mut known = BTreeMap::from([(AttachedLists::default(), 0)]);
    let by_port = lists_by_port(context, attachments);
    let mut overlaps = Overlaps::default();
    for (&port, lists) in &by_port {
        lists.check(model)?;
        overlaps.note(port, lists, attachments, model)?;
        let attached = lists.attached(attachments);
        let next = compiled.profiles.len() as u32;
        let profile = *known.entry(attached.clone()).or_insert(next);
        if profile == next {
            compiled.profiles.push(attached);
        }
        let at = port.0 as usize;
        compiled.ports.resize(compiled.ports.len().max(at + 1), 0);
        compiled.ports[at] = profile;
    }
    compiled.overlaps = overlaps.all;
    Ok(compiled)
}

/// The lists that a port has.
#[derive(Default)]
struct ListsOfPort<'a> {
    own: Vec<usize>,
    /// Lists attached by groups, with the group, in their order.
    of_groups: Vec<(usize, &'a str)>,
}

impl ListsOfPort<'_> {
    /// Refuses more lists than can be evaluated for each new flow.
    fn check(&self, model: &AccessModel) -> Result<(), AccessError> {
        let all = self
            .own
            .iter()
            .chain(self.of_groups.iter().map(|(list, _)| list));
        match all.max() {
            Some(last) if self.own.len() + self.of_groups.len() > MAX_LISTS => {
                Err(too_many(model, *last, MAX_LISTS, "lists at a port"))
            }
            _ => Ok(()),
        }
    }

    fn attached(&self, attachments: &[Attachment]) -> AttachedLists {
        let mut attached = AttachedLists::default();
        for &number in &self.own {
            let lists = attached.of_mut(attachments[number].direction);
            lists.push(number as u32);
        }
        // A list attached to the port itself and to its group is evaluated once.
        for &(number, _) in &self.of_groups {
            let lists = attached.of_mut(attachments[number].direction);
            if !lists.contains(&(number as u32)) {
                lists.push(number as u32);
            }
        }
        attached
    }
}

/// Returns the error for too many `of` something at a list.
fn too_many(model: &AccessModel, list: usize, most: usize, of: &'static str) -> AccessError {
    let name = model.lists[list].name.clone();
    at(Place::List(name), "name")(Reason::TooMany { most, of })
}

/// Returns the lists of each port that has any.
fn lists_by_port<'a>(
    context: &Context,
    attachments: &'a [Attachment],
) -> BTreeMap<PortId, ListsOfPort<'a>> {
    let mut found: BTreeMap<PortId, ListsOfPort<'_>> = BTreeMap::new();
    for (number, list) in attachments.iter().enumerate() {
        for port in &list.ports {
            found.entry(*port).or_default().own.push(number);
        }
        for group in &list.groups {
            for port in context.groups.get(group).into_iter().flatten() {
                let lists = found.entry(*port).or_default();
                lists.of_groups.push((number, group));
            }
        }
    }
    found
}

/// Pairs of lists that ports have by different groups.
#[derive(Default)]
struct Overlaps<'a> {
    all: Vec<Overlap>,
    pairs: BTreeSet<[usize; 2]>,
    /// Combinations already compared: ports with the same one have no other pairs.
    seen: BTreeSet<&'a [(usize, &'a str)]>,
}

impl<'a> Overlaps<'a> {
    fn note(
        &mut self,
        port: PortId,
        lists: &'a ListsOfPort<'a>,
        attachments: &[Attachment],
        model: &AccessModel,
    ) -> Result<(), AccessError> {
        if !self.seen.insert(&lists.of_groups) {
            return Ok(());
        }
        for (at, (first, group)) in lists.of_groups.iter().enumerate() {
            for (second, other) in &lists.of_groups[at + 1..] {
                let lists = [*first, *second];
                let differ = first != second && group != other;
                let direction = |list: usize| attachments[list].direction;
                if differ && direction(*first) == direction(*second) && self.pairs.insert(lists) {
                    self.all.push(Overlap { lists, port });
                }
                if self.all.len() > MAX_OVERLAPS {
                    let of = "pairs of lists that ports have by different groups";
                    return Err(too_many(model, *second, MAX_OVERLAPS, of));
                }
            }
        }
        Ok(())
    }
}

/// Returns lists and defaults by segment id.
fn segments(
    model: &AccessModel,
    names: Names<'_>,
    attachments: &[Attachment],
) -> Result<Vec<SegmentRules>, AccessError> {
    let mut all: Vec<SegmentRules> = Vec::new();
    let mut seen = BTreeSet::new();
    for default in &model.defaults {
        let fault = |reason| at(Place::Default(default.segment.clone()), "segment")(reason);
        let id = segment(names, &default.segment).map_err(fault)?;
        if !seen.insert(id) {
            return Err(fault(Reason::Repeated(default.segment.clone())));
        }
        let rules = of_segment(&mut all, id);
        (rules.from_guest, rules.to_guest) = (default.from_guest, default.to_guest);
    }
    for (number, list) in attachments.iter().enumerate() {
        for id in &list.segments {
            let attached = &mut of_segment(&mut all, *id).attached;
            let lists = attached.of_mut(list.direction);
            lists.push(number as u32);
            if lists.len() > MAX_LISTS {
                return Err(too_many(model, number, MAX_LISTS, "lists at a segment"));
            }
        }
    }
    Ok(all)
}

fn of_segment(all: &mut Vec<SegmentRules>, id: SegmentId) -> &mut SegmentRules {
    let at = usize::from(id.0);
    all.resize(all.len().max(at + 1), SegmentRules::default());
    &mut all[at]
}
