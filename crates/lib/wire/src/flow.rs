//! The flow key: all fields on which a cached decision may depend, in 64 bytes.
//!
//! ```text
//! word  bits 63..48        47..32            31..16     15..0
//!  0    EtherType          class, VLAN (1)   ct (3)     ingress port
//!  1    TOS | protocol     destination address (48)
//!  2    TCP flags, ICMP    source address (48)
//!  3    0                  state (2)         l4 dst     l4 src
//! 4,5   source IP: word 4 the low 64 bits (IPv4 the low 32), word 5 the high
//! 6,7   destination IP, likewise
//! (1) 0x1000 with a tag, low 12 bits its VLAN, the priority is no part of a flow; above them
//!     three bits of frame class at ports with port security, see [`FrameClass`]
//! (2) [`KeyState`]
//! (3) [`Ct`], zero for frames that are not tracked
//! ```
//! ARP fills the IP words with the sender's and target's addresses and the protocol byte with the
//! operation (255 for those above).

use crate::{
    EtherType, MacAddr,
    packet::{Fragment, L3, ParsedHeaders},
};

mod ct;
mod frame_class;
mod hash;
mod mask;
mod plain;
mod text;

pub use ct::{Ct, CtState};
pub use frame_class::FrameClass;
pub use hash::MaskedHash;
pub use mask::FlowMask;
pub use plain::{PLAIN_HEAD, PlainHead, PlainMask};
pub use text::InWords;

/// Bytes of a key or mask.
pub const KEY_LEN: usize = 64;
/// Ingress ports that a key can distinguish: port numbers are below it.
pub const PORTS: usize = 1 << 16;
/// Words that hold all of the Ethernet header; the others come from above it alone.
pub const LOW_WORDS: usize = 3;
/// Set in the VLAN half-word when the frame has a tag.
pub const VLAN_PRESENT: u16 = 0x1000;

bitflags::bitflags! {
    /// Parse state of the upper layers, so that a zero field is not taken for a value.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct KeyState: u16 {
        /// A piece of a larger datagram.
        const FRAGMENT = 1;
        /// A piece without the transport header: ports are zero.
        const LATER_FRAGMENT = 2;
        /// IP or ARP that contradicts itself: everything above Ethernet is zero.
        const L3_MALFORMED = 4;
        /// A transport header that could not be parsed, or a later fragment of an unknown packet:
        /// ports are zero.
        const L4_UNKNOWN = 8;
        /// Neither IP nor ARP, but a receiver may take it for that: see [`L3::Hidden`].
        const HIDDEN = 16;
    }
}

/// A bit field within the eight words.
#[derive(Clone, Copy)]
struct Field {
    word: usize,
    shift: u32,
    /// The field's bits, shifted down.
    ones: u64,
}

impl Field {
    const fn new(word: usize, shift: u32, bits: u32) -> Self {
        Self {
            word,
            shift,
            ones: u64::MAX >> (64 - bits),
        }
    }

    #[inline]
    const fn get(self, words: &[u64; 8]) -> u64 {
        (words[self.word] >> self.shift) & self.ones
    }

    #[inline]
    const fn put(self, words: &mut [u64; 8], v: u64) {
        words[self.word] &= !(self.ones << self.shift);
        words[self.word] |= (v & self.ones) << self.shift;
    }
}

