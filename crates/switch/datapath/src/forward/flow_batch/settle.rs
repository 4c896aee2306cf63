//! Connections of the frames that have an action: opened, renewed, denied, counted and forgotten.

use std::ops::Range;

use conntrack::table::Rule;
use conntrack::tracker::{CommitResult, Place, Probe, Tracking as Session};
use conntrack::{Ingress, Judgement, Reading, Stations};
use flow_table::FlowTable;
use policy::Action;
use port::{DropReason, PortId};
use wire::flow::CtState;

use super::{ActionBatch, Lookup};
use crate::forward::tracking::commit::{Terms, commit_one, receiver_of};
use crate::forward::tracking::{Connections, FrameFlags, FrameRecord, Reader, Stretch, Zone};
use crate::ports::batch::{BATCH, Batch, Frame};

// The fates of the frames of a batch are bits of a word.
const _: () = assert!(BATCH <= u64::BITS as usize);

/// Frames that are dropped in spite of their decision, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct DropMasks {
    /// There is no room for their connection.
    full: u64,
    /// Their connection has ended since they were judged.
    invalid: u64,
}

impl DropMasks {
    fn is_empty(self) -> bool {
        self.full | self.invalid == 0
    }

    fn reason(self, index: usize) -> Option<DropReason> {
        let bit = 1 << index;
        if self.full & bit != 0 {
            Some(DropReason::ConnectionFull)
        } else {
            (self.invalid & bit != 0).then_some(DropReason::ConnectionInvalid)
        }
    }
}

impl Lookup {
    /// Opens, renews, denies, counts and forgets the connections of all frames with an action.
    /// Frames of connections that have no room are dropped. Called once the batch is certain not
    /// to be taken again.
    #[inline(never)]
    pub(crate) fn settle_connections(&mut self, from: PortId) {
        let Some(connections) = self.connections.as_deref_mut() else {
            return;
        };
        let commits = |group: &ActionBatch| group.class().commits();
        if connections.counts && connections.quiet && !self.action_batches.iter().any(commits) {
            return;
        }
        let flows = (&self.flows, &self.batch);
        settle(connections, flows, &mut self.action_batches, from);
    }
}

fn settle(
    connections: &mut Connections,
    (flows, batch): (&FlowTable, &Batch),
    groups: &mut Vec<ActionBatch>,
    from: PortId,
) {
    let Connections {
        tracker,
        tracking,
        stretches,
        seen,
        parsed,
        untagged,
        now,
        counts,
        ..
    } = connections;
    let mut session = tracker.begin(&tracking.settings, *now);
    let reader = Reader {
        parsed,
        untagged: untagged.unwrap_or(Zone::NONE),
    };
    let mut invalid = 0;
    for stretch in &*stretches {
        let frames = within(stretch.frames(), 0..batch.frames().len());
        match stretch.place {
            Some(_) if *counts => {}
            Some(place) => {
                session.count(place, frames.len() as u64, batch.bytes(frames));
            }
            None if stretch.opens => {}
            None => invalid += count(&mut session, (batch, frames), &**seen),
        }
    }
    if invalid > 0 {
        tracking.table.count_invalid(from.0 as u16, invalid);
    }
    let frames = Frames {
        batch,
        seen: &seen[..],
        reader,
        from,
    };
    let terms = |group: &ActionBatch| {
        let rule = flows.first_rule(group.rules());
        Terms::new(group.decided_class(), rule, tracking.grace)
    };
    settle_groups(&mut session, groups, (stretches, &frames), terms);
}

/// The frames of a batch, as they were taken and judged.
struct Frames<'a> {
    batch: &'a Batch,
    seen: &'a [FrameRecord],
    reader: Reader<'a>,
    from: PortId,
}

