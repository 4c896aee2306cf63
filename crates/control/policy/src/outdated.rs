//! Cached flows that may be wrong under another program.

use port::PortId;
use serde::{Deserialize, Serialize};

use crate::acl::Direction;
use crate::model::SegmentId;
use crate::program::{Member, Program};

/// Flows that a program may decide otherwise than the one before it, because of access lists, port
/// security or classes of DSCPs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OutdatedFlows {
    /// Flows from and to these ports, in ascending order.
    pub ports: Vec<PortId>,
    /// Floods and drops in these segments, in ascending order.
    pub segments: Vec<SegmentId>,
}

impl OutdatedFlows {
    /// Returns the flows from and to these ports.
    #[must_use]
    pub fn ports(mut ports: Vec<PortId>) -> Self {
        ports.sort_unstable();
        ports.dedup();
        Self {
            ports,
            segments: Vec::new(),
        }
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.segments.is_empty()
    }
}

impl Program {
    /// Returns the flows decided by `old` that this program may decide otherwise because of access
    /// lists, port security or classes of DSCPs. Flows of removed ports are not included: they are
    /// removed with their port.
    #[must_use]
    pub fn outdated(&self, old: &Self) -> OutdatedFlows {
        let mut outdated = OutdatedFlows::default();
        for number in 0..self.segments.len() {
            let Ok(number) = u16::try_from(number) else {
                break;
            };
            self.note_outdated(SegmentId(number), old, &mut outdated);
        }
        outdated
            .ports
            .extend(self.port_security.changed(&old.port_security));
        outdated
            .ports
            .extend(self.dscp_classes.changed(&old.dscp_classes));
        outdated.ports.sort_unstable();
        outdated.ports.dedup();
        outdated
    }

    /// Returns this program with floods limited to members that the segment had in `old`: cached
    /// flows name the ports that a flood excludes, out of the members of that time.
    #[must_use]
    pub fn without_new_members(&self, old: &Self) -> Self {
        let mut program = self.clone();
        for (members, number) in program.segments.iter_mut().zip(0..) {
            members.retain(|member| old.member(SegmentId(number), member.port).is_some());
        }
        program
    }

    /// Returns whether the lists of a port in a segment are those of `old`: from it, and to it.
    fn has_same_lists(&self, segment: SegmentId, port: PortId, old: &Self) -> [bool; 2] {
        let directions = [Direction::FromGuest, Direction::ToGuest];
        directions.map(|direction| {
            let (rules, before) = (self.rules(), old.rules());
            rules.is_same_for(before, direction, segment, port)
        })
    }

    /// Returns whether connections in a segment would be let in as by `old`, which has rules:
    /// those of members that came since do not exist yet. Those of one that has left for another
    /// segment stay, and it may come back with other rules.
    pub(crate) fn has_same_rules(&self, segment: SegmentId, old: &Self) -> bool {
        let has_left = |port| {
            self.member(segment, port).is_none() && self.ingress(port).segments().next().is_some()
        };
        let mut before = old.members(segment).iter().map(|member| member.port);
        before.all(|port| {
            !has_left(port)
                && (self.member(segment, port).is_none()
                    || self.has_same_lists(segment, port, old) == [true, true])
        })
    }

    fn note_outdated(&self, segment: SegmentId, old: &Self, outdated: &mut OutdatedFlows) {
        let filtered = [self, old].iter().any(|program| program.filters(segment));
        if !filtered {
            return;
        }
        let ports = |members: &[Member]| members.iter().map(|m| m.port).collect::<Vec<_>>();
        let is_tracked = |program: &&Self| program.tracks(segment).is_some();
        let tracked = [self, old].iter().any(is_tracked);
        // A cached flood would deliver to a new member that its decision did not consider.
        let mut floods = ports(self.members(segment)) != ports(old.members(segment));
        for member in self.members(segment) {
            let [from, to] = self.has_same_lists(segment, member.port, old);
            if !from || !to {
                outdated.ports.push(member.port);
            }
            // A drop may be of a frame that would answer one from this port.
            floods |= !to || tracked && !from;
        }
        if floods {
            outdated.segments.push(segment);
        }
    }
}
