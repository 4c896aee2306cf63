//! The keyed hash of initial sequence numbers, and of tables with keys that guests choose.

#[expect(
    deprecated,
    reason = "the one SipHash of the standard library that takes a key"
)]
use std::hash::{BuildHasher, Hash, SipHasher};

use crate::Nanos;

/// A secret of this port: two random numbers of its driver.
#[derive(Clone, Copy)]
pub struct Secret(pub [u64; 2]);

#[expect(deprecated, reason = "as above")]
impl BuildHasher for Secret {
    type Hasher = SipHasher;

    fn build_hasher(&self) -> SipHasher {
        SipHasher::new_with_keys(self.0[0], self.0[1])
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The initial sequence number of a connection (RFC 6528, section 3): a clock of 4 us and the
    /// keyed hash of its addresses.
    pub(crate) fn initial(&self, key: &impl Hash, now: Nanos) -> u32 {
        (self.hash_one(key) as u32).wrapping_add((now >> 12) as u32)
    }
}
