//! Cached flows, as the switch reports them.

use policy::{Action, SegmentId};
use port::PortId;
use serde::{Deserialize, Serialize};
use wire::flow::{FlowKey, FlowMask};

use crate::records::{key_from_words, mask_from_words};

/// Maximum number of keys in one
/// [`SwitchCommand::FindFlows`](crate::switching::SwitchCommand::FindFlows):
/// frames wait during the lookup.
pub const MAX_KEYS: usize = 16;
/// Most flows in one answer to [`SwitchCommand::Flows`](crate::switching::SwitchCommand::Flows).
pub const MAX_DUMPED: usize = 1024;

/// A cached flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CachedFlow {
    /// Its key, masked.
    pub key: [u64; 8],
    /// The bits of a key that count.
    pub mask: [u64; 8],
    /// The action for its frames.
    pub action: Action,
    /// Ports that a flood excludes, in ascending order.
    pub except: Vec<PortId>,
    /// The segment of the decision.
    pub segment: Option<SegmentId>,
    /// Frames so far.
    pub packets: u64,
    /// Frames within the last [`recent_ms`](Self::recent_ms).
    pub recent: u64,
    /// Milliseconds since flows were counted last, or since this one was created if that is less.
    pub recent_ms: u32,
    /// Milliseconds since the last frame; without frames, since it was created.
    pub idle_ms: u32,
    /// Milliseconds since it was decided.
    pub age_ms: u32,
}

impl CachedFlow {
    /// Returns its key.
    #[must_use]
    pub fn flow_key(&self) -> FlowKey {
        key_from_words(&self.key)
    }

    /// Returns its mask.
    #[must_use]
    pub fn flow_mask(&self) -> FlowMask {
        mask_from_words(&self.mask)
    }

    /// Returns the recent frames in a thousand seconds.
    #[must_use]
    pub fn rate(&self) -> u64 {
        rate(self.recent, self.recent_ms)
    }

    /// Adds the same flow of another worker. Fields that differ stay as they are here.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.recent += other.recent;
        self.recent_ms = self.recent_ms.max(other.recent_ms);
        self.idle_ms = self.idle_ms.min(other.idle_ms);
        self.age_ms = self.age_ms.max(other.age_ms);
    }
}

/// Returns a rate in frames per thousand seconds, from so many frames in so many milliseconds.
#[must_use]
pub fn rate(frames: u64, ms: u32) -> u64 {
    frames.saturating_mul(1_000_000) / u64::from(ms.max(1))
}

/// Selects the busiest flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowDumpRequest {
    /// Only flows from or to this port.
    pub port: Option<PortId>,
    /// Number of flows, [`MAX_DUMPED`] at most.
    pub limit: u16,
}

/// A flow that was found by a frame's key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FoundFlow {
    /// Index of the key, from 0 on.
    pub question: u16,
    /// Worker that has it: each has its own cache.
    pub worker: u16,
    /// The flow.
    pub flow: CachedFlow,
}
