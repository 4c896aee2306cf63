//! Guards: who a port's guest may claim to be, and what only servers and routers may send.
//!
//! What a frame says of itself, and that it does not contradict itself, is in its key already ([`wire::Conduct`]): so a
//! guard that knows addresses of Ethernet only looks at nothing that every decision does not look at. One that knows IP
//! addresses looks at the source of IP and ARP, as few bits of it as tell it from the ones that are allowed.

mod network;
mod sure;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use port::{DropReason, PortId};
use serde::{Deserialize, Serialize};
use wire::flow::KeyState;
use wire::{Conduct, EtherType, FlowKey, FlowMask, MacAddr, udp};

pub use network::Network;
pub use sure::Owner;

/// Source addresses of Ethernet.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Macs {
    /// All of them.
    #[default]
    Any,
    /// The first one that is heard, see [`Bound`].
    Learned,
    /// These.
    Only(Vec<[u8; 6]>),
}

/// Source addresses of IP, and what ARP and neighbour discovery claim.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Addresses {
    /// All of them.
    #[default]
    Any,
    /// The first ones that are heard, see [`Bound`].
    Learned,
    /// Those of these networks; besides, one link-local address of IPv6, which every host gives itself (RFC 4291, 2.1): the
    /// first one that is heard, unless the networks have any.
    Only(Vec<Network>),
}

/// What a port's guest may send. The [`Default`] guard lets everything pass.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Guard {
    /// Whose frames.
    pub macs: Macs,
    /// Whose packets.
    pub addresses: Addresses,
    /// No messages of DHCP servers.
    pub no_dhcp_server: bool,
    /// No advertisements and redirects of routers.
    pub no_router: bool,
    /// A segment of the port answers questions who has an address, for owners that are known for sure. That forbids nothing.
    pub answers: bool,
}

/// The addresses that were heard first at a port where they are learned once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Bound {
    /// Of Ethernet.
    pub mac: Option<[u8; 6]>,
    /// Of IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Of IPv6, link-local.
    pub link_local: Option<Ipv6Addr>,
    /// Of IPv6 otherwise.
    pub v6: Option<Ipv6Addr>,
}

impl Bound {
    /// The addresses of IP.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v6 = [self.link_local, self.v6].map(|v6| v6.map(IpAddr::V6));
        self.v4
            .map(IpAddr::V4)
            .into_iter()
            .chain(v6.into_iter().flatten())
    }
}

/// Bits of an address that count: as few as decide, but of few different numbers, because each makes a mask.
const LEVELS_V4: [u8; 4] = [8, 16, 24, 32];
const LEVELS_V6: [u8; 4] = [8, 32, 64, 128];
/// A client that has no address yet, its server, and whom it asks (RFC 2131, 4.1).
const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;
/// ICMPv6 types that a host sends before it has an address: to ask for a router (RFC 4861, 4.1), and to say which groups
/// it is in (RFC 3590, RFC 3810).
const WITHOUT_ADDRESS: [u8; 4] = [131, 132, 133, 143];
/// ICMPv6.
const ICMPV6: u8 = 58;

/// What a guard says: why the frame is dropped if it is, and the part of the key that it looked at.
pub(crate) type Said = (Option<DropReason>, FlowMask);

