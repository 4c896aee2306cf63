//! From which station an IP address was seen last: for filling in what somebody leaves out who asks about a frame.
//!
//! Nothing is decided by this but that a question is flooded as others are (`engine/answers.rs`). Guests write what is in here; so there is a place for so many addresses and no more, and where two
//! have the same place, the later one has it.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use policy::SegmentId;
use wire::{EtherType, FlowKey, MacAddr};

/// Places.
const PLACES: usize = 4096;

/// An address of IP, and where it was seen.
#[derive(Clone, Copy, Debug)]
struct Place {
    segment: SegmentId,
    /// As in a flow key.
    address: u128,
    is_v6: bool,
    mac: MacAddr,
    at: Duration,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::engine) struct Seen {
    /// None at first, then [`PLACES`].
    places: Vec<Option<Place>>,
    hasher: RandomState,
}

impl Seen {
    /// A frame with this key came, and its source may be learned in the segment.
    pub(in crate::engine) fn note(&mut self, at: Duration, segment: SegmentId, key: &FlowKey) {
        let is_v6 = match key.ethertype() {
            EtherType::IPV4 | EtherType::ARP => false,
            EtherType::IPV6 => true,
            _ => return,
        };
        let (address, mac) = (key.src_ip(), key.smac());
        // Who has no address yet asks from this one.
        if address == 0 {
            return;
        }
        if self.places.is_empty() {
            self.places = vec![None; PLACES];
        }
        let place = self.place(segment, address, is_v6);
        self.places[place] = Some(Place {
            segment,
            address,
            is_v6,
            mac,
            at,
        });
    }

    /// The station from which an address was seen last, and when.
    pub(in crate::engine) fn find(
        &self,
        segment: SegmentId,
        address: std::net::IpAddr,
    ) -> Option<(MacAddr, Duration)> {
        let (bits, is_v6) = match address {
            std::net::IpAddr::V4(v4) => (v4.to_bits().into(), false),
            std::net::IpAddr::V6(v6) => (v6.to_bits(), true),
        };
        let place = self
            .places
            .get(self.place(segment, bits, is_v6))?
            .as_ref()?;
        let wanted = (segment, bits, is_v6);
        let found = (place.segment, place.address, place.is_v6) == wanted;
        found.then_some((place.mac, place.at))
    }

    fn place(&self, segment: SegmentId, address: u128, is_v6: bool) -> usize {
        self.hasher.hash_one((segment, address, is_v6)) as usize % PLACES
    }
}
