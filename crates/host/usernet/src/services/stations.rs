//! Stations of guests by their addresses, for connections to guests that come from outside. They
//! are learned from what guests say of themselves in ARP and neighbour discovery. The last one to
//! claim an address has it, as in any neighbour cache: port security keeps guests from claiming
//! those of others. A lease decides before them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use wire::MacAddr;

use crate::Nanos;

/// Maximum number of addresses, in all and of one station.
const ADDRESSES_MAX: usize = 1024;
const STATION_MAX: usize = 16;
/// Time after which an address is forgotten, unless it is claimed again.
const KNOWN: Nanos = 600_000_000_000;

#[derive(Clone, Copy, Debug)]
struct KnownStation {
    mac: MacAddr,
    until: Nanos,
}

/// The stations.
#[derive(Clone, Debug, Default)]
pub(super) struct Stations {
    known: BTreeMap<IpAddr, KnownStation>,
}

impl Stations {
    /// A station says that it has an address. At a bound it takes the place of the oldest: of the
    /// station itself, or of all.
    pub(super) fn learn(&mut self, mac: MacAddr, address: IpAddr, now: Nanos) {
        self.known.remove(&address);
        let own = |known: &KnownStation| known.mac == mac;
        if self.known.values().filter(|known| own(known)).count() >= STATION_MAX {
            self.forget_oldest(own);
        } else if self.known.len() >= ADDRESSES_MAX {
            self.forget_oldest(|_| true);
        }
        let until = now.saturating_add(KNOWN);
        self.known.insert(address, KnownStation { mac, until });
    }

    fn forget_oldest(&mut self, of: impl Fn(&KnownStation) -> bool) {
        let all = self.known.iter().filter(|(_, known)| of(known));
        let oldest = all.min_by_key(|(_, known)| known.until);
        if let Some(address) = oldest.map(|(address, _)| *address) {
            self.known.remove(&address);
        }
    }

    /// Returns whether a station has claimed an address since then, and none after it.
    pub(super) fn was_heard(&self, address: IpAddr, mac: MacAddr, since: Nanos) -> bool {
        let known = self.known.get(&address);
        known.is_some_and(|known| known.mac == mac && known.until >= since.saturating_add(KNOWN))
    }

    /// Returns the station at an address.
    pub(super) fn at(&self, address: IpAddr, now: Nanos) -> Option<MacAddr> {
        let known = self.known.get(&address)?;
        (known.until > now).then_some(known.mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0200 + number).into()
    }

    #[test]
    fn a_station_takes_no_place_of_another() {
        let (one, other) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let mut stations = Stations::default();
        stations.learn(other, address(1000), 0);
        (0..100).for_each(|n| stations.learn(one, address(n), 1 + u64::from(n)));
        assert_eq!(stations.known.len(), 1 + STATION_MAX);
        assert_eq!(stations.at(address(1000), 5), Some(other));
        assert_eq!(stations.at(address(83), 5), None);
        assert_eq!(stations.at(address(84), 5), Some(one));
        // The last one to claim it has it.
        stations.learn(other, address(99), 200);
        assert_eq!(stations.at(address(99), 200), Some(other));
        assert_eq!(stations.at(address(99), 200 + KNOWN), None);
    }

    #[test]
    fn addresses_are_bounded() {
        let mut stations = Stations::default();
        for n in 0..2000u32 {
            let [_, _, a, b] = n.to_be_bytes();
            stations.learn(MacAddr([2, 0, 0, 0, a, b]), address(n), n.into());
        }
        assert_eq!(stations.known.len(), ADDRESSES_MAX);
        assert!(stations.at(address(975), 0).is_none() && stations.at(address(976), 0).is_some());
    }
}
