//! What has come of the rules of access lists, as the switch tells of it.

pub use policy::acl::RuleId;
use serde::{Deserialize, Serialize};

/// Rules that are said to have decided about one flow, at most: a flood asks the lists of all its receivers.
pub const MAX_RULES: usize = 64;
/// Rules that are counted at a time: more than there can be in access lists.
pub const MAX_COUNTED: usize = 1 << 17;

/// What was counted for a rule since it was told last: frames about which it has decided, each once, however many receivers there are.
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
    /// Of the same rule, by another worker.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.idle_ms = self.idle_ms.min(other.idle_ms);
    }
}
