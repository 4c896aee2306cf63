//! Grouping of a batch's frames into flow batches, each of which is one lookup; see
//! [`crate::flow_batch`].
//!
//! Almost every frame continues the flow batch of the frame before it by its first bytes alone:
//! they are equal in all bits that any flow looks at. Such a frame needs no key. While flows look
//! at Ethernet only, that is one comparison; otherwise it is the comparison of [`PlainMask`] for
//! plain packets, and all other frames are parsed.

use std::ops::Range;

use policy::frame_class::is_ordinary;
use port::{Alike, DropReason, Frame, Port, PortId};
use wire::flow::{FlowKey, PlainMask};
use wire::packet::Parsed;

use super::Switch;
use crate::flow_batch::FlowBatch;
use crate::offload;

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

impl<P: Port> Switch<P> {
    /// Groups the frames of the batch into flow batches, sets malformed ones aside, and prefetches
    /// the flows.
    #[inline(never)]
    pub(super) fn build_flow_batches(&mut self, from: PortId) {
        self.flow_batches.clear();
        self.action_batches.clear();
        self.malformed.clear();
        if self.flows.looks_above_ethernet() {
            let mask = *self.flows.plain_mask();
            self.group_frames(from, &mask);
        } else {
            self.group_frames(from, &Ethernet);
        }
        for flow_batch in &mut self.flow_batches {
            flow_batch.probe = self.flows.approach(&flow_batch.key, flow_batch.probe);
        }
    }

    #[inline(always)]
    fn group_frames<L: Look>(&mut self, from: PortId, look: &L) {
        let secured = self.has_port_security(from);
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
                    self.begin_flow_batch(key, index..end);
                    index = end;
                    continue;
                }
                Some((key, None)) => Ok(key),
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
}
