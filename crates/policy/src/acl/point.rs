//! A key as the classifier sees it, and what it has looked at.

use wire::flow::{FlowKey, FlowMask, KeyState};
use wire::{EtherType, MacAddr};

use super::prefix::{Prefix, ones};

/// A field that rules can be told apart by.
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
    /// All of them. Those that [`DECISION_MASK`](crate::DECISION_MASK) has cost no flow and come first; then those that split
    /// traffic least.
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

/// How addresses are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    /// IPv4, and ARP.
    V4,
    V6,
    /// There are none.
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

    /// Bits of an address.
    fn width(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
            Self::None => 0,
        }
    }

    /// An address from its place in a key, beginning at the highest bit.
    fn aligned(self, address: u128) -> u128 {
        match self {
            Self::V4 => address << 96,
            Self::V6 => address,
            Self::None => 0,
        }
    }

    /// An address that begins at the highest bit, at its place in a key.
    pub(super) fn place(self, address: u128) -> u128 {
        match self {
            Self::V4 => address >> 96,
            Self::V6 => address,
            Self::None => 0,
        }
    }
}

/// A key, read once.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(super) key: FlowKey,
    pub(super) family: Family,
    pub(super) ethertype: EtherType,
    pub(super) source: u128,
    pub(super) destination: u128,
    pub(super) state: KeyState,
}

impl Point {
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
        }
    }

    pub(crate) fn in_port(&self) -> u32 {
        self.key.in_port()
    }

    pub(crate) fn ethertype(&self) -> EtherType {
        self.ethertype
    }

    /// The tag's VLAN; 0 without one, or with a priority tag.
    pub(super) fn vlan(&self) -> u16 {
        self.key.vlan().unwrap_or(0)
    }

    /// A field, beginning at the highest bit.
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

/// What of a key was looked at, besides its ingress port, VLAN and Ethernet addresses, which every decision looks at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Looked {
    pub(super) ethertype: bool,
    /// The state of the upper layers: whether they could be read, and fragments.
    pub(super) state: bool,
    pub(super) protocol: bool,
    /// TCP flags, or ICMP's type and code.
    pub(super) flags: u16,
    /// First bits of the addresses.
    pub(super) destination: u8,
    pub(super) source: u8,
    /// First bits of the ports.
    pub(super) destination_port: u8,
    pub(super) source_port: u8,
}

impl Looked {
    /// The first `len` bits of a field were looked at.
    #[inline]
    pub(super) fn note(&mut self, dim: Dim, len: u8, family: Family) {
        match dim {
            Dim::InPort | Dim::SourceMac | Dim::DestinationMac | Dim::Vlan => {}
            Dim::EtherType => self.ethertype |= len > 0,
            Dim::Protocol => self.protocol |= len > 0,
            Dim::DestinationPort => self.destination_port = self.destination_port.max(len),
            Dim::SourcePort => self.source_port = self.source_port.max(len),
            // Where addresses are, and whether there are any, the type says.
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

    /// Whether so much was looked at already.
    pub(super) fn has(&self, dim: Dim, len: u8, family: Family) -> bool {
        let mut with = *self;
        with.note(dim, len, family);
        with == *self
    }

    /// What either looked at.
    pub(super) fn union(&self, other: &Self) -> Self {
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

    /// Whether nothing was.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what was looked at to a mask; `ethertype` is the key's.
    pub(crate) fn add_to(&self, mask: FlowMask, ethertype: EtherType) -> FlowMask {
        // Where there are no addresses, more bits of them than none make no other mask.
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

/// Some bits of an Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct MacBits {
    pub(super) value: u64,
    /// The bits that count; zero: all addresses.
    pub(super) mask: u64,
}

impl MacBits {
    #[inline]
    pub(super) fn matches(self, mac: MacAddr) -> bool {
        mac.to_u64() & self.mask == self.value
    }

    /// The bits that count from the first on.
    pub(super) fn prefix(self) -> Prefix {
        let len = (self.mask << 16).leading_ones() as u8;
        Prefix::new(u128::from(self.value) << 80, len)
    }

    pub(super) fn covers(self, other: Self) -> bool {
        self.mask & other.mask == self.mask && other.value & self.mask == self.value
    }
}