/// Writes the accessors of the fields of a key, and of the masks' bits for them: the name of the
/// field, its word, shift and bits, its name in texts, and how it becomes a value and bits again.
macro_rules! fields {
    ($(
        $(#[$doc:meta])*
        $field:ident($word:expr, $shift:expr, $bits:expr) $text:literal $name:ident $with:ident:
            $type:ty = |$number:ident| $get:expr, |$value:ident| $put:expr;
    )*) => {
        $(const $field: Field = Field::new($word, $shift, $bits);)*
        const FIELDS: &[(&str, Field)] = &[$(($text, $field)),*];

        impl FlowKey {$(
            $(#[$doc])*
            #[inline]
            pub const fn $name(&self) -> $type {
                let $number = $field.get(&self.0);
                $get
            }

            #[doc = concat!("Returns the key with another `", stringify!($name), "`.")]
            #[must_use]
            #[inline]
            pub const fn $with(mut self, $value: $type) -> Self {
                $field.put(&mut self.0, $put);
                self
            }
        )*}

        impl FlowMask {$(
            #[doc = concat!("All bits of [`FlowKey::", stringify!($name), "`] count.")]
            #[must_use]
            pub const fn $with(self) -> Self {
                self.with($field)
            }
        )*}
    };
}

fields! {
    /// Ingress port; its number is below [`PORTS`].
    IN_PORT(0, 0, 16) "in_port" in_port with_in_port: u32 = |bits| bits as u32, |port| port as u64;
    /// Returns the state of the frame's connection.
    CT(0, 16, 16) "ct" ct with_ct: Ct = |bits| Ct::from_bits(bits as u16), |ct| ct.bits() as u64;
    /// VLAN of the outer tag; `None` without a tag, `Some(0)` for a priority tag.
    VLAN(0, 32, 13) "vlan" vlan with_vlan: Option<u16> = |bits| match bits as u16 {
        bits @ VLAN_PRESENT.. => Some(bits & 0xfff),
        _ => None,
    }, |vid| match vid {
        Some(vid) => (VLAN_PRESENT | (vid & 0xfff)) as u64,
        None => 0,
    };
    /// Returns the frame class, which is set at ports with port security.
    FRAME_CLASS(0, 45, 3) "class" frame_class with_frame_class: FrameClass =
        |bits| FrameClass::from_bits(bits as u8), |class| class as u64;
    /// Type after the outer tag.
    ETHERTYPE(0, 48, 16) "ethertype" ethertype with_ethertype: EtherType =
        |bits| EtherType(bits as u16), |ethertype| ethertype.0 as u64;
    /// Destination address.
    DMAC(1, 0, 48) "dmac" dmac with_dmac: MacAddr =
        |bits| MacAddr::from_u64(bits), |mac| mac.to_u64();
    /// Source address.
    SMAC(2, 0, 48) "smac" smac with_smac: MacAddr =
        |bits| MacAddr::from_u64(bits), |mac| mac.to_u64();
    /// IP protocol, or the ARP operation.
    PROTO(1, 48, 8) "ip_proto" ip_proto with_ip_proto: u8 = |bits| bits as u8, |proto| proto as u64;
    /// Type of service or traffic class.
    TOS(1, 56, 8) "tos" tos with_tos: u8 = |bits| bits as u8, |tos| tos as u64;
    /// TCP flags, or ICMP `type << 8 | code`.
    L4_FLAGS(2, 48, 16) "l4_flags" l4_flags with_l4_flags: u16 =
        |bits| bits as u16, |flags| flags as u64;
    /// TCP or UDP source port. A mask needs the state, too, to distinguish port zero from no port.
    L4_SRC(3, 0, 16) "l4_src" l4_src with_l4_src: u16 = |bits| bits as u16, |port| port as u64;
    /// TCP or UDP destination port; see [`l4_src`](Self::l4_src).
    L4_DST(3, 16, 16) "l4_dst" l4_dst with_l4_dst: u16 = |bits| bits as u16, |port| port as u64;
    /// Returns the parse state of the upper layers.
    STATE(3, 32, 16) "state" state with_state: KeyState =
        |bits| KeyState::from_bits_truncate(bits as u16), |state| state.bits() as u64;
}

/// First word of the source address; the next holds its high half.
const SRC_IP: usize = 4;
/// First word of the destination address.
const DST_IP: usize = 6;

/// All fields on which a cached decision may depend; one cache line. See the module for the layout.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FlowKey([u64; 8]);

const _: () = assert!(size_of::<FlowKey>() == KEY_LEN && align_of::<FlowKey>() == KEY_LEN);

impl FlowKey {
    /// The key of a parsed frame that came in by `in_port` and is not tracked.
    #[inline]
    pub fn new(in_port: u32, p: &ParsedHeaders) -> Self {
        let (src_ip, dst_ip, proto, tos) = network(p);
        let vlan = p.vlan.map_or(0, |t| VLAN_PRESENT | (t.vid & 0xfff));
        Self([
            ingress(in_port) | u64::from(vlan) << 32 | u64::from(p.ethertype.0) << 48,
            p.dst.to_u64() | u64::from(proto) << 48 | u64::from(tos) << 56,
            p.src.to_u64() | u64::from(p.l4_flags) << 48,
            u64::from(p.src_port) | u64::from(p.dst_port) << 16 | u64::from(state(p).bits()) << 32,
            src_ip as u64,
            (src_ip >> 64) as u64,
            dst_ip as u64,
            (dst_ip >> 64) as u64,
        ])
    }

    /// The key of a frame of which only the Ethernet header and its outer tag matter: the fields
    /// above are zero. `None` without a whole header.
    ///
    /// For the path of every frame: it reads each byte once, in words, and leaves nothing in memory
    /// that is read back in another size, for which a core would wait.
    #[inline]
    pub fn of_ethernet(in_port: u32, headers: &[u8]) -> Option<Self> {
        let addresses = headers.first_chunk::<8>()?;
        let source_and_type = headers.get(6..)?.first_chunk::<8>()?;
        let dmac = u64::from_be_bytes(*addresses) >> 16;
        let rest = u64::from_be_bytes(*source_and_type);
        let (mut ethertype, mut vlan) = (rest & 0xffff, 0);
        if ethertype == u64::from(EtherType::VLAN.0) {
            let tag = headers.get(14..)?.first_chunk::<4>()?;
            let tag = u64::from(u32::from_be_bytes(*tag));
            vlan = u64::from(VLAN_PRESENT) | (tag >> 16) & 0xfff;
            ethertype = tag & 0xffff;
        }
        let first = ingress(in_port) | vlan << 32 | ethertype << 48;
        Some(Self([first, dmac, rest >> 16, 0, 0, 0, 0, 0]))
    }

    /// The key without what is above the Ethernet header, as [`FlowKey::of_ethernet`] has it.
    #[inline]
    #[must_use]
    pub const fn ethernet_alone(&self) -> Self {
        let [first, dmac, smac, ..] = self.0;
        let (dmac, smac) = (dmac & DMAC.ones, smac & SMAC.ones);
        Self([first, dmac, smac, 0, 0, 0, 0, 0])
    }

    /// Two numbers that are the same for frames with the same Ethernet header, and for no others,
    /// from a frame's first bytes: a quicker way than a key to see that a frame is of the flow of
    /// the one before it. `None` for tagged frames.
    #[inline(always)]
    pub fn ethernet_words(head: &[u8; 16]) -> Option<(u64, u64)> {
        let both = u128::from_le_bytes(*head);
        let second = (both >> 64) as u64;
        let tagged = (second >> 32) as u16 == EtherType::VLAN.0.to_be();
        (!tagged).then_some((both as u64, second & 0xffff_ffff_ffff))
    }

    /// Source IP address as a number; IPv4 in the low 32 bits.
    #[inline]
    pub const fn src_ip(&self) -> u128 {
        self.0[SRC_IP] as u128 | (self.0[SRC_IP + 1] as u128) << 64
    }

    /// Destination IP address as a number; IPv4 in the low 32 bits.
    #[inline]
    pub const fn dst_ip(&self) -> u128 {
        self.0[DST_IP] as u128 | (self.0[DST_IP + 1] as u128) << 64
    }

    /// Returns the key with another source IP address; see [`src_ip`](Self::src_ip).
    #[must_use]
    #[inline]
    pub const fn with_src_ip(self, address: u128) -> Self {
        self.with_ip(SRC_IP, address)
    }

    /// Returns the key with another destination IP address; see [`dst_ip`](Self::dst_ip).
    #[must_use]
    #[inline]
    pub const fn with_dst_ip(self, address: u128) -> Self {
        self.with_ip(DST_IP, address)
    }

    #[inline]
    const fn with_ip(mut self, word: usize, address: u128) -> Self {
        self.0[word] = address as u64;
        self.0[word + 1] = (address >> 64) as u64;
        self
    }

    /// Returns the key with other TCP or UDP ports.
    #[must_use]
    #[inline]
    pub const fn with_l4_ports(self, source: u16, destination: u16) -> Self {
        self.with_l4_src(source).with_l4_dst(destination)
    }

    /// The key with every bit outside `mask` zero.
    #[must_use]
    #[inline]
    pub fn masked(&self, mask: &FlowMask) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & mask.words()[i]))
    }

    /// A keyed hash. Guests choose keys, so `seed` must be secret and random; one hash serves all
    /// tables, take different bits of it.
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        hash::hash(&self.0, seed)
    }

    /// A key from its eight words.
    #[inline]
    pub const fn from_words(words: [u64; 8]) -> Self {
        Self(words)
    }

    /// The eight words.
    #[inline]
    pub const fn words(&self) -> &[u64; 8] {
        &self.0
    }
}

