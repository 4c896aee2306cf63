//! What is attached to what.

use std::collections::{BTreeMap, BTreeSet};

use port::PortId;

use super::compile::Names;
use super::error::{AccessError, Place, Reason};
use super::resolve::{Context, at};
use super::rules::{Attached, SegmentRules, Wiring};
use crate::model::{MAX_SEGMENTS, SegmentId};
use api::v1::{AccessListSpec, AccessModel, Direction};

/// To what a list is attached.
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

/// What each name stands for; none may be there twice.
fn each<T>(names: &[String], find: impl Fn(&str) -> Result<T, Reason>) -> Result<Vec<T>, Reason> {
    let mut seen = BTreeSet::new();
    let found = names.iter().map(|name| match seen.insert(name) {
        true => find(name),
        false => Err(Reason::Repeated(name.clone())),
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

/// Puts together what each port and segment has.
pub(super) fn wire(
    model: &AccessModel,
    context: &Context,
    names: Names<'_>,
    attachments: &[Attachment],
) -> Result<Wiring, AccessError> {
    let mut wiring = Wiring {
        profiles: vec![Attached::default()],
        segments: segments(model, names, attachments)?,
        ..Wiring::default()
    };
    let mut known = BTreeMap::from([(Attached::default(), 0)]);
    let mut pairs = BTreeSet::new();
    let by_port = lists_by_port(context, attachments);
    for (&port, of_groups) in &by_port {
        let mut attached = Attached::default();
        for (number, list) in attachments.iter().enumerate() {
            if list.ports.contains(&port) {
                attached.of_mut(list.direction).push(number as u32);
            }
        }
        // A list that a port has itself is not asked once more for a group of it.
        for &(number, _) in of_groups {
            let lists = attached.of_mut(attachments[number].direction);
            if !lists.contains(&(number as u32)) {
                lists.push(number as u32);
            }
        }
        note_overlaps(
            port,
            of_groups,
            attachments,
            &mut pairs,
            &mut wiring.overlaps,
        );
        let next = wiring.profiles.len() as u32;
        let profile = *known.entry(attached.clone()).or_insert(next);
        if profile == next {
            wiring.profiles.push(attached);
        }
        let at = port.0 as usize;
        wiring.ports.resize(wiring.ports.len().max(at + 1), 0);
        wiring.ports[at] = profile;
    }
    Ok(wiring)
}

/// For each port with lists: those that it has by groups, in their order, and the groups.
fn lists_by_port<'a>(
    context: &Context,
    attachments: &'a [Attachment],
) -> BTreeMap<PortId, Vec<(usize, &'a str)>> {
    let mut found: BTreeMap<PortId, Vec<(usize, &str)>> = BTreeMap::new();
    for (number, list) in attachments.iter().enumerate() {
        for port in &list.ports {
            found.entry(*port).or_default();
        }
        for group in &list.groups {
            for port in context.groups.get(group).into_iter().flatten() {
                found.entry(*port).or_default().push((number, group));
            }
        }
    }
    found
}

fn note_overlaps(
    port: PortId,
    of_groups: &[(usize, &str)],
    attachments: &[Attachment],
    pairs: &mut BTreeSet<[usize; 2]>,
    overlaps: &mut Vec<Overlap>,
) {
    for (at, (first, group)) in of_groups.iter().enumerate() {
        for (second, other) in &of_groups[at + 1..] {
            let lists = [*first, *second];
            let differ = first != second && group != other;
            let direction = |list: usize| attachments[list].direction;
            if differ && direction(*first) == direction(*second) && pairs.insert(lists) {
                overlaps.push(Overlap { lists, port });
            }
        }
    }
}

/// By segment id: its lists and defaults.
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
            attached.of_mut(list.direction).push(number as u32);
        }
    }
    Ok(all)
}

fn of_segment(all: &mut Vec<SegmentRules>, id: SegmentId) -> &mut SegmentRules {
    let at = usize::from(id.0);
    all.resize(all.len().max(at + 1), SegmentRules::default());
    &mut all[at]
}
