//! Lists of the flows from each station and to it, so that they are removed without a walk through
//! all flows.
//!
//! Stations are found by a hash; colliding ones share a list. A flow is in the lists while it has a
//! segment, because a station belongs to a segment. Forwarding does not touch the lists.

use policy::SegmentId;
use wire::MacAddr;
use wire::flow::FlowKey;

use super::flows::Flow;

/// Average flows per list, low enough that few stations collide.
const FLOWS_PER_LIST: usize = 4;

/// End of a flow at which the station is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    From = 0,
    To = 1,
}

/// Both ends.
pub(super) const SIDES: [Side; 2] = [Side::From, Side::To];

/// Previous and next flow in a list: slots plus one, 0 at the end.
type Link = [u32; 2];
const BEFORE: usize = 0;
const BEHIND: usize = 1;

/// Lists of all stations; see the module.
#[derive(Debug)]
pub(super) struct Stations {
    /// First flow of each list, as in a [`Link`], by side. Untouched memory is not allocated, here
    /// and below.
    heads: [Vec<u32>; 2],
    /// Links by slot and side.
    links: Vec<[Link; 2]>,
    seed: u64,
}

/// Returns the station at one side of a flow, unless the address is a group address.
pub(super) fn station(flow: &Flow, side: Side) -> Option<(SegmentId, MacAddr)> {
    let [low0, low1, low2] = flow.low;
    let key = FlowKey::from_words([low0, low1, low2, 0, 0, 0, 0, 0]);
    let mac = match side {
        Side::From => key.smac(),
        Side::To => key.dmac(),
    };
    let one = !mac.is_multicast();
    one.then_some((flow.segment()?, mac))
}

impl Stations {
    /// Returns lists for `flows` flows.
    pub(super) fn new(flows: usize, seed: u64) -> Self {
        let lists = (flows / FLOWS_PER_LIST).next_power_of_two();
        Self {
            heads: SIDES.map(|_| vec![0; lists]),
            links: vec![[[0; 2]; 2]; flows],
            seed,
        }
    }

    fn list(&self, (segment, mac): (SegmentId, MacAddr)) -> usize {
        let key = FlowKey::default()
            .with_in_port(segment.0.into())
            .with_smac(mac);
        key.hash(self.seed) as usize & (self.heads[0].len() - 1)
    }

    /// Returns whether two stations share their lists.
    pub(super) fn share_a_list(
        &self,
        one: (SegmentId, MacAddr),
        other: (SegmentId, MacAddr),
    ) -> bool {
        self.list(one) == self.list(other)
    }

    fn head(&mut self, station: (SegmentId, MacAddr), side: Side) -> &mut u32 {
        let list = self.list(station);
        &mut self.heads[side as usize][list]
    }

    fn link(&mut self, slot: u32, side: Side) -> &mut Link {
        &mut self.links[slot as usize][side as usize]
    }

    /// Adds a new flow to its lists.
    pub(super) fn add(&mut self, slot: u32, flow: &Flow) {
        for side in SIDES {
            let Some(station) = station(flow, side) else {
                continue;
            };
            let behind = std::mem::replace(self.head(station, side), slot + 1);
            *self.link(slot, side) = [0, behind];
            if let Some(behind) = behind.checked_sub(1) {
                self.link(behind, side)[BEFORE] = slot + 1;
            }
        }
    }

    /// Removes a flow from its lists.
    pub(super) fn remove(&mut self, slot: u32, flow: &Flow) {
        for side in SIDES {
            let Some(station) = station(flow, side) else {
                continue;
            };
            let [before, behind] = *self.link(slot, side);
            match before.checked_sub(1) {
                Some(before) => self.link(before, side)[BEHIND] = behind,
                None => *self.head(station, side) = behind,
            }
            if let Some(behind) = behind.checked_sub(1) {
                self.link(behind, side)[BEFORE] = before;
            }
        }
    }

    /// Returns the first flow of a station's list, which may belong to another station.
    pub(super) fn first(&self, station: (SegmentId, MacAddr), side: Side) -> Option<u32> {
        self.heads[side as usize][self.list(station)].checked_sub(1)
    }

    /// Returns the next flow.
    pub(super) fn after(&self, slot: u32, side: Side) -> Option<u32> {
        self.links[slot as usize][side as usize][BEHIND].checked_sub(1)
    }
}