impl Guard {
    /// Whether everything passes, and nothing is answered: what frames do need not be known.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.lets_all_pass() && !self.answers
    }

    fn lets_all_pass(&self) -> bool {
        let forbids = self.no_dhcp_server || self.no_router;
        self.macs == Macs::Any && !self.knows_addresses() && !forbids
    }

    /// Whether it looks at more than addresses of Ethernet.
    fn knows_addresses(&self) -> bool {
        self.addresses != Addresses::Any
    }

    /// Whether frames with this key are decided one by one, because what they claim or ask is in no flow key.
    #[must_use]
    pub fn asks_one_by_one(&self, key: &FlowKey) -> bool {
        match key.conduct() {
            Conduct::Neighbour if self.knows_addresses() => true,
            Conduct::Neighbour | Conduct::Question => self.answers && key.dmac().is_multicast(),
            _ => false,
        }
    }

    /// Asks about a frame.
    pub(crate) fn check(&self, bound: &Bound, key: &FlowKey) -> Said {
        if self.lets_all_pass() {
            return (None, FlowMask::NONE);
        }
        let forbidden = |reason| (Some(reason), FlowMask::NONE);
        if !self.may_send_as(bound, key.smac()) {
            return forbidden(DropReason::SpoofedMac);
        }
        match key.conduct() {
            Conduct::DhcpServer if self.no_dhcp_server => forbidden(DropReason::DhcpServer),
            Conduct::Router if self.no_router => forbidden(DropReason::RouterAdvert),
            Conduct::FalseNeighbour if self.asks_neighbours() => {
                forbidden(DropReason::SpoofedNeighbour)
            }
            Conduct::Unreadable => forbidden(DropReason::Unreadable),
            _ if self.knows_addresses() => self.check_addresses(bound, key),
            _ => (None, FlowMask::NONE),
        }
    }

    /// A guest that speaks for many addresses, as a bridge does or VRRP (RFC 5798, 8.1.2), answers for others, too.
    fn asks_neighbours(&self) -> bool {
        self.macs != Macs::Any || self.knows_addresses()
    }

    fn may_send_as(&self, bound: &Bound, mac: MacAddr) -> bool {
        match &self.macs {
            Macs::Any => true,
            Macs::Learned => bound.mac.is_none_or(|own| own == mac.0),
            Macs::Only(macs) => macs.contains(&mac.0),
        }
    }

    /// Whether the port's guest may say that an address is its own.
    #[must_use]
    pub fn may_claim(&self, bound: &Bound, address: IpAddr) -> bool {
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

    /// Where an address would be bound, and what is bound there. `None`: it is not learned at this port.
    fn slot(&self, bound: &Bound, address: IpAddr) -> Option<Option<IpAddr>> {
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

    /// What is bound when a frame has passed that came from this address, or claimed it.
    #[must_use]
    pub fn bind(&self, bound: &Bound, key: &FlowKey, claims: Option<Ipv6Addr>) -> Bound {
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

    fn check_addresses(&self, bound: &Bound, key: &FlowKey) -> Said {
        let mask = FlowMask::NONE.with_ethertype();
        let Some(source) = source(key) else {
            // Neither ARP nor IP; or that is all that is known of it.
            return match key.ethertype() {
                EtherType::IPV4 | EtherType::IPV6 => {
                    (Some(DropReason::SpoofedAddress), mask.with_state())
                }
                EtherType::ARP => (Some(DropReason::SpoofedNeighbour), mask.with_state()),
                _ => (None, mask),
            };
        };
        let arp = key.ethertype() == EtherType::ARP;
        let mask = mask.with_state();
        if source.is_unspecified() {
            return self.check_nobody(bound, key, mask.with_src_ip());
        }
        let mask = mask.union(&self.bits_that_decide(bound, source));
        match (self.may_claim(bound, source), arp) {
            (true, _) => (None, mask),
            (false, true) => (Some(DropReason::SpoofedNeighbour), mask),
            (false, false) => (Some(DropReason::SpoofedAddress), mask),
        }
    }

    /// A frame of a guest that has no address yet.
    fn check_nobody(&self, bound: &Bound, key: &FlowKey, mask: FlowMask) -> Said {
        let mask = mask.with_ip_proto().with_dst_ip();
        match key.ethertype() {
            EtherType::ARP => {
                // RFC 5227, 2.1.1: who asks whether an address is taken is taken for one who wants it.
                let wanted = IpAddr::V4(Ipv4Addr::from_bits(key.dst_ip() as u32));
                match self.may_claim(bound, wanted) {
                    true => (None, mask),
                    false => (Some(DropReason::SpoofedNeighbour), mask),
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
                let known = WITHOUT_ADDRESS.contains(&kind) || key.conduct() == Conduct::Neighbour;
                permit(alone && known, mask)
            }
        }
    }

    /// As many of an address's first bits as all addresses share that are decided in the same way.
    fn bits_that_decide(&self, bound: &Bound, address: IpAddr) -> FlowMask {
        let (levels, width) = match address {
            IpAddr::V4(_) => (LEVELS_V4, 32),
            IpAddr::V6(_) => (LEVELS_V6, 128),
        };
        let apart = |level: u8| self.is_decided_by(bound, Network::around(address, level));
        let level = levels.into_iter().find(|level| apart(*level));
        let bits = u128::MAX << (128 - u32::from(level.unwrap_or(width)));
        FlowMask::NONE.with_src_ip_bits(bits >> (128 - u32::from(width)))
    }

    /// Whether all addresses of a network are decided in the same way.
    fn is_decided_by(&self, bound: &Bound, all: Network) -> bool {
        if all.is_host() {
            return true;
        }
        let listed = match &self.addresses {
            Addresses::Only(networks) => networks.as_slice(),
            _ => &[],
        };
        // Those that are decided one by one.
        let special = Network::SPECIAL.into_iter().any(|one| one.meets(&all));
        let is_bound = bound.addresses().any(|own| all.contains(own));
        let within = listed.iter().any(|network| network.covers(&all));
        let apart = !listed.iter().any(|network| network.meets(&all));
        !special && (within || (apart && !is_bound && !self.awaits(&all, bound)))
    }

    /// Whether the first address that is heard of such a network will be bound: until then each is asked about.
    fn awaits(&self, all: &Network, bound: &Bound) -> bool {
        let is_open = match all.is_v4() {
            true => bound.v4.is_none(),
            false => bound.v6.is_none(),
        };
        self.addresses == Addresses::Learned && is_open
    }
}

fn permit(yes: bool, mask: FlowMask) -> Said {
    match yes {
        true => (None, mask),
        false => (Some(DropReason::SpoofedAddress), mask),
    }
}

/// Where IP or ARP says that it comes from; `None` for what is neither, or is malformed.
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

/// Guards by port; who is not named has an open one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Guards(Vec<Guard>);

impl FromIterator<(PortId, Guard)> for Guards {
    fn from_iter<T: IntoIterator<Item = (PortId, Guard)>>(all: T) -> Self {
        let mut guards = Vec::new();
        for (port, guard) in all.into_iter().filter(|(_, guard)| !guard.is_open()) {
            let at = port.0 as usize;
            guards.resize(guards.len().max(at + 1), Guard::default());
            guards[at] = guard;
        }
        Self(guards)
    }
}

impl Guards {
    const OPEN: &'static Guard = &Guard {
        macs: Macs::Any,
        addresses: Addresses::Any,
        no_dhcp_server: false,
        no_router: false,
        answers: false,
    };

    /// The ports whose guard is another.
    pub(crate) fn changed<'a>(&'a self, old: &'a Self) -> impl Iterator<Item = PortId> + 'a {
        let ports = (0..self.0.len().max(old.0.len())).map(|at| PortId(at as u32));
        ports.filter(|port| self.of(*port) != old.of(*port))
    }

    /// A port's guard.
    #[inline]
    #[must_use]
    pub fn of(&self, port: PortId) -> &Guard {
        self.0.get(port.0 as usize).unwrap_or(Self::OPEN)
    }
}
