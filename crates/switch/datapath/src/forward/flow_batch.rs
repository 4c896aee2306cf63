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

mod judge;
mod settle;

use std::hint::black_box;
use std::ops::Range;

use flow_table::{CachedDecision, Class, FlowTable, Probe};
use policy::Action;
use policy::frame_class::is_ordinary;
use port::{DropReason, PortId};
use wire::FrameClass;
use wire::flow::{FlowKey, PlainMask};
use wire::packet::ParsedHeaders;

use crate::forward::tracking::Connections;
use crate::ports::alike::CommonBits;
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

/// Class of frames, the effect of their decision on their connection, and whether they came with a
/// tag, in one word: all are compared at once.
///
/// ```text
/// bits 31..16   15..8                                         7..1    0
/// rule list     class as decided, if the frames have another  class   tagged
/// ```
/// The rule list is that of a decision that commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Label(u32);

impl Label {
    const DECIDED: u32 = 8;
    const RULES: u32 = 16;

    #[inline]
    fn new(class: Class, tagged: bool, rules: u16) -> Self {
        let class = u32::from(class.bits() | u8::from(tagged));
        Self(class | u32::from(rules) << Self::RULES)
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
        Class::from_bits(self.label.0 as u8)
    }

    /// Returns the class as it was decided, which the connection of the frames keeps.
    pub(crate) fn decided_class(&self) -> Class {
        match (self.label.0 >> Label::DECIDED) as u8 {
            0 => self.class(),
            bits => Class::from_bits(bits),
        }
    }

    /// Returns the action and the class.
    #[inline]
    pub(crate) fn decided(&self) -> CachedDecision {
        (self.action, self.class())
    }

    /// Returns the rule list of a decision that commits.
    pub(crate) fn rules(&self) -> u16 {
        (self.label.0 >> Label::RULES) as u16
    }

    /// Changes the class of the frames, and nothing for their connection.
    pub(crate) fn set_class(&mut self, class: Class) {
        let decided = self.decided_class();
        let class = decided.renumbered(class);
        self.label = Label::new(class, self.is_tagged(), self.rules());
        self.label.0 |= u32::from(decided.bits()) << Label::DECIDED;
    }
}

/// Key of a frame, and the head by which the following frames are compared with it.
type BatchHead<H> = (FlowKey, Option<H>);

/// Depth at which frames are compared, given by the masks of the cached flows.
trait Look {
    /// Whether bytes behind the Ethernet header matter.
    const DEEP: bool;
    /// Bits that the frames of a flow batch have in common.
    type Head;

    /// Returns the key of a frame that need not be parsed, and its head if following frames can be
    /// compared by it.
    fn begin(&self, from: PortId, frame: &Frame) -> Option<BatchHead<Self::Head>>;
    /// Returns whether a frame continues the flow batch with this head.
    fn continues(head: &Self::Head, frame: &Frame) -> bool;
}

/// Comparison by the Ethernet header only.
struct Ethernet;

impl Look for Ethernet {
    const DEEP: bool = false;
    type Head = (u64, u64);

    #[inline(always)]
    fn begin(&self, from: PortId, frame: &Frame) -> Option<BatchHead<(u64, u64)>> {
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
    type Head = CommonBits;

    #[inline(always)]
    fn begin(&self, from: PortId, frame: &Frame) -> Option<BatchHead<CommonBits>> {
        let alike = CommonBits::new(self, frame)?;
        let headers = frame.headers.as_slice();
        let key = FlowKey::of_plain_ipv4(from.0, headers, frame.len() as usize)?;
        Some((key, Some(alike)))
    }

    #[inline(always)]
    fn continues(head: &CommonBits, frame: &Frame) -> bool {
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
    /// Connection tracking, of the lookup of tracked ports.
    pub(crate) connections: Option<Box<Connections>>,
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
            connections: None,
        }
    }