/// Opens, renews and denies connections of action batches, and forgets those that frames refuse.
fn settle_groups(
    session: &mut Session<'_>,
    groups: &mut Vec<ActionBatch>,
    (stretches, frames): (&[Stretch], &Frames<'_>),
    terms: impl Fn(&ActionBatch) -> Terms,
) {
    let (mut at, mut next) = (0, 0);
    while let Some(group) = groups.get(at) {
        let mut drops = DropMasks::default();
        let commits = group.class().commits().then(|| terms(group));
        let opening = commits
            .as_ref()
            .and_then(|terms| Opening::by(group.action, terms, frames));
        // A stretch may have frames of several action batches.
        while let Some(stretch) = stretches.get(next) {
            let part = within(stretch.frames(), group.frames.clone());
            match &commits {
                Some(terms) => {
                    let (first, terms) = (part.start, (group.action, terms));
                    let part = match &opening {
                        Some(of) if stretch.opens => {
                            open(session, frames, (stretch, part), of, &mut drops)
                        }
                        _ => part,
                    };
                    if !part.is_empty() {
                        commit(session, frames, (stretch, part, first), terms, &mut drops);
                    }
                }
                None if stretch.place.is_none() && !matches!(group.action, Action::Drop(_)) => {
                    let seen = frames.seen.get(part).unwrap_or_default();
                    forget_refused(session, seen, frames.from);
                }
                None => {}
            }
            if stretch.frames().end > group.frames.end {
                break;
            }
            next += 1;
        }
        at = match drops.is_empty() {
            true => at + 1,
            false => split(groups, at, drops),
        };
    }
}

/// Returns the frames that are in both ranges.
fn within(frames: Range<usize>, all: Range<usize>) -> Range<usize> {
    let start = frames.start.max(all.start);
    start..frames.end.min(all.end).max(start)
}

/// Counts frames of no run for their connections. Returns the number of invalid ones.
fn count(
    session: &mut Session<'_>,
    (batch, frames): (&Batch, Range<usize>),
    seen: &[FrameRecord],
) -> u64 {
    let seen = seen.get(frames.clone()).unwrap_or_default();
    let frames = batch.frames().get(frames).unwrap_or_default();
    for (frame, seen) in frames.iter().zip(seen) {
        if let (Some(place), false) = (seen.place, seen.flags.contains(FrameFlags::COUNTED)) {
            session.count(place, 1, frame.len().into());
        }
    }
    let invalid = seen
        .iter()
        .filter(|seen| seen.flags.contains(FrameFlags::INVALID));
    invalid.count() as u64
}

/// Forgets connections that their frames refuse.
fn forget_refused(session: &mut Session<'_>, seen: &[FrameRecord], from: PortId) {
    let refused = seen
        .iter()
        .filter(|seen| seen.flags.contains(FrameFlags::REFUSES));
    let places = refused.filter_map(|seen| seen.place);
    places.for_each(|place| session.forget(place, from.0 as u16));
}

/// Opens or renews the connections of a stretch's frames, or denies them if they are dropped.
#[inline(never)]
fn commit(
    session: &mut Session<'_>,
    frames: &Frames<'_>,
    (stretch, part, first): (&Stretch, Range<usize>, usize),
    (action, terms): (Action, &Terms),
    drops: &mut DropMasks,
) {
    let far = receiver_of(action);
    for index in part {
        let (Some(frame), Some(seen)) = (frames.batch.frames().get(index), frames.seen.get(index))
        else {
            continue;
        };
        // Frames of a run have no record of their own.
        let seen = match stretch.place {
            Some(_) => FrameRecord {
                place: stretch.place,
                ..FrameRecord::NOTHING
            },
            None => *seen,
        };
        let stations = stations_of(session, frame);
        let (place, ingress) = (seen.place, seen.ingress(frames.from, stations));
        if matches!(action, Action::Drop(_)) {
            place.inspect(|place| session.deny(*place, ingress.port));
            continue;
        }
        let Some((read, zone)) = frames.reader.read(stretch.kind, frame) else {
            continue;
        };
        let result = match known(
            session,
            (&read, stretch.probe),
            ingress,
            zone,
            index > first,
        ) {
            Some(new) => CommitResult::Renewed(new),
            None => {
                let frame = (&read, stretch.probe, place);
                commit_one(session, frame, (ingress, far), zone, terms)
            }
        };
        match result {
            CommitResult::Opened(new) | CommitResult::Renewed(new) | CommitResult::Passed(new) => {
                if place.is_none() {
                    session.count(new, 1, frame.len().into());
                }
                if seen.flags.contains(FrameFlags::REFUSES) {
                    session.forget(new, ingress.port);
                }
            }
            CommitResult::Refused(_) => drops.full |= 1 << index,
            // A later fragment opens nothing.
            CommitResult::Nothing if matches!(read, Reading::Packet(_)) => {
                drops.invalid |= 1 << index;
            }
            CommitResult::Nothing => {}
        }
    }
}

/// How the frames of an action batch open connections in the short way.
struct Opening {
    /// Where they go, if that is known.
    far: Option<u16>,
    rule: Rule,
}

impl Opening {
    /// `None` if they may not.
    fn by(action: Action, terms: &Terms, frames: &Frames<'_>) -> Option<Self> {
        let rule = terms.rule_of_opener(frames.reader.untagged)?;
        (!matches!(action, Action::Drop(_))).then(|| Self {
            far: receiver_of(action),
            rule,
        })
    }
}

/// The stations of a frame.
#[inline(always)]
fn stations_of(session: &Session<'_>, frame: &Frame) -> Stations {
    session.stations_of(frame.headers.first().unwrap_or(&[0; 16]))
}

/// Has the first frame of a stretch open its connection, if it may do so in the short way. Returns
/// the frames that are left.
#[inline(always)]
fn open(
    session: &mut Session<'_>,
    frames: &Frames<'_>,
    (stretch, part): (&Stretch, Range<usize>),
    of: &Opening,
    drops: &mut DropMasks,
) -> Range<usize> {
    let Some([frame, ..]) = frames.batch.frames().get(part.clone()) else {
        return part;
    };
    let ends = ((frames.from.0 as u16, of.far), stations_of(session, frame));
    let tuple = (&stretch.tuple, stretch.probe);
    match session.open_datagram(tuple, ends, of.rule, frame.len().into()) {
        Some(Err(_)) => drops.full |= 1 << part.start,
        Some(Ok(())) => {}
        None => return part,
    }
    part.start + 1..part.end
}

/// Judges a frame that `follows` one of its tuple, which may have opened their connection: it
/// advances then.
fn known(
    session: &mut Session<'_>,
    (read, probe): (&Reading, Probe),
    from: Ingress,
    zone: Zone,
    follows: bool,
) -> Option<Place> {
    if !follows {
        return None;
    }
    let probe = session.approach(probe);
    let judged = session.judge(read, probe, from, zone.epoch);
    let stands = !judged.state().intersects(CtState::STALE | CtState::MOVED);
    match judged.judgement {
        Judgement::Known { .. } if stands => judged.place,
        _ => None,
    }
}

/// Drops frames of an action batch, which is replaced by several. Returns the index of the next
/// one. There are not more action batches than frames: nothing is allocated.
#[cold]
fn split(groups: &mut Vec<ActionBatch>, at: usize, dropped: DropMasks) -> usize {
    let whole = groups.remove(at);
    let (mut at, mut start, end) = (at, whole.frames.start, whole.frames.end);
    while start < end {
        let reason = dropped.reason(start);
        let other = (start..end).find(|index| dropped.reason(*index) != reason);
        let mut part = whole.clone();
        part.frames = start..other.unwrap_or(end);
        if let Some(reason) = reason {
            part.action = Action::Drop(reason);
        }
        start = part.frames.end;
        groups.insert(at, part);
        at += 1;
    }
    at
}
