//! Connection tracking of a worker: the state of each frame of a tracked port, before its flow is
//! looked up, and the frame's connection, when its action is executed.
//!
//! ```text
//! prepare   tuple of each frame, its hash, prefetch of the index        for all frames
//! approach  word of the index, prefetch of the entry                    for all frames
//! judge     state of the frame; the connection advances; the flow key   for all frames
//!   flow look-up
//! settle    of the frames with an action: connections are opened,
//!           renewed, denied, counted and forgotten
//! ```
//!
//! Frames that a cut gives back were judged and not settled. Judging them again changes nothing.

use std::ops::Range;

use conntrack::packet::Exemption;
use conntrack::segment::Brief;
use conntrack::tracker::{FrameJudgement, Place, Probe};
use conntrack::{
    Ingress, Judgement, Message, Millis, Reading, Settings, Stations, Table, Tracker, Tuple,
};
use policy::frame_class::is_ordinary;
use policy::{Action, Program, SegmentId};
use port::{DropReason, PortId};
use wire::flow::{Ct, FlowKey, PlainMask};
use wire::packet::ParsedHeaders;

use crate::ports::batch::{BATCH, Batch, Frame};
use crate::ports::offload;
use sweep::Sweeper;

pub(crate) mod commit;
pub(crate) mod flush;
pub(crate) mod pending;
pub(crate) mod plain;
pub(crate) mod sweep;

/// The table of connections, and the settings of tracking.
#[derive(Clone, Debug)]
pub struct Tracking {
    /// The table.
    pub table: Table,
    /// Settings of states and timeouts.
    pub settings: Settings,
    /// For how long after the table or a guest is new a segment from the middle of a connection is
    /// also judged as the answer that it may be, milliseconds.
    pub grace: Millis,
    pub(crate) sweeper: Sweeper,
}

impl Tracking {
    /// Returns tracking in a table, for all workers; `None` when the table has too many threads.
    #[must_use]
    pub fn new(table: Table, settings: Settings, grace: Millis) -> Option<Self> {
        Some(Self {
            sweeper: Sweeper::new(&table)?,
            table,
            settings,
            grace,
        })
    }
}

/// A tracked segment, as the zone of connections, and the epoch of its rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Zone {
    pub(crate) number: u16,
    pub(crate) epoch: u16,
}

impl Zone {
    /// Of frames that are not tracked.
    pub(crate) const NONE: Self = Self {
        number: 0,
        epoch: 0,
    };
}

/// Tracked segments in ascending order, with the epochs of their rules.
#[derive(Debug, Default)]
pub(crate) struct Zones(Vec<(SegmentId, u16)>);

impl Zones {
    /// Returns the zone of a port's frames with this tag.
    pub(crate) fn of(&self, program: &Program, from: PortId, vlan: Option<u16>) -> Option<Zone> {
        let segment = program.segment_of(from, vlan).ok()?;
        let found = self.0.binary_search_by_key(&segment.0, |(zone, _)| zone.0);
        let (_, epoch) = self.0.get(found.ok()?)?;
        Some(Zone {
            number: segment.0,
            epoch: *epoch,
        })
    }
}

/// The far port of a known connection, or [`NOWHERE`].
pub(crate) type Far = u16;
/// The far port is not known.
pub(crate) const NOWHERE: Far = Far::MAX;

/// Returns a far port as flow batches have it.
#[inline(always)]
pub(crate) fn far_of(port: Option<u16>) -> Far {
    port.unwrap_or(NOWHERE)
}

/// Returns whether an action leads frames of a known connection elsewhere than to its far port.
#[inline(always)]
pub(crate) fn leads_astray(ct: Ct, far: Far, action: Action) -> bool {
    ct.state().is_known()
        && match action {
            Action::Unicast { port, .. } => port.0 != u32::from(far),
            Action::Flood { .. } => true,
            Action::Drop(_) => false,
        }
}

/// A worker's access to the table, and what it knows of the frames of the batch in hand.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) tracker: Tracker,
    pub(crate) tracking: Tracking,
    pub(crate) zones: Zones,
    /// In the order of their frames, without malformed ones.
    pub(crate) stretches: Vec<Stretch>,
    /// By index in the batch.
    pub(crate) seen: Box<[FrameRecord; BATCH]>,
    /// Frames that are not plain.
    pub(crate) parsed: Vec<ParsedFrame>,
    /// The zone of the batch's untagged frames.
    pub(crate) untagged: Option<Zone>,
    /// The bits that frames of a stretch share.
    pub(crate) shared: PlainMask,
    /// Far ports of the connections of each flow batch.
    pub(crate) fars: Vec<Far>,
    /// Time of the batch.
    pub(crate) now: Millis,
    /// Whether frames of runs are counted when they are judged: none is given back.
    pub(crate) counts: bool,
    /// Whether all tracked frames are of runs.
    pub(crate) quiet: bool,
    /// Whether the flow that was found last leads elsewhere than to the far port.
    pub(crate) astray: bool,
}

