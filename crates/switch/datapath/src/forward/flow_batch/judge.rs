//! Frames of a tracked batch: read, judged, and grouped by their keys.

use std::ops::Range;

use conntrack::segment::Brief;
use conntrack::tracker::{FrameJudgement, Place, Probe, Run, Tracking as Session};
use conntrack::{Judgement, Millis, Stations, Tuple};
use flow_table::FlowTable;
use policy::{Program, SegmentId};
use port::{DropReason, PortId};
use wire::flow::{Ct, CtState, FlowKey, PlainMask};

use super::{FlowBatch, Lookup};
use crate::forward::tracking::plain::{Plain, SharedFields};
use crate::forward::tracking::{
    Connections, Far, FrameFlags, FrameRecord, Kind, NOWHERE, ParsedFrame, PortView, Reader,
    Stretch, Tracking, Zone, Zones, far_of, parse, plain,
};
use crate::ports::alike::CommonBits;
use crate::ports::batch::{Batch, Frame};
use crate::ports::offload;

/// Returns whether two tuples are the same, without a call.
#[inline(always)]
fn same(a: &Tuple, b: &Tuple) -> bool {
    let (a, b) = (a.words(), b.words());
    let differ = |at: usize| a[at] ^ b[at];
    differ(0) | differ(1) | differ(3) == 0 && (differ(2) | differ(4) == 0)
}

/// Grouping of the frames into flow batches.
struct Grouping<'a> {
    /// Far ports of the flow batches' connections.
    fars: &'a mut Vec<Far>,
    before: Before,
    /// The last flow batch that a plain frame of a new connection has begun, and its first bytes.
    fresh: Option<(usize, CommonBits)>,
}

/// Two words of an untagged frame's Ethernet header, and what counts of its connection: if they are
/// the same, the frame has the flow of the one before it.
type Before = Option<((u64, u64), (Ct, Far))>;

/// The frames of a batch are read with this.
struct Reading<'a, 's> {
    session: &'a Session<'s>,
    stretches: &'a mut Vec<Stretch>,
    parsed: &'a mut Vec<ParsedFrame>,
    untagged: Option<Zone>,
    shared: &'a PlainMask,
    zones: &'a Zones,
    program: &'a Program,
    sight: &'a PortView,
}

/// The frames of a batch are judged with this.
struct Judging<'a, 's> {
    session: &'a mut Session<'s>,
    tracking: &'a Tracking,
    reader: Reader<'a>,
    sight: &'a PortView,
    /// Whether none of the frames will be given back.
    counts: bool,
    seen: &'a mut [FrameRecord],
    grouping: Grouping<'a>,
}

impl Lookup {
    /// Judges the frames of a tracked port's batch, groups them into flow batches, sets malformed
    /// ones aside, and prefetches the flows. `counts`: none of the frames will be given back.
    #[inline(never)]
    pub(crate) fn build_tracked_flow_batches(
        &mut self,
        program: &Program,
        from: PortId,
        (now, counts): (u64, bool),
    ) {
        let Some(mut connections) = self.connections.take() else {
            return;
        };
        self.clear_batches();
        let sight = PortView::new(program, from);
        connections.untagged = connections.zones.of(program, from, None);
        connections.parsed.clear();
        connections.now = now as Millis;
        connections.counts = counts;
        self.judge_all(&mut connections, program, &sight);
        self.connections = Some(connections);
        self.approach_all();
    }

    /// Judges all frames, and groups them by their keys.
    #[inline(always)]
    fn judge_all(&mut self, connections: &mut Connections, program: &Program, sight: &PortView) {
        let Connections {
            tracker,
            tracking,
            zones,
            stretches,
            seen,
            parsed,
            untagged,
            shared,
            fars,
            now,
            counts,
            quiet,
            astray: _,
        } = connections;
        fars.clear();
        let mut session = tracker.begin(&tracking.settings, *now);
        self.prepare(&mut Reading {
            session: &session,
            stretches,
            parsed,
            untagged: *untagged,
            shared,
            zones,
            program,
            sight,
        });
        for stretch in &mut *stretches {
            stretch.probe = session.approach(stretch.probe);
        }
        let mut judging = Judging {
            session: &mut session,
            tracking,
            reader: Reader {
                parsed,
                untagged: untagged.unwrap_or(Zone::NONE),
            },
            sight,
            counts: *counts,
            seen: &mut seen[..],
            grouping: Grouping {
                fars,
                before: None,
                fresh: None,
            },
        };
        *quiet = self.judge_stretches(&mut judging, stretches);
    }

