//! Limits of user ports.

/// Most connections and UDP mappings of a user port.
pub const USER_FLOWS_MAX: u32 = 65_536;

/// Most of them that can outlive its driver process.
pub const USER_KEPT_MAX: u32 = 8192;
