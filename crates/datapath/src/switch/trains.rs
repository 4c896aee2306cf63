//! Frames of a batch into trains, each of which is one lookup; see [`crate::runs`].
//!
//! Almost every frame shows in its first bytes that it goes on as the one before it: they are the same in all that any flow looks at.
//! Such a frame needs no key. Where flows look at Ethernet alone, that is one comparison; where some look further, it is what
//! [`PlainMask`] has of plain packets, with everything else parsed.

use std::ops::Range;

use port::{Alike, DropReason, Frame, Port, PortId};
use wire::conduct::is_ordinary;
use wire::flow::{FlowKey, PlainMask};
use wire::packet::Parsed;

use super::Switch;
use crate::offload;
use crate::runs::Train;

/// A frame's key, and how others are known to go on with it.
type Begun<H> = (FlowKey, Option<H>);

/// How frames are looked at, as far as any flow does.
trait Look {
    /// Whether what lies behind Ethernet headers matters.
    const DEEP: bool;
    /// What the frames of a train have in common.
    type Head;

    /// The key of a frame that need not be parsed, and what frames have in common with it if that is told without their keys.
    fn begin(&self, from: PortId, frame: &Frame) -> Option<Begun<Self::Head>>;
    /// Whether a frame goes on as the one that a train began with.
    fn goes_on(head: &Self::Head, frame: &Frame) -> bool;
}

/// Nothing but Ethernet matters.
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
    fn goes_on(head: &(u64, u64), frame: &Frame) -> bool {
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
    fn goes_on(head: &Alike, frame: &Frame) -> bool {
        head.has(frame)
    }
}

/// How many of these frames go on as the one before them; where frames are screened, up to the first one that has to be looked at.
#[inline(always)]
fn followers<L: Look>(head: &L::Head, behind: &[Frame], screened: bool) -> usize {
    let goes_on = |frame: &&Frame| L::goes_on(head, frame);
    if !screened {
        return behind.iter().take_while(goes_on).count();
    }
    let ordinary = |frame: &&Frame| goes_on(frame) && is_ordinary(frame.headers.as_slice());
    behind.iter().take_while(ordinary).count()
}

impl<P: Port> Switch<P> {
    /// Puts the frames of the batch into trains, those that are wrong aside, and gets their flows near.
    #[inline(never)]
    pub(super) fn line_up(&mut self, from: PortId) {
        self.trains.clear();
        self.runs.clear();
        self.refused.clear();
        if self.flows.looks_above_ethernet() {
            let mask = *self.flows.plain_mask();
            self.make_trains(from, &mask);
        } else {
            self.make_trains(from, &Ethernet);
        }
        for train in &mut self.trains {
            train.probe = self.flows.approach(&train.key, train.probe);
        }
    }

    #[inline(always)]
    fn make_trains<L: Look>(&mut self, from: PortId, look: &L) {
        let screened = self.screens(from);
        let mut index = 0;
        while let [frame, behind @ ..] = &self.batch.frames()[index..] {
            let ordinary = !screened || is_ordinary(frame.headers.as_slice());
            let begun = look.begin(from, frame).map(|(key, head)| {
                let head = head.filter(|_| ordinary);
                let more = head.map(|head| followers::<L>(&head, behind, screened));
                (key, more)
            });
            let key = match begun {
                Some((key, Some(more))) => {
                    let end = index + 1 + more;
                    self.begin_train(key, index..end);
                    index = end;
                    continue;
                }
                Some((key, None)) => Ok(key),
                None => self.parse(index, from, L::DEEP),
            };
            match key {
                Ok(key) if ordinary => self.add_to_trains(key, index),
                Ok(key) => {
                    let key = key.with_conduct(self.look_closer(index));
                    self.add_to_trains(key, index);
                }
                Err(reason) => self.refused.push((index, reason)),
            }
            index += 1;
        }
    }

    #[inline(always)]
    fn begin_train(&mut self, key: FlowKey, frames: Range<usize>) {
        let probe = self.flows.prepare(&key);
        self.trains.push(Train { key, probe, frames });
    }

    /// Adds a frame that was looked at alone.
    #[inline]
    fn add_to_trains(&mut self, key: FlowKey, index: usize) {
        match self.trains.last_mut() {
            Some(last) if last.goes_on(index, &key) => last.frames.end = index + 1,
            _ => self.begin_train(key, index..index + 1),
        }
    }

    /// The flow key of a frame, which is parsed as far as anybody looks at it.
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
