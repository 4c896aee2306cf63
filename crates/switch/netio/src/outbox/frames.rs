//! Frames to send, and where their bytes are.

use std::ptr;

use wire::coalesce::HEAD;
use wire::virtio::net;

use crate::{BATCH, frames_on_the_wire, segments};

/// Limit of the bytes of a frame that are held in private memory: as many as the switch checks.
pub const MAX_HEAD: usize = wire::SNAPSHOT;
/// Limit of the pieces of a frame's rest.
pub const MAX_PIECES: usize = 64;
/// Limit of the pieces of the rests of all frames: those of a group, with its headers and heads,
/// are no more than a call takes (`UIO_MAXIOV`).
pub(crate) const ALL_PIECES: usize = libc::UIO_MAXIOV as usize - 2 - BATCH;
/// All places are free.
const ALL_FREE: u64 = u64::MAX;

const _: () = assert!(BATCH == u64::BITS as usize && HEAD <= MAX_HEAD);
const _: () = assert!(ALL_PIECES >= 4 * MAX_PIECES);

/// A frame.
#[derive(Clone, Copy)]
struct Frame {
    id: u16,
    /// Bytes of the frame that are private.
    head_len: u16,
    /// Bytes of virtio header and frame.
    len: u32,
    /// Begin and end of its rest, in the list of all.
    rest: (u16, u16),
    /// Where virtio header and frame are, if they are in one piece; then nothing is private.
    whole: *const u8,
}

/// Virtio header, and the first bytes of a frame.
type Private = [u8; net::LEN + MAX_HEAD];

/// A part of a frame.
type Piece = (*const u8, usize);

/// Frames, each at a place from 0 to [`BATCH`].
pub(super) struct Frames {
    frames: [Frame; BATCH],
    private: [Private; BATCH],
    /// A bit for each place that has no frame.
    free: u64,
    /// Pieces of all frames.
    pieces: usize,
    /// Rests of all frames, and of some that have left.
    rests: Vec<libc::iovec>,
    /// Kept for its memory.
    moved: Vec<libc::iovec>,
}

impl Default for Frames {
    fn default() -> Self {
        let none = Frame {
            id: 0,
            head_len: 0,
            len: 0,
            rest: (0, 0),
            whole: ptr::null(),
        };
        Self {
            frames: [none; BATCH],
            private: [[0; net::LEN + MAX_HEAD]; BATCH],
            free: ALL_FREE,
            pieces: 0,
            rests: Vec::with_capacity(ALL_PIECES),
            moved: Vec::with_capacity(ALL_PIECES),
        }
    }
}

impl Frames {
    /// Returns whether it may have no room for one more.
    pub(super) fn is_full(&self) -> bool {
        self.free == 0 || self.pieces + MAX_PIECES > ALL_PIECES
    }

    /// Drops all.
    pub(super) fn clear(&mut self) {
        self.free = ALL_FREE;
        self.pieces = 0;
        self.rests.clear();
    }

    /// Adds a frame with its first bytes and the rest. Returns its place; `None` if there is no
    /// room for it.
    pub(super) fn add(
        &mut self,
        id: u16,
        header: [u8; net::LEN],
        head: &[u8],
        rest: impl IntoIterator<Item = Piece>,
    ) -> Option<u8> {
        let first = self.rests.len();
        let (mut len, mut fits) = (net::LEN + head.len(), head.len() <= MAX_HEAD);
        for (start, size) in rest {
            fits &= self.rests.len() < first + MAX_PIECES && size < u32::MAX as usize - len;
            if !fits {
                break;
            }
            if size > 0 {
                len += size;
                self.rests.push(iovec(start, size));
            }
        }
        if !fits || self.is_full() {
            self.rests.truncate(first);
            return None;
        }
        let frame = Frame {
            id,
            head_len: head.len() as u16,
            len: len as u32,
            rest: (first as u16, self.rests.len() as u16),
            whole: ptr::null(),
        };
        let place = self.put(frame);
        let (to_header, to_head) = self.private[usize::from(place)].split_at_mut(net::LEN);
        to_header.copy_from_slice(&header);
        to_head[..head.len()].copy_from_slice(head);
        Some(place)
    }

