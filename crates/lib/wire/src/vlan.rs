//! The 802.1Q tag, and the header copy that tags are put into and taken out of.

use crate::{
    EtherType, SNAPSHOT,
    ethernet::{HEADER_LEN, TAG_LEN},
};
use std::fmt;

/// Bytes before the first header byte of a fresh [`HeaderBuf`]: room for two tags.
pub const HEADROOM: usize = 8;
/// Most bytes [`HeaderBuf::fill`] takes.
pub const CAP: usize = SNAPSHOT;
/// Bytes of the two addresses before the tag.
const ADDRESSES: usize = 12;

/// Tag control information of an 802.1Q tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTci {
    /// Priority, 0 to 7; higher bits are ignored.
    pub pcp: u8,
    /// Drop eligible.
    pub dei: bool,
    /// VLAN identifier, 0 to 4095; 0 is a priority tag, 4095 is reserved; higher bits are ignored.
    pub vid: u16,
}

impl VlanTci {
    /// A tag of VLAN `vid` with priority zero.
    #[inline]
    pub const fn new(vid: u16) -> Self {
        Self {
            pcp: 0,
            dei: false,
            vid: vid & 0xfff,
        }
    }

    /// From the 16 bits on the wire.
    #[inline]
    pub const fn from_bits(v: u16) -> Self {
        Self {
            pcp: (v >> 13) as u8,
            dei: v & 0x1000 != 0,
            vid: v & 0xfff,
        }
    }

    /// The 16 bits on the wire.
    #[inline]
    pub const fn to_bits(self) -> u16 {
        ((self.pcp as u16) << 13) | ((self.dei as u16) << 12) | (self.vid & 0xfff)
    }

    /// Returns the tag with the same priority in another VLAN.
    #[inline]
    pub const fn with_vid(self, vid: u16) -> Self {
        Self {
            vid: vid & 0xfff,
            ..self
        }
    }
}

/// A private copy of a frame's first bytes, with room in front for tags.
///
/// ```text
/// bytes:  | headroom | headers          | unused |
///         0          start              start+len   200
/// ```
/// Pushing and popping move the two addresses; nothing behind the tag moves. Offsets into the
/// frame that the caller keeps (`csum_start`, `l3_offset`) shift by [`TAG_LEN`].
#[repr(C)]
#[derive(Clone)]
pub struct HeaderBuf {
    /// At most `HEADROOM + TAG_LEN * tags popped`, and `start + len <= bytes.len()`.
    start: u16,
    len: u16,
    bytes: [u8; HEADROOM + CAP],
}

impl Default for HeaderBuf {
    fn default() -> Self {
        Self {
            bytes: [0; HEADROOM + CAP],
            start: HEADROOM as u16,
            len: 0,
        }
    }
}

impl HeaderBuf {
    /// Reserves `n` header bytes (at most [`CAP`]; the slice is shorter if `n` is larger) for the
    /// caller to write. Earlier contents are visible until then.
    #[inline]
    pub fn fill(&mut self, n: usize) -> &mut [u8] {
        self.start = HEADROOM as u16;
        self.len = n.min(CAP) as u16;
        self.as_mut_slice()
    }

    /// A copy of header bytes that may have got tags: of [`CAP`] and [`HEADROOM`] together at most.
    #[must_use]
    pub fn copy_of(headers: &[u8]) -> Self {
        let mut copy = Self::default();
        let len = headers.len().min(copy.bytes.len());
        copy.start = HEADROOM.min(copy.bytes.len() - len) as u16;
        copy.len = len as u16;
        copy.as_mut_slice().copy_from_slice(&headers[..len]);
        copy
    }

    /// As [`HeaderBuf::fill`] with a number of bytes that is known beforehand.
    ///
    /// # Panics
    /// When `N` is larger than [`CAP`].
    #[inline(always)]
    pub fn fill_block<const N: usize>(&mut self) -> &mut [u8; N] {
        self.start = HEADROOM as u16;
        self.len = N as u16;
        let block = self.bytes[HEADROOM..].first_chunk_mut();
        block.expect("N is at most CAP")
    }

