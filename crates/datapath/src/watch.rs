//! Who looks on: captures of ports. Each worker has its own, and none where nobody looks.
//!
//! A frame is shown once it is known what became of it, with what its sender left undone still undone. It is judged by its
//! headers, and copied, from the same private bytes, so that what a guest rewrites meanwhile is at worst odd.

use std::sync::Arc;

use channel::capture::{Seen, Way, Writer};
use port::{DropReason, Offload, Payload, PortId};
use rustix::time::{ClockId, clock_gettime};
use wire::expression::Filter;
use wire::{Parsed, SNAPSHOT};

/// The longest copy of a frame.
const LONGEST: usize = port::MAX_FRAME as usize;

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

/// A frame to be shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) headers: &'a [u8],
    pub(crate) rest: Rest<'a>,
    pub(crate) offload: Offload,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    taps: Vec<Tap>,
    /// The frame in hand, as far as it was read. It has room for the longest.
    bytes: Vec<u8>,
}

impl Watch {
    pub(crate) fn add(&mut self, tap: Tap) {
        self.bytes.reserve(LONGEST);
        self.taps.push(tap);
    }

    /// Takes out those for which `leaves` says so.
    pub(crate) fn remove(&mut self, leaves: impl Fn(&Tap) -> bool) {
        self.taps.retain(|tap| !leaves(tap));
    }

    /// Whether nobody looks on.
    pub(crate) fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }

    /// Whether somebody wants to see frames of this port that go this way.
    pub(crate) fn is_of(&self, port: PortId, way: Way) -> bool {
        self.taps.iter().any(|tap| tap.is_of(port, way))
    }

    /// Shows a frame to all who want to see it.
    pub(crate) fn show(
        &mut self,
        port: PortId,
        way: Way,
        frame: Shown<'_>,
        lost: Option<DropReason>,
    ) {
        let Self { taps, bytes } = self;
        let wanted = |tap: &&mut Tap| tap.is_of(port, way) && (lost.is_some() || !tap.only_drops);
        let mut taps = taps.iter_mut().filter(wanted).peekable();
        if taps.peek().is_none() {
            return;
        }
        let rest = frame.rest.len();
        let len = frame.headers.len() + rest;
        bytes.clear();
        bytes.extend_from_slice(frame.headers);
        let mut read = SNAPSHOT.saturating_sub(bytes.len()).min(rest);
        frame.rest.append(0, read, bytes);
        let parsed = Parsed::parse(&bytes[..bytes.len().min(SNAPSHOT)], len);
        let seen = Seen {
            at_ns: now(),
            len: len as u32,
            way,
            dropped: lost,
            offload: frame.offload,
        };
        for tap in taps.filter(|tap| tap.filter.matches(&parsed, len as u32)) {
            let most = len.min(tap.snaplen as usize);
            let end = most.saturating_sub(frame.headers.len()).min(rest);
            if end > read {
                frame.rest.append(read, end, bytes);
                read = end;
            }
            tap.writer.write(&seen, &bytes[..most.min(bytes.len())]);
        }
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
