//! Statistics: traffic, drops, and the forwarding database.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

use super::{AdminState, DesiredState, PortState, Problem};

/// Answer of `GET /v1/stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatsDocument {
    /// The ports, in the order of the desired state.
    pub ports: Vec<PortStats>,
    /// Frames dropped since the switch started, by reason, of all ports. Ports that were removed
    /// since are included.
    pub drops: BTreeMap<String, u64>,
    /// The mirrors, in the order of the desired state. Copies are also counted at the port that
    /// receives them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorStats>,
}

/// Counters of a mirror since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MirrorStats {
    /// The mirror's name.
    pub name: String,
    /// Copies that were delivered.
    pub copied: Traffic,
    /// Lost copies by reason; reasons without a loss may be left out.
    pub lost: BTreeMap<String, u64>,
}

/// Counters of a port since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortStats {
    /// The port's name.
    pub name: String,
    /// Its state.
    pub state: PortState,
    /// The administrative state. A port that is `down` forwards nothing, whatever its state.
    #[serde(default)]
    pub admin_state: AdminState,
    /// Traffic from the guest.
    pub from_guest: Traffic,
    /// Traffic to the guest.
    pub to_guest: Traffic,
    /// Frames dropped at this port by reason; reasons without a drop may be left out.
    pub drops: BTreeMap<String, u64>,
    /// ARP requests and neighbour solicitations of the guest to which the switch replied itself.
    #[serde(default)]
    pub neighbour_replies: u64,
    /// CPU time spent for this traffic.
    #[serde(default)]
    pub work: Work,
}

/// Reason of frames to a port without a guest. A guest that is off loses nothing, so they are in no
/// sum of drops.
pub const ABSENT_GUEST: &str = "receiver-down";

impl PortStats {
    /// Returns the reasons of lost frames with their numbers: all drops but those for the absence
    /// of the port's guest ([`ABSENT_GUEST`]).
    pub fn losses(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.drops.iter();
        let all = all.map(|(reason, frames)| (&**reason, *frames));
        all.filter(|(reason, _)| *reason != ABSENT_GUEST)
    }

    /// Returns the number of lost frames.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.losses().map(|(_, frames)| frames).sum()
    }
}

/// CPU time that the switch has spent for a port since it was added.
///
/// Cycles are ticks of the counter that the switch measures with: on x86-64 the time stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Work {
    /// Cycles for frames from the guest: reception and lookup.
    pub cycles_switching: u64,
    /// Cycles for frames to the guest: copying, and the notification of both guests.
    pub cycles_copying: u64,
    /// `cycles_switching` in nanoseconds for each frame from the guest; 0 without frames.
    pub switching_ns_per_frame: u64,
    /// `cycles_copying` in nanoseconds for each frame to the guest; 0 without frames.
    pub copying_ns_per_frame: u64,
    /// Both, in microseconds of CPU time.
    pub cpu_us: u64,
    /// Batches that skipped the port: it had no receive buffer for so long that frames for it were
    /// dropped without a look at its queue.
    pub skipped_batches: u64,
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
    /// The entries, ordered by segment and MAC address.
    pub entries: Vec<FdbEntry>,
}

/// An FDB entry: a MAC address and its port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct FdbEntry {
    /// The segment in which it was learned.
    pub segment: String,
    /// The address, lower-case with colons.
    pub mac: String,
    /// Name of the port.
    pub port: String,
    /// Seconds since the last frame from this address; 0 for a static entry.
    pub age_seconds: u64,
    /// Whether the entry is static: port security of its port lists the address and the port is up,
    /// or the operator has configured it. No other port may use the address.
    #[serde(rename = "static", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_static: bool,
}

/// Query of `GET /v1/fdb`: selects entries. An absent field matches all.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FdbFilter {
    /// Only entries of this segment.
    pub segment: Option<String>,
    /// Only entries of this port.
    pub port: Option<String>,
}

/// Answer of `DELETE /v1/fdb`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FdbFlushResult {
    /// Number of learned entries that were removed.
    pub flushed: u64,
}

impl FdbFilter {
    /// Returns whether the filter selects `entry`.
    pub fn accepts(&self, entry: &FdbEntry) -> bool {
        let same = |desired: &Option<String>, is: &str| desired.as_deref().is_none_or(|w| w == is);
        same(&self.segment, &entry.segment) && same(&self.port, &entry.port)
    }

    /// Checks that the segment and the port exist.
    ///
    /// # Errors
    /// 404 with the field, if the segment or the port does not exist.
    pub fn check(&self, desired: &DesiredState) -> Result<(), Problem> {
        let segment = self.segment.as_deref();
        let port = self.port.as_deref();
        if let Some(name) = segment.filter(|name| desired.segment(name).is_none()) {
            return Err(Problem::no_such("segment", name).with_field("segment"));
        }
        if let Some(name) = port.filter(|name| desired.port(name).is_none()) {
            return Err(Problem::no_such("port", name).with_field("port"));
        }
        Ok(())
    }
}
