//! The compiled model.

use port::PortId;
use serde::{Deserialize, Serialize};

use crate::acl::Rules;
use crate::guard::{Guard, Guards};
use crate::model::SegmentId;

/// One port of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The port.
    pub port: PortId,
    /// The tag with which the segment's frames leave the port; `None`: untagged.
    pub tag: Option<u16>,
}

/// A tag that a trunk takes, and the segment it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VlanSegment {
    /// The VLAN, 1 to 4094.
    pub vid: u16,
    /// The segment.
    pub segment: SegmentId,
}

/// To which segment the frames from a port belong.
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
    /// The segments that the port is in.
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
    /// Segments in which access lists are asked, in ascending order.
    pub(crate) asked_in: Vec<SegmentId>,
    pub(crate) guards: Guards,
    /// Who decides what is decided asks them; who only executes it does not need them, and they are not sent.
    #[serde(skip)]
    pub(crate) rules: Rules,
}

impl Program {
    /// Which program this is. The [`Default`] program forwards nothing and has epoch 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The same program with other access lists, under another epoch. They are shared, not copied.
    #[must_use]
    pub fn with_rules(&self, rules: Rules, epoch: u64) -> Self {
        let segments = (0..=u16::MAX).map(SegmentId).take(self.segments.len());
        Self {
            epoch,
            asked_in: segments.filter(|s| !rules.allow_all(*s)).collect(),
            rules,
            ..self.clone()
        }
    }

    /// Whether access lists are asked about frames of a segment: also true of a program that came without them.
    #[must_use]
    pub fn asks(&self, segment: SegmentId) -> bool {
        self.asked_in.binary_search(&segment).is_ok()
    }

    /// Whether access lists are asked anywhere.
    #[must_use]
    pub fn asks_anywhere(&self) -> bool {
        !self.asked_in.is_empty()
    }

    /// The program as those get it who only carry it out: without the access lists themselves.
    #[must_use]
    pub fn without_rules(&self) -> Self {
        Self {
            rules: Rules::default(),
            ..self.clone()
        }
    }

    /// The same program with other guards.
    #[must_use]
    pub fn with_guards(self, guards: Guards) -> Self {
        Self { guards, ..self }
    }

    /// What the guest of a port may send.
    #[inline]
    #[must_use]
    pub fn guard(&self, port: PortId) -> &Guard {
        self.guards.of(port)
    }

    /// The access lists.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The ports in a segment, in ascending order; none for an unknown segment. One bounds check.
    #[inline]
    #[must_use]
    pub fn members(&self, segment: SegmentId) -> &[Member] {
        self.segments
            .get(usize::from(segment.0))
            .map_or(&[], Vec::as_slice)
    }

    /// The port's membership in a segment.
    #[must_use]
    pub fn member(&self, segment: SegmentId, port: PortId) -> Option<Member> {
        let members = self.members(segment);
        let at = members
            .binary_search_by_key(&port, |member| member.port)
            .ok()?;
        members.get(at).copied()
    }

    /// The members to which a flood from `ingress` goes: all the others.
    #[inline]
    pub fn flood(&self, segment: SegmentId, ingress: PortId) -> impl Iterator<Item = Member> + '_ {
        self.members(segment)
            .iter()
            .copied()
            .filter(move |member| member.port != ingress)
    }

    /// How the frames of a port are classified.
    #[must_use]
    pub fn ingress(&self, port: PortId) -> &Ingress {
        self.ports.get(port.0 as usize).unwrap_or(&Ingress::Closed)
    }
}