    /// The first `N` header bytes, if there are so many.
    #[inline(always)]
    pub fn first<const N: usize>(&self) -> Option<&[u8; N]> {
        if usize::from(self.len) < N {
            return None;
        }
        self.bytes.get(usize::from(self.start)..)?.first_chunk()
    }

    /// Makes room for `n` more bytes behind those that there are, as far as they fit, and gives the
    /// new ones to be written.
    #[inline]
    pub fn extend(&mut self, n: usize) -> &mut [u8] {
        let old = self.len();
        let room = self.bytes.len() - self.start as usize - old;
        self.len += n.min(room) as u16;
        &mut self.as_mut_slice()[old..]
    }

    /// The header bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.range()]
    }

    /// The header bytes, to be changed.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let range = self.range();
        &mut self.bytes[range]
    }

    /// Number of header bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether nothing was filled in.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps the first `n` bytes; nothing when there are fewer.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n.min(CAP + HEADROOM) as u16);
    }

    #[inline]
    fn range(&self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + self.len as usize
    }

    /// Returns whether the EtherType is that of a tag, whole or not.
    #[inline(always)]
    pub fn is_tagged(&self) -> bool {
        self.first::<HEADER_LEN>()
            .is_some_and(|head| head[ADDRESSES..] == EtherType::VLAN.0.to_be_bytes())
    }

    /// The outer 802.1Q tag.
    #[inline]
    pub fn vlan(&self) -> Option<VlanTci> {
        let head = self.as_slice().first_chunk::<{ HEADER_LEN + TAG_LEN }>()?;
        let tagged = head[ADDRESSES..HEADER_LEN] == EtherType::VLAN.0.to_be_bytes();
        tagged.then(|| VlanTci::from_bits(u16::from_be_bytes([head[14], head[15]])))
    }

    /// Puts a tag before whatever follows the addresses. False, with nothing changed, when the
    /// headroom is used up or there is no whole Ethernet header.
    #[inline]
    pub fn push_vlan(&mut self, tci: VlanTci) -> bool {
        if (self.start as usize) < TAG_LEN || self.len() < HEADER_LEN {
            return false;
        }
        let old = self.start as usize;
        self.start -= TAG_LEN as u16;
        self.len += TAG_LEN as u16;
        self.bytes.copy_within(old..old + ADDRESSES, old - TAG_LEN);
        let tag = self.as_mut_slice();
        tag[ADDRESSES..HEADER_LEN].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
        tag[HEADER_LEN..HEADER_LEN + 2].copy_from_slice(&tci.to_bits().to_be_bytes());
        true
    }

    /// Gives the frame the tag of VLAN `vid`, or none, instead of its outer one, whose priority it
    /// keeps. `false`, with nothing changed, when there is no room for a tag, or when a second tag
    /// would become the outer one.
    #[inline]
    pub fn retag(&mut self, vid: Option<u16>) -> bool {
        let old = self.pop_vlan();
        let done = match vid {
            Some(vid) => self.push_vlan(old.unwrap_or(VlanTci::new(0)).with_vid(vid)),
            None => !self.is_tagged(),
        };
        if let Some(old) = old
            && !done
        {
            self.push_vlan(old);
        }
        done
    }

    /// Sets the priority (PCP) of the outer tag, if there is one.
    pub fn set_priority(&mut self, pcp: u8) {
        if let Some(tci) = self.vlan() {
            let bits = VlanTci { pcp, ..tci }.to_bits();
            let tag = self.as_mut_slice();
            tag[HEADER_LEN..HEADER_LEN + 2].copy_from_slice(&bits.to_be_bytes());
        }
    }

    /// Takes the outer tag out.
    #[inline]
    pub fn pop_vlan(&mut self) -> Option<VlanTci> {
        let tci = self.vlan()?;
        let old = self.start as usize;
        self.bytes.copy_within(old..old + ADDRESSES, old + TAG_LEN);
        self.start += TAG_LEN as u16;
        self.len -= TAG_LEN as u16;
        Some(tci)
    }
}