    /// Judges the frames of all stretches. Returns whether all are of runs.
    #[inline(always)]
    fn judge_stretches(
        &mut self,
        judging: &mut Judging<'_, '_>,
        stretches: &mut [Stretch],
    ) -> bool {
        let mut quiet = true;
        for stretch in stretches {
            stretch.opens = opens(stretch);
            let frames = match stretch.opens {
                true => stretch.frames(),
                false => self.judge_run(judging, stretch),
            };
            if frames.is_empty() {
                continue;
            }
            judging.grouping.before = None;
            quiet = false;
            for index in frames {
                match stretch.opens {
                    true => self.group_fresh(judging, stretch, index),
                    false => self.judge_other(judging, stretch, index),
                }
            }
        }
        quiet
    }

    /// Judges the frames of a stretch as a run, and groups those that pass. Returns the others.
    ///
    /// Not inlined: it needs all registers.
    #[inline(never)]
    fn judge_run(&mut self, judging: &mut Judging<'_, '_>, stretch: &mut Stretch) -> Range<usize> {
        let all = stretch.frames();
        let (reader, sight) = (judging.reader, judging.sight);
        let Some(zone) = reader.zone_of_run(stretch.kind) else {
            return all;
        };
        let tuple = (&stretch.tuple, stretch.probe);
        let Some(run) = Run::begin(judging.session, tuple, sight.ingress(), zone.epoch) else {
            return all;
        };
        let Some(frames @ [first, ..]) = self.batch.frames().get(all.clone()) else {
            return all;
        };
        let passed = pass(&run, stretch, frames);
        if passed == 0 {
            return all;
        }
        if judging.counts {
            let bytes = match frames {
                [one] => one.len().into(),
                all => all
                    .iter()
                    .take(passed)
                    .map(|frame| u64::from(frame.len()))
                    .sum(),
            };
            run.count(passed as u64, bytes);
        }
        let rest = all.start + passed..all.end;
        let (place, of) = (Some(run.place()), (run.ct(), run.far()));
        if rest.is_empty() {
            stretch.place = place;
        } else {
            judging.note_run(place, all.start..rest.start);
        }
        let before = &judging.grouping.before;
        if let (Some((former, former_of)), Some(words)) = (before, first.ethernet())
            && (*former, *former_of) == (words, of)
            && sight.needs_no_class(first)
            && let Some(last) = self.flow_batches.last_mut()
            && last.frames.end == all.start
        {
            last.frames.end = rest.start;
            return rest;
        }
        self.group_run(judging, stretch.kind, all.start..rest.start, of);
        rest
    }

    /// Groups frames of a run that have another flow than those before them.
    #[inline(never)]
    fn group_run(
        &mut self,
        judging: &mut Judging<'_, '_>,
        kind: Kind,
        frames: Range<usize>,
        (ct, far): (Ct, Far),
    ) {
        let (reader, sight) = (judging.reader, judging.sight);
        let grouping = &mut judging.grouping;
        let first = &self.batch.frames()[frames.start];
        if sight.deep || !sight.needs_no_class(first) {
            grouping.before = None;
            let key = sight.key(reader.key(kind, first, sight.from), ct);
            return frames.for_each(|index| {
                self.group_classified(index, sight, (key, far), grouping);
            });
        }
        grouping.before = first.ethernet().map(|words| (words, (ct, far)));
        let key = FlowKey::of_ethernet(sight.from.0, first.headers.as_slice());
        let key = key.unwrap_or_default().with_ct(ct);
        self.append_frames((key, far), frames, grouping);
    }

