//! Coalescing of frames for an interface: those of a flow that are in a batch anyway become one
//! super-frame, which takes one system call, and which the host carries whole as far as it can.
//!
//! No frame waits for another. Frames of a flow stay in order: a flow always has the same slot, a
//! slot has the super-frame to which the next frame may be added, and whatever does not fit ends
//! it. A frame of no known flow, such as a fragment, ends all.
//!
//! Headers are copied once, checked, and sent from the copy; payloads stay in their buffers. The
//! checksum of a frame that has one is only computed once there is another frame that fits.

use std::ptr;

use front::region::BUFFER;
use wire::coalesce::{HEAD, SuperFrame, flow_hash};
use wire::virtio::net::{self, NetHeader};
use wire::{Sum, coalesce};

use super::{BATCH, HEADER, Outgoing};

/// Places for the flows of a batch, a power of 2: more than frames, so that few share one.
const SLOTS: usize = 4 * BATCH;
/// No super-frame.
const NONE: u8 = u8::MAX;
/// Bytes of payload that are copied at once to be summed.
const CHUNK: usize = 2048;

const _: () = assert!(net::LEN + HEAD <= BUFFER as usize);
const _: () = assert!(BATCH < NONE as usize && coalesce::MAX_FRAMES as usize >= BATCH);

/// Private copy of the begin of a frame.
#[derive(Debug, Default)]
struct Head {
    header: [u8; net::LEN],
    whole: SuperFrame,
    /// Of its flow, if that is known.
    slot: Option<usize>,
}

impl Head {
    /// Copies that of another frame.
    fn read(&mut self, frame: &Outgoing) {
        let head = self.whole.bytes();
        // SAFETY: a buffer is mapped and longer than both, also where the frame is not. The switch
        // may write it at any time: it is copied once, no reference to it is made, and all lengths
        // are checked against the copy.
        unsafe {
            ptr::copy_nonoverlapping(frame.buffer, self.header.as_mut_ptr(), net::LEN);
            ptr::copy_nonoverlapping(frame.buffer.add(net::LEN), head.as_mut_ptr(), HEAD);
        }
        let len = frame.len.saturating_sub(HEADER) as usize;
        self.slot = flow_hash(head, len).map(|hash| (hash >> (64 - SLOTS.ilog2())) as usize);
    }
}

/// Frames that leave together.
#[derive(Debug)]
pub(crate) struct Group {
    /// Number of frames.
    pub(crate) count: usize,
    /// The place of its first frame among all, as they came.
    first: usize,
    /// The checksum of its first frame is known to be right.
    is_right: bool,
}

impl Group {
    fn new(first: usize) -> Self {
        Self {
            count: 1,
            first,
            is_right: false,
        }
    }

