//! Compiler from [`Model`] to [`Program`].

use std::collections::BTreeMap;

use port::PortId;
use port::counters::MAX_PORTS;
use thiserror::Error;

use crate::model::{MAX_SEGMENTS, Model, PortMode, Segment, SegmentId};
use crate::program::{Ingress, Member, Program, VlanSegment};

// A flow key has all numbers of ports.
const _: () = assert!(MAX_PORTS <= wire::flow::PORTS);

/// Reason for which a model does not compile. Segments are given by name, ports by number: see
/// [`CompileError::port`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CompileError {
    /// A VLAN that no tag can carry.
    #[error("segment \"{segment}\": VLAN {vlan} is not between 1 and 4094")]
    VlanRange {
        /// The segment.
        segment: String,
        /// Its VLAN.
        vlan: u16,
    },
    /// Two segments of one trunk have the same VLAN.
    #[error("segments \"{first}\" and \"{second}\" have the same VLAN {vlan}")]
    SameVlan {
        /// One segment.
        first: String,
        /// The other.
        second: String,
        /// The VLAN of both.
        vlan: u16,
    },
    /// Two segments with one name.
    #[error("two segments are called \"{name}\"")]
    SameName {
        /// The name.
        name: String,
    },
    /// The id is too large for the program's table.
    #[error("segment \"{segment}\": its number is not below {MAX_SEGMENTS}")]
    SegmentRange {
        /// The segment.
        segment: String,
    },
    /// The id is too large for the program's table.
    #[error("port {}: its number is not below {MAX_PORTS}", port.0)]
    PortRange {
        /// The port.
        port: PortId,
    },
    /// The model has no such segment.
    #[error("port {}: there is no segment {segment}", port.0)]
    UnknownSegment {
        /// The port that names it.
        port: PortId,
        /// The segment's number.
        segment: SegmentId,
    },
    /// A trunk without segments.
    #[error("port {}: a trunk needs at least one segment", port.0)]
    EmptyTrunk {
        /// The trunk.
        port: PortId,
    },
    /// A trunk lists a segment twice.
    #[error("port {}: segment \"{segment}\" is listed twice", port.0)]
    Repeated {
        /// The trunk.
        port: PortId,
        /// The segment.
        segment: String,
    },
    /// Two segments of one trunk are untagged there.
    #[error(
        "port {}: segments \"{first}\" and \"{second}\" both have no VLAN, \
         a trunk can carry only one such",
        port.0
    )]
    TwoUntagged {
        /// The trunk.
        port: PortId,
        /// One segment.
        first: String,
        /// The other.
        second: String,
    },
}

impl CompileError {
    /// Port at fault, so that a caller can report its name.
    #[must_use]
    pub fn port(&self) -> Option<PortId> {
        match self {
            Self::VlanRange { .. }
            | Self::SameVlan { .. }
            | Self::SameName { .. }
            | Self::SegmentRange { .. } => None,
            Self::PortRange { port }
            | Self::UnknownSegment { port, .. }
            | Self::EmptyTrunk { port }
            | Self::Repeated { port, .. }
            | Self::TwoUntagged { port, .. } => Some(*port),
        }
    }
}

impl Program {
    /// Checks and compiles a model.
    ///
    /// # Errors
    ///
    /// The first error found: segments before ports, in ascending order.
    pub fn compile(model: &Model, epoch: u64) -> Result<Self, CompileError> {
        check_segments(model)?;
        let mut program = Self {
            epoch,
            ..Self::default()
        };
        if let Some((last, _)) = model.segments.last_key_value() {
            program.segments.resize(usize::from(last.0) + 1, Vec::new());
        }
        // Ports come in ascending order, which leaves the members sorted.
        for (&port, mode) in &model.ports {
            let ingress = compile_port(model, port, mode)?;
            program.add(port, ingress);
        }
        Ok(program)
    }

    fn add(&mut self, port: PortId, ingress: Ingress) {
        match &ingress {
            Ingress::Closed | Ingress::Down => {}
            Ingress::Access(segment) => self.join(*segment, Member { port, tag: None }),
            Ingress::Trunk { native, tagged } => {
                if let Some(segment) = native {
                    self.join(*segment, Member { port, tag: None });
                }
                for entry in tagged {
                    self.join(
                        entry.segment,
                        Member {
                            port,
                            tag: Some(entry.vid),
                        },
                    );
                }
            }
        }
        let at = port.0 as usize;
        self.ports
            .resize(self.ports.len().max(at + 1), Ingress::Closed);
        self.ports[at] = ingress;
    }

    fn join(&mut self, segment: SegmentId, member: Member) {
        self.segments[usize::from(segment.0)].push(member);
    }
}

fn check_segments(model: &Model) -> Result<(), CompileError> {
    let mut names = BTreeMap::new();
    let mut vlans = BTreeMap::new();
    for (id, Segment { name, vlan }) in &model.segments {
        if usize::from(id.0) >= MAX_SEGMENTS {
            return Err(CompileError::SegmentRange {
                segment: name.clone(),
            });
        }
        if names.insert(name, id).is_some() {
            return Err(CompileError::SameName { name: name.clone() });
        }
        let Some(vlan) = *vlan else { continue };
        if !(1..=4094).contains(&vlan) {
            return Err(CompileError::VlanRange {
                segment: name.clone(),
                vlan,
            });
        }
        if let Some(first) = vlans.insert(vlan, name) {
            let (first, second) = (first.clone(), name.clone());
            return Err(CompileError::SameVlan {
                first,
                second,
                vlan,
            });
        }
    }
    Ok(())
}

fn compile_port(model: &Model, port: PortId, mode: &PortMode) -> Result<Ingress, CompileError> {
    if port.0 as usize >= MAX_PORTS {
        return Err(CompileError::PortRange { port });
    }
    match mode {
        PortMode::Access(id) => {
            find(model, port, *id)?;
            Ok(Ingress::Access(*id))
        }
        PortMode::Trunk(ids) => compile_trunk(model, port, ids),
        PortMode::Down => Ok(Ingress::Down),
    }
}

fn compile_trunk(model: &Model, port: PortId, ids: &[SegmentId]) -> Result<Ingress, CompileError> {
    if ids.is_empty() {
        return Err(CompileError::EmptyTrunk { port });
    }
    let mut native: Option<SegmentId> = None;
    let mut tagged: Vec<VlanSegment> = Vec::new();
    for (i, &id) in ids.iter().enumerate() {
        let segment = find(model, port, id)?;
        if ids[..i].contains(&id) {
            return Err(CompileError::Repeated {
                port,
                segment: segment.name.clone(),
            });
        }
        match (segment.vlan, native) {
            (Some(vid), _) => tagged.push(VlanSegment { vid, segment: id }),
            (None, None) => native = Some(id),
            (None, Some(first)) => {
                let (first, second) =
                    (find(model, port, first)?.name.clone(), segment.name.clone());
                return Err(CompileError::TwoUntagged {
                    port,
                    first,
                    second,
                });
            }
        }
    }
    tagged.sort_unstable_by_key(|entry| entry.vid);
    Ok(Ingress::Trunk { native, tagged })
}

fn find(model: &Model, port: PortId, segment: SegmentId) -> Result<&Segment, CompileError> {
    model
        .segments
        .get(&segment)
        .ok_or(CompileError::UnknownSegment { port, segment })
}