impl fmt::Debug for HeaderBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderBuf({:02x?})", self.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(n: usize) -> HeaderBuf {
        let mut h = HeaderBuf::default();
        for (i, b) in h.fill(n).iter_mut().enumerate() {
            *b = i as u8;
        }
        h
    }

    #[test]
    fn a_copy_has_all_bytes_with_and_without_tags() {
        for tags in 0..3 {
            let mut h = filled(CAP);
            (0..tags).for_each(|n| assert!(h.push_vlan(VlanTci::new(n + 1))));
            let mut copy = HeaderBuf::copy_of(h.as_slice());
            assert_eq!(copy.as_slice(), h.as_slice());
            (0..tags).for_each(|_| assert_eq!(copy.pop_vlan(), h.pop_vlan()));
            assert!(copy.push_vlan(VlanTci::new(7)) && h.push_vlan(VlanTci::new(7)));
            assert_eq!(copy.as_slice(), h.as_slice());
        }
    }

    #[test]
    fn push_then_pop_restores_the_frame() {
        let mut h = filled(CAP);
        let before = h.as_slice().to_vec();
        let tci = VlanTci {
            pcp: 3,
            dei: true,
            vid: 0xabc,
        };
        assert!(h.push_vlan(tci));
        assert_eq!(
            &h.as_slice()[..18],
            &[
                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x81, 0, 0x7a, 0xbc, 12, 13
            ]
        );
        assert_eq!(h.pop_vlan(), Some(tci));
        assert_eq!(h.as_slice(), before);
        assert_eq!(h.pop_vlan(), None);
    }

    #[test]
    fn headroom_ends_and_runts_stay_as_they_are() {
        let mut h = filled(60);
        assert!(
            h.push_vlan(VlanTci::new(1))
                && h.push_vlan(VlanTci::new(2))
                && !h.push_vlan(VlanTci::new(3))
        );
        assert_eq!((h.len(), h.vlan()), (68, Some(VlanTci::new(2))));
        let mut runt = filled(13);
        assert!(!runt.push_vlan(VlanTci::new(1)));
        let mut tagged_runt = filled(17);
        tagged_runt.as_mut_slice()[12..14].copy_from_slice(&[0x81, 0]);
        assert_eq!((tagged_runt.pop_vlan(), tagged_runt.len()), (None, 17));
    }

    #[test]
    fn a_tag_is_exchanged_and_its_priority_kept() {
        let (old, new) = (VlanTci::from_bits(0xa005), VlanTci::from_bits(0xa007));
        let plain = filled(60).as_slice().to_vec();
        let mut h = filled(60);
        for _ in 0..2 {
            assert!(h.retag(None));
            assert_eq!(h.as_slice(), plain);
        }
        assert!(h.push_vlan(old));
        for _ in 0..2 {
            assert!(h.retag(Some(7)));
            assert_eq!(h.vlan(), Some(new));
        }
        assert!(h.retag(None));
        assert_eq!(h.as_slice(), plain);
        assert!(h.retag(Some(7)));
        assert_eq!(h.vlan(), Some(VlanTci::new(7)));
    }

    #[test]
    fn no_second_tag_becomes_the_outer_one() {
        let mut h = filled(60);
        h.push_vlan(VlanTci::new(1));
        h.push_vlan(VlanTci::from_bits(0x6002));
        let before = h.as_slice().to_vec();
        assert!(!h.retag(None));
        assert_eq!(h.as_slice(), before, "nothing has changed");
        assert!(h.retag(Some(3)));
        assert_eq!(h.vlan(), Some(VlanTci::from_bits(0x6003)));
        let mut runt = filled(13);
        assert!(!runt.retag(Some(3)));
        assert_eq!(runt.len(), 13);
    }

    #[test]
    fn a_head_grows_behind_what_it_holds() {
        let mut h = filled(64);
        h.extend(2).copy_from_slice(&[0xaa, 0xbb]);
        assert_eq!(
            (h.len(), &h.as_slice()[62..]),
            (66, &[62, 63, 0xaa, 0xbb][..])
        );
        assert_eq!(h.extend(usize::MAX >> 1).len(), CAP - 66);
    }

    #[test]
    fn fill_is_clamped_and_starts_over() {
        let mut h = filled(CAP);
        h.push_vlan(VlanTci::new(1));
        assert_eq!(h.fill(usize::MAX).len(), CAP);
        h.truncate(20);
        assert_eq!(h.as_slice().len(), 20);
        assert_eq!(h.fill(0).len(), 0);
        assert!(h.is_empty());
    }
}
