//! A frame on its way to a receiver.

use memory::Segment;
use memory::copy::Cursor;
use port::Offload;

#[cfg(test)]
mod tests;

/// The bytes of a frame behind its private headers; they stay in their sender's memory.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    segments: &'a [Segment],
    skip: u32,
    len: u32,
}

impl<'a> Payload<'a> {
    /// Creates a payload of `len` bytes from the one at `skip` of `segments`.
    ///
    /// # Safety
    /// The memory behind the segments stays mapped for `'a`.
    #[must_use]
    pub unsafe fn new(segments: &'a [Segment], skip: u32, len: u32) -> Self {
        Self {
            segments,
            skip,
            len,
        }
    }

    /// Creates an empty payload.
    #[must_use]
    pub fn empty() -> Payload<'static> {
        Payload {
            segments: &[],
            skip: 0,
            len: 0,
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // emptiness is of no interest to anyone
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether a part of it is private memory of the switch, which no sender leases: it may
    /// end before the batch does.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.segments.iter().any(Segment::is_private)
    }

    /// Returns the `len` bytes from `offset`; truncated where the payload ends.
    #[must_use]
    pub fn slice(&self, offset: u32, len: u32) -> Payload<'a> {
        let offset = offset.min(self.len);
        Payload {
            segments: self.segments,
            skip: self.skip + offset,
            len: len.min(self.len - offset),
        }
    }

    /// Returns the payload in parts of `len` bytes and one of the rest. Pieces of memory that lie
    /// before a part are not visited again, so all parts together cost one walk over the payload.
    pub fn parts(&self, len: u32) -> impl Iterator<Item = Payload<'a>> + use<'a> {
        let mut rest = *self;
        std::iter::from_fn(move || {
            if rest.len == 0 {
                return None;
            }
            while let [first, behind @ ..] = rest.segments
                && first.len <= rest.skip
            {
                rest.skip -= first.len;
                rest.segments = behind;
            }
            let part = rest.slice(0, len.max(1));
            rest.skip += part.len;
            rest.len -= part.len;
            Some(part)
        })
    }

    /// Returns the start of the payload, when it lies in one piece.
    #[inline(always)]
    #[must_use]
    pub fn in_one_piece(&self) -> Option<*const u8> {
        match self.segments {
            [only] if only.len >= self.skip + self.len => {
                Some(only.ptr.wrapping_add(self.skip as usize))
            }
            _ => None,
        }
    }

    /// Returns a cursor at the first byte. It may run on behind `len`; readers request no more than
    /// that.
    #[inline]
    #[must_use]
    pub fn cursor(&self) -> Cursor<'a> {
        // SAFETY: `Payload::new`'s caller keeps the memory mapped for 'a.
        let mut cursor = unsafe { Cursor::new(self.segments) };
        cursor.skip(self.skip);
        cursor
    }

    /// Appends everything to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let before = out.len();
        out.resize(before + self.len as usize, 0);
        self.cursor().read(&mut out[before..]);
    }
}

/// A frame as a receiver gets it.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The checked, private first bytes.
    pub headers: &'a [u8],
    /// The rest, in the sender's memory. By reference: a copy would be made in larger pieces than
    /// it was stored in a moment ago, and a core waits for all its stores before it can do that.
    pub payload: &'a Payload<'a>,
    /// Work that is left to the receiver.
    pub offload: Offload,
}

impl Outgoing<'_> {
    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // a frame is never empty
    pub fn len(&self) -> u32 {
        self.headers.len() as u32 + self.payload.len()
    }

    /// Returns the whole frame in private memory, for slow paths and tests.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.headers.to_vec();
        self.payload.append_to(&mut bytes);
        bytes
    }
}
