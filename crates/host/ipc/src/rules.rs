//! Counters of the rules of access lists, as the switch reports them.

pub use policy::acl::RuleId;
use serde::{Deserialize, Serialize};

/// Most rules that are recorded for one flow: a flood applies the lists of all its receivers.
pub const MAX_RULES: usize = 64;
/// Most rules that are counted at a time: more than there can be in access lists.
pub const MAX_COUNTED: usize = 1 << 17;

/// Counters of a rule since its last report: frames that it has decided, each once, however many
/// receivers there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuleUse {
    /// The rule.
    pub rule: RuleId,
    /// Frames.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Milliseconds since the last of them.
    pub idle_ms: u32,
}

impl RuleUse {
    /// Adds the counters of the same rule in another worker.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.idle_ms = self.idle_ms.min(other.idle_ms);
    }
}
