//! Cached flows, as the switch tells of them.

use policy::{Action, SegmentId};
use port::PortId;
use serde::{Deserialize, Serialize};
use wire::flow::{FlowKey, FlowMask};

use crate::records::{key_from_words, mask_from_words};

/// Keys in one [`Order::FindFlows`](crate::switching::Order::FindFlows) at most: frames wait while they are looked up.
pub const MAX_KEYS: usize = 16;
/// Flows in one answer to [`Order::Flows`](crate::switching::Order::Flows) at most.
pub const MAX_TOLD: usize = 1024;

/// A cached flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CachedFlow {
    /// Its key, masked.
    pub key: [u64; 8],
    /// The bits of a key that count.
    pub mask: [u64; 8],
    /// What happens to its frames.
    pub action: Action,
    /// Whom a flood leaves out, in ascending order.
    pub except: Vec<PortId>,
    /// The segment in which that was decided.
    pub segment: Option<SegmentId>,
    /// Frames so far.
    pub packets: u64,
    /// Frames within the last [`recent_ms`](Self::recent_ms).
    pub recent: u64,
    /// Milliseconds since flows were counted last, or since this one was made if that is less.
    pub recent_ms: u32,
    /// Milliseconds since the last frame; where there was none, since it was made.
    pub idle_ms: u32,
    /// Milliseconds since it was decided.
    pub age_ms: u32,
}

impl CachedFlow {
    /// Its key.
    #[must_use]
    pub fn flow_key(&self) -> FlowKey {
        key_from_words(&self.key)
    }

    /// Its mask.
    #[must_use]
    pub fn flow_mask(&self) -> FlowMask {
        mask_from_words(&self.mask)
    }

    /// Frames in a thousand seconds, of late.
    #[must_use]
    pub fn rate(&self) -> u64 {
        rate(self.recent, self.recent_ms)
    }

    /// The same flow of another worker. What they disagree on is left as it is here.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.recent += other.recent;
        self.recent_ms = self.recent_ms.max(other.recent_ms);
        self.idle_ms = self.idle_ms.min(other.idle_ms);
        self.age_ms = self.age_ms.max(other.age_ms);
    }
}

/// So many frames in so many milliseconds, in a thousand seconds.
#[must_use]
pub fn rate(frames: u64, ms: u32) -> u64 {
    frames.saturating_mul(1_000_000) / u64::from(ms.max(1))
}

/// Which flows are wanted: the busiest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowsWanted {
    /// From or to this port alone.
    pub port: Option<PortId>,
    /// So many, [`MAX_TOLD`] at most.
    pub limit: u16,
}

/// A flow that was asked for by a frame's key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FoundFlow {
    /// Which of the keys, from 0 on.
    pub question: u16,
    /// Which worker has it: each has its own cache.
    pub worker: u16,
    /// The flow.
    pub flow: CachedFlow,
}