/// Returns the first word of a key with nothing but its ingress port.
#[inline(always)]
const fn ingress(in_port: u32) -> u64 {
    in_port as u64 & IN_PORT.ones
}

/// Source and destination address, protocol and type of service.
#[inline]
fn network(p: &ParsedHeaders) -> (u128, u128, u8, u8) {
    match p.l3 {
        L3::V4 { src, dst, tos } => (src.to_bits().into(), dst.to_bits().into(), p.l4_proto, tos),
        L3::V6 { src, dst, tos, .. } => (src.to_bits(), dst.to_bits(), p.l4_proto, tos),
        L3::Arp {
            operation,
            sender_ip,
            target_ip,
            ..
        } => {
            let op = u8::try_from(operation).unwrap_or(u8::MAX);
            (
                sender_ip.to_bits().into(),
                target_ip.to_bits().into(),
                op,
                0,
            )
        }
        L3::Other | L3::Hidden | L3::Malformed => (0, 0, 0, 0),
    }
}

#[inline]
fn state(p: &ParsedHeaders) -> KeyState {
    let mut s = match p.fragment {
        Fragment::No => KeyState::empty(),
        Fragment::First => KeyState::FRAGMENT,
        Fragment::Later => KeyState::FRAGMENT.union(KeyState::LATER_FRAGMENT),
    };
    s.set(KeyState::L3_MALFORMED, p.l3 == L3::Malformed);
    s.set(KeyState::HIDDEN, p.l3 == L3::Hidden);
    s.set(KeyState::L4_UNKNOWN, p.l4_unknown());
    s
}

#[cfg(test)]
mod tests;
