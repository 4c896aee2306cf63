//! Unambiguous owners of IP addresses, for neighbour suppression.

use std::net::IpAddr;

use wire::MacAddr;

use super::{Addresses, Bindings, Macs, Network, PortSecurity};

/// Owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its MAC address.
    pub mac: MacAddr,
    /// The address is configured, and not just learned (sticky).
    pub listed: bool,
}

impl PortSecurity {
    /// Returns the guest of the port as the owner of this address, if the address is unambiguously
    /// its own: the guest has one MAC address, and the IP address is listed by itself, or bound. A
    /// network does not suffice; and where the guest may be an IPv6 router the switch does not know
    /// whether it is one, which every advertisement states (RFC 4861, 4.4).
    #[must_use]
    pub fn owner_of(&self, bound: &Bindings, address: IpAddr) -> Option<Owner> {
        if address.is_ipv6() && !self.no_router {
            return None;
        }
        let owner = match &self.macs {
            Macs::Any => None,
            Macs::Learned => bound.mac,
            Macs::Only(macs) => match macs.as_slice() {
                [one] => Some(*one),
                _ => None,
            },
        };
        let listed = self.listed().any(|own| own == address);
        let is_bound = self.knows_addresses() && bound.addresses().any(|own| own == address);
        let owner = owner.filter(|_| listed || is_bound).map(MacAddr);
        owner.map(|mac| Owner { mac, listed })
    }

    /// Returns the addresses that are listed by themselves.
    pub fn listed(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let networks = match &self.addresses {
            Addresses::Only(networks) => networks.as_slice(),
            Addresses::Any | Addresses::Learned => &[],
        };
        networks.iter().filter_map(Network::host)
    }
}
