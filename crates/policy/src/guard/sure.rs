//! Whose an address is for sure, so that a question for it can be answered in its owner's place.

use std::net::IpAddr;

use wire::MacAddr;

use super::{Addresses, Bound, Guard, Macs, Network};

/// Whose an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its station.
    pub mac: MacAddr,
    /// The address is in the list of the guard, and not just what the guest was heard to say first.
    pub listed: bool,
}

impl Guard {
    /// The station of the port's guest, if the guest surely has this address and is the only one who may say so there: it has one
    /// address of Ethernet, and this one is in its list by itself, or was bound. A network is no answer, and where the guest may be an
    /// IPv6 router nobody else can say whether it is one, as every advertisement must (RFC 4861, 4.4).
    #[must_use]
    pub fn surely(&self, bound: &Bound, address: IpAddr) -> Option<Owner> {
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

    /// The addresses that are listed by themselves.
    pub fn listed(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let networks = match &self.addresses {
            Addresses::Only(networks) => networks.as_slice(),
            Addresses::Any | Addresses::Learned => &[],
        };
        networks.iter().filter_map(Network::host)
    }
}
