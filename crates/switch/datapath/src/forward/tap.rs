//! Taps: captures of ports, and mirrors. Each worker has its own.
//!
//! A frame is emitted when its outcome is known, with offloads not yet applied. Filter and copy use
//! the same private bytes of the headers: a guest that rewrites a frame meanwhile gets a wrong copy
//! at worst.

mod clock;

use std::sync::Arc;

use filter::Filter;
use ipc::capture::{FrameMetadata, Way, Writer};
use policy::Program;
use port::{DropReason, Offload, PortId};
use wire::{ParsedHeaders, SNAPSHOT};

use self::clock::Clock;
use crate::forward::mirror::{Mirror, MirrorCopy, MirroredFrame};
use crate::ports::offload;
use crate::ports::payload::Payload;

/// Length of the longest copy of a frame.
const MAX_COPY: usize = port::MAX_OUTGOING as usize;

/// Capture of one worker.
#[derive(Debug)]
pub struct Tap {
    /// Number of the capture.
    pub id: u32,
    /// Port of the capture.
    pub port: PortId,
    /// Filter of the frames.
    pub filter: Arc<Filter>,
    /// Bytes that are captured of each frame at most.
    pub snaplen: u32,
    /// Direction; `None`: both.
    pub way: Option<Way>,
    /// Whether only dropped frames are captured.
    pub only_drops: bool,
    /// Ring of the captured frames.
    pub writer: Writer,
}

impl Tap {
    fn covers(&self, port: PortId, way: Way) -> bool {
        self.port == port && self.way.is_none_or(|only| only == way)
    }
}

/// Bytes of a frame behind its private headers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TapPayload<'a> {
    /// In the sender's memory.
    Leased(&'a Payload<'a>),
    /// In private memory.
    Owned(&'a [u8]),
}

impl TapPayload<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Leased(payload) => payload.len() as usize,
            Self::Owned(bytes) => bytes.len(),
        }
    }

    /// Appends its bytes `at..end`.
    fn append(&self, at: usize, end: usize, out: &mut Vec<u8>) {
        match self {
            Self::Leased(payload) => payload.slice(at as u32, (end - at) as u32).append_to(out),
            Self::Owned(bytes) => out.extend_from_slice(&bytes[at..end]),
        }
    }
}

impl TapPayload<'_> {
    /// Calls `deliver` with these bytes as a payload.
    pub(crate) fn with_payload(&self, deliver: impl FnOnce(&Payload<'_>)) {
        let bytes = match self {
            Self::Leased(payload) => return deliver(payload),
            Self::Owned(bytes) => *bytes,
        };
        let segments = [memory::Segment {
            ptr: bytes.as_ptr().cast_mut(),
            len: bytes.len() as u32,
            gpa: memory::Segment::PRIVATE,
        }];
        // SAFETY: the segment is `bytes`, which is borrowed for longer than the payload lives and
        // is not changed meanwhile; a payload is only read.
        deliver(&unsafe { Payload::new(&segments, 0, bytes.len() as u32) });
    }
}

/// Frame as it is emitted to taps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TappedFrame<'a> {
    pub(crate) headers: &'a [u8],
    pub(crate) rest: TapPayload<'a>,
    pub(crate) offload: Offload,
}

impl TappedFrame<'_> {
    /// Returns the length of the frame.
    pub(crate) fn len(&self) -> usize {
        self.headers.len() + self.rest.len()
    }

    /// Extends `bytes`, which begins with the headers, to the first `len` bytes of the frame.
    fn read_to(&self, len: usize, bytes: &mut Vec<u8>) {
        let read = bytes.len().saturating_sub(self.headers.len());
        let end = len.saturating_sub(self.headers.len()).min(self.rest.len());
        if end > read {
            self.rest.append(read, end, bytes);
        }
    }

    /// Returns the offload, or none if it does not fit the headers.
    pub(crate) fn checked_offload(&self) -> Offload {
        let len = self.len();
        let parsed = ParsedHeaders::parse(self.headers, len);
        let mut offload = self.offload;
        match offload::check(self.headers, len as u32, &parsed, &mut offload) {
            Ok(()) => offload,
            Err(_) => Offload::default(),
        }
    }
}

/// Taps of one worker; see the module.
#[derive(Debug)]
pub(crate) struct Taps {
    taps: Vec<Tap>,
    mirrors: Arc<[Mirror]>,
    /// Copies to be made of the last emitted frame.
    due: Vec<MirrorCopy>,
    /// Mirror whose copy is being delivered; a copy is not copied again.
    copying: Option<u8>,
    /// Bytes of the current frame, read as far as needed. Reserved for the longest frame.
    bytes: Vec<u8>,
    clock: Clock,
}

