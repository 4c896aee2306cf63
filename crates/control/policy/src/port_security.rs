//! Port security: permitted source addresses of a port's guest, and messages that only servers and
//! routers may send.
//!
//! The flow key already has the frame's class, which includes whether it contradicts itself
//! ([`wire::FrameClass`]): so port security with Ethernet addresses only depends on no bits but
//! those of [`DECISION_MASK`](crate::DECISION_MASK). Port security with IP addresses depends on the
//! source of IP and ARP, on as few of its bits as distinguish it from the permitted ones.

mod bindings;
mod network;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use port::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use wire::flow::KeyState;
use wire::{EtherType, FlowKey, FlowMask, FrameClass, MacAddr, udp};

pub use bindings::Owner;
pub use network::Network;

/// Permitted source MAC addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Macs {
    /// All of them.
    #[default]
    Any,
    /// The first one seen (sticky): see [`Bindings`].
    Learned,
    /// These.
    Only(Vec<[u8; 6]>),
}

/// Permitted source IP addresses, also in ARP and neighbour discovery.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Addresses {
    /// All of them.
    #[default]
    Any,
    /// The first ones seen (sticky): see [`Bindings`].
    Learned,
    /// Addresses of these networks; besides, one link-local IPv6 address, which every host assigns
    /// to itself (RFC 4291, 2.1): the first one seen, unless the networks contain any.
    Only(Vec<Network>),
}

/// Frames that a port's guest may send. The [`Default`] lets everything pass.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortSecurity {
    /// Permitted source MAC addresses.
    pub macs: Macs,
    /// Permitted source IP addresses.
    pub addresses: Addresses,
    /// Drop messages of DHCP servers.
    pub no_dhcp_server: bool,
    /// Drop advertisements and redirects of routers.
    pub no_router: bool,
    /// Neighbour suppression is on in a segment of the port: requests for addresses with a known
    /// owner are answered in its place. That drops nothing.
    pub answers: bool,
}

/// Sticky bindings: the first addresses seen at a port where they are learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Bindings {
    /// The MAC address.
    pub mac: Option<[u8; 6]>,
    /// The IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// The link-local IPv6 address.
    pub link_local: Option<Ipv6Addr>,
    /// Another IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

impl Bindings {
    /// Returns the bound IP addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v6 = [self.link_local, self.v6].map(|v6| v6.map(IpAddr::V6));
        self.v4
            .map(IpAddr::V4)
            .into_iter()
            .chain(v6.into_iter().flatten())
    }
}

/// Prefix lengths of addresses in masks: as few bits as decide, but of few different lengths,
/// because each makes a mask.
const LEVELS_V4: [u8; 4] = [8, 16, 24, 32];
const LEVELS_V6: [u8; 4] = [8, 32, 64, 128];
/// UDP ports of a client that has no address yet, and of its server (RFC 2131, 4.1).
const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;
/// ICMPv6 types that a host sends before it has an address: router solicitations (RFC 4861, 4.1)
/// and listener reports (RFC 3590, RFC 3810).
const WITHOUT_ADDRESS: [u8; 4] = [131, 132, 133, 143];
/// IP protocol number of ICMPv6.
const ICMPV6: u8 = 58;

/// Result of a check: the drop reason, if any, and the bits of the key that it depends on.
pub(crate) type CheckResult = (Option<DropReason>, FlowMask);

