//! Lease records live in supervisor memory, after the flow records, so that leases outlive the
//! process.
//!
//! A lease has one record as long as it lasts. A successor reads the records as if an enemy had
//! written them.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use ipc::driving::{FLOW_RECORD, LEASE_RECORD, LEASES_KEPT};
use usernet::Nanos;
use usernet::services::{LEASE_TIME, LEASES_MAX, Lease, Leases};
use wire::MacAddr;

use super::kept::Records;

const _: () = assert!(LEASES_KEPT as usize == LEASES_MAX);
/// Version of the encoding.
const VERSION: u8 = 1;

/// See the module.
#[derive(Debug)]
pub(crate) struct KeptLeases {
    records: Records<LEASE_RECORD>,
    /// Number of each station's record.
    places: BTreeMap<MacAddr, u32>,
    free: Vec<u32>,
}

/// Returns the record of a lease: version and station, address, end; a word each.
fn encode(
    Lease {
        mac,
        address,
        until,
    }: Lease,
) -> [u8; LEASE_RECORD] {
    let mut record = [0; LEASE_RECORD];
    record[0] = VERSION;
    record[2..8].copy_from_slice(&mac.0);
    record[8..12].copy_from_slice(&address.octets());
    record[16..].copy_from_slice(&until.to_le_bytes());
    record
}

/// Reads a record; whether there may be such a lease is for [`Leases::restore`] to check.
fn decode(record: &[u8; LEASE_RECORD]) -> Option<Lease> {
    let byte = |at: usize| record[at];
    (record[0] == VERSION).then(|| Lease {
        mac: MacAddr(std::array::from_fn(|i| byte(2 + i))),
        address: Ipv4Addr::from(std::array::from_fn::<_, 4, _>(|i| byte(8 + i))),
        until: u64::from_le_bytes(std::array::from_fn(|i| byte(16 + i))),
    })
}

