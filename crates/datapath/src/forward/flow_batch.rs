//! Grouping of the frames of a batch.
//!
//! A *flow batch* has consecutive frames with one key, looked up once. After the decision, flow
//! batches with one action become an *action batch*. A receiver is looked up once per action batch,
//! and the number of frames is announced to it before the first one.
//!
//! Almost every frame continues the flow batch of the frame before it by its first bytes alone:
//! they are equal in all bits that any flow looks at. Such a frame needs no key. While flows look
//! at Ethernet only, that is one comparison; otherwise it is the comparison of [`PlainMask`] for
//! plain packets, and all other frames are parsed.
//!
//! Almost every frame of a port with port security is ordinary by its first bytes, too. Only the
//! others are parsed for their frame class, which is part of their flow keys.

use std::hint::black_box;
use std::ops::Range;

use flow_table::{Class, Decided, FlowTable, Probe};
use policy::Action;
use policy::frame_class::is_ordinary;
use port::{DropReason, PortId};
use wire::FrameClass;
use wire::flow::{FlowKey, PlainMask};
use wire::packet::Parsed;

use crate::ports::alike::Alike;
use crate::ports::batch::{BATCH, Batch, Frame};
use crate::ports::offload;

/// Consecutive frames with one key.
#[derive(Clone, Debug)]
pub(crate) struct FlowBatch {
    pub(crate) key: FlowKey,
    /// Lookup of the key in progress.
    pub(crate) probe: Probe,
    /// Indices in the batch.
    pub(crate) frames: Range<usize>,
}

impl FlowBatch {
    /// Returns whether the frame at `index` with this key continues the flow batch.
    #[inline]
    pub(crate) fn continues(&self, index: usize, key: &FlowKey) -> bool {
        self.frames.end == index && same(&self.key, key)
    }
}

/// Compares word by word: as one block, the key that has just been stored in words would have to
/// reach the cache first. The compiler joins comparisons of neighbours: it may not see every other
/// word.
#[inline]
fn same(a: &FlowKey, b: &FlowKey) -> bool {
    let (a, b) = (a.words(), b.words());
    let word = |at| {
        if at % 2 == 0 { a[at] } else { black_box(a[at]) }
    };
    (0..a.len()).all(|at| word(at) == b[at])
}

/// Class of frames and whether they came with a tag, in one byte: both are compared at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Label(u8);

impl Label {
    #[inline]
    fn new(class: Class, tagged: bool) -> Self {
        Self(class.bits() | u8::from(tagged))
    }
}

/// Consecutive frames with one action and one class.
#[derive(Clone, Debug)]
pub(crate) struct ActionBatch {
    pub(crate) action: Action,
    label: Label,
    /// Indices in the batch.
    pub(crate) frames: Range<usize>,
}

impl ActionBatch {
    /// Returns whether the frames of a flow batch continue the action batch.
    #[inline]
    fn continues(&self, action: Action, label: Label, frames: &Range<usize>) -> bool {
        self.frames.end == frames.start && self.label == label && self.action == action
    }

    /// Returns whether the frames came with a tag.
    #[inline]
    pub(crate) fn is_tagged(&self) -> bool {
        self.label.0 & 1 != 0
    }

    /// Returns the class of the frames.
    #[inline]
    pub(crate) fn class(&self) -> Class {
        Class::from_bits(self.label.0)
    }

    /// Returns the action and the class.
    #[inline]
    pub(crate) fn decided(&self) -> Decided {
        (self.action, self.class())
    }

    /// Changes the class of the frames.
    pub(crate) fn set_class(&mut self, class: Class) {
        self.label = Label::new(class, self.is_tagged());
    }
}

/// Key of a frame, and the head by which the following frames are compared with it.
type Begun<H> = (FlowKey, Option<H>);

/// Depth at which frames are compared, given by the masks of the cached flows.
trait Look {
    /// Whether bytes behind the Ethernet header matter.
    const DEEP: bool;
    /// Bits that the frames of a flow batch have in common.
    type Head;

    /// Returns the key of a frame that need not be parsed, and its head if following frames can be
    /// compared by it.
    fn begin(&self, from: PortId, frame: &Frame) -> Option<Begun<Self::Head>>;
    /// Returns whether a frame continues the flow batch with this head.
    fn continues(head: &Self::Head, frame: &Frame) -> bool;
}

