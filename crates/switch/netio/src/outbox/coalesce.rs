//! Coalescing of frames for an interface: those of a flow that are in a batch anyway become one
//! super-frame, which takes one system call, and which the host carries whole as far as it can.
//!
//! No frame waits for another. Frames of a flow stay in order: a flow always has the same slot, a
//! slot has the super-frame that the next frame may be added to, and whatever does not fit ends it.
//! A frame of no known flow, such as a fragment, ends all.
//!
//! Headers are copied, checked, and sent from the copy; payloads stay where they are. The checksum
//! of a frame that has one is only computed once there is another frame that fits.

use std::ptr;

use wire::coalesce::{SuperFrame, flow_hash};
use wire::virtio::net::{self, NetHeader};
use wire::{Sum, coalesce};

use super::{Frames, Group};
use crate::BATCH;

/// Places for the flows of a batch, a power of 2: more than frames, so that few share one.
const SLOTS: usize = 4 * BATCH;
/// No super-frame.
const NONE: u8 = u8::MAX;
/// Bytes of payload that are copied at once to be summed.
const CHUNK: usize = 2048;

const _: () = assert!(BATCH < NONE as usize && coalesce::MAX_FRAMES as usize >= BATCH);

/// Private copy of the begin of a frame.
#[derive(Debug, Default)]
struct Head {
    header: [u8; net::LEN],
    whole: SuperFrame,
    /// Bytes of the frame in it.
    known: usize,
    /// Of its flow, if that is known.
    slot: Option<usize>,
}