impl PortSecurity {
    /// Returns whether everything passes and no requests are answered: frame classes need not be
    /// known.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.lets_all_pass() && !self.answers
    }

    fn lets_all_pass(&self) -> bool {
        let forbids = self.no_dhcp_server || self.no_router;
        self.macs == Macs::Any && !self.knows_addresses() && !forbids
    }

    /// Returns whether IP addresses are restricted.
    pub(crate) fn knows_addresses(&self) -> bool {
        self.addresses != Addresses::Any
    }

    /// Returns whether each frame with this key is an upcall, because the addresses that it claims
    /// or requests are in no flow key.
    #[must_use]
    pub fn needs_upcalls(&self, key: &FlowKey) -> bool {
        match key.frame_class() {
            FrameClass::Neighbour if self.knows_addresses() => true,
            FrameClass::Neighbour | FrameClass::NeighbourRequest => {
                self.answers && key.dmac().is_multicast()
            }
            _ => false,
        }
    }

    /// Checks a frame.
    pub(crate) fn check(&self, bound: &Bindings, key: &FlowKey) -> CheckResult {
        if self.lets_all_pass() {
            return (None, FlowMask::NONE);
        }
        let forbidden = |reason| (Some(reason), FlowMask::NONE);
        if !self.may_send_as(bound, key.smac()) {
            return forbidden(DropReason::SpoofedMac);
        }
        match key.frame_class() {
            FrameClass::DhcpServer if self.no_dhcp_server => forbidden(DropReason::DhcpServer),
            FrameClass::Router if self.no_router => forbidden(DropReason::RouterAdvert),
            FrameClass::SpoofedNeighbour if self.drops_spoofed_neighbours() => {
                forbidden(DropReason::SpoofedNeighbour)
            }
            FrameClass::Unparseable => forbidden(DropReason::Unparseable),
            _ if self.knows_addresses() => self.check_addresses(bound, key),
            _ => (None, FlowMask::NONE),
        }
    }

    /// Returns whether contradicting neighbour messages are dropped. A guest with many addresses,
    /// such as a bridge or a VRRP router (RFC 5798, 8.1.2), may also answer for others.
    fn drops_spoofed_neighbours(&self) -> bool {
        self.macs != Macs::Any || self.knows_addresses()
    }

    fn may_send_as(&self, bound: &Bindings, mac: MacAddr) -> bool {
        match &self.macs {
            Macs::Any => true,
            Macs::Learned => bound.mac.is_none_or(|own| own == mac.0),
            Macs::Only(macs) => macs.contains(&mac.0),
        }
    }

    /// Returns whether the port's guest may claim an address as its own.
    #[must_use]
    pub fn may_claim(&self, bound: &Bindings, address: IpAddr) -> bool {
        let networks = match &self.addresses {
            Addresses::Any => return true,
            Addresses::Learned => &[][..],
            Addresses::Only(networks) => networks,
        };
        if networks.iter().any(|network| network.contains(address)) {
            return true;
        }
        self.slot(bound, address)
            .is_some_and(|own| own.is_none_or(|own| own == address))
    }

    /// Returns the binding that an address would use: the inner option is the address bound there
    /// now. `None`: it is not learned at this port.
    fn slot(&self, bound: &Bindings, address: IpAddr) -> Option<Option<IpAddr>> {
        let learned = self.addresses == Addresses::Learned;
        match address {
            _ if address.is_unspecified() || address.is_multicast() => None,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => self
                .learns_link_local()
                .then(|| bound.link_local.map(IpAddr::V6)),
            IpAddr::V6(_) => learned.then(|| bound.v6.map(IpAddr::V6)),
            IpAddr::V4(_) => learned.then(|| bound.v4.map(IpAddr::V4)),
        }
    }

    fn learns_link_local(&self) -> bool {
        match &self.addresses {
            Addresses::Any => false,
            Addresses::Learned => true,
            Addresses::Only(networks) => !networks.iter().any(Network::is_link_local),
        }
    }

    /// Returns the bindings after a frame with this source address or claim has passed.
    #[must_use]
    pub fn bind(&self, bound: &Bindings, key: &FlowKey, claims: Option<Ipv6Addr>) -> Bindings {
        let mut new = *bound;
        if self.macs == Macs::Learned {
            new.mac.get_or_insert(key.smac().0);
        }
        for address in source(key).into_iter().chain(claims.map(IpAddr::V6)) {
            if self.slot(&new, address) == Some(None) {
                match address {
                    IpAddr::V4(v4) => new.v4 = Some(v4),
                    IpAddr::V6(v6) if v6.is_unicast_link_local() => new.link_local = Some(v6),
                    IpAddr::V6(v6) => new.v6 = Some(v6),
                }
            }
        }
        new
    }

    fn check_addresses(&self, bound: &Bindings, key: &FlowKey) -> CheckResult {
        let mask = FlowMask::NONE.with_ethertype();
        let Some(source) = source(key) else {
            // Neither ARP nor IP, or the header is incomplete.
            return match key.ethertype() {
                EtherType::IPV4 | EtherType::IPV6 => {
                    (Some(DropReason::SpoofedIp), mask.with_state())
                }
                EtherType::ARP => (Some(DropReason::SpoofedNeighbour), mask.with_state()),
                _ => (None, mask),
            };
        };
        let arp = key.ethertype() == EtherType::ARP;
        let mask = mask.with_state();
        if source.is_unspecified() {
            return self.check_unaddressed(bound, key, mask.with_src_ip());
        }
        let mask = mask.union(&self.bits_that_decide(bound, source));
        match (self.may_claim(bound, source), arp) {
            (true, _) => (None, mask),
            (false, true) => (Some(DropReason::SpoofedNeighbour), mask),
            (false, false) => (Some(DropReason::SpoofedIp), mask),
        }
    }

    /// Checks a frame of a guest that has no address yet.
    fn check_unaddressed(&self, bound: &Bindings, key: &FlowKey, mask: FlowMask) -> CheckResult {
        let mask = mask.with_ip_proto().with_dst_ip();
        match key.ethertype() {
            EtherType::ARP => {
                // RFC 5227, 2.1.1: an address probe counts as a claim of the probed address.
                let desired = IpAddr::V4(Ipv4Addr::from_bits(key.dst_ip() as u32));
                if self.may_claim(bound, desired) {
                    (None, mask)
                } else {
                    (Some(DropReason::SpoofedNeighbour), mask)
                }
            }
            EtherType::IPV4 => {
                let mask = mask.with_l4_src().with_l4_dst();
                let asks = key.ip_proto() == udp::PROTOCOL
                    && (key.l4_src(), key.l4_dst()) == (DHCP_CLIENT, DHCP_SERVER)
                    && key.dst_ip() == u128::from(u32::MAX)
                    && key.state().is_empty();
                permit(asks, mask)
            }
            _ => {
                let mask = mask.with_l4_flags();
                let kind = (key.l4_flags() >> 8) as u8;
                let alone = key.ip_proto() == ICMPV6 && key.state().is_empty();
                let known =
                    WITHOUT_ADDRESS.contains(&kind) || key.frame_class() == FrameClass::Neighbour;
                permit(alone && known, mask)
            }
        }
    }

    /// Returns as many first bits of an address as all addresses share that are decided in the same
    /// way.
    fn bits_that_decide(&self, bound: &Bindings, address: IpAddr) -> FlowMask {
        let (levels, width) = match address {
            IpAddr::V4(_) => (LEVELS_V4, 32),
            IpAddr::V6(_) => (LEVELS_V6, 128),
        };
        let apart = |level: u8| self.is_decided_by(bound, Network::around(address, level));
        let level = levels.into_iter().find(|level| apart(*level));
        let bits = u128::MAX << (128 - u32::from(level.unwrap_or(width)));
        FlowMask::NONE.with_src_ip_bits(bits >> (128 - u32::from(width)))
    }

    /// Returns whether all addresses of a network are decided in the same way.
    fn is_decided_by(&self, bound: &Bindings, all: Network) -> bool {
        if all.is_host() {
            return true;
        }
        let listed = match &self.addresses {
            Addresses::Only(networks) => networks.as_slice(),
            _ => &[],
        };
        // Addresses that are decided one by one.
        let special = Network::SPECIAL.into_iter().any(|one| one.meets(&all));
        let is_bound = bound.addresses().any(|own| all.contains(own));
        let within = listed.iter().any(|network| network.covers(&all));
        let apart = !listed.iter().any(|network| network.meets(&all));
        !special && (within || (apart && !is_bound && !self.awaits(&all, bound)))
    }

    /// Returns whether the first address seen of such a network will be bound: until then each is
    /// an upcall.
    fn awaits(&self, all: &Network, bound: &Bindings) -> bool {
        let is_open = if all.is_v4() {
            bound.v4.is_none()
        } else {
            bound.v6.is_none()
        };
        self.addresses == Addresses::Learned && is_open
    }
}

