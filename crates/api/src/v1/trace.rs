//! Why a frame goes where it goes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{FlowEntry, MirrorDirection, PortState};

/// Frames in one request at most.
pub const TRACE_MAX: usize = 16;

/// Body of `POST /v1/trace`: what would become of frames that a port's guest sends now. Either an expression or frames. Nothing is
/// sent, learned or counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// The port that they come from.
    pub port: String,
    /// A frame in words, like `icmp 10.0.0.1 > 10.0.0.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
    /// Frames, 16 at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<TraceFrame>,
}

/// A frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceFrame {
    /// Its first bytes, from the Ethernet header on, in hexadecimal. More than 192 are not looked at.
    pub headers: String,
    /// How many bytes it has, where that is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u32>,
}

/// Answer of `POST /v1/trace`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceDocument {
    /// The port that the frames come from.
    pub port: String,
    /// The forwarding program that decides.
    pub epoch: u64,
    /// One for each frame, in their order.
    pub traces: Vec<Trace>,
}

/// What would become of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// The frame in words.
    pub frame: String,
    /// What the expression left out, and how it was filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filled: Vec<String>,
    /// What was found out about it, in turn.
    pub steps: Vec<TraceStep>,
    /// What comes of it.
    pub outcome: TraceOutcome,
    /// Limits that the frame meets on its way. Whether it is one too many depends on what else is sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<TraceLimit>,
    /// Mirrors that copy it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<TraceMirror>,
    /// The decisions for such frames that the switch has cached, one for each of its workers that has one. Without any, the
    /// first such frame has control asked.
    pub flows: Vec<TracedFlow>,
}

/// Part of a frame's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TraceStage {
    /// The frame itself: its addresses, its length.
    Frame,
    /// The segment that it belongs to.
    Segment,
    /// Its source address, and what is learned of it.
    Source,
    /// Access lists.
    Policy,
    /// Where its destination is.
    Station,
}

impl TraceStage {
    /// Its name in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Frame => "frame",
            Self::Segment => "segment",
            Self::Source => "source",
            Self::Policy => "policy",
            Self::Station => "station",
        }
    }
}

/// One thing that was found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceStep {
    /// About what.
    pub stage: TraceStage,
    /// In words.
    pub text: String,
    /// The reason, if the frame is dropped here: as statistics count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop: Option<String>,
    /// The segment, if it was found here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// What access lists were asked, and what they say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ruling: Option<TraceRuling>,
    /// The port behind which the destination is, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// What the access lists of one side say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceRuling {
    /// `from-guest` or `to-guest`.
    pub direction: String,
    /// The ports that were asked: the sender, or receivers with the same lists.
    pub ports: Vec<String>,
    /// The lists, in the order in which they are asked.
    pub lists: Vec<String>,
    /// `allow`, `drop` or `reject`.
    pub verdict: String,
    /// The list of the rule that decides. Without one, the segment's default does, or the headers could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// The rule that decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// What happens to frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TraceAction {
    /// They go to one port.
    Deliver,
    /// They go to several ports of the segment.
    Flood,
    /// They go nowhere.
    Drop,
    /// They go nowhere, and the switch answers what they ask: the receiver is their sender.
    Answer,
}

/// What comes of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceOutcome {
    /// What is done.
    pub action: TraceAction,
    /// In words.
    pub text: String,
    /// Why it is dropped, as statistics count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// To whom it goes.
    pub receivers: Vec<TraceReceiver>,
}

/// A limit of a port, which counts the frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceLimit {
    /// Which limit: by its name in `limits` of a port.
    pub limit: String,
    /// The port whose limit it is; of receivers those that have the same one, each for itself.
    pub ports: Vec<String>,
    /// In words.
    pub text: String,
    /// Why a frame is dropped that is one too many, as statistics count it. Without this, it waits with its sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop: Option<String>,
}

/// A copy of the frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceMirror {
    /// The mirror.
    pub mirror: String,
    /// The port that gets the copy.
    pub to: String,
    /// The port at which it is copied.
    pub port: String,
    /// As that port sent it, or as it was delivered to it: never `both`.
    pub direction: MirrorDirection,
    /// In words.
    pub text: String,
}

/// Who gets a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceReceiver {
    /// The port.
    pub port: String,
    /// The tag that it leaves with; without one, untagged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// How far the port is. Frames to one that is not up are dropped there.
    pub state: PortState,
}

/// A cached decision for a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedFlow {
    /// The worker of the switch that has it: each has its own cache.
    pub worker: u16,
    /// The flow.
    pub flow: FlowEntry,
    /// Why it is not what would be decided now; without this, it is. Such a flow is about to be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disagrees: Option<String>,
}