impl KeptLeases {
    /// Maps the leases of a file after its `flows` flow records.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new(file: &OwnedFd, slots: u32) -> io::Result<Self> {
        let flows = u64::from(slots) * FLOW_RECORD as u64;
        let records = Records::at(file, flows, LEASES_KEPT).map_err(io::Error::other)?;
        Ok(Self {
            records,
            places: BTreeMap::new(),
            free: (0..LEASES_KEPT).rev().collect(),
        })
    }

    /// Continues the leases of a predecessor, as far as their records are sound.
    pub(super) fn restore(&mut self, leases: &mut Leases, now: Nanos) {
        self.free.clear();
        for place in (0..LEASES_KEPT).rev() {
            if let Some(lease) = decode(&self.records.read(place))
                && lease.until > now
                && !self.places.contains_key(&lease.mac)
            {
                let until = lease.until.min(now.saturating_add(LEASE_TIME));
                leases.restore(Lease { until, ..lease });
                if leases.of(lease.mac).is_some() {
                    self.places.insert(lease.mac, place);
                    continue;
                }
            }
            self.clear(place);
        }
        self.follow(leases);
    }

    /// Writes what has changed.
    pub(super) fn follow(&mut self, leases: &mut Leases) {
        let changed = leases.take_changed();
        // Those that are gone first: their records may be needed.
        for mac in &changed {
            if leases.of(*mac).is_none()
                && let Some(place) = self.places.remove(mac)
            {
                self.clear(place);
            }
        }
        for mac in changed {
            let Some(lease) = leases.of(mac) else {
                continue;
            };
            let known = self.places.get(&mac).copied();
            if let Some(place) = known.or_else(|| self.free.pop()) {
                self.places.insert(mac, place);
                self.write(place, lease);
            }
        }
    }

    /// Writes a record. Meanwhile there is none.
    fn write(&self, place: u32, lease: Lease) {
        self.records.clear(place);
        self.records.write(place, &encode(lease));
    }

    fn clear(&mut self, place: u32) {
        self.records.clear(place);
        self.free.push(place);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;
    use usernet::network::Network;

    use super::*;

    const SLOTS: u32 = 2;
    const NOW: Nanos = 1_000_000_000_000;

    fn network() -> Network {
        let prefix = "10.0.2.0/24".parse().unwrap();
        Network::new(prefix, None, MacAddr([2, 0, 0, 0, 0, 1]), 1500).unwrap()
    }

    fn file() -> OwnedFd {
        sys::file::fixed("records", ipc::driving::records_len(SLOTS)).unwrap()
    }

    fn mac(last: u8) -> MacAddr {
        MacAddr([0x52, 0x54, 0, 0, 0, last])
    }

    fn give(leases: &mut Leases, mac: MacAddr, now: Nanos) -> Ipv4Addr {
        let address = leases.address_of(mac, None, now).unwrap();
        leases.lease(mac, address, now);
        address
    }

    /// The leases that a new process has.
    fn restored(file: &OwnedFd, now: Nanos) -> Leases {
        let mut leases = Leases::new(network());
        let mut kept = KeptLeases::new(file, SLOTS).unwrap();
        kept.restore(&mut leases, now);
        assert_eq!(leases.take_changed(), []);
        leases
    }

    #[test]
    fn sample_of_a_lease() {
        let lease = Lease {
            mac: mac(9),
            address: [10, 0, 2, 15].into(),
            until: NOW,
        };
        let here = env!("CARGO_MANIFEST_DIR");
        let sample = testkit::samples::sample(here, "lease.bin", VERSION.into(), &encode(lease));
        assert_eq!(decode(sample[..].try_into().unwrap()), Some(lease));
    }

    #[test]
    fn leases_outlive_the_process_with_their_time() {
        let file = file();
        let (mut leases, mut kept) = (
            Leases::new(network()),
            KeptLeases::new(&file, SLOTS).unwrap(),
        );
        for last in 0..5 {
            give(&mut leases, mac(last), NOW);
        }
        kept.follow(&mut leases);
        // One is renewed, and one is given back.
        give(&mut leases, mac(1), NOW + 10);
        let address = leases.of(mac(2)).unwrap().address;
        leases.release(mac(2), address, NOW + 10);
        kept.follow(&mut leases);
        let after = restored(&file, NOW + 20);
        let expected: Vec<Lease> = leases.iter().filter(|lease| lease.mac != mac(2)).collect();
        assert_eq!(after.iter().collect::<Vec<_>>(), expected);
        assert_eq!(after.iter().count(), 4);
        assert_eq!(restored(&file, NOW + 20 + LEASE_TIME).iter().count(), 0);
    }

    #[test]
    fn a_lease_that_makes_room_leaves_no_record() {
        let prefix = "10.0.0.0/16".parse().unwrap();
        let wide = Network::new(prefix, None, MacAddr([2, 0, 0, 0, 0, 1]), 1500).unwrap();
        let file = file();
        let (mut leases, mut kept) = (Leases::new(wide), KeptLeases::new(&file, SLOTS).unwrap());
        for n in 0..LEASES_KEPT + 10 {
            let [.., a, b] = n.to_be_bytes();
            give(
                &mut leases,
                MacAddr([0x52, 0x54, 0, 0, a, b]),
                NOW + u64::from(n),
            );
            kept.follow(&mut leases);
        }
        let mut after = Leases::new(wide);
        KeptLeases::new(&file, SLOTS)
            .unwrap()
            .restore(&mut after, NOW + 5000);
        assert_eq!(after.iter().count(), LEASES_MAX);
        assert!(after.iter().eq(leases.iter()));
    }

    /// Version, station, address and end of a lease: often those of others, or nearly right.
    fn record() -> impl Strategy<Value = (u8, [u8; 6], [u8; 4], u64)> {
        let mac = prop_oneof![any::<[u8; 6]>(), (0u8..4).prop_map(|last| mac(last).0)];
        let until = prop_oneof![any::<u64>(), NOW - 10..NOW + LEASE_TIME + 10];
        let ip = (any::<[u8; 3]>(), prop_oneof![any::<u8>(), 14u8..20]);
        let ip = ip.prop_map(|([a, b, c], d)| [a, b, c, d]);
        (0u8..3, mac, ip, until)
    }

    proptest! {
        #[test]
        fn records_of_an_enemy_are_leases_of_the_network_or_none(
            records in prop::collection::vec(record(), 0..20),
            is_near in any::<bool>(),
        ) {
            let file = file();
            for (place, (version, mac, ip, until)) in records.into_iter().enumerate() {
                let mut record = vec![version, 0];
                record.extend(mac);
                let ip = if is_near { [10, 0, 2, ip[3]] } else { ip };
                record.extend(ip);
                record.extend([0; 4]);
                record.extend(until.to_le_bytes());
                let at = SLOTS as usize * FLOW_RECORD + place * LEASE_RECORD;
                rustix::io::pwrite(&file, &record, at as u64).unwrap();
            }
            let leases = restored(&file, NOW);
            let mut addresses: Vec<Ipv4Addr> = leases.iter().map(|lease| lease.address).collect();
            for lease in leases.iter() {
                prop_assert!(network().may_be_guest(IpAddr::V4(lease.address)));
                prop_assert!(lease.mac.is_station());
                prop_assert!((NOW..=NOW + LEASE_TIME).contains(&lease.until));
            }
            addresses.sort();
            addresses.dedup();
            prop_assert_eq!(addresses.len(), leases.iter().count());
            // What was not sound is gone: another process sees the same.
            prop_assert!(restored(&file, NOW).iter().eq(leases.iter()));
        }
    }
}
