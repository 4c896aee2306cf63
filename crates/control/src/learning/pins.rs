//! Pinned addresses, of static entries and of port security.

use std::collections::BTreeMap;
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
    /// permit it. Learned entries are not changed.
    pub fn unpin(&mut self, now: Duration, segment: SegmentId, mac: MacAddr) -> Vec<Effect> {
        let key = (segment, mac);
        let mut effects = Vec::new();
        let pinned = self.entries.get(&key).filter(|entry| entry.pinned());
        let Some(port) = pinned.map(Entry::port) else {
            return effects;
        };
        if self.no_room_for(port, None).is_some() {
            self.forget(key, &mut effects);
            return effects;
        }
        self.remove(key);
        let entry = Entry::learn(now, port, &mut self.next_claim);
        self.insert_learned(key, entry);
        effects.push(invalidate(key));
        effects
    }

    /// Pins these addresses and no others.
    pub fn pin_all(
        &mut self,
        now: Duration,
        desired: &BTreeMap<(SegmentId, MacAddr), PortId>,
    ) -> Vec<Effect> {
        let gone = self.pinned.iter().filter(|key| !desired.contains_key(key));
        let gone: Vec<Key> = gone.copied().collect();
        let mut effects = Vec::new();
        for (segment, mac) in gone {
            effects.extend(self.unpin(now, segment, mac));
        }
        for (&(segment, mac), &port) in desired {
            effects.extend(self.pin(segment, mac, port));
        }
        effects
    }
}
