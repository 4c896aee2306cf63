//! DNS (RFC 1035).

/// Port of DNS servers.
pub const PORT: u16 = 53;
