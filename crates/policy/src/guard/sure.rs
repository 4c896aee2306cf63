//! Whose an address is for sure, so that a question for it can be answered in its owner's place.

use std::net::IpAddr;

use wire::MacAddr;

use super::{Addresses, Bound, Guard, Macs, Network};

impl Guard {
    /// The station of the port's guest, if the guest surely has this address and is the only one who may say so there: it has one
    /// address of Ethernet, and this one is in its list by itself, or was bound. A network is no answer, and where the guest may be an
    /// IPv6 router nobody else can say whether it is one, as every advertisement must (RFC 4861, 4.4).
    #[must_use]
    pub fn surely(&self, bound: &Bound, address: IpAddr) -> Option<MacAddr> {
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
        let alone = |network: &Network| network.is_host() && network.contains(address);
        let listed = match &self.addresses {
            Addresses::Any => return None,
            Addresses::Learned => false,
            Addresses::Only(networks) => networks.iter().any(alone),
        };
        let v6 = [bound.link_local, bound.v6].map(|v6| v6.map(IpAddr::V6));
        let is_bound = v6.contains(&Some(address)) || bound.v4.map(IpAddr::V4) == Some(address);
        owner.filter(|_| listed || is_bound).map(MacAddr)
    }
}
