//! Addresses that belong to ports, by static entries and by port security.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use policy::{PortId, SegmentId};
use wire::MacAddr;

use super::entry::Entry;
use super::{Effect, Fdb, Key, invalidate};

impl Fdb {
    /// Pins an address to a port until [`Fdb::unpin`]. No other port may use it as a source.
    pub fn pin(&mut self, segment: SegmentId, mac: MacAddr, port: PortId) -> Vec<Effect> {
        let key = (segment, mac);
        let mut effects = Vec::new();
        let before = self.remove(key);
        self.entries.insert(key, Entry::pin(port));
        self.changes += 1;
        self.pinned.insert(key);
        match before {
            Some(before) if before.pinned() && before.port() == port => return effects,
            Some(before) if before.port() != port => {
                effects.push(Effect::Moved {
                    segment,
                    mac,
                    from: before.port(),
                    to: port,
                });
            }
            _ => effects.push(Effect::Learned { segment, mac, port }),
        }
        effects.push(invalidate(key));
        effects
    }

    /// Reverts [`Fdb::pin`]: the address becomes a learned one with the age zero, if the limits
    /// permit it and the address does not belong to other ports. Learned entries are not changed.
    pub fn unpin(&mut self, now: Duration, segment: SegmentId, mac: MacAddr) -> Vec<Effect> {
        let key = (segment, mac);
        let mut effects = Vec::new();
        let pinned = self.entries.get(&key).filter(|entry| entry.pinned());
        let Some(port) = pinned.map(Entry::port) else {
            return effects;
        };
        let owners = self.shared.get(&key);
        let is_owner = owners.is_none_or(|owners| owners.contains(&port));
        if !is_owner || self.no_room_for(port, None).is_some() {
            self.forget(key, &mut effects);
            return effects;
        }
        self.remove(key);
        let entry = Entry::learn(now, port, &mut self.next_claim);
        self.insert_learned(key, entry);
        effects.push(invalidate(key));
        effects
    }

    /// These addresses belong to these ports, and no others do. An address of one port is pinned to
    /// it; one of several is learned at these only.
    pub fn own(&mut self, now: Duration, owners: &BTreeMap<Key, Vec<PortId>>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let is_single = |key: &Key| owners.get(key).is_some_and(|ports| ports.len() == 1);
        let gone = self.pinned.iter().filter(|key| !is_single(key));
        for (segment, mac) in gone.copied().collect::<Vec<_>>() {
            effects.extend(self.unpin(now, segment, mac));
        }
        let several = owners.iter().filter(|(_, ports)| ports.len() > 1);
        self.share(
            several.map(|(key, ports)| (*key, ports.clone())).collect(),
            &mut effects,
        );
        for (&(segment, mac), ports) in owners {
            if let [port] = ports[..] {
                effects.extend(self.pin(segment, mac, port));
            }
        }
        effects
    }

    fn share(&mut self, shared: BTreeMap<Key, Vec<PortId>>, effects: &mut Vec<Effect>) {
        let old = std::mem::replace(&mut self.shared, shared);
        let both: BTreeSet<Key> = old.keys().chain(self.shared.keys()).copied().collect();
        for key in both {
            let owners = self.shared.get(&key);
            let is_owner = |port| owners.is_none_or(|owners| owners.contains(&port));
            match self.entries.get_mut(&key) {
                Some(entry) if !entry.pinned() && !is_owner(entry.port()) => {
                    self.forget(key, effects);
                    continue;
                }
                Some(entry) => entry.keep_claims(is_owner),
                None => {}
            }
            if old.get(&key) != owners {
                effects.push(invalidate(key));
            }
        }
    }
}
