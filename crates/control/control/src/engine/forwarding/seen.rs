//! MAC address from which an IP address was seen last. It completes trace requests that leave
//! addresses out.
//!
//! One decision depends on it: a contested neighbour request is flooded (see
//! `neighbour_proxy.rs`). Guests control the contents, so the table has a fixed size: a
//! set-associative cache that replaces the entry that was not seen for the longest time.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use policy::SegmentId;
use wire::{EtherType, FlowKey, MacAddr};

/// Entries in a set: up to this many addresses never evict each other, and of a thousand hardly two
/// do.
const WAYS: usize = 8;
/// Number of sets.
const SETS: usize = 512;

/// An IP address, and the MAC address that it was seen with.
#[derive(Clone, Copy, Debug)]
struct Entry {
    of: Address,
    mac: MacAddr,
    at: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Address {
    segment: SegmentId,
    /// The address as in a flow key.
    bits: u128,
    is_v6: bool,
}

/// Cache of IP addresses; see the module documentation.
#[derive(Debug, Default)]
pub(in crate::engine) struct SeenAddresses {
    /// Empty at first, then [`SETS`].
    sets: Vec<[Option<Entry>; WAYS]>,
    hasher: RandomState,
}

impl SeenAddresses {
    /// Records the source of a frame whose MAC address may be learned in the segment.
    pub(in crate::engine) fn note(&mut self, at: Duration, segment: SegmentId, key: &FlowKey) {
        let is_v6 = match key.ethertype() {
            EtherType::IPV4 | EtherType::ARP => false,
            EtherType::IPV6 => true,
            _ => return,
        };
        let (bits, mac) = (key.src_ip(), key.smac());
        // Hosts without an address yet send from this one.
        if bits == 0 {
            return;
        }
        if self.sets.is_empty() {
            self.sets = vec![[None; WAYS]; SETS];
        }
        let of = Address {
            segment,
            bits,
            is_v6,
        };
        let set = self.set_of(&of);
        let set = &mut self.sets[set];
        let had = set
            .iter()
            .position(|place| place.is_some_and(|p| p.of == of));
        let free = || set.iter().position(Option::is_none);
        let oldest = || (0..WAYS).min_by_key(|way| set[*way].map(|place| place.at));
        if let Some(way) = had.or_else(free).or_else(oldest) {
            set[way] = Some(Entry { of, mac, at });
        }
    }

    /// Returns the MAC address from which an IP address was seen last, and when.
    pub(in crate::engine) fn find(
        &self,
        segment: SegmentId,
        address: IpAddr,
    ) -> Option<(MacAddr, Duration)> {
        let (bits, is_v6) = match address {
            IpAddr::V4(v4) => (v4.to_bits().into(), false),
            IpAddr::V6(v6) => (v6.to_bits(), true),
        };
        let of = Address {
            segment,
            bits,
            is_v6,
        };
        let set = self.sets.get(self.set_of(&of))?;
        let found = set.iter().flatten().find(|place| place.of == of)?;
        Some((found.mac, found.at))
    }

    fn set_of(&self, of: &Address) -> usize {
        self.hasher.hash_one(of) as usize % SETS
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SEGMENT: SegmentId = SegmentId(1);

    fn note(seen: &mut SeenAddresses, second: u64, address: u32, mac: u8) {
        let key = FlowKey::default()
            .with_ethertype(EtherType::IPV4)
            .with_src_ip(address.into())
            .with_smac(MacAddr([2, 0, 0, 0, 0, mac]));
        seen.note(Duration::from_secs(second), SEGMENT, &key);
    }

    fn mac_of(seen: &SeenAddresses, address: u32) -> Option<u8> {
        let (mac, _) = seen.find(SEGMENT, Ipv4Addr::from(address).into())?;
        Some(mac.0[5])
    }

    #[test]
    fn a_few_addresses_are_never_in_each_others_way() {
        // The sets are others in each round.
        for _ in 0..200 {
            let mut seen = SeenAddresses::default();
            (1..=8).for_each(|n| note(&mut seen, 1, n, n as u8));
            (1..=8).for_each(|n| assert_eq!(mac_of(&seen, n), Some(n as u8)));
            assert_eq!(mac_of(&seen, 9), None);
        }
    }

    #[test]
    fn the_last_sender_has_the_address_and_the_oldest_entry_is_evicted() {
        let mut seen = SeenAddresses::default();
        note(&mut seen, 1, 7, 1);
        note(&mut seen, 2, 7, 2);
        assert_eq!(mac_of(&seen, 7), Some(2));
        let many = (WAYS * SETS) as u32;
        (1000..1000 + 20 * many).for_each(|n| note(&mut seen, 3, n, 3));
        assert_eq!(mac_of(&seen, 7), None);
        note(&mut seen, 4, 7, 4);
        assert_eq!(mac_of(&seen, 7), Some(4));
        assert_eq!(seen.sets.len(), SETS);
    }
}
