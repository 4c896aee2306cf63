//! Traces: the path of a frame through the switch, with reasons.

use model::objects;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::v1::words::words;

use super::{FlowEntry, MirrorDirection, PortState, PrefilterEntry};

objects!(TraceRequest, TraceFrame);

/// Maximum number of frames in a request.
pub const TRACE_MAX: usize = 16;

/// Body of `POST /v1/trace`: frames from a port's guest, as an expression or as bytes. Nothing is
/// sent, learned or counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct TraceRequest {
    /// The port that they come from.
    pub port: String,
    /// A frame expression, like `icmp 10.0.0.1 > 10.0.0.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
    /// At most 16 frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<TraceFrame>,
}

/// A frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct TraceFrame {
    /// Its first bytes in hexadecimal, starting with the Ethernet header. Bytes after the first 192
    /// are ignored.
    pub headers: String,
    /// Its length in bytes, if it is longer than `headers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u32>,
}

/// Answer of `POST /v1/trace`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceDocument {
    /// The port that the frames come from.
    pub port: String,
    /// The epoch of the policy that decides.
    pub epoch: u64,
    /// One trace for each frame, in their order.
    pub traces: Vec<Trace>,
}

/// The trace of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// The frame as an expression.
    pub frame: String,
    /// Fields that the expression left out, and the values that were used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filled: Vec<String>,
    /// The steps of the decision, in order.
    pub steps: Vec<TraceStep>,
    /// The result.
    pub outcome: TraceOutcome,
    /// Limits that count the frame. Whether it exceeds one depends on the other traffic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<TraceLimit>,
    /// The entry of the uplink's prefilter that such frames meet: they end before the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefilter: Option<PrefilterEntry>,
    /// Mirrors that copy the frame.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<TraceMirror>,
    /// Cached flows of the switch that match the frame, at most one for each worker. Without any,
    /// the first such frame causes an upcall.
    pub flows: Vec<TracedFlow>,
}

words! {
    /// Stages of a decision.
    pub enum TraceStage {
        /// The frame itself: its addresses, its length.
        Frame = "frame",
        /// The segment of the frame.
        Segment = "segment",
        /// Its source address: port security and learning.
        Source = "source",
        /// The connection of the frame, in segments with stateful rules.
        Connection = "connection",
        /// Access lists.
        Policy = "policy",
        /// The port of its destination address.
        Station = "station",
    }
}

/// A step of a decision.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceStep {
    /// The stage.
    pub stage: TraceStage,
    /// The explanation.
    pub text: String,
    /// The drop reason, if the frame is dropped here.
    pub drop: Option<String>,
    /// The segment, if this step determines it.
    pub segment: Option<String>,
    /// The verdict of access lists.
    pub ruling: Option<TraceRuling>,
    /// The port of the destination address, if it is known.
    pub port: Option<String>,
}

/// The verdict of the access lists in one direction.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceRuling {
    /// `from-guest` or `to-guest`.
    pub direction: String,
    /// The ports whose lists were evaluated: the sender, or receivers with the same lists.
    pub ports: Vec<String>,
    /// The lists, in the order of evaluation.
    pub lists: Vec<String>,
    /// `allow`, `drop`, `reject` or `allow-stateful`.
    pub verdict: String,
    /// The list of the rule that decides. Without one, the segment's default decides, or the
    /// headers could not be parsed.
    pub list: Option<String>,
    /// The rule that decides.
    pub rule: Option<String>,
}

/// Actions for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TraceAction {
    /// Deliver to one port.
    Deliver,
    /// Deliver to several ports of the segment.
    Flood,
    /// Drop.
    Drop,
    /// Answer a neighbour request in place of its target; only the sender receives a frame.
    Answer,
}

/// The result for a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceOutcome {
    /// The action.
    pub action: TraceAction,
    /// The explanation.
    pub text: String,
    /// The drop reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The receivers.
    pub receivers: Vec<TraceReceiver>,
}

/// A limit of a port that counts the frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceLimit {
    /// The limit's name in `limits` of a port.
    pub limit: String,
    /// The ports with this limit: the sender, or receivers with equal limits, each with its own.
    pub ports: Vec<String>,
    /// The explanation.
    pub text: String,
    /// The drop reason of frames above the limit. Without one, such frames wait in the sender's
    /// queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop: Option<String>,
}

/// A copy of the frame by a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceMirror {
    /// The mirror.
    pub mirror: String,
    /// The port that gets the copy.
    pub to: String,
    /// The port at which it is copied.
    pub port: String,
    /// `in` for a copy of the frame as that port sent it, `out` as it was delivered to it.
    pub direction: MirrorDirection,
    /// The explanation.
    pub text: String,
}

/// A receiver of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceReceiver {
    /// The port.
    pub port: String,
    /// The VLAN tag of the frame at this port; absent for an untagged frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The port's state. Frames to a port that is not up are dropped there.
    pub state: PortState,
}

/// A cached flow that matches a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedFlow {
    /// The worker whose cache has the flow.
    pub worker: u16,
    /// The flow.
    pub flow: FlowEntry,
    /// The difference between the cached flow and a new decision, if there is one. Such a flow is
    /// about to be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disagrees: Option<String>,
}
