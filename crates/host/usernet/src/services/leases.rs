//! Addresses that guests get by DHCP.
//!
//! A guest's address is the one that is reserved for its station, else one made of the station's
//! MAC address: a hash gives the first candidate, and if another station has that, the next free
//! one behind it is taken. The same stations in the same order get the same addresses after every
//! restart; a guest that remembers its address gets it again whatever the order.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use wire::MacAddr;
use wire::hash::{BASIS, SplitMix64, fnv1a};

use crate::Nanos;
use crate::network::Network;

/// Time of a lease in seconds.
pub const LEASE_SECONDS: u32 = 3600;
/// Maximum number of leases of a network; those that ended longest ago make room.
pub const LEASES_MAX: usize = 4096;
/// Maximum number of addresses that are set aside because a guest found another station there.
const DECLINED_MAX: usize = 64;
/// Maximum distance of a guest's remembered address from its first candidate.
const REMEMBERED: u32 = 64;

/// Time of a lease in nanoseconds.
pub const LEASE_TIME: Nanos = LEASE_SECONDS as Nanos * 1_000_000_000;

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The station.
    pub mac: MacAddr,
    /// Its address.
    pub address: Ipv4Addr,
    /// When the lease ends.
    pub until: Nanos,
}

/// The leases of a network.
#[derive(Clone, Debug)]
pub struct Leases {
    network: Network,
    reserved: BTreeMap<MacAddr, Ipv4Addr>,
    leases: BTreeMap<MacAddr, (Ipv4Addr, Nanos)>,
    owners: BTreeMap<Ipv4Addr, MacAddr>,
    declined: BTreeMap<Ipv4Addr, Nanos>,
    /// Stations with leases that have changed since [`Leases::take_changed`].
    changed: Vec<MacAddr>,
}

impl Leases {
    /// No leases.
    #[must_use]
    pub fn new(network: Network) -> Self {
        Self {
            network,
            reserved: BTreeMap::new(),
            leases: BTreeMap::new(),
            owners: BTreeMap::new(),
            declined: BTreeMap::new(),
            changed: Vec::new(),
        }
    }

    /// Reserves addresses, those that port security lists, instead of those before. Addresses that
    /// no guest may have are left out.
    pub fn reserve(&mut self, reserved: impl IntoIterator<Item = (MacAddr, Ipv4Addr)>) {
        let network = self.network;
        let good = |(_, address): &(MacAddr, Ipv4Addr)| network.may_be_guest((*address).into());
        self.reserved = reserved.into_iter().filter(good).collect();
    }

    /// Continues a lease of a predecessor, if no other contradicts it.
    pub fn restore(&mut self, lease: Lease) {
        let good = self.network.may_be_guest(lease.address.into());
        if good && lease.mac.is_station() && self.is_free(lease.mac, lease.address, lease.until) {
            self.insert(lease);
        }
    }

    /// All leases, by station.
    pub fn iter(&self) -> impl Iterator<Item = Lease> {
        let lease = |(&mac, &(address, until)): (&MacAddr, &(Ipv4Addr, Nanos))| Lease {
            mac,
            address,
            until,
        };
        self.leases.iter().map(lease)
    }

    /// Returns the lease of a station.
    #[must_use]
    pub fn of(&self, mac: MacAddr) -> Option<Lease> {
        let &(address, until) = self.leases.get(&mac)?;
        Some(Lease {
            mac,
            address,
            until,
        })
    }

