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

    /// Returns the same program with other access lists, under another epoch. They are shared, not
    /// copied.
    #[must_use]
    pub fn with_rules(&self, rules: Rules, epoch: u64) -> Self {
        let segments = (0..=u16::MAX).map(SegmentId).take(self.segments.len());
        Self {
            epoch,
            filtered_segments: segments.filter(|s| !rules.allow_all(*s)).collect(),
            rules,
            ..self.clone()
        }
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

    /// Returns the classification of a port's frames.
    #[must_use]
    pub fn ingress(&self, port: PortId) -> &Ingress {
        self.ports.get(port.0 as usize).unwrap_or(&Ingress::Closed)
    }
}
