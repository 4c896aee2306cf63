//! The table `[switch.connections]`.

use model::objects;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::{seconds, si};

objects!(ConnectionsSpec, TimeoutsSpec);

/// Connection tracking, in segments with stateful rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct ConnectionsSpec {
    /// Maximum number of connections, 1024 to 4194304.
    #[serde(deserialize_with = "si::number")]
    #[schema(value_type = si::Number)]
    pub max: u64,
    /// Whether a TCP segment from the middle of an unknown connection is new, so that rules decide;
    /// if not, it is invalid.
    pub pick_up: bool,
    /// Whether the sequence windows of TCP are checked; if not, its states only.
    pub strict: bool,
    /// Seconds, 0 to 3600, after the start of an empty table and of each guest: meanwhile a TCP
    /// segment of an unknown connection may also be a reply.
    #[serde(deserialize_with = "seconds::seconds")]
    #[schema(value_type = seconds::Seconds)]
    pub recovery: u32,
    /// Connections end after these times without a frame, each 1 to 2147483 seconds.
    pub timeouts: TimeoutsSpec,
}

impl ConnectionsSpec {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for ConnectionsSpec {
    fn default() -> Self {
        Self {
            max: 1 << 18,
            pick_up: true,
            strict: true,
            recovery: 60,
            timeouts: TimeoutsSpec::default(),
        }
    }
}

/// Timeouts by state, in seconds, with the names of `nf_conntrack`.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct TimeoutsSpec {
    /// TCP: a SYN was sent. Default: 2 minutes.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_syn_sent: Option<u32>,
    /// TCP: the SYN was answered. Default: 1 minute.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_syn_recv: Option<u32>,
    /// TCP: established. Default: 24 hours.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_established: Option<u32>,
    /// TCP: one side has closed. Default: 2 minutes.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_fin_wait: Option<u32>,
    /// TCP: one side has closed, which is acknowledged. Default: 1 minute.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_close_wait: Option<u32>,
    /// TCP: both sides have closed. Default: 30 seconds.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_last_ack: Option<u32>,
    /// TCP: both sides have closed, which is acknowledged. Default: 2 minutes.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_time_wait: Option<u32>,
    /// TCP: reset. Default: 10 seconds.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_close: Option<u32>,
    /// TCP: a side announces a window of zero. Default: 5 minutes.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_max_retrans: Option<u32>,
    /// TCP: bytes are not acknowledged. Default: 5 minutes.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub tcp_unacknowledged: Option<u32>,
    /// UDP: not answered. Default: 30 seconds.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub udp: Option<u32>,
    /// UDP: both sides send. Default: 2 minutes.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub udp_stream: Option<u32>,
    /// Echo requests of IPv4. Default: 30 seconds.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub icmp: Option<u32>,
    /// Echo requests of IPv6. Default: 30 seconds.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub icmpv6: Option<u32>,
    /// Other protocols. Default: 10 minutes.
    #[serde(deserialize_with = "seconds::optional")]
    #[schema(value_type = Option<seconds::Seconds>)]
    pub generic: Option<u32>,
}

impl TimeoutsSpec {
    /// Returns all timeouts with their names.
    #[must_use]
    pub fn all(&self) -> [(&'static str, Option<u32>); 15] {
        [
            ("tcp_syn_sent", self.tcp_syn_sent),
            ("tcp_syn_recv", self.tcp_syn_recv),
            ("tcp_established", self.tcp_established),
            ("tcp_fin_wait", self.tcp_fin_wait),
            ("tcp_close_wait", self.tcp_close_wait),
            ("tcp_last_ack", self.tcp_last_ack),
            ("tcp_time_wait", self.tcp_time_wait),
            ("tcp_close", self.tcp_close),
            ("tcp_max_retrans", self.tcp_max_retrans),
            ("tcp_unacknowledged", self.tcp_unacknowledged),
            ("udp", self.udp),
            ("udp_stream", self.udp_stream),
            ("icmp", self.icmp),
            ("icmpv6", self.icmpv6),
            ("generic", self.generic),
        ]
    }
}
