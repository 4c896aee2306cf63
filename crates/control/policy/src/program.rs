//! The compiled model.

use port::PortId;
use serde::{Deserialize, Serialize};

use crate::acl::Rules;
use crate::model::SegmentId;
use crate::port_security::{PortSecurity, PortSecurityTable};
use crate::qos_class::DscpClasses;

/// One port of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The port.
    pub port: PortId,
    /// The tag with which the segment's frames leave the port; `None`: untagged.
    pub tag: Option<u16>,
}

/// VLAN of a trunk, with its segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VlanSegment {
    /// The VLAN, 1 to 4094.
    pub vid: u16,
    /// The segment.
    pub segment: SegmentId,
}

/// Segments of the frames that enter at a port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ingress {
    /// The program does not know the port.
    #[default]
    Closed,
    /// An access port.
    Access(SegmentId),
    /// A trunk port.
    Trunk {
        /// The segment of untagged and priority-tagged frames.
        native: Option<SegmentId>,
        /// The other segments, in ascending order of `vid`.
        tagged: Vec<VlanSegment>,
    },
    /// A port that is administratively down.
    Down,
}

impl Ingress {
    /// Returns the segments that the port is in.
    pub fn segments(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let (one, tagged) = match self {
            Self::Closed | Self::Down => (None, &[][..]),
            Self::Access(segment) => (Some(*segment), &[][..]),
            Self::Trunk { native, tagged } => (*native, tagged.as_slice()),
        };
        one.into_iter().chain(tagged.iter().map(|one| one.segment))
    }
}

/// An immutable forwarding program: made by [`Program::compile`], published whole, replaced by
/// one with a greater epoch. A program that arrived damaged may forward wrongly but cannot make
/// its methods panic.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Program {
    pub(crate) epoch: u64,
    /// By segment id; in each the members in ascending order of their ports.
    pub(crate) segments: Vec<Vec<Member>>,
    /// By port id.
    pub(crate) ports: Vec<Ingress>,
    /// Segments with access lists, in ascending order.
    pub(crate) filtered_segments: Vec<SegmentId>,
    /// Segments with a stateful rule, in ascending order, with their rules epochs.
    pub(crate) tracked: Vec<(SegmentId, u16)>,
    pub(crate) port_security: PortSecurityTable,
    pub(crate) dscp_classes: DscpClasses,
    /// Only the deciding side evaluates rules: they are not sent to the switch.
    #[serde(skip)]
    pub(crate) rules: Rules,
}

impl Program {
    /// Returns the number of this program. The [`Default`] program forwards nothing and has epoch
    /// 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the same program with other access lists, under another epoch, which is also the
    /// rules epoch of all tracked segments. The lists are shared, not copied.
    #[must_use]
    pub fn with_rules(&self, rules: Rules, epoch: u64) -> Self {
        let are_stateful = rules.are_stateful();
        let is_tracked = |segment: &SegmentId| {
            let mut members = self.members(*segment).iter();
            are_stateful && members.any(|member| rules.is_stateful_for(*segment, member.port))
        };
        let tracked = self.segment_ids().filter(is_tracked);
        Self {
            epoch,
            filtered_segments: self
                .segment_ids()
                .filter(|s| !rules.allow_all(*s))
                .collect(),
            tracked: tracked.map(|segment| (segment, epoch as u16)).collect(),
            rules,
            ..self.clone()
        }
    }

    /// Returns the same program as the successor of another: a tracked segment keeps its rules
    /// epoch, unless the rules of one of its members differ. So connections are decided anew where
    /// rules have changed, and nowhere else.
    #[must_use]
    pub fn succeeding(mut self, old: &Self) -> Self {
        let mut tracked = std::mem::take(&mut self.tracked);
        for (segment, epoch) in &mut tracked {
            let before = old.tracks(*segment);
            match before {
                Some(before) if self.has_same_rules(*segment, old) => *epoch = before,
                // The number of program 65536 after the last change.
                Some(before) if before == *epoch => *epoch = epoch.wrapping_add(1),
                _ => {}
            }
        }
        self.tracked = tracked;
        self
    }

    /// Returns the tracked segments in ascending order, with their rules epochs.
    #[must_use]
    pub fn rules_epochs(&self) -> &[(SegmentId, u16)] {
        &self.tracked
    }

    /// Returns the same program with these rules epochs of its tracked segments; others keep
    /// theirs.
    #[must_use]
    pub fn with_rules_epochs(mut self, epochs: &[(SegmentId, u16)]) -> Self {
        for (segment, epoch) in &mut self.tracked {
            let saved = epochs.iter().find(|(saved, _)| saved == segment);
            *epoch = saved.map_or(*epoch, |(_, saved)| *saved);
        }
        self
    }