impl Head {
    /// Copies that of another frame.
    fn read(&mut self, place: u8, frames: &Frames) {
        let head = self.whole.bytes();
        self.known = frames.read_head(place, &mut self.header, head);
        let hash = flow_hash(head, self.known, frames.frame_len(place));
        self.slot = hash.map(|hash| (hash >> (64 - SLOTS.ilog2())) as usize);
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Coalescer {
    /// Kinds of super-frames that the interface takes.
    tcp: bool,
    udp: bool,
    /// Of each place; that of a group's first frame is the super-frame.
    heads: Box<[Head; BATCH]>,
    /// Number of frames of each slot.
    uses: Box<[u8; SLOTS]>,
    /// The group of each frame.
    members: Vec<u8>,
    /// The group of each slot that the next frame may be added to.
    open: Box<[u8; SLOTS]>,
    /// Kept for their memory.
    sorted: Vec<u8>,
    chunk: Box<[u8; CHUNK]>,
}

impl Coalescer {
    /// Returns one for an interface that takes super-frames of TCP, and of UDP if `uso`.
    pub(super) fn new(uso: bool) -> Self {
        Self {
            tcp: true,
            udp: uso,
            heads: Box::new(std::array::from_fn(|_| Head::default())),
            uses: Box::new([0; SLOTS]),
            members: Vec::with_capacity(BATCH),
            open: Box::new([NONE; SLOTS]),
            sorted: Vec::with_capacity(BATCH),
            chunk: Box::new([0; CHUNK]),
        }
    }

    /// Makes groups of the frames at the places in `order`, each of one frame unless it
    /// `coalesces`, and brings the places in their order.
    pub(super) fn arrange(
        &mut self,
        order: &mut [u8],
        frames: &Frames,
        groups: &mut Vec<Group>,
        coalesces: bool,
    ) {
        groups.clear();
        if !(coalesces && (self.tcp || self.udp) && self.find_slots(order, frames)) {
            groups.extend(order.iter().map(|place| Group::new(*place)));
            return;
        }
        self.members.clear();
        *self.open = [NONE; SLOTS];
        for place in &*order {
            let group = self.assign(*place, frames, groups);
            self.members.push(group as u8);
        }
        if groups.len() < order.len() {
            for group in groups.iter().filter(|group| group.is_super_frame()) {
                let Head { header, whole, .. } = &mut self.heads[usize::from(group.first)];
                *header = whole.finish().encode();
            }
            self.sort(order, groups);
        }
    }

    /// Copies the heads of all frames, and finds their slots. Returns whether a slot has several
    /// frames: mostly those of one flow.
    fn find_slots(&mut self, order: &[u8], frames: &Frames) -> bool {
        *self.uses = [0; SLOTS];
        let mut is_shared = false;
        for place in order {
            let head = &mut self.heads[usize::from(*place)];
            head.read(*place, frames);
            if let Some(slot) = head.slot {
                self.uses[slot] += 1;
                is_shared |= self.uses[slot] > 1;
            }
        }
        is_shared
    }

    /// Returns virtio's header and the headers of a super-frame.
    pub(super) fn headers(&self, group: &Group) -> [&[u8]; 2] {
        let Head { header, whole, .. } = &self.heads[usize::from(group.first)];
        [header, whole.head()]
    }

    /// The interface does not take this super-frame: it gets no more of the kind.
    pub(super) fn refuse(&mut self, group: &Group) {
        if !group.is_super_frame() {
            return;
        }
        let (takes, protocol) = if self.heads[usize::from(group.first)].whole.kind().is_tcp() {
            (&mut self.tcp, "TCP")
        } else {
            (&mut self.udp, "UDP")
        };
        *takes = false;
        tracing::warn!(
            protocol,
            "interface refuses super-frames: frames are sent singly"
        );
    }

    /// Returns the group of the frame at `place`, after those before it have theirs.
    fn assign(&mut self, place: u8, frames: &Frames, groups: &mut Vec<Group>) -> usize {
        let new = groups.len();
        match self.heads[usize::from(place)].slot {
            // It may be of any flow: none of them may overtake it.
            None => *self.open = [NONE; SLOTS],
            Some(slot) if self.uses[slot] == 1 => {}
            Some(slot) => {
                let open = usize::from(std::mem::replace(&mut self.open[slot], NONE));
                if self.check(place, frames) {
                    let joins = match groups.get_mut(open) {
                        Some(group) => self.join(group, place, frames),
                        None => false,
                    };
                    let group = if joins { open } else { new };
                    self.open[slot] = group as u8;
                    if joins {
                        return open;
                    }
                }
            }
        }
        groups.push(Group::new(place));
        new
    }

    /// Returns whether a frame may become a part of a super-frame that the interface takes.
    fn check(&mut self, place: u8, frames: &Frames) -> bool {
        let Head {
            header,
            whole,
            known,
            ..
        } = &mut self.heads[usize::from(place)];
        let len = frames.frame_len(place);
        whole.check(*known, len, &NetHeader::decode(header))
            && if whole.kind().is_tcp() {
                self.tcp
            } else {
                self.udp
            }
    }

    /// Adds the frame at `place` to a group if it fits, and all checksums are right.
    fn join(&mut self, group: &mut Group, place: u8, frames: &Frames) -> bool {
        let places = [group.first, place].map(usize::from);
        let Ok([first, next]) = self.heads.get_disjoint_mut(places) else {
            return false;
        };
        let (first, next) = (&mut first.whole, &next.whole);
        if !first.may_take(next) {
            return false;
        }
        let header_len = next.header_len();
        let chunk = &mut *self.chunk;
        let mut sum = |place| payload_sum(frames, place, header_len, chunk);
        if !group.is_right {
            group.is_right = first.is_right(|| sum(group.first));
        }
        let joins = group.is_right && next.is_right(|| sum(place));
        if joins {
            first.take(next);
            group.count += 1;
        }
        joins
    }

    /// Brings the frames of a group together.
    fn sort(&mut self, order: &mut [u8], groups: &[Group]) {
        let mut next = [0; BATCH];
        let mut at = 0;
        for (place, group) in next.iter_mut().zip(groups) {
            *place = at;
            at += group.count;
        }
        self.sorted.clear();
        self.sorted.extend_from_slice(order);
        for (frame, group) in self.sorted.iter().zip(&self.members) {
            let place = &mut next[usize::from(*group)];
            order[*place] = *frame;
            *place += 1;
        }
    }
}

/// Returns the sum of a frame's bytes after `header_len` bytes of headers, from private copies in
/// `chunk`.
fn payload_sum(frames: &Frames, place: u8, header_len: usize, chunk: &mut [u8; CHUNK]) -> Sum {
    let mut sum = Sum::new();
    frames.for_payload(place, header_len, |start, len| {
        let mut at = 0;
        while at < len {
            let part = (len - at).min(CHUNK);
            // SAFETY: the bytes are inside a piece, and the caller of `push` promised that it is
            // mapped. Others may write it at any time: no reference to it is made. Whatever they
            // make of it is sent as it is.
            unsafe { ptr::copy_nonoverlapping(start.add(at), chunk.as_mut_ptr(), part) };
            sum.add_bytes(&chunk[..part]);
            at += part;
        }
    });
    sum
}

#[cfg(test)]
mod tests;
