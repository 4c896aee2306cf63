//! The table of connections: its file, which the supervisor makes, and its settings.
//!
//! ```text
//! control     asks the supervisor for the table when the first stateful rule comes, and at start
//! supervisor  makes the file, or has it; sends it to the switch, and to control read-only
//! control     sends the switch the settings ([`SwitchCommand::Track`])
//! switch      takes over what the file holds, and tracks connections
//! ```
//!
//! The supervisor knows the length of the file and nothing of its contents. All of it is in memory
//! before anything uses it, so that no connection lacks memory later.
//!
//! [`SwitchCommand::Track`]: crate::switching::SwitchCommand::Track

use serde::{Deserialize, Serialize};

/// Maximum length of the file in bytes, more than the largest table: control cannot ask for all
/// memory.
pub const MAX_TABLE_BYTES: u64 = 1 << 30;

/// Settings of connection tracking.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ConnectionSettings {
    /// Number of connections that the table holds.
    pub max: u32,
    /// Whether a TCP segment from the middle of an unknown connection opens one.
    pub pick_up: bool,
    /// Whether sequence windows are checked.
    pub strict: bool,
    /// Milliseconds after the start of an empty table or a guest. Meanwhile a segment from the
    /// middle may be an answer.
    pub recovery_ms: u32,
    /// Milliseconds, in the order of `conntrack::Timeout::ALL`.
    pub timeouts_ms: Vec<u32>,
}

/// Findings of a switch in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AdoptedTable {
    /// The file was new, or of another layout or capacity: the table starts empty.
    pub is_new: bool,
    /// Number of connections that continue.
    pub connections: u32,
}
