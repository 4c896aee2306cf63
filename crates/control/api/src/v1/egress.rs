//! The use of scheduled ports, and lists of traffic classes and groups of senders.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{FullAction, QosClassSpec, QosGroupSpec};

/// Answer of `GET /v1/qos/classes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QosClassesDocument {
    /// The classes, the default one included.
    pub classes: Vec<QosClassSpec>,
}

/// Answer of `GET /v1/qos/groups`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QosGroupsDocument {
    /// The groups.
    pub groups: Vec<QosGroupStatus>,
}

/// A group of senders with its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QosGroupStatus {
    /// Its name.
    pub name: String,
    /// Guaranteed bits a second.
    pub min: Option<u64>,
    /// Maximum number of bits a second.
    pub max: Option<u64>,
    /// Burst in bits.
    pub burst: Option<u64>,
    /// Its part of what is left, relative to others.
    pub weight: u16,
    /// The ports in it.
    pub ports: Vec<String>,
}

impl QosGroupStatus {
    /// Returns a group with these members.
    #[must_use]
    pub fn new(spec: &QosGroupSpec, ports: Vec<String>) -> Self {
        Self {
            name: spec.name.clone(),
            min: spec.min,
            max: spec.max,
            burst: spec.burst,
            weight: spec.weight,
            ports,
        }
    }
}

/// A scheduled port in effect: part of a port's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressStatus {
    /// Bits a second; `null`: as many as its interface takes.
    pub rate: Option<u64>,
    /// The speed of its interface, bits a second, if it is known.
    pub link: Option<u64>,
    /// Bytes that a frame takes beside its own.
    pub overhead: u32,
    /// Treatment of frames while its interface takes no more.
    pub full: FullAction,
    /// The sum of what is guaranteed, bits a second, as configured.
    pub promised: u64,
    /// Whether guarantees are scaled down, because its interface is slower than their sum.
    pub scaled: bool,
}

/// Answer of `GET /v1/egress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressPortsDocument {
    /// The scheduled ports, in the order of the desired state.
    pub ports: Vec<EgressDocument>,
}

/// A scheduled port and its senders. Answer of `GET /v1/ports/{name}/egress`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressDocument {
    /// The port.
    pub port: String,
    /// Its settings in effect.
    pub output: EgressStatus,
    /// The shares of senders and their use, by sender and class; classes without settings and
    /// frames are left out.
    pub shares: Vec<EgressShare>,
}

/// The part of a scheduled port that a class of a sender has. Counters start with the scheduling of
/// the port, and anew with the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressShare {
    /// The sending port.
    pub sender: String,
    /// The class; empty for the sender as a whole.
    pub class: String,
    /// The group of the sender.
    pub group: Option<String>,
    /// The priority.
    pub priority: u8,
    /// Guaranteed bits a second, as scaled; 0 for none.
    pub min: u64,
    /// Maximum number of bits a second.
    pub max: Option<u64>,
    /// The part of what is left, relative to others.
    pub weight: u16,
    /// Bits sent, as on the wire.
    pub bits: u64,
    /// Microseconds for which frames waited for their turn.
    pub held_us: u64,
    /// Frames dropped instead.
    pub dropped_frames: u64,
    /// Bits of the frame that waits now; 0 if none does.
    pub waiting_bits: u64,
}