fn permit(yes: bool, mask: FlowMask) -> CheckResult {
    if yes {
        (None, mask)
    } else {
        (Some(DropReason::SpoofedIp), mask)
    }
}

/// Returns the source address of IP or ARP; `None` for other and malformed frames.
fn source(key: &FlowKey) -> Option<IpAddr> {
    if key.state().contains(KeyState::L3_MALFORMED) {
        return None;
    }
    match key.ethertype() {
        EtherType::IPV4 | EtherType::ARP => {
            Some(IpAddr::V4(Ipv4Addr::from_bits(key.src_ip() as u32)))
        }
        EtherType::IPV6 => Some(IpAddr::V6(Ipv6Addr::from_bits(key.src_ip()))),
        _ => None,
    }
}

/// Port security by port; a port without an entry has the default.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortSecurityTable(Vec<PortSecurity>);

impl FromIterator<(PortId, PortSecurity)> for PortSecurityTable {
    fn from_iter<T: IntoIterator<Item = (PortId, PortSecurity)>>(all: T) -> Self {
        let mut port_security = Vec::new();
        for (port, security) in all.into_iter().filter(|(_, security)| !security.is_open()) {
            let at = port.0 as usize;
            port_security.resize(port_security.len().max(at + 1), PortSecurity::default());
            port_security[at] = security;
        }
        Self(port_security)
    }
}

impl PortSecurityTable {
    const OPEN: &'static PortSecurity = &PortSecurity {
        macs: Macs::Any,
        addresses: Addresses::Any,
        no_dhcp_server: false,
        no_router: false,
        answers: false,
    };

    /// Returns the ports with another port security.
    pub(crate) fn changed<'a>(&'a self, old: &'a Self) -> impl Iterator<Item = PortId> + 'a {
        let ports = (0..self.0.len().max(old.0.len())).map(|at| PortId(at as u32));
        ports.filter(|port| self.of(*port) != old.of(*port))
    }

    /// Returns the port security of a port.
    #[inline]
    #[must_use]
    pub fn of(&self, port: PortId) -> &PortSecurity {
        self.0.get(port.0 as usize).unwrap_or(Self::OPEN)
    }
}
