//! A flow key prepared for the classifier, and the bits of it on which a decision depends.

use wire::flow::{FlowKey, FlowMask, KeyState};
use wire::{EtherType, MacAddr};

use super::prefix::{Prefix, ones};
use crate::connection::Standing;

/// Field by which rules can be split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dim {
    InPort,
    SourceMac,
    DestinationMac,
    Vlan,
    EtherType,
    Destination,
    Source,
    Protocol,
    DestinationPort,
    SourcePort,
}

impl Dim {
    /// All fields, first those of [`DECISION_MASK`](crate::DECISION_MASK), which cost no flow, then
    /// by how little they split traffic.
    pub(super) const ALL: [Self; 10] = [
        Self::InPort,
        Self::SourceMac,
        Self::DestinationMac,
        Self::Vlan,
        Self::EtherType,
        Self::Destination,
        Self::Source,
        Self::Protocol,
        Self::DestinationPort,
        Self::SourcePort,
    ];
}

/// Address family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    /// IPv4 and ARP.
    V4,
    V6,
    /// No addresses.
    None,
}

impl Family {
    pub(super) fn of(ethertype: EtherType) -> Self {
        match ethertype {
            EtherType::IPV4 | EtherType::ARP => Self::V4,
            EtherType::IPV6 => Self::V6,
            _ => Self::None,
        }
    }

    /// Returns the bits of an address.
    pub(super) fn width(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
            Self::None => 0,
        }
    }

    /// Moves an address from the low bits, as in a key, to the high bits.
    fn aligned(self, address: u128) -> u128 {
        match self {
            Self::V4 => address << 96,
            Self::V6 => address,
            Self::None => 0,
        }
    }

    /// Moves an address from the high bits to the low bits, as in a key.
    pub(super) fn place(self, address: u128) -> u128 {
        match self {
            Self::V4 => address >> 96,
            Self::V6 => address,
            Self::None => 0,
        }
    }
}

/// A flow key with its fields extracted once.
#[derive(Clone, Debug)]
pub(crate) struct ClassKey {
    pub(super) key: FlowKey,
    pub(super) family: Family,
    pub(super) ethertype: EtherType,
    pub(super) source: u128,
    pub(super) destination: u128,
    pub(super) state: KeyState,
    /// The frame belongs to no connection and opens none.
    pub(super) is_invalid: bool,
    /// Stateful rules do not match.
    pub(super) skips_stateful: bool,
}

impl ClassKey {
    pub(crate) fn new(key: &FlowKey) -> Self {
        let ethertype = key.ethertype();
        let family = Family::of(ethertype);
        Self {
            key: *key,
            family,
            ethertype,
            source: family.aligned(key.src_ip()),
            destination: family.aligned(key.dst_ip()),
            state: key.state(),
            is_invalid: Standing::of(key.ct()) == Standing::Invalid,
            skips_stateful: false,
        }
    }

    /// Returns the key for the rules that are not stateful.
    pub(super) fn without_stateful_rules(&self) -> Self {
        Self {
            skips_stateful: true,
            ..self.clone()
        }
    }

    pub(crate) fn in_port(&self) -> u32 {
        self.key.in_port()
    }

    /// Returns the tag's VLAN; 0 without one, or with a priority tag.
    pub(super) fn vlan(&self) -> u16 {
        self.key.vlan().unwrap_or(0)
    }

    /// Returns a field, aligned to the highest bit.
    #[inline]
    pub(super) fn value(&self, dim: Dim) -> u128 {
        let key = &self.key;
        let wide = |value: u64, width| Prefix::of(value, width).bits;
        match dim {
            Dim::InPort => wide(key.in_port().into(), 32),
            Dim::SourceMac => wide(key.smac().to_u64(), 48),
            Dim::DestinationMac => wide(key.dmac().to_u64(), 48),
            Dim::Vlan => wide(self.vlan().into(), 16),
            Dim::EtherType => wide(self.ethertype.0.into(), 16),
            Dim::Destination => self.destination,
            Dim::Source => self.source,
            Dim::Protocol => wide(key.ip_proto().into(), 8),
            Dim::DestinationPort => wide(key.l4_dst().into(), 16),
            Dim::SourcePort => wide(key.l4_src().into(), 16),
        }
    }
}