/// Consecutive frames of the batch with one tuple and one Ethernet header, or one frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) start: u8,
    pub(crate) end: u8,
    pub(crate) kind: Kind,
    pub(crate) probe: Probe,
    pub(crate) tuple: Tuple,
    /// The segment of its first frame, if that has one that is read briefly.
    pub(crate) upper: Brief,
    /// Whether its frames are plain datagrams of no connection.
    pub(crate) opens: bool,
    /// The place of all its frames' connection, if they were judged as a run.
    pub(crate) place: Option<Place>,
}

impl Stretch {
    pub(crate) fn frames(&self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.end)
    }
}

/// A frame of the batch that is of no run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameRecord {
    pub(crate) place: Option<Place>,
    pub(crate) flags: FrameFlags,
}

bitflags::bitflags! {
    /// Properties that few frames have.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct FrameFlags: u8 {
        /// It refuses its connection.
        const REFUSES = 1;
        /// It belongs to no connection and opens none.
        const INVALID = 2;
        /// It was counted for its connection.
        const COUNTED = 8;
        /// Its station is one of its port, as far as that was asked.
        const HOME = 4;
    }
}

/// The way that a frame was read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By [`plain`].
    Plain,
    /// By [`plain::read_v6`].
    PlainV6,
    /// By [`plain::read_offloaded`].
    Offloaded,
    /// Parsed, the place among those.
    Parsed(u8),
}

/// A frame that was parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParsedFrame {
    pub(crate) read: Reading,
    /// Whether it may be judged in a run, and its segment if that is read briefly.
    pub(crate) runs: bool,
    pub(crate) upper: Brief,
    pub(crate) zone: Zone,
    pub(crate) key: FlowKey,
}

/// A port as the program has it, as far as its frames depend on that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortView {
    pub(crate) from: PortId,
    /// Whether frames need a frame class.
    pub(crate) secured: bool,
    /// Whether decisions about known frames look above Ethernet.
    pub(crate) deep: bool,
}

impl PortView {
    pub(crate) fn ingress(&self) -> Ingress {
        Ingress {
            port: self.from.0 as u16,
            ..Ingress::default()
        }
    }

    pub(crate) fn new(program: &Program, from: PortId) -> Self {
        Self {
            from,
            secured: !program.port_security(from).is_open(),
            deep: program.looks_above_ethernet(from),
        }
    }

    /// Returns whether a frame needs no frame class.
    #[inline(always)]
    pub(crate) fn needs_no_class(&self, frame: &Frame) -> bool {
        !self.secured || is_ordinary(frame.headers.as_slice())
    }

    /// Returns the key for the look-up of a frame's flow: no decision about frames of a known
    /// connection looks above Ethernet.
    #[inline]
    pub(crate) fn key(&self, whole: FlowKey, ct: Ct) -> FlowKey {
        let key = whole.with_ct(ct);
        if self.deep || !ct.state().is_known() {
            return key;
        }
        key.ethernet_alone()
    }
}

impl Connections {
    /// Returns `None` when the table has too many threads.
    pub(crate) fn new(tracking: Tracking) -> Option<Self> {
        Some(Self {
            tracker: Tracker::new(&tracking.table)?,
            tracking,
            zones: Zones::default(),
            stretches: Vec::with_capacity(BATCH),
            seen: Box::new([FrameRecord::NOTHING; BATCH]),
            parsed: Vec::with_capacity(BATCH),
            untagged: None,
            shared: PlainMask::new(&plain::SHARED),
            fars: Vec::with_capacity(BATCH),
            now: 0,
            counts: false,
            quiet: true,
            astray: false,
        })
    }

    /// Returns whether the flow that was found for a flow batch leads its frames elsewhere than to
    /// the far port of their connection, and notes it.
    #[inline(always)]
    pub(crate) fn leads_astray(&mut self, flow_batch: usize, ct: Ct, action: Action) -> bool {
        let far = self.fars.get(flow_batch).copied().unwrap_or(NOWHERE);
        self.astray = leads_astray(ct, far, action);
        self.astray
    }

    /// Takes the next part of the sweep, if it is due. Nothing is done without connections. A
    /// worker without frames gives back what it holds of the table: it may sleep now.
    pub(crate) fn sweep(&mut self, now: u64) {
        if (now as Millis).wrapping_sub(self.now) >= sweep::INTERVAL {
            self.tracker.rest();
        }
        if !self.tracking.table.is_empty() {
            self.tracking
                .sweeper
                .sweep(&self.tracking.settings, now as Millis);
        }
    }