    fn segment_ids(&self) -> impl Iterator<Item = SegmentId> + use<> {
        (0..=u16::MAX).map(SegmentId).take(self.segments.len())
    }

    /// Returns the rules epoch of a tracked segment, where a stateful rule applies to a port;
    /// `None` for others. It is another one after each change of the segment's rules. A program
    /// that was received without rules knows it, too.
    #[inline]
    #[must_use]
    pub fn tracks(&self, segment: SegmentId) -> Option<u16> {
        let at = self
            .tracked
            .binary_search_by_key(&segment, |(segment, _)| *segment)
            .ok()?;
        self.tracked.get(at).map(|(_, epoch)| *epoch)
    }

    /// Returns whether any segment of a port is tracked. It walks through the port's segments: keep
    /// the result as long as the program.
    #[must_use]
    pub fn is_tracked(&self, port: PortId) -> bool {
        !self.tracked.is_empty()
            && self
                .ingress(port)
                .segments()
                .any(|segment| self.tracks(segment).is_some())
    }

    /// Returns the same program with other tracked segments, in ascending order, for tests.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn with_tracked(self, tracked: impl IntoIterator<Item = (SegmentId, u16)>) -> Self {
        Self {
            tracked: tracked.into_iter().collect(),
            ..self
        }
    }

    /// Returns the tracked segments with their rules epochs, in ascending order.
    #[must_use]
    pub fn tracked_segments(&self) -> &[(SegmentId, u16)] {
        &self.tracked
    }

    /// Returns the tracked ports in ascending order.
    pub fn tracked_ports(&self) -> impl Iterator<Item = PortId> + '_ {
        let ports = (0..).map(PortId).take(self.ports.len());
        ports.filter(|port| self.is_tracked(*port))
    }

    /// Returns whether access lists apply to frames of a segment: also true of a program that was
    /// received without them.
    #[must_use]
    pub fn filters(&self, segment: SegmentId) -> bool {
        self.filtered_segments.binary_search(&segment).is_ok()
    }

    /// Returns whether any segment has access lists.
    #[must_use]
    pub fn filters_anywhere(&self) -> bool {
        !self.filtered_segments.is_empty()
    }

    /// Returns the program for execution only: without the access lists.
    #[must_use]
    pub fn without_rules(&self) -> Self {
        Self {
            rules: Rules::default(),
            ..self.clone()
        }
    }

    /// Returns the same program with other port security.
    #[must_use]
    pub fn with_port_security(self, port_security: PortSecurityTable) -> Self {
        Self {
            port_security,
            ..self
        }
    }

    /// Returns the same program with other classes of DSCPs.
    #[must_use]
    pub fn with_dscp_classes(self, dscp_classes: DscpClasses) -> Self {
        Self {
            dscp_classes,
            ..self
        }
    }

    /// Returns the classes of DSCPs.
    #[must_use]
    pub fn dscp_classes(&self) -> &DscpClasses {
        &self.dscp_classes
    }

    /// Returns the port security of a port.
    #[inline]
    #[must_use]
    pub fn port_security(&self, port: PortId) -> &PortSecurity {
        self.port_security.of(port)
    }

    /// Returns the access lists.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the ports in a segment, in ascending order; none for an unknown segment. One bounds
    /// check.
    #[inline]
    #[must_use]
    pub fn members(&self, segment: SegmentId) -> &[Member] {
        self.segments
            .get(usize::from(segment.0))
            .map_or(&[], Vec::as_slice)
    }

    /// Returns the port's membership in a segment.
    #[must_use]
    pub fn member(&self, segment: SegmentId, port: PortId) -> Option<Member> {
        let members = self.members(segment);
        let at = members
            .binary_search_by_key(&port, |member| member.port)
            .ok()?;
        members.get(at).copied()
    }

    /// Returns the members to which a flood from `ingress` goes: all the others.
    #[inline]
    pub fn flood(&self, segment: SegmentId, ingress: PortId) -> impl Iterator<Item = Member> + '_ {
        self.members(segment)
            .iter()
            .copied()
            .filter(move |member| member.port != ingress)
    }

    /// Returns whether decisions about frames from a port look above Ethernet when no rule is
    /// asked: their addresses are restricted, or their DSCPs count.
    #[must_use]
    pub fn looks_above_ethernet(&self, port: PortId) -> bool {
        self.port_security(port).knows_addresses() || self.dscp_classes.trusts(port)
    }

    /// Returns the classification of a port's frames.
    #[must_use]
    pub fn ingress(&self, port: PortId) -> &Ingress {
        self.ports.get(port.0 as usize).unwrap_or(&Ingress::Closed)
    }
}