    /// Groups the frames of the batch into flow batches, sets malformed ones aside, and prefetches
    /// the flows. `secured`: frames of this port need a frame class.
    #[inline(never)]
    pub(crate) fn build_flow_batches(&mut self, from: PortId, secured: bool) {
        self.clear_batches();
        if self.flows.looks_above_ethernet() {
            let mask = *self.flows.plain_mask();
            self.group_frames(from, secured, &mask);
        } else {
            self.group_frames(from, secured, &Ethernet);
        }
        self.approach_all();
    }

    /// Forgets what is known of the former batch.
    #[inline(always)]
    pub(crate) fn clear_batches(&mut self) {
        self.flow_batches.clear();
        self.action_batches.clear();
        self.malformed.clear();
    }

    /// Prefetches the flows of all flow batches.
    #[inline(always)]
    pub(crate) fn approach_all(&mut self) {
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
    pub(crate) fn begin_flow_batch(&mut self, key: FlowKey, frames: Range<usize>) {
        let probe = self.flows.prepare(&key);
        self.flow_batches.push(FlowBatch { key, probe, frames });
    }

    /// Appends a frame with a key of its own.
    #[inline(always)]
    pub(crate) fn append_frame(&mut self, key: FlowKey, index: usize) {
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
        let parsed = ParsedHeaders::parse(headers.as_slice(), len as usize);
        offload::check(headers.as_slice(), len, &parsed, offload)?;
        Ok(FlowKey::new(from.0, &parsed))
    }

    /// Returns the class of a frame that is not ordinary by its first bytes.
    #[cold]
    pub(crate) fn classify(&mut self, index: usize) -> FrameClass {
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
    ///
    /// A flow that leads a known connection astray is none, either; see [`Lookup::ask_rules`].
    #[inline]
    pub(crate) fn find_all(&mut self, at: usize, now: u64) -> Option<usize> {
        match (self.flows.counts_rules(), self.connections.is_some()) {
            (true, false) => self.find_flows::<true, false>(at, now),
            (false, false) => self.find_flows::<false, false>(at, now),
            (true, true) => self.find_flows::<true, true>(at, now),
            (false, true) => self.find_flows::<false, true>(at, now),
        }
    }

    /// Does the lookups of [`Lookup::find_all`]. `BYTES`: the bytes of each flow are counted.
    /// `TRACKED`: far ports are compared. Not inlined: with one lookup site, the lookup is inlined
    /// here.
    #[inline(never)]
    fn find_flows<const BYTES: bool, const TRACKED: bool>(
        &mut self,
        at: usize,
        now: u64,
    ) -> Option<usize> {
        for (index, flow_batch) in self.flow_batches.iter().enumerate().skip(at) {
            let frames = flow_batch.frames.clone();
            let count = frames.len() as u64;
            let (key, probe) = (&flow_batch.key, flow_batch.probe);
            let found = if TRACKED {
                let bytes = BYTES.then(|| self.batch.bytes(frames.clone()));
                self.flows
                    .lookup_with_rules(key, probe, (count, bytes), now)
            } else if BYTES {
                let used = (count, self.batch.bytes(frames.clone()));
                let found = self.flows.lookup_counting_bytes(key, probe, used, now);
                found.map(|decided| (decided, 0))
            } else {
                let found = self.flows.lookup_prepared(key, probe, count, now);
                found.map(|decided| (decided, 0))
            };
            let Some(((action, class), rules)) = found else {
                return Some(index);
            };
            let rules = match TRACKED && class.commits() {
                true => rules,
                false => 0,
            };
            if TRACKED
                && let Some(connections) = &mut self.connections
                && connections.leads_astray(index, flow_batch.key.ct(), action)
            {
                let used = (count, self.batch.bytes(frames));
                self.flows.uncount(&flow_batch.key, used);
                return Some(index);
            }
            self.hits += count;
            let label = Label::new(class, flow_batch.key.vlan().is_some(), rules);
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