    /// Groups a plain datagram of a stretch that opens a connection, as [`judge_other`] does, which
    /// finds no connection. It has the flow of the one before it if no flow looks at what differs.
    ///
    /// [`judge_other`]: Self::judge_other
    #[inline(always)]
    fn group_fresh(&mut self, judging: &mut Judging<'_, '_>, stretch: &Stretch, index: usize) {
        if let Some(seen) = judging.seen.get_mut(index) {
            *seen = FrameRecord::NOTHING;
        }
        if let Some((of, alike)) = &judging.grouping.fresh
            && *of == self.flow_batches.len()
            && let Some(last) = self.flow_batches.last_mut()
            && last.frames.end == index
            && let Some(frame) = self.batch.frames().get(index)
            && alike.has(frame)
            && judging.sight.needs_no_class(frame)
        {
            last.frames.end = index + 1;
            return;
        }
        self.begin_fresh(judging, stretch, index);
    }

    /// Groups such a datagram with a key of its own.
    #[inline(never)]
    fn begin_fresh(&mut self, judging: &mut Judging<'_, '_>, stretch: &Stretch, index: usize) {
        let (reader, sight) = (judging.reader, judging.sight);
        let Some(frame) = self.batch.frames().get(index) else {
            return;
        };
        let needs_no_class = sight.needs_no_class(frame);
        let alike = CommonBits::new(self.flows.plain_mask(), frame).filter(|_| needs_no_class);
        let key = reader.key(stretch.kind, frame, sight.from);
        let key = sight.key(key, Ct::new(Judgement::New.state(), 0));
        self.group_classified(index, sight, (key, NOWHERE), &mut judging.grouping);
        judging.grouping.fresh = alike.map(|alike| (self.flow_batches.len(), alike));
    }

    /// Judges a frame that is not of a run, and groups it.
    #[inline(never)]
    fn judge_other(&mut self, judging: &mut Judging<'_, '_>, stretch: &Stretch, index: usize) {
        let (reader, sight) = (judging.reader, judging.sight);
        let (Some(frame), Some(seen)) =
            (self.batch.frames().get(index), judging.seen.get_mut(index))
        else {
            return;
        };
        *seen = FrameRecord::NOTHING;
        let Some((read, zone)) = reader.read(stretch.kind, frame) else {
            return;
        };
        let session = &mut *judging.session;
        let judged = session.judge(&read, stretch.probe, sight.ingress(), zone.epoch);
        if judged.judgement == Judgement::EarlyFragment {
            self.malformed.push((index, DropReason::FragmentEarly));
            return;
        }
        let key = reader.key(stretch.kind, frame, sight.from);
        let ct = seen.note(&judged);
        let ct = match judged.place {
            Some(_) => ct,
            None => reconsider(
                (session, judging.tracking),
                seen,
                (&read, stretch.probe, zone),
                (&key, &self.flows),
                judged,
            ),
        };
        let far = match judged.judgement {
            Judgement::Known { connection, .. } | Judgement::Related(connection) => connection.far,
            _ => None,
        };
        let key = sight.key(key, ct);
        self.group_classified(index, sight, (key, far_of(far)), &mut judging.grouping);
    }

    /// Reads all frames, and begins their look-ups.
    #[inline(never)]
    fn prepare(&mut self, with: &mut Reading<'_, '_>) {
        with.stretches.clear();
        let sight = with.sight;
        let mut index = 0;
        while let [frame, behind @ ..] = &self.batch.frames()[index..] {
            let plain = match with.untagged {
                Some(zone) => plain::read(zone.number, frame),
                None => None,
            };
            let Some(plain) = plain else {
                self.read_other(with, index);
                index += 1;
                continue;
            };
            let mut end = index + 1;
            if behind
                .first()
                .is_some_and(|next| plain::may_follow(frame, next))
                && sight.needs_no_class(frame)
                && let Some(alike) = CommonBits::new(with.shared, frame)
            {
                let bare = plain::is_bare(frame);
                let follows = |frame: &&Frame| {
                    alike.has(frame)
                        && sight.needs_no_class(frame)
                        && (bare || plain::follows(frame))
                };
                end += behind.iter().take_while(follows).count();
            }
            with.begin((index..end, Kind::Plain), Some(plain));
            index = end;
        }
    }

