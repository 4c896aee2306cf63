//! Who looks on: captures of ports, and mirrors. Each worker has its own, and none where nobody looks.
//!
//! A frame is shown once it is known what became of it, with what its sender left undone still undone. It is judged by its
//! headers, and copied, from the same private bytes, so that what a guest rewrites meanwhile is at worst odd.

mod clock;

use std::sync::Arc;

use channel::capture::{Seen, Way, Writer};
use policy::Program;
use port::{DropReason, Offload, Payload, PortId};
use wire::expression::Filter;
use wire::{Parsed, SNAPSHOT};

use self::clock::Clock;
use crate::mirror::{Copied, Mirror, Passing};
use crate::offload;

/// The longest copy of a frame.
const LONGEST: usize = port::MAX_OUTGOING as usize;

/// One capture, as one worker does it.
#[derive(Debug)]
pub struct Tap {
    /// The capture's number.
    pub id: u32,
    /// Whose frames.
    pub port: PortId,
    /// Which of them.
    pub filter: Arc<Filter>,
    /// Bytes of each at most.
    pub snaplen: u32,
    /// One way, or both.
    pub way: Option<Way>,
    /// Only what was dropped.
    pub only_drops: bool,
    /// Where they go.
    pub writer: Writer,
}

impl Tap {
    fn is_of(&self, port: PortId, way: Way) -> bool {
        self.port == port && self.way.is_none_or(|wanted| wanted == way)
    }
}

/// What lies behind a frame's private headers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rest<'a> {
    /// In the sender's memory.
    Leased(&'a Payload<'a>),
    /// In memory of our own.
    Own(&'a [u8]),
}

impl Rest<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Leased(payload) => payload.len() as usize,
            Self::Own(bytes) => bytes.len(),
        }
    }

    /// Appends bytes `at..end` of it.
    fn append(&self, at: usize, end: usize, out: &mut Vec<u8>) {
        match self {
            Self::Leased(payload) => payload.slice(at as u32, (end - at) as u32).append_to(out),
            Self::Own(bytes) => out.extend_from_slice(&bytes[at..end]),
        }
    }
}

impl Rest<'_> {
    /// Has it as a payload that can be delivered.
    pub(crate) fn with_payload(&self, deliver: impl FnOnce(&Payload<'_>)) {
        let bytes = match self {
            Self::Leased(payload) => return deliver(payload),
            Self::Own(bytes) => *bytes,
        };
        let segments = [memory::Segment {
            ptr: bytes.as_ptr().cast_mut(),
            len: bytes.len() as u32,
            gpa: 0,
        }];
        // SAFETY: the segment is `bytes`, which is borrowed for longer than the payload lives and is not changed meanwhile; a
        // payload is only read.
        deliver(&unsafe { Payload::new(&segments, 0, bytes.len() as u32) });
    }
}

/// A frame to be shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) headers: &'a [u8],
    pub(crate) rest: Rest<'a>,
    pub(crate) offload: Offload,
}

