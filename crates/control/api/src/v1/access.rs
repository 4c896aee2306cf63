//! Warnings about access lists.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A shadowed rule: an earlier rule of its list matches everything that it matches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Shadow {
    /// The list.
    pub list: String,
    /// The rule.
    pub rule: String,
    /// The earlier rule.
    pub by: String,
}

/// Warnings about valid access lists. Answer of `GET /v1/access/warnings`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AccessWarnings {
    /// Rules that never decide a frame.
    pub shadowed: Vec<Shadow>,
    /// Names of unattached lists, which have no ports, groups or segments.
    #[serde(default)]
    pub unattached: Vec<String>,
}