    /// Reads a frame that [`plain::read`] does not.
    #[inline(never)]
    fn read_other(&mut self, with: &mut Reading<'_, '_>, index: usize) {
        let frames = index..index + 1;
        if let Some(zone) = with.untagged
            && let Some((kind, plain)) = self.read_plain(zone.number, index)
        {
            if let Some(last) = with.stretches.last_mut()
                && self.continues((last, index), (kind, &plain.tuple), with.sight)
            {
                last.end += 1;
                return;
            }
            return with.begin((frames, kind), Some(plain));
        }
        let at = (with.zones, with.program, with.sight.from);
        match parse(&mut self.batch, index, at) {
            Ok(frame) => {
                let kind = Kind::Parsed(with.parsed.len() as u8);
                let plain = match &frame.read {
                    conntrack::Reading::Packet(packet) => Some(Plain {
                        tuple: packet.tuple,
                        upper: frame.upper,
                    }),
                    _ => None,
                };
                with.parsed.push(frame);
                with.begin((frames, kind), plain);
            }
            Err(reason) => self.malformed.push((index, reason)),
        }
    }

    /// Reads a plain frame of IPv6, or one with an offload, which is checked.
    #[inline]
    fn read_plain(&mut self, zone: u16, index: usize) -> Option<(Kind, Plain)> {
        if plain::is_v6(&self.batch.frames()[index]) {
            self.batch.deepen(index);
            let plain = plain::read_v6(zone, &self.batch.frames()[index])?;
            return Some((Kind::PlainV6, plain));
        }
        let frame = &self.batch.frames()[index];
        let (plain, header_len) = plain::read_offloaded(zone, frame)?;
        let len = frame.len();
        let (headers, _, offload) = self.batch.split(index);
        let is_plain = offload::is_plain(headers.as_slice(), len, header_len, offload);
        is_plain.then_some((Kind::Offloaded, plain))
    }

    /// Returns whether a plain frame that was read by itself continues a stretch: decisions look at
    /// nothing that differs.
    #[inline]
    fn continues(
        &self,
        (last, index): (&Stretch, usize),
        (kind, tuple): (Kind, &Tuple),
        sight: &PortView,
    ) -> bool {
        let frames = self.batch.frames();
        let (Some(before), Some(frame)) = (frames.get(index.wrapping_sub(1)), frames.get(index))
        else {
            return false;
        };
        last.kind == kind
            && !sight.deep
            && usize::from(last.end) == index
            && same(tuple, &last.tuple)
            && before.ethernet() == frame.ethernet()
            && sight.needs_no_class(frame)
            && sight.needs_no_class(before)
    }

    #[inline(never)]
    fn append_frames(
        &mut self,
        (key, far): (FlowKey, Far),
        frames: Range<usize>,
        grouping: &mut Grouping<'_>,
    ) {
        match (self.flow_batches.last_mut(), grouping.fars.last()) {
            (Some(last), Some(last_far))
                if *last_far == far && last.continues(frames.start, &key) =>
            {
                last.frames.end = frames.end;
            }
            _ => {
                grouping.fars.push(far);
                self.begin_flow_batch(key, frames);
            }
        }
    }

    /// Appends a frame with its class.
    #[inline(never)]
    fn group_classified(
        &mut self,
        index: usize,
        sight: &PortView,
        (key, far): (FlowKey, Far),
        grouping: &mut Grouping<'_>,
    ) {
        let key = match sight.needs_no_class(&self.batch.frames()[index]) {
            true => key,
            false => key.with_frame_class(self.classify(index)),
        };
        self.append_frames((key, far), index..index + 1, grouping);
    }

    /// Has rules asked about the frames of a flow batch that its flow would lead elsewhere than to
    /// the far port of their connection: they are as those of a station that has moved. `whole`
    /// returns the whole key of a frame. Returns whether the flow batch is one of these.
    #[cold]
    pub(crate) fn ask_rules(
        &mut self,
        at: usize,
        mut whole: impl FnMut(&mut Batch, usize) -> FlowKey,
    ) -> bool {
        let Some(connections) = self.connections.as_deref_mut() else {
            return false;
        };
        if !std::mem::take(&mut connections.astray) {
            return false;
        }
        let astray = self.flow_batches.remove(at);
        let far = connections.fars.remove(at);
        let ct = astray.key.ct().with_state(CtState::MOVED);
        // There are not more flow batches than frames: nothing is allocated.
        for (at, index) in (at..).zip(astray.frames) {
            let key = whole(&mut self.batch, index).with_ct(ct);
            let probe = self.flows.approach(&key, self.flows.prepare(&key));
            let frames = index..index + 1;
            self.flow_batches
                .insert(at, FlowBatch { key, probe, frames });
            connections.fars.insert(at, far);
        }
        true
    }
}

