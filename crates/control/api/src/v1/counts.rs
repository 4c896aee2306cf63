//! Counters of the rules of access lists.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

use super::Direction;

/// Query of `GET /v1/access/counts`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct CountsFilter {
    /// Only the rules of this list.
    pub list: Option<String>,
    /// Maximum number of rules. Those with the most packets come first; rules without packets are
    /// left out.
    pub limit: Option<usize>,
}

/// Answer of `GET /v1/access/counts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessCounts {
    /// Access lists, in their order.
    pub lists: Vec<ListCounts>,
}

/// Counters of the rules of one list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListCounts {
    /// The list's name.
    pub name: String,
    /// The direction of its frames.
    pub direction: Direction,
    /// Segments to which it applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    /// Groups to which it applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Ports to which it applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Its rules, in their order.
    pub rules: Vec<RuleCounts>,
}

/// Counters of a rule. A frame that the rule decides counts once, whatever the number of its
/// receivers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleCounts {
    /// The rule's name.
    pub name: String,
    /// Frames that the rule has decided.
    pub packets: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Milliseconds since the last of these frames; absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_hit_ms_ago: Option<u64>,
}