    /// Adds a frame that is in one piece. Returns its place; `None` if there is no room for it, or
    /// it has no byte after its header.
    pub(super) fn add_whole(&mut self, id: u16, start: *const u8, len: u32) -> Option<u8> {
        let frame = Frame {
            id,
            head_len: 0,
            len,
            rest: (0, 0),
            whole: start,
        };
        let fits = len as usize > net::LEN && !start.is_null() && !self.is_full();
        fits.then(|| self.put(frame))
    }

    fn put(&mut self, frame: Frame) -> u8 {
        let place = self.free.trailing_zeros() as u8;
        self.free &= !(1 << place);
        self.pieces += usize::from(frame.rest.1 - frame.rest.0);
        self.frames[usize::from(place)] = frame;
        place
    }

    /// A frame has left.
    pub(super) fn remove(&mut self, place: u8) {
        let rest = self.frame(place).rest;
        self.free |= 1 << place;
        self.pieces -= usize::from(rest.1 - rest.0);
    }

    /// Forgets the rests of frames that have left, all but those at these places.
    pub(super) fn keep(&mut self, places: &[u8]) {
        self.moved.clear();
        for place in places {
            let frame = &mut self.frames[usize::from(*place)];
            let first = self.moved.len() as u16;
            let rest = self.rests.get(range(frame.rest)).unwrap_or_default();
            self.moved.extend_from_slice(rest);
            frame.rest = (first, self.moved.len() as u16);
        }
        std::mem::swap(&mut self.rests, &mut self.moved);
    }

    fn frame(&self, place: u8) -> &Frame {
        &self.frames[usize::from(place)]
    }

    pub(super) fn id(&self, place: u8) -> u16 {
        self.frame(place).id
    }

    /// Bytes of virtio header and frame.
    pub(super) fn len(&self, place: u8) -> u32 {
        self.frame(place).len
    }

    /// Bytes without the virtio header.
    pub(super) fn frame_len(&self, place: u8) -> usize {
        (self.len(place) as usize).saturating_sub(net::LEN)
    }

    fn whole(&self, place: u8) -> Option<*const u8> {
        let whole = self.frame(place).whole;
        (!whole.is_null()).then_some(whole)
    }

    /// Returns virtio header and head, if they are private.
    fn private(&self, place: u8) -> &[u8] {
        let len = net::LEN + usize::from(self.frame(place).head_len);
        let private = &self.private[usize::from(place)];
        private.get(..len).unwrap_or_default()
    }

    /// Returns the pieces that are not private.
    pub(super) fn pieces(&self, place: u8) -> impl Iterator<Item = Piece> {
        let whole = self.whole(place);
        let whole = whole.map(|start| (start, self.len(place) as usize));
        let rest = self.rest(place).iter();
        let rest = rest.map(|piece| (piece.iov_base.cast_const().cast(), piece.iov_len));
        whole.into_iter().chain(rest)
    }

    fn rest(&self, place: u8) -> &[libc::iovec] {
        let rest = self.rests.get(range(self.frame(place).rest));
        rest.unwrap_or_default()
    }

