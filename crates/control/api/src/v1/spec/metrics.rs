//! The socket for metrics.

use model::objects;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

objects!(MetricsSpec);

/// A socket for metrics, in addition to the API's socket, which always serves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct MetricsSpec {
    /// A loopback address with a port, like `127.0.0.1:9464`, or `unix:` and the path
    /// of a socket; a relative one starts at the runtime directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
}

impl MetricsSpec {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
