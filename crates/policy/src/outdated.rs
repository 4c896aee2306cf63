//! Which cached flows may be wrong under another program.

use port::PortId;
use serde::{Deserialize, Serialize};

use crate::acl::Direction;
use crate::model::SegmentId;
use crate::program::{Member, Program};

/// Flows that a program may decide otherwise than the one before it, for what access lists and guards say.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Outdated {
    /// Those from and to these ports, in ascending order.
    pub ports: Vec<PortId>,
    /// Those in these segments that go to several ports or to nobody, in ascending order.
    pub segments: Vec<SegmentId>,
}

impl Outdated {
    /// The flows from and to these ports.
    #[must_use]
    pub fn ports(mut ports: Vec<PortId>) -> Self {
        ports.sort_unstable();
        ports.dedup();
        Self {
            ports,
            segments: Vec::new(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.segments.is_empty()
    }
}

impl Program {
    /// What of the flows that `old` has decided this program may decide otherwise, as far as access lists and guards are concerned.
    /// What was decided where a port is no more is not looked at: its flows go with it.
    #[must_use]
    pub fn outdated(&self, old: &Self) -> Outdated {
        let mut outdated = Outdated::default();
        for number in 0..self.segments.len() {
            let Ok(number) = u16::try_from(number) else {
                break;
            };
            self.note_outdated(SegmentId(number), old, &mut outdated);
        }
        outdated.ports.extend(self.guards.changed(&old.guards));
        outdated.ports.sort_unstable();
        outdated.ports.dedup();
        outdated
    }

    /// This program, but that floods go to nobody who was not a member of the segment before: for as long as cached flows say
    /// whom floods leave out of the members that there were.
    #[must_use]
    pub fn without_newcomers(&self, old: &Self) -> Self {
        let mut program = self.clone();
        for (members, number) in program.segments.iter_mut().zip(0..) {
            members.retain(|member| old.member(SegmentId(number), member.port).is_some());
        }
        program
    }

    fn note_outdated(&self, segment: SegmentId, old: &Self, outdated: &mut Outdated) {
        let asks = [self, old].iter().any(|program| program.asks(segment));
        if !asks {
            return;
        }
        let ports = |members: &[Member]| members.iter().map(|m| m.port).collect::<Vec<_>>();
        // A flood leaves ports out, and a new one is among those that get it.
        let mut floods = ports(self.members(segment)) != ports(old.members(segment));
        for member in self.members(segment) {
            let same = |direction| {
                let (rules, port) = (self.rules(), member.port);
                rules.is_same_for(old.rules(), direction, segment, port)
            };
            let (from, to) = (same(Direction::FromGuest), same(Direction::ToGuest));
            if !from || !to {
                outdated.ports.push(member.port);
            }
            floods |= !to;
        }
        if floods {
            outdated.segments.push(segment);
        }
    }
}