    /// Copies the virtio header and the first bytes of a frame. Returns the number of the latter;
    /// those after them have no meaning.
    pub(super) fn read_head(
        &self,
        place: u8,
        header: &mut [u8; net::LEN],
        head: &mut [u8; HEAD],
    ) -> usize {
        let Some(whole) = self.whole(place) else {
            let private = &self.private[usize::from(place)];
            header.copy_from_slice(&private[..net::LEN]);
            head.copy_from_slice(&private[net::LEN..net::LEN + HEAD]);
            return usize::from(self.frame(place).head_len).min(HEAD);
        };
        let known = self.frame_len(place).min(HEAD);
        // SAFETY: the caller of `push_whole` promised that the frame, which has a virtio header, is
        // mapped. Others may write it at any time: it is copied, no reference to it is made, and
        // the copy is what is checked.
        unsafe {
            ptr::copy_nonoverlapping(whole, header.as_mut_ptr(), net::LEN);
            let frame = whole.add(net::LEN);
            if known == HEAD {
                // As many as the compiler knows.
                ptr::copy_nonoverlapping(frame, head.as_mut_ptr(), HEAD);
            } else {
                ptr::copy_nonoverlapping(frame, head.as_mut_ptr(), known);
            }
        }
        known
    }

    /// Appends the pieces to send for a frame alone: `header_len` bytes of virtio's header, and the
    /// frame.
    pub(super) fn describe(&self, place: u8, header_len: usize, pieces: &mut Vec<libc::iovec>) {
        let (start, len) = match self.whole(place) {
            Some(whole) => (whole, self.len(place) as usize),
            None => {
                let private = self.private(place);
                (private.as_ptr(), private.len())
            }
        };
        if header_len < net::LEN {
            pieces.push(iovec(start, header_len));
            let frame = start.wrapping_add(net::LEN);
            pieces.push(iovec(frame, len.saturating_sub(net::LEN)));
        } else {
            pieces.push(iovec(start, len));
        }
        pieces.extend_from_slice(self.rest(place));
    }

    /// Calls `take` with the pieces of a frame after `header_len` bytes of headers, which
    /// [`read_head`](Self::read_head) has found.
    pub(super) fn for_payload(
        &self,
        place: u8,
        header_len: usize,
        mut take: impl FnMut(*const u8, usize),
    ) {
        let behind = net::LEN + header_len;
        if let Some(whole) = self.whole(place) {
            let len = (self.len(place) as usize).saturating_sub(behind);
            return take(whole.wrapping_add(behind), len);
        }
        let head = self.private(place).get(behind..).unwrap_or_default();
        if !head.is_empty() {
            take(head.as_ptr(), head.len());
        }
        for piece in self.rest(place) {
            take(piece.iov_base.cast_const().cast(), piece.iov_len);
        }
    }

    /// Copies a frame with its virtio header to the begin of `to`. Returns its bytes; `None` if it
    /// is longer.
    pub(super) fn copy(&self, place: u8, to: &mut [u8]) -> Option<usize> {
        let len = self.len(place) as usize;
        let to = to.get_mut(..len)?;
        let private = match self.whole(place) {
            Some(_) => &[],
            None => self.private(place),
        };
        let (head, mut rest) = to.split_at_mut_checked(private.len())?;
        head.copy_from_slice(private);
        for (start, len) in self.pieces(place) {
            let (part, behind) = rest.split_at_mut_checked(len)?;
            // SAFETY: the caller of `push` promised that the piece is mapped; others may write it,
            // and no reference to it is made.
            unsafe { ptr::copy_nonoverlapping(start, part.as_mut_ptr(), len) };
            rest = behind;
        }
        Some(len)
    }

    /// Returns the number of frames that a frame is cut into.
    pub(super) fn segments(&self, place: u8) -> u64 {
        let len = self.len(place);
        let Some(whole) = self.whole(place) else {
            let private = self.private(place);
            let header = private.first_chunk().unwrap_or(&[0; net::LEN]);
            let byte = |at| private.get(at).copied().unwrap_or_default();
            return segments(header, len as usize, byte);
        };
        // SAFETY: the caller of `push_whole` promised that the frame is mapped.
        unsafe { frames_on_the_wire(whole, len) }
    }
}

pub(super) fn iovec(start: *const u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start.cast_mut().cast(),
        iov_len: len,
    }
}

fn range((from, to): (u16, u16)) -> std::ops::Range<usize> {
    from.into()..to.into()
}
