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

use std::ops::Range;

use flow_table::{FlowTable, Probe};
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
/// reach the cache first.
#[inline]
fn same(a: &FlowKey, b: &FlowKey) -> bool {
    let (a, b) = (a.words(), b.words());
    (0..a.len()).all(|at| std::hint::black_box(a[at]) == b[at])
}

/// Consecutive frames with one action.
#[derive(Clone, Debug)]
pub(crate) struct ActionBatch {
    pub(crate) action: Action,
    /// Whether they came with a tag.
    pub(crate) tagged: bool,
    /// Indices in the batch.
    pub(crate) frames: Range<usize>,
}

impl ActionBatch {
    /// Returns whether the frames of a flow batch continue the action batch.
    #[inline]
    pub(crate) fn continues(&self, action: Action, tagged: bool, frames: &Range<usize>) -> bool {
        self.frames.end == frames.start && self.tagged == tagged && self.action == action
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
fn followers<L: Look>(head: &L::Head, behind: &[Frame], secured: bool) -> usize {
    let continues = |frame: &&Frame| L::continues(head, frame);
    if !secured {
        return behind.iter().take_while(continues).count();
    }
    let ordinary = |frame: &&Frame| continues(frame) && is_ordinary(frame.headers.as_slice());
    behind.iter().take_while(ordinary).count()
}

/// The batch in progress: its frames, flow batches and action batches.
#[derive(Debug)]
pub(crate) struct GroupedBatch {
    pub(crate) batch: Batch,
    pub(crate) flow_batches: Vec<FlowBatch>,
    pub(crate) action_batches: Vec<ActionBatch>,
    /// Frames that are dropped before the flow lookup, by index.
    pub(crate) malformed: Vec<(usize, DropReason)>,
}

impl GroupedBatch {
    /// Returns an empty batch.
    pub(crate) fn new() -> Self {
        Self {
            batch: Batch::new(),
            flow_batches: Vec::with_capacity(BATCH),
            action_batches: Vec::with_capacity(BATCH),
            malformed: Vec::with_capacity(BATCH),
        }
    }

    /// Groups the frames of the batch into flow batches, sets malformed ones aside, and prefetches
    /// the flows. `secured`: frames of this port need a frame class.
    #[inline(never)]
    pub(crate) fn build_flow_batches(&mut self, from: PortId, flows: &FlowTable, secured: bool) {
        self.flow_batches.clear();
        self.action_batches.clear();
        self.malformed.clear();
        if flows.looks_above_ethernet() {
            let mask = *flows.plain_mask();
            self.group_frames(from, flows, secured, &mask);
        } else {
            self.group_frames(from, flows, secured, &Ethernet);
        }
        for flow_batch in &mut self.flow_batches {
            flow_batch.probe = flows.approach(&flow_batch.key, flow_batch.probe);
        }
    }

    #[inline(always)]
    fn group_frames<L: Look>(&mut self, from: PortId, flows: &FlowTable, secured: bool, look: &L) {
        let mut index = 0;
        while let [frame, behind @ ..] = &self.batch.frames()[index..] {
            let ordinary = !secured || is_ordinary(frame.headers.as_slice());
            let begun = look.begin(from, frame).map(|(key, head)| {
                let head = head.filter(|_| ordinary);
                let more = head.map(|head| followers::<L>(&head, behind, secured));
                (key, more)
            });
            let key = match begun {
                Some((key, Some(more))) => {
                    let end = index + 1 + more;
                    self.begin_flow_batch(flows, key, index..end);
                    index = end;
                    continue;
                }
                Some((key, None)) => Ok(key),
                None => self.parse(index, from, L::DEEP),
            };
            match key {
                Ok(key) if ordinary => self.append_frame(flows, key, index),
                Ok(key) => {
                    let key = key.with_frame_class(self.classify(index));
                    self.append_frame(flows, key, index);
                }
                Err(reason) => self.malformed.push((index, reason)),
            }
            index += 1;
        }
    }

    #[inline(always)]
    fn begin_flow_batch(&mut self, flows: &FlowTable, key: FlowKey, frames: Range<usize>) {
        let probe = flows.prepare(&key);
        self.flow_batches.push(FlowBatch { key, probe, frames });
    }

    /// Appends a frame with a key of its own.
    #[inline]
    fn append_frame(&mut self, flows: &FlowTable, key: FlowKey, index: usize) {
        match self.flow_batches.last_mut() {
            Some(last) if last.continues(index, &key) => last.frames.end = index + 1,
            _ => self.begin_flow_batch(flows, key, index..index + 1),
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

    /// Appends the actions of the flow batches from `at` on, up to the first one without a flow.
    /// Returns its index. `hits` counts the frames with a flow.
    #[inline]
    pub(crate) fn find_all(
        &mut self,
        at: usize,
        flows: &mut FlowTable,
        now: u64,
        hits: &mut u64,
    ) -> Option<usize> {
        if flows.counts_rules() {
            self.find_flows::<true>(at, flows, now, hits)
        } else {
            self.find_flows::<false>(at, flows, now, hits)
        }
    }

    /// Does the lookups of [`GroupedBatch::find_all`]. `BYTES`: the bytes of each flow are counted.
    /// Not inlined: with one lookup site, the lookup is inlined here.
    #[inline(never)]
    fn find_flows<const BYTES: bool>(
        &mut self,
        at: usize,
        flows: &mut FlowTable,
        now: u64,
        hits: &mut u64,
    ) -> Option<usize> {
        for (index, flow_batch) in self.flow_batches.iter().enumerate().skip(at) {
            let frames = flow_batch.frames.clone();
            let count = frames.len() as u64;
            let found = if BYTES {
                let used = (count, self.batch.bytes(frames.clone()));
                flows.lookup_counting_bytes(&flow_batch.key, flow_batch.probe, used, now)
            } else {
                flows.lookup_prepared(&flow_batch.key, flow_batch.probe, count, now)
            };
            let Some(action) = found else {
                return Some(index);
            };
            *hits += count;
            let tagged = flow_batch.key.vlan().is_some();
            match self.action_batches.last_mut() {
                Some(last) if last.continues(action, tagged, &frames) => {
                    last.frames.end = frames.end
                }
                _ => self.action_batches.push(ActionBatch {
                    action,
                    tagged,
                    frames,
                }),
            }
        }
        None
    }
}