impl Reading<'_, '_> {
    /// Adds a stretch, and begins the look-up of its tuple.
    #[inline(always)]
    fn begin(&mut self, (frames, kind): (Range<usize>, Kind), plain: Option<Plain>) {
        let probe = match (&plain, self.stretches.last()) {
            (None, _) => Probe::NOWHERE,
            (Some(plain), Some(last)) if same(&plain.tuple, &last.tuple) => last.probe,
            (Some(plain), _) => self.session.prepare(&plain.tuple),
        };
        let Plain { tuple, upper } = plain.unwrap_or(NOTHING);
        self.stretches.push(Stretch {
            start: frames.start as u8,
            end: frames.end as u8,
            kind,
            probe,
            tuple,
            upper,
            opens: false,
            place: None,
        });
    }
}

/// The packet of no frame.
const NOTHING: Plain = Plain {
    tuple: Tuple::from_words([u64::MAX; conntrack::tuple::WORDS]),
    upper: Brief::NONE,
};

/// Returns whether the frames of a stretch that is no run are datagrams of no connection: each may
/// open one.
#[inline(always)]
fn opens(stretch: &Stretch) -> bool {
    stretch.kind == Kind::Plain
        && !stretch.probe.leads()
        && stretch.tuple.protocol() == wire::udp::PROTOCOL
}

/// Judges frames of a run from the first one on. Returns the number of those before the first one
/// that must be judged in the usual way.
#[inline(always)]
fn pass(run: &Run<'_>, stretch: &Stretch, frames: &[Frame]) -> usize {
    if run.is_udp() {
        return if run.pass_datagrams() {
            frames.len()
        } else {
            0
        };
    }
    let [first, _, ..] = frames else {
        return usize::from(run.pass_segment(stretch.upper));
    };
    match stretch.kind {
        Kind::Plain => {
            let Some(shared) = SharedFields::of(first) else {
                return 0;
            };
            run.pass_segments(frames.iter().map_while(|frame| shared.segment(frame)))
        }
        Kind::PlainV6 => run.pass_segments(frames.iter().map_while(plain::segment_v6)),
        Kind::Offloaded => run.pass_segments(frames.iter().map_while(plain::segment_offloaded)),
        // It is alone.
        Kind::Parsed(_) => 0,
    }
}

impl Judging<'_, '_> {
    /// Notes frames of a run that others of its stretch are not of.
    #[cold]
    fn note_run(&mut self, place: Option<Place>, frames: Range<usize>) {
        let mut flags = FrameFlags::empty();
        flags.set(FrameFlags::COUNTED, self.counts);
        for seen in self.seen.get_mut(frames).unwrap_or_default() {
            seen.place = place;
            seen.flags = flags;
        }
    }
}

/// Judges a frame of no connection of its port once more: as one of a station that has moved to its
/// port, if learning says so. Returns its state, and with it whether it may be an answer.
fn reconsider(
    (session, tracking): (&mut Session<'_>, &Tracking),
    seen: &mut FrameRecord,
    (read, probe, zone): (&conntrack::Reading, Probe, Zone),
    (key, flows): (&FlowKey, &FlowTable),
    judged: FrameJudgement,
) -> Ct {
    let from = PortId(key.in_port());
    let mut judged = judged;
    if probe.leads() && matches!(read, conntrack::Reading::Packet(_)) {
        let is_home = flows.is_home((SegmentId(zone.number), key.smac()), from);
        seen.flags.set(FrameFlags::HOME, is_home);
        if is_home {
            let stations = session.stations(key.smac(), key.dmac());
            let ingress = seen.ingress(from, stations);
            judged = session.judge(read, probe, ingress, zone.epoch);
        }
    }
    let ct = seen.note(&judged);
    let ingress = seen.ingress(from, Stations::default());
    let may_answer = judged.judgement == Judgement::New
        && judged.is_middle
        && session.may_answer(ingress, None, tracking.grace);
    if may_answer {
        return ct.with_state(CtState::REPLY);
    }
    ct
}