/// Comparison by the Ethernet header only.
struct Ethernet;

impl Look for Ethernet {
    const DEEP: bool = false;
    type Head = (u64, u64);

    #[inline(always)]
    fn begin(&self, from: PortId, frame: &Frame) -> Option<Begun<(u64, u64)>> {
        if !frame.offload.is_nothing() {
            return None;
        }
        let key = FlowKey::of_ethernet(from.0, frame.headers.as_slice())?;
        Some((key, frame.ethernet_words()))
    }

    #[inline(always)]
    fn continues(head: &(u64, u64), frame: &Frame) -> bool {
        frame.ethernet_words() == Some(*head)
    }
}

impl Look for PlainMask {
    const DEEP: bool = true;
    type Head = Alike;

    #[inline(always)]
    fn begin(&self, from: PortId, frame: &Frame) -> Option<Begun<Alike>> {
        let alike = Alike::new(self, frame)?;
        let headers = frame.headers.as_slice();
        let key = FlowKey::of_plain_ipv4(from.0, headers, frame.len() as usize)?;
        Some((key, Some(alike)))
    }

    #[inline(always)]
    fn continues(head: &Alike, frame: &Frame) -> bool {
        head.has(frame)
    }
}

/// Returns the number of frames that continue the flow batch; with port security, up to the first
/// one that needs a frame class.
#[inline(always)]
fn followers<L: Look, const SECURED: bool>(head: &L::Head, behind: &[Frame]) -> usize {
    let follows = |frame: &&Frame| L::continues(head, frame) && needs_no_class::<SECURED>(frame);
    behind.iter().take_while(follows).count()
}

/// Returns whether the frame needs no frame class.
#[inline(always)]
fn needs_no_class<const SECURED: bool>(frame: &Frame) -> bool {
    !SECURED || is_ordinary(frame.headers.as_slice())
}

/// The flow cache, and the batch that is looked up in it: its frames, flow batches and action
/// batches. One object, so that the loops below have one pointer to hold.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) flows: FlowTable,
    pub(crate) batch: Batch,
    pub(crate) flow_batches: Vec<FlowBatch>,
    pub(crate) action_batches: Vec<ActionBatch>,
    /// Frames that are dropped before the flow lookup, by index.
    pub(crate) malformed: Vec<(usize, DropReason)>,
    /// Frames with a flow so far.
    pub(crate) hits: u64,
}

impl Lookup {
    /// Returns an empty batch.
    pub(crate) fn new(flows: FlowTable) -> Self {
        Self {
            flows,
            batch: Batch::new(),
            flow_batches: Vec::with_capacity(BATCH),
            action_batches: Vec::with_capacity(BATCH),
            malformed: Vec::with_capacity(BATCH),
            hits: 0,
        }
    }

    /// Groups the frames of the batch into flow batches, sets malformed ones aside, and prefetches
    /// the flows. `secured`: frames of this port need a frame class.
    #[inline(never)]
    pub(crate) fn build_flow_batches(&mut self, from: PortId, secured: bool) {
        self.flow_batches.clear();
        self.action_batches.clear();
        self.malformed.clear();
        if self.flows.looks_above_ethernet() {
            let mask = *self.flows.plain_mask();
            self.group_frames(from, secured, &mask);
        } else {
            self.group_frames(from, secured, &Ethernet);
        }
        for flow_batch in &mut self.flow_batches {
            flow_batch.probe = self.flows.approach(&flow_batch.key, flow_batch.probe);
        }
    }

    #[inline(always)]
    fn group_frames<L: Look>(&mut self, from: PortId, secured: bool, look: &L) {
        if secured {
            self.group::<L, true>(from, look);
        } else {
            self.group::<L, false>(from, look);
        }
    }

    #[inline(always)]
    fn group<L: Look, const SECURED: bool>(&mut self, from: PortId, look: &L) {
        let mut index = 0;
        while let [frame, behind @ ..] = &self.batch.frames()[index..] {
            let ordinary = needs_no_class::<SECURED>(frame);
            let key = match look.begin(from, frame) {
                Some((key, Some(head))) if ordinary => {
                    let end = index + 1 + followers::<L, SECURED>(&head, behind);
                    self.begin_flow_batch(key, index..end);
                    index = end;
                    continue;
                }
                Some((key, _)) => Ok(key),
                None => self.parse(index, from, L::DEEP),
            };
            match key {
                Ok(key) if ordinary => self.append_frame(key, index),
                Ok(key) => {
                    let key = key.with_frame_class(self.classify(index));
                    self.append_frame(key, index);
                }
                Err(reason) => self.malformed.push((index, reason)),
            }
            index += 1;
        }
    }

