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
    /// Ingress port and everything of the Ethernet header and its outer tag.
    pub const ETHERNET: Self = Self::NONE
        .with_in_port()
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

    const fn with(self, field: Field) -> Self {
        self.with_some(field, field.ones)
    }

    /// Some bits of a field count, besides those that do.
    const fn with_some(mut self, field: Field, bits: u64) -> Self {
        self.0[field.word] |= (bits & field.ones) << field.shift;
        self
    }

    /// The ingress port counts.
    #[must_use]
    pub const fn with_in_port(self) -> Self {
        self.with(IN_PORT)
    }

    /// The VLAN, and whether there is a tag, counts.
    #[must_use]
    pub const fn with_vlan(self) -> Self {
        self.with(VLAN)
    }

    /// Returns the mask with the frame class, see [`FrameClass`].
    #[must_use]
    pub const fn with_frame_class(self) -> Self {
        self.with(FRAME_CLASS)
    }

    /// The EtherType counts.
    #[must_use]
    pub const fn with_ethertype(self) -> Self {
        self.with(ETHERTYPE)
    }

    /// The destination address counts.
    #[must_use]
    pub const fn with_dmac(self) -> Self {
        self.with(DMAC)
    }

    /// The source address counts.
    #[must_use]
    pub const fn with_smac(self) -> Self {
        self.with(SMAC)
    }

    /// The IP protocol or ARP operation counts.
    #[must_use]
    pub const fn with_ip_proto(self) -> Self {
        self.with(PROTO)
    }

    /// The type of service counts.
    #[must_use]
    pub const fn with_tos(self) -> Self {
        self.with(TOS)
    }

    /// TCP flags, or ICMP type and code, count.
    #[must_use]
    pub const fn with_l4_flags(self) -> Self {
        self.with(L4_FLAGS)
    }

    /// The source port counts. Take [`with_state`](Self::with_state) too, to distinguish port zero
    /// from no port.
    #[must_use]
    pub const fn with_l4_src(self) -> Self {
        self.with(L4_SRC)
    }

    /// The destination port counts. Take [`with_state`](Self::with_state) too, to
    /// distinguish port zero from no port.
    #[must_use]
    pub const fn with_l4_dst(self) -> Self {
        self.with(L4_DST)
    }

    /// These bits of the TCP flags, or of ICMP type and code, count too.
    #[must_use]
    pub const fn with_l4_flags_bits(self, bits: u16) -> Self {
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

    /// The state bits (fragment, malformed, unknown) count.
    #[must_use]
    pub const fn with_state(self) -> Self {
        self.with(STATE)
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

    /// The words in order, each little-endian.
    #[inline]
    pub fn to_bytes(&self) -> [u8; KEY_LEN] {
        words_to_bytes(&self.0)
    }

    /// Returns the mask from the bytes of [`to_bytes`](Self::to_bytes).
    #[inline]
    pub fn from_bytes(bytes: &[u8; KEY_LEN]) -> Self {
        Self(words_from_bytes(bytes))
    }
}