    /// Returns the stations with leases that have changed or ended since the last call, some twice.
    pub fn take_changed(&mut self) -> Vec<MacAddr> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the address for a station; `None` if none is free. `remembered` is the one that the
    /// guest asks for.
    #[must_use]
    pub fn address_of(
        &self,
        mac: MacAddr,
        remembered: Option<Ipv4Addr>,
        now: Nanos,
    ) -> Option<Ipv4Addr> {
        if let Some(reserved) = self.reserved.get(&mac) {
            return Some(*reserved);
        }
        if let Some((address, _)) = self.leases.get(&mac)
            && self.is_free(mac, *address, now)
        {
            return Some(*address);
        }
        let range = self.network.leases();
        let count = range.end.saturating_sub(range.start);
        let first = SplitMix64(fnv1a(BASIS, mac.0)).below(u64::from(count)) as u32;
        let candidate = |step: u32| {
            let number = (u64::from(first) + u64::from(step)) % u64::from(count.max(1));
            self.network.host(range.start + number as u32)
        };
        if let Some(remembered) = remembered
            && (0..count.min(REMEMBERED)).any(|step| candidate(step) == remembered)
            && self.is_free(mac, remembered, now)
        {
            return Some(remembered);
        }
        // Each step but one meets an address that is taken: more are never needed.
        let taken = self.owners.len() + self.reserved.len() + self.declined.len();
        let steps = count.min(u32::try_from(taken).unwrap_or(u32::MAX).saturating_add(1));
        let unused = (0..steps)
            .map(candidate)
            .find(|address| self.is_free(mac, *address, now) && !self.owners.contains_key(address));
        unused.or_else(|| {
            let mut all = (0..steps).map(candidate);
            all.find(|address| self.is_free(mac, *address, now))
        })
    }

    /// Returns the station that an address is reserved for, or leased to now.
    #[must_use]
    pub fn owner(&self, address: Ipv4Addr, now: Nanos) -> Option<MacAddr> {
        let mut reserved = self.reserved.iter();
        if let Some((mac, _)) = reserved.find(|(_, own)| **own == address) {
            return Some(*mac);
        }
        let mac = self.owners.get(&address)?;
        let (_, until) = self.leases.get(mac)?;
        (*until > now).then_some(*mac)
    }

    /// Whether a station may have an address: it is reserved for no other, leased to no other now,
    /// and not set aside.
    fn is_free(&self, mac: MacAddr, address: Ipv4Addr, now: Nanos) -> bool {
        let reserved = |(&owner, &own): (&MacAddr, &Ipv4Addr)| own == address && owner != mac;
        let leased = self.owners.get(&address).is_some_and(|owner| {
            let ends = self.leases.get(owner).map_or(0, |(_, until)| *until);
            *owner != mac && ends > now
        });
        let declined = self
            .declined
            .get(&address)
            .is_some_and(|until| *until > now);
        !self.reserved.iter().any(reserved) && !leased && !declined
    }

    /// Gives a station its address for [`LEASE_SECONDS`].
    pub fn lease(&mut self, mac: MacAddr, address: Ipv4Addr, now: Nanos) {
        self.insert(Lease {
            mac,
            address,
            until: now.saturating_add(LEASE_TIME),
        });
    }

    fn insert(&mut self, lease: Lease) {
        if self.leases.len() >= LEASES_MAX && !self.leases.contains_key(&lease.mac) {
            let oldest = self.iter().min_by_key(|one| one.until);
            oldest.into_iter().for_each(|one| self.forget(one.mac));
        }
        if let Some(owner) = self.owners.get(&lease.address).copied() {
            self.forget(owner);
        }
        self.forget(lease.mac);
        self.owners.insert(lease.address, lease.mac);
        self.changed.push(lease.mac);
        self.leases.insert(lease.mac, (lease.address, lease.until));
    }

    fn forget(&mut self, mac: MacAddr) {
        if let Some((address, _)) = self.leases.remove(&mac) {
            self.owners.remove(&address);
            self.changed.push(mac);
        }
    }

    /// A guest gave its address back; it gets it again if it asks before another needs it.
    pub fn release(&mut self, mac: MacAddr, address: Ipv4Addr, now: Nanos) {
        if let Some((own, until)) = self.leases.get_mut(&mac)
            && *own == address
        {
            *until = now.min(*until);
            self.changed.push(mac);
        }
    }

    /// A guest found another station at its address, which is set aside for the time of a lease.
    pub fn decline(&mut self, mac: MacAddr, address: Ipv4Addr, now: Nanos) {
        let own = self
            .leases
            .get(&mac)
            .is_some_and(|(own, _)| *own == address);
        if !own || self.reserved.contains_key(&mac) {
            return;
        }
        self.forget(mac);
        self.declined.retain(|_, until| *until > now);
        if self.declined.len() < DECLINED_MAX && self.network.contains(IpAddr::V4(address)) {
            self.declined
                .insert(address, now.saturating_add(LEASE_TIME));
        }
    }
}