    #[inline(always)]
    fn begin_flow_batch(&mut self, key: FlowKey, frames: Range<usize>) {
        let probe = self.flows.prepare(&key);
        self.flow_batches.push(FlowBatch { key, probe, frames });
    }

    /// Appends a frame with a key of its own.
    #[inline]
    fn append_frame(&mut self, key: FlowKey, index: usize) {
        match self.flow_batches.last_mut() {
            Some(last) if last.continues(index, &key) => last.frames.end = index + 1,
            _ => self.begin_flow_batch(key, index..index + 1),
        }
    }

    /// Returns the flow key of a frame, parsed as deep as the flows need it.
    #[inline]
    fn parse(&mut self, index: usize, from: PortId, deep: bool) -> Result<FlowKey, DropReason> {
        if deep {
            self.batch.deepen(index);
        }
        let len = self.batch.frames()[index].len();
        let (headers, _, offload) = self.batch.split(index);
        let parsed = Parsed::parse(headers.as_slice(), len as usize);
        offload::check(headers.as_slice(), len, &parsed, offload)?;
        Ok(FlowKey::new(from.0, &parsed))
    }

    /// Returns the class of a frame that is not ordinary by its first bytes.
    #[cold]
    fn classify(&mut self, index: usize) -> FrameClass {
        self.batch.deepen(index);
        let len = self.batch.frames()[index].len() as usize;
        policy::frame_class::classify(self.batch.frames()[index].headers.as_slice(), len)
    }

    /// Forgets the actions of the frames from this one on, which stay in their queue. `found`: the
    /// flow batches before this one have been found.
    #[cold]
    pub(crate) fn forget_behind(&mut self, index: usize, found: usize) {
        let behind = |frames: &Range<usize>| index.max(frames.start)..frames.end.max(index);
        for flow_batch in &self.flow_batches[..found] {
            let frames = behind(&flow_batch.frames);
            if !frames.is_empty() {
                let counted = (frames.len() as u64, self.batch.bytes(frames));
                self.flows.uncount(&flow_batch.key, counted);
            }
        }
        while let Some(last) = self.action_batches.last_mut() {
            self.hits -= behind(&last.frames).len() as u64;
            if last.frames.start < index {
                last.frames.end = last.frames.end.min(index);
                break;
            }
            self.action_batches.pop();
        }
    }

    /// Appends the actions of the flow batches from `at` on, up to the first one without a flow.
    /// Returns its index.
    #[inline]
    pub(crate) fn find_all(&mut self, at: usize, now: u64) -> Option<usize> {
        if self.flows.counts_rules() {
            self.find_flows::<true>(at, now)
        } else {
            self.find_flows::<false>(at, now)
        }
    }

    /// Does the lookups of [`Lookup::find_all`]. `BYTES`: the bytes of each flow are counted.
    /// Not inlined: with one lookup site, the lookup is inlined here.
    #[inline(never)]
    fn find_flows<const BYTES: bool>(&mut self, at: usize, now: u64) -> Option<usize> {
        for (index, flow_batch) in self.flow_batches.iter().enumerate().skip(at) {
            let frames = flow_batch.frames.clone();
            let count = frames.len() as u64;
            let found = if BYTES {
                let used = (count, self.batch.bytes(frames.clone()));
                self.flows
                    .lookup_counting_bytes(&flow_batch.key, flow_batch.probe, used, now)
            } else {
                self.flows
                    .lookup_prepared(&flow_batch.key, flow_batch.probe, count, now)
            };
            let Some((action, class)) = found else {
                return Some(index);
            };
            self.hits += count;
            let label = Label::new(class, flow_batch.key.vlan().is_some());
            match self.action_batches.last_mut() {
                Some(last) if last.continues(action, label, &frames) => {
                    last.frames.end = frames.end
                }
                _ => self.action_batches.push(ActionBatch {
                    action,
                    label,
                    frames,
                }),
            }
        }
        None
    }
}