    pub(crate) fn is_super_frame(&self) -> bool {
        self.count > 1
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Coalescer {
    /// Kinds of super-frames that the interface takes.
    tcp: bool,
    udp: bool,
    groups: Vec<Group>,
    /// Of each frame; that of a group's first frame is the super-frame.
    heads: Box<[Head]>,
    /// Number of frames of each slot.
    uses: Box<[u8; SLOTS]>,
    /// The group of each frame.
    members: Vec<u8>,
    /// The group of each slot to which the next frame may be added.
    open: Box<[u8; SLOTS]>,
    sorted: Vec<Outgoing>,
}

// SAFETY: the pointers in `sorted` are set before each use and mean nothing after it.
unsafe impl Send for Coalescer {}

impl Coalescer {
    /// Returns one for an interface that takes super-frames of TCP, and of UDP if `uso`.
    pub(crate) fn new(uso: bool) -> Self {
        Self {
            tcp: true,
            udp: uso,
            groups: Vec::with_capacity(BATCH),
            heads: (0..BATCH).map(|_| Head::default()).collect(),
            uses: Box::new([0; SLOTS]),
            members: Vec::with_capacity(BATCH),
            open: Box::new([NONE; SLOTS]),
            sorted: Vec::with_capacity(BATCH),
        }
    }

    /// Makes groups of at most [`BATCH`] frames, each of one frame unless it `coalesces`, and
    /// brings the frames in their order.
    pub(crate) fn arrange(&mut self, frames: &mut [Outgoing], coalesces: bool) {
        self.groups.clear();
        if !(coalesces && (self.tcp || self.udp) && self.find_slots(frames)) {
            self.groups.extend((0..frames.len()).map(Group::new));
            return;
        }
        self.members.clear();
        *self.open = [NONE; SLOTS];
        for at in 0..frames.len() {
            let group = self.place(at, frames);
            self.members.push(group as u8);
        }
        if self.groups.len() < frames.len() {
            for group in self.groups.iter().filter(|group| group.is_super_frame()) {
                let Head { header, whole, .. } = &mut self.heads[group.first];
                *header = whole.finish().encode();
            }
            self.sort(frames);
        }
    }

    /// Copies the heads of all frames, and finds their slots. Returns whether a slot has several
    /// frames: mostly those of one flow.
    fn find_slots(&mut self, frames: &[Outgoing]) -> bool {
        *self.uses = [0; SLOTS];
        let mut is_shared = false;
        for (head, frame) in self.heads.iter_mut().zip(frames) {
            head.read(frame);
            if let Some(slot) = head.slot {
                self.uses[slot] += 1;
                is_shared |= self.uses[slot] > 1;
            }
        }
        is_shared
    }

    /// Returns the groups, in the order in which they are to leave.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Appends the pieces that are to be sent for a group of these `frames`: `header_len` bytes of
    /// virtio's header, and the bytes of one frame. They are good until frames are arranged again.
    pub(crate) fn describe(
        &self,
        group: &Group,
        frames: &[Outgoing],
        header_len: usize,
        pieces: &mut Vec<libc::iovec>,
    ) {
        let mut add = |start: *const u8, len: usize| {
            pieces.push(libc::iovec {
                iov_base: start.cast_mut().cast(),
                iov_len: len,
            });
        };
        let mut behind = HEADER as usize;
        if group.is_super_frame() {
            let Head { header, whole, .. } = &self.heads[group.first];
            add(header.as_ptr(), header_len);
            add(whole.head().as_ptr(), whole.header_len());
            behind += whole.header_len();
        } else {
            frames
                .iter()
                .for_each(|frame| add(frame.buffer, header_len));
        }
        for frame in frames {
            let len = (frame.len as usize).saturating_sub(behind);
            add(frame.buffer.wrapping_add(behind), len);
        }
    }

    /// Returns virtio's header and the headers of a super-frame; `None` for a single frame. They
    /// are good until frames are arranged again.
    pub(crate) fn head(&self, group: &Group) -> Option<[&[u8]; 2]> {
        let Head { header, whole, .. } = &self.heads[group.first];
        let headers = &whole.head()[..whole.header_len()];
        group.is_super_frame().then_some([&header[..], headers])
    }

    /// The interface does not take this super-frame: it gets no more of the kind.
    pub(crate) fn refuse(&mut self, group: usize) {
        let Some(group) = self
            .groups
            .get(group)
            .filter(|group| group.is_super_frame())
        else {
            return;
        };
        let (takes, protocol) = if self.heads[group.first].whole.kind().is_tcp() {
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

    /// Returns the group of the frame at `at`, whose predecessors have theirs.
    fn place(&mut self, at: usize, frames: &[Outgoing]) -> usize {
        let new = self.groups.len();
        match self.heads[at].slot {
            // It may be of any flow: none of them may overtake it.
            None => *self.open = [NONE; SLOTS],
            Some(slot) if self.uses[slot] == 1 => {}
            Some(slot) => {
                let open = usize::from(std::mem::replace(&mut self.open[slot], NONE));
                if self.check(at, &frames[at]) {
                    let joins = open < new && self.join(open, at, frames);
                    let group = if joins { open } else { new };
                    self.open[slot] = group as u8;
                    if joins {
                        return open;
                    }
                }
            }
        }
        self.groups.push(Group::new(at));
        new
    }

    /// Returns whether a frame may become a part of a super-frame that the interface takes.
    fn check(&mut self, at: usize, frame: &Outgoing) -> bool {
        let Head { header, whole, .. } = &mut self.heads[at];
        let len = frame.len.saturating_sub(HEADER) as usize;
        whole.check(len, &NetHeader::decode(header))
            && if whole.kind().is_tcp() {
                self.tcp
            } else {
                self.udp
            }
    }

    /// Adds the frame at `at` to a group if it fits, and all checksums are right.
    fn join(&mut self, group: usize, at: usize, frames: &[Outgoing]) -> bool {
        let group = &mut self.groups[group];
        let Ok([first, next]) = self.heads.get_disjoint_mut([group.first, at]) else {
            return false;
        };
        let (first, next) = (&mut first.whole, &next.whole);
        if !first.may_take(next) {
            return false;
        }
        let header_len = next.header_len();
        if !group.is_right {
            group.is_right = first.is_right(|| payload_sum(&frames[group.first], header_len));
        }
        let joins = group.is_right && next.is_right(|| payload_sum(&frames[at], header_len));
        if joins {
            first.take(next);
            group.count += 1;
        }
        joins
    }

    /// Brings the frames of a group together.
    fn sort(&mut self, frames: &mut [Outgoing]) {
        let mut next = [0; BATCH];
        let mut at = 0;
        for (place, group) in next.iter_mut().zip(&self.groups) {
            *place = at;
            at += group.count;
        }
        self.sorted.clear();
        self.sorted.extend_from_slice(frames);
        for (frame, group) in self.sorted.iter().zip(&self.members) {
            let place = &mut next[usize::from(*group)];
            frames[*place] = *frame;
            *place += 1;
        }
    }
}

/// Returns the sum of a frame's bytes behind `header_len` bytes of headers, from a private copy.
fn payload_sum(frame: &Outgoing, header_len: usize) -> Sum {
    let mut sum = Sum::new();
    let mut chunk = [0; CHUNK];
    let mut at = HEADER as usize + header_len;
    let end = frame.len as usize;
    while at < end {
        let len = (end - at).min(CHUNK);
        // SAFETY: the bytes are inside the frame, which is mapped. The switch may write them at any
        // time: no reference to them is made. Whatever it makes of them is sent as it is.
        unsafe { ptr::copy_nonoverlapping(frame.buffer.add(at), chunk.as_mut_ptr(), len) };
        sum.add_bytes(&chunk[..len]);
        at += len;
    }
    sum
}

#[cfg(test)]
mod tests;