/// Bits of a key on which a decision depends (un-wildcarded in the terms of OVS), besides ingress
/// port, VLAN and Ethernet addresses, on which every decision depends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Wildcards {
    pub(super) ethertype: bool,
    /// Parse state of the upper layers, and fragments.
    pub(super) state: bool,
    pub(super) protocol: bool,
    /// TCP flags, or ICMP's type and code.
    pub(super) flags: u16,
    /// Prefix lengths of addresses.
    pub(super) destination: u8,
    pub(super) source: u8,
    /// Prefix lengths of ports.
    pub(super) destination_port: u8,
    pub(super) source_port: u8,
}

impl Wildcards {
    /// Adds the first `len` bits of a field.
    #[inline]
    pub(super) fn unwildcard(&mut self, dim: Dim, len: u8, family: Family) {
        match dim {
            Dim::InPort | Dim::SourceMac | Dim::DestinationMac | Dim::Vlan => {}
            Dim::EtherType => self.ethertype |= len > 0,
            Dim::Protocol => self.protocol |= len > 0,
            Dim::DestinationPort => self.destination_port = self.destination_port.max(len),
            Dim::SourcePort => self.source_port = self.source_port.max(len),
            // The EtherType defines where addresses are, and whether there are any.
            Dim::Destination => {
                self.ethertype = true;
                self.destination = self.destination.max(len.min(family.width()));
            }
            Dim::Source => {
                self.ethertype = true;
                self.source = self.source.max(len.min(family.width()));
            }
        }
    }

    /// Returns whether the first `len` bits of a field are included already.
    pub(super) fn has(&self, dim: Dim, len: u8, family: Family) -> bool {
        let mut with = *self;
        with.unwildcard(dim, len, family);
        with == *self
    }

    /// Returns the bits of both.
    pub(crate) fn union(&self, other: &Self) -> Self {
        Self {
            ethertype: self.ethertype | other.ethertype,
            state: self.state | other.state,
            protocol: self.protocol | other.protocol,
            flags: self.flags | other.flags,
            destination: self.destination.max(other.destination),
            source: self.source.max(other.source),
            destination_port: self.destination_port.max(other.destination_port),
            source_port: self.source_port.max(other.source_port),
        }
    }

    pub(super) fn covers(&self, other: &Self) -> bool {
        self.union(other) == *self
    }

    /// Returns the bits without those of TCP flags and ICMP types.
    pub(crate) fn without_flags(self) -> Self {
        Self { flags: 0, ..self }
    }

    /// Returns the bits with those that tell fragments from whole datagrams.
    pub(crate) fn with_fragments(self) -> Self {
        Self {
            state: true,
            ..self
        }
    }

    /// Returns the same bits of frames in the opposite direction.
    pub(crate) fn reversed(self) -> Self {
        Self {
            destination: self.source,
            source: self.destination,
            destination_port: self.source_port,
            source_port: self.destination_port,
            ..self
        }
    }

    /// Returns whether no bits are included.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds these bits to a mask; `ethertype` is the key's.
    pub(crate) fn add_to(&self, mask: FlowMask, ethertype: EtherType) -> FlowMask {
        // Without addresses, more address bits make no other mask.
        let family = match Family::of(ethertype) {
            Family::None => Family::V4,
            family => family,
        };
        let port = |len| (ones(len) >> 112) as u16;
        let mut mask = mask
            .with_dst_ip_bits(family.place(ones(self.destination)))
            .with_src_ip_bits(family.place(ones(self.source)))
            .with_l4_dst_bits(port(self.destination_port))
            .with_l4_src_bits(port(self.source_port))
            .with_l4_flags_bits(self.flags);
        if self.ethertype {
            mask = mask.with_ethertype();
        }
        if self.protocol {
            mask = mask.with_ip_proto();
        }
        if self.state {
            mask = mask.with_state();
        }
        mask
    }
}

/// Masked Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct MacBits {
    pub(super) value: u64,
    /// The bits that are compared; zero: all addresses match.
    pub(super) mask: u64,
}

impl MacBits {
    #[inline]
    pub(super) fn matches(self, mac: MacAddr) -> bool {
        mac.to_u64() & self.mask == self.value
    }

    /// Returns the leading bits that are compared.
    pub(super) fn prefix(self) -> Prefix {
        let len = (self.mask << 16).leading_ones() as u8;
        Prefix::new(u128::from(self.value) << 80, len)
    }

    pub(super) fn covers(self, other: Self) -> bool {
        self.mask & other.mask == self.mask && other.value & self.mask == self.value
    }
}