impl Shown<'_> {
    /// Bytes of the whole frame.
    pub(crate) fn len(&self) -> usize {
        self.headers.len() + self.rest.len()
    }

    /// Reads on until `bytes`, which begins with its headers, has the first `len` bytes of the frame, or all of it.
    fn read_to(&self, len: usize, bytes: &mut Vec<u8>) {
        let read = bytes.len().saturating_sub(self.headers.len());
        let end = len.saturating_sub(self.headers.len()).min(self.rest.len());
        if end > read {
            self.rest.append(read, end, bytes);
        }
    }

    /// What its sender has left undone; nothing if that makes no sense, so that nobody tries to do it.
    pub(crate) fn checked_offload(&self) -> Offload {
        let len = self.len();
        let parsed = Parsed::parse(self.headers, len);
        let mut offload = self.offload;
        match offload::check(self.headers, len as u32, &parsed, &mut offload) {
            Ok(()) => offload,
            Err(_) => Offload::default(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Watch {
    taps: Vec<Tap>,
    mirrors: Arc<[Mirror]>,
    /// Copies that are to be made of the frame in hand that was shown last.
    due: Vec<Copied>,
    /// A copy is on its way, of this mirror: that is not copied again.
    copying: Option<u8>,
    /// The frame in hand, as far as it was read. It has room for the longest.
    bytes: Vec<u8>,
    clock: Clock,
}

impl Default for Watch {
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

impl Watch {
    pub(crate) fn add(&mut self, tap: Tap) {
        self.bytes.reserve(LONGEST);
        self.taps.push(tap);
    }

    /// From now on there are these mirrors and no others.
    pub(crate) fn set_mirrors(&mut self, mirrors: Arc<[Mirror]>) {
        self.bytes.reserve(LONGEST);
        self.due.reserve(mirrors.len());
        self.mirrors = mirrors;
    }

    /// Takes out those for which `leaves` says so.
    pub(crate) fn remove(&mut self, leaves: impl Fn(&Tap) -> bool) {
        self.taps.retain(|tap| !leaves(tap));
    }

    /// Whether nobody looks on.
    pub(crate) fn is_empty(&self) -> bool {
        self.taps.is_empty() && self.mirrors.is_empty()
    }

    /// Whether somebody wants to see frames of this port that go this way.
    pub(crate) fn is_of(&self, port: PortId, way: Way, program: &Program) -> bool {
        let mut mirrors = self.mirrors.iter();
        self.taps.iter().any(|tap| tap.is_of(port, way))
            || mirrors.any(|mirror| mirror.is_of(port, way, program))
    }

    /// Shows a frame to all who want to see it. Where it is to be copied to, [`Watch::begin_copy`] says.
    pub(crate) fn show(
        &mut self,
        port: PortId,
        way: Way,
        frame: Shown<'_>,
        lost: Option<DropReason>,
        program: &Program,
    ) {
        let wanted = |tap: &&Tap| tap.is_of(port, way) && (lost.is_some() || !tap.only_drops);
        let tapped = self.taps.iter().any(|tap| wanted(&tap));
        let mut mirrors = self.mirrors.iter();
        let mirrored =
            self.copying.is_none() && mirrors.any(|mirror| mirror.is_of(port, way, program));
        if !tapped && !mirrored {
            return;
        }
        let len = frame.len() as u32;
        let mut taps = self.taps.iter().filter(wanted);
        let judged = mirrored || taps.any(|tap| !tap.filter.is_everything());
        self.bytes.clear();
        self.bytes.extend_from_slice(frame.headers);
        let parsed = judged.then(|| {
            frame.read_to(SNAPSHOT, &mut self.bytes);
            let known = self.bytes.len().min(SNAPSHOT);
            Parsed::parse(&self.bytes[..known], len as usize)
        });
        if mirrored && let Some(parsed) = &parsed {
            let vlan = parsed.vlan.map(|tag| tag.vid);
            let passing = Passing {
                port,
                way,
                lost,
                segment: program.segment_of(port, vlan).ok(),
                parsed,
                len,
            };
            let mirrors = self.mirrors.iter().filter(|mirror| mirror.wants(&passing));
            self.due.extend(mirrors.map(Mirror::copy));
        }
        for tap in self.taps.iter_mut().filter(|tap| wanted(&&**tap)) {
            let meant = parsed.as_ref().is_none_or(|it| tap.filter.matches(it, len));
            let most = len.min(tap.snaplen) as usize;
            // What is lost costs no copy, and no look at the clock.
            if !meant || !tap.writer.admit(most) {
                continue;
            }
            frame.read_to(most, &mut self.bytes);
            let seen = Seen {
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

    /// The mirror of which a copy is on its way.
    pub(crate) fn copying(&self) -> Option<u8> {
        self.copying
    }

    /// Where a copy of the frame that was shown last is to go next. Until [`Watch::end_copy`] nothing is copied again.
    pub(crate) fn begin_copy(&mut self) -> Option<PortId> {
        if self.copying.is_some() {
            return None;
        }
        let next = self.due.pop()?;
        self.copying = Some(next.mirror);
        Some(next.to)
    }

    /// The copy has been delivered, or lost.
    pub(crate) fn end_copy(&mut self) {
        self.copying = None;
    }
}
