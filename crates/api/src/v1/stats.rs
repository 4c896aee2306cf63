//! Numbers: traffic and drops, and the forwarding database.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{PortState, Problem, WantedState};

/// Answer of `GET /v1/stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatsDocument {
    /// One element a port, in the operator's order.
    pub ports: Vec<PortStats>,
    /// Frames dropped since the switch started, by reason: all ports, also those removed since.
    pub drops: BTreeMap<String, u64>,
    /// One element a mirror, in the operator's order. Copies are counted at the port that gets them, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorStats>,
}

/// What one mirror has copied since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MirrorStats {
    /// The mirror's name.
    pub name: String,
    /// Copies that were delivered.
    pub copied: Traffic,
    /// Copies that were lost by reason; reasons without a loss may be left out.
    pub lost: BTreeMap<String, u64>,
}

/// The traffic of one port since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortStats {
    /// The port's name.
    pub name: String,
    /// How far it is.
    pub state: PortState,
    /// What the guest sent.
    pub from_guest: Traffic,
    /// What the guest was given.
    pub to_guest: Traffic,
    /// Frames dropped at this port by reason; reasons without a drop may be left out.
    pub drops: BTreeMap<String, u64>,
    /// What that cost.
    #[serde(default)]
    pub work: Work,
}

/// What the switch's processors did for a port since it was added.
///
/// Cycles are those of the counter that the switch measures with: on x86-64 the time stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Work {
    /// For what the guest sent: taking it, and finding out where it goes.
    pub cycles_switching: u64,
    /// For what the guest was given: copying it, and telling both guests.
    pub cycles_copying: u64,
    /// The former, in nanoseconds a frame from the guest; 0 without frames.
    pub switching_ns_per_frame: u64,
    /// The latter, in nanoseconds a frame to the guest; 0 without frames.
    pub copying_ns_per_frame: u64,
    /// Both, in microseconds of a processor.
    pub cpu_us: u64,
    /// Batches that found the port masked: it had shown no buffer for so long that frames for it were dropped
    /// without being tried.
    pub masked_batches: u64,
}

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Traffic {
    /// Frames; a segmentation-offload frame counts once.
    pub packets: u64,
    /// Bytes of those frames, without the virtio-net header.
    pub bytes: u64,
}

/// Answer of `GET /v1/fdb`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FdbDocument {
    /// What was learned, ordered by segment and MAC address.
    pub entries: Vec<FdbEntry>,
}

/// A MAC address and the port behind which it lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct FdbEntry {
    /// The segment in which it was learned.
    pub segment: String,
    /// The address, lower-case with colons.
    pub mac: String,
    /// Name of the port.
    pub port: String,
    /// Seconds since a frame from this address was last seen; 0 of a static one.
    pub age_seconds: u64,
    /// The port's guard lists it, and the port is up: no other port may have it.
    #[serde(rename = "static", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_static: bool,
}

/// Query of `GET /v1/fdb`: which entries are wanted. Without a field, all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FdbFilter {
    /// Only entries of this segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// Only entries of this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// How many learned entries were forgotten. Answer of `DELETE /v1/fdb`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FdbFlushed {
    /// So many.
    pub flushed: u64,
}

impl FdbFilter {
    /// Says whether `entry` is wanted.
    pub fn accepts(&self, entry: &FdbEntry) -> bool {
        let same = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|w| w == is);
        same(&self.segment, &entry.segment) && same(&self.port, &entry.port)
    }

    /// Says whether there is what is asked for.
    ///
    /// # Errors
    /// 404 where there is no such segment or port, with the field.
    pub fn check(&self, wanted: &WantedState) -> Result<(), Problem> {
        let segment = self.segment.as_deref();
        let port = self.port.as_deref();
        if let Some(name) = segment.filter(|name| wanted.segment(name).is_none()) {
            return Err(Problem::no_such_segment(name).with_field("segment"));
        }
        if let Some(name) = port.filter(|name| wanted.port(name).is_none()) {
            return Err(Problem::no_such_port(name).with_field("port"));
        }
        Ok(())
    }
}