    /// Replaces the tracked segments, with the epochs of their rules.
    pub(crate) fn set_zones(&mut self, zones: Vec<(SegmentId, u16)>) {
        self.zones = Zones(zones);
    }
}

impl FrameRecord {
    pub(crate) const NOTHING: Self = Self {
        place: None,
        flags: FrameFlags::empty(),
    };

    /// Returns the port that it comes from, with its stations.
    pub(crate) fn ingress(&self, port: PortId, stations: Stations) -> Ingress {
        Ingress {
            port: port.0 as u16,
            is_home: self.flags.contains(FrameFlags::HOME),
            stations,
        }
    }

    /// Notes a judgement. Returns the field of flow keys.
    pub(crate) fn note(&mut self, judged: &FrameJudgement) -> Ct {
        self.place = judged.place;
        let refuses = matches!(judged.judgement, Judgement::Known { refused: true, .. });
        self.flags.set(FrameFlags::REFUSES, refuses);
        let invalid = matches!(judged.judgement, Judgement::Invalid(_));
        self.flags.set(FrameFlags::INVALID, invalid);
        judged.ct()
    }
}

/// Frames of the batch, as far as they were read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) parsed: &'a [ParsedFrame],
    pub(crate) untagged: Zone,
}

impl Reader<'_> {
    /// Returns what was read of a frame, and its zone.
    #[inline(always)]
    pub(crate) fn read(&self, kind: Kind, frame: &Frame) -> Option<(Reading, Zone)> {
        let plain = match kind {
            Kind::Plain => plain::read(self.untagged.number, frame),
            Kind::PlainV6 => plain::read_v6(self.untagged.number, frame),
            Kind::Offloaded => {
                let read = plain::read_offloaded(self.untagged.number, frame);
                read.map(|(plain, _)| plain)
            }
            Kind::Parsed(at) => {
                let frame = self.parsed.get(usize::from(at))?;
                return Some((frame.read, frame.zone));
            }
        };
        Some((Reading::Packet(plain?.packet()), self.untagged))
    }

    /// Returns all fields of a frame's key, without its state.
    #[inline]
    pub(crate) fn key(&self, kind: Kind, frame: &Frame, from: PortId) -> FlowKey {
        if let Kind::Parsed(at) = kind
            && let Some(frame) = self.parsed.get(usize::from(at))
        {
            return frame.key;
        }
        let (headers, len) = (frame.headers.as_slice(), frame.len() as usize);
        FlowKey::of_plain_ipv4(from.0, headers, len)
            .unwrap_or_else(|| FlowKey::new(from.0, &ParsedHeaders::parse(headers, len)))
    }

    /// Returns the zone of a stretch, if its frames may be judged as a run.
    #[inline(always)]
    pub(crate) fn zone_of_run(&self, kind: Kind) -> Option<Zone> {
        match kind {
            Kind::Plain | Kind::PlainV6 | Kind::Offloaded => Some(self.untagged),
            Kind::Parsed(at) => {
                let frame = self.parsed.get(usize::from(at))?;
                frame.runs.then_some(frame.zone)
            }
        }
    }
}

/// Returns what tracking reads of a parsed frame, and its whole key. `trusted`: the checksum needs
/// no look.
pub(crate) fn read_parsed(
    (zones, program, from): (&Zones, &Program, PortId),
    (parsed, headers): (&ParsedHeaders, &[u8]),
    trusted: bool,
) -> ParsedFrame {
    let zone = zones.of(program, from, parsed.vlan.map(|tag| tag.vid));
    let read = match zone {
        Some(zone) => conntrack::packet::read(zone.number, parsed, headers, trusted),
        None => Reading::Untracked(Exemption::NotIp),
    };
    let (runs, upper) = match &read {
        Reading::Packet(packet) if packet.piece.is_none() => match &packet.message {
            Message::Tcp(segment) => (true, Brief::of(segment)),
            Message::Udp => (true, Brief::NONE),
            _ => (false, Brief::NONE),
        },
        _ => (false, Brief::NONE),
    };
    ParsedFrame {
        read,
        runs,
        upper,
        zone: zone.unwrap_or(Zone::NONE),
        key: FlowKey::new(from.0, parsed),
    }
}

/// Parses a frame of the batch as deep as tracking needs it.
#[inline(never)]
pub(crate) fn parse(
    batch: &mut Batch,
    index: usize,
    at: (&Zones, &Program, PortId),
) -> Result<ParsedFrame, DropReason> {
    batch.deepen(index);
    let len = batch.frames()[index].len();
    let (headers, _, offload) = batch.split(index);
    let headers = headers.as_slice();
    let parsed = ParsedHeaders::parse(headers, len as usize);
    offload::check(headers, len, &parsed, offload)?;
    let trusted = !offload.is_nothing();
    Ok(read_parsed(at, (&parsed, headers), trusted))
}
