//! Masks: the bits of a key on which a decision depends.

use super::*;

/// Which bits of a [`FlowKey`] count; the same layout. Starts empty and grows by `with_…`.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FlowMask([u64; 8]);

const _: () = assert!(size_of::<FlowMask>() == KEY_LEN);

impl FlowMask {
    /// Every bit counts.
    pub const EXACT: Self = Self([u64::MAX; 8]);
    /// No bit counts.
    pub const NONE: Self = Self([0; 8]);
    /// Ingress port, connection state, and everything of the Ethernet header and its outer tag:
    /// fields that need no header above Ethernet once the state is known.
    pub const ETHERNET: Self = Self::NONE
        .with_in_port()
        .with_ct()
        .with_vlan()
        .with_frame_class()
        .with_ethertype()
        .with_dmac()
        .with_smac();
    /// Fields that identify a conversation and are the same in all of its frames.
    pub const CONVERSATION: Self = Self::NONE
        .with_ethertype()
        .with_dmac()
        .with_smac()
        .with_ip_proto()
        .with_src_ip()
        .with_dst_ip()
        .with_l4_src()
        .with_l4_dst();

    /// All bits of a field count.
    pub(super) const fn with(self, field: Field) -> Self {
        self.with_some(field, field.ones)
    }

    /// Some bits of a field count, besides those that do.
    const fn with_some(mut self, field: Field, bits: u64) -> Self {
        self.0[field.word] |= (bits & field.ones) << field.shift;
        self
    }

    /// These bits of the TCP flags, or of ICMP type and code, count too.
    #[must_use]
    pub const fn with_l4_flags_bits(self, bits: u16) -> Self {
        self.with_some(L4_FLAGS, bits as u64)
    }

    /// The DSCP (RFC 2474) counts, which is all of the type of service but its ECN bits.
    #[must_use]
    pub const fn with_dscp(self) -> Self {
        self.with_some(TOS, 0xfc)
    }

    /// These bits of the TCP flags count too.
    #[must_use]
    pub const fn with_l4_flag_bits(self, bits: u16) -> Self {
        self.with_some(L4_FLAGS, bits as u64)
    }

    /// These bits of the source port count too; see [`with_l4_src`](Self::with_l4_src).
    #[must_use]
    pub const fn with_l4_src_bits(self, bits: u16) -> Self {
        self.with_some(L4_SRC, bits as u64)
    }

    /// These bits of the destination port count too; see [`with_l4_dst`](Self::with_l4_dst).
    #[must_use]
    pub const fn with_l4_dst_bits(self, bits: u16) -> Self {
        self.with_some(L4_DST, bits as u64)
    }

    /// The whole source IP address counts.
    #[must_use]
    pub const fn with_src_ip(self) -> Self {
        self.with_src_ip_bits(u128::MAX)
    }

    /// The whole destination IP address counts.
    #[must_use]
    pub const fn with_dst_ip(self) -> Self {
        self.with_dst_ip_bits(u128::MAX)
    }

    /// These bits of the source IP address count too (IPv4: the low 32).
    #[must_use]
    pub const fn with_src_ip_bits(self, bits: u128) -> Self {
        self.with_ip_bits(SRC_IP, bits)
    }

    /// These bits of the destination IP address count too (IPv4: the low 32).
    #[must_use]
    pub const fn with_dst_ip_bits(self, bits: u128) -> Self {
        self.with_ip_bits(DST_IP, bits)
    }

    const fn with_ip_bits(mut self, word: usize, bits: u128) -> Self {
        self.0[word] |= bits as u64;
        self.0[word + 1] |= (bits >> 64) as u64;
        self
    }

    /// Returns the fields of both masks.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// Returns the fields of this mask that the other lacks.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// Returns whether this mask counts every bit that `other` does.
    pub fn covers(&self, other: &Self) -> bool {
        (0..8).all(|i| self.0[i] & other.0[i] == other.0[i])
    }

    /// Returns whether anything behind the first [`LOW_WORDS`] words counts.
    #[inline]
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.0[LOW_WORDS..].iter().any(|word| *word != 0)
    }

    /// The eight words.
    #[inline]
    pub const fn words(&self) -> &[u64; 8] {
        &self.0
    }

    /// A mask from its eight words.
    #[inline]
    pub const fn from_words(words: [u64; 8]) -> Self {
        Self(words)
    }
}