impl Default for Taps {
    fn default() -> Self {
        Self {
            taps: Vec::new(),
            mirrors: Arc::new([]),
            due: Vec::new(),
            copying: None,
            bytes: Vec::new(),
            clock: Clock::default(),
        }
    }
}

impl Taps {
    pub(crate) fn add(&mut self, tap: Tap) {
        self.bytes.reserve(MAX_COPY);
        self.taps.push(tap);
    }

    /// Replaces the mirrors.
    pub(crate) fn set_mirrors(&mut self, mirrors: Arc<[Mirror]>) {
        self.bytes.reserve(MAX_COPY);
        self.due.reserve(mirrors.len());
        self.mirrors = mirrors;
    }

    /// Removes the taps that match `leaves`.
    pub(crate) fn remove(&mut self, leaves: impl Fn(&Tap) -> bool) {
        self.taps.retain(|tap| !leaves(tap));
    }

    /// Returns whether there are neither captures nor mirrors.
    pub(crate) fn is_empty(&self) -> bool {
        self.taps.is_empty() && self.mirrors.is_empty()
    }

    /// Returns whether a tap covers frames of this port in this direction.
    pub(crate) fn covers(&self, port: PortId, way: Way, program: &Program) -> bool {
        let mut mirrors = self.mirrors.iter();
        self.taps.iter().any(|tap| tap.covers(port, way))
            || mirrors.any(|mirror| mirror.covers(port, way, program))
    }

    /// Emits a frame to all matching captures, and notes the copies of mirrors for
    /// [`Taps::begin_copy`].
    pub(crate) fn emit(
        &mut self,
        port: PortId,
        way: Way,
        frame: TappedFrame<'_>,
        lost: Option<DropReason>,
        program: &Program,
    ) {
        let matching = |tap: &&Tap| tap.covers(port, way) && (lost.is_some() || !tap.only_drops);
        let tapped = self.taps.iter().any(|tap| matching(&tap));
        let mut mirrors = self.mirrors.iter();
        let mirrored =
            self.copying.is_none() && mirrors.any(|mirror| mirror.covers(port, way, program));
        if !tapped && !mirrored {
            return;
        }
        let len = frame.len() as u32;
        let mut taps = self.taps.iter().filter(matching);
        let judged = mirrored || taps.any(|tap| !tap.filter.is_everything());
        self.bytes.clear();
        self.bytes.extend_from_slice(frame.headers);
        let parsed = judged.then(|| {
            frame.read_to(SNAPSHOT, &mut self.bytes);
            let known = self.bytes.len().min(SNAPSHOT);
            ParsedHeaders::parse(&self.bytes[..known], len as usize)
        });
        if mirrored && let Some(parsed) = &parsed {
            let vlan = parsed.vlan.map(|tag| tag.vid);
            let passing = MirroredFrame {
                port,
                way,
                lost,
                segment: program.segment_of(port, vlan).ok(),
                parsed,
                len,
            };
            let mirrors = self
                .mirrors
                .iter()
                .filter(|mirror| mirror.matches(&passing));
            self.due.extend(mirrors.map(Mirror::copy));
        }
        for tap in self.taps.iter_mut().filter(|tap| matching(&&**tap)) {
            let meant = parsed.as_ref().is_none_or(|it| tap.filter.matches(it, len));
            let most = len.min(tap.snaplen) as usize;
            // A capture whose ring is full costs neither a copy nor a clock read.
            if !meant || !tap.writer.admit(most) {
                continue;
            }
            frame.read_to(most, &mut self.bytes);
            let seen = FrameMetadata {
                at_ns: self.clock.now(),
                len,
                way,
                dropped: lost,
                offload: frame.offload,
            };
            tap.writer
                .write(&seen, &self.bytes[..most.min(self.bytes.len())]);
        }
    }

    /// Returns the mirror whose copy is being delivered.
    pub(crate) fn copying(&self) -> Option<u8> {
        self.copying
    }

    /// Returns the destination of the next copy of the last emitted frame. Nothing is copied again
    /// until [`Taps::end_copy`].
    pub(crate) fn begin_copy(&mut self) -> Option<PortId> {
        if self.copying.is_some() {
            return None;
        }
        let next = self.due.pop()?;
        self.copying = Some(next.mirror);
        Some(next.to)
    }

    /// Ends the delivery of a copy.
    pub(crate) fn end_copy(&mut self) {
        self.copying = None;
    }
}
