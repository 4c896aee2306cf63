//! Rate limits and storm control of a port.
//!
//! ```text
//! from the guest  a batch gets the available tokens (grant); frames beyond them stay in the
//!                 guest's ring; unused tokens are returned (settle), and the pair waits until
//!                 there are enough for its next frame
//! to the guest    frame by frame (admits); excess frames are dropped
//! flooded         frame by frame (admits_flood); excess frames are dropped
//! ```
//!
//! All workers that serve a port share its buckets, so a limit applies to the port as a whole.
//! Between grant and settlement unused tokens are missing to other workers, for about a
//! microsecond; a worker that finds none retries soon.

mod bucket;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use ipc::limits::{Limit, Limits, Rate};
use wire::MacAddr;

use bucket::{Bucket, Grant, Nanos};
use sync::{AtomicU64, Ordering::Relaxed};

use crate::ports::budget::{Budget, Cost, Share};

/// Minimum wait of a sender, nanoseconds, so that there is a batch to send then; or half of the
/// time in which the bucket fills, so that no tokens are lost.
const MIN_WAIT: Nanos = 500_000;
/// Wait of a sender whose tokens another worker has, nanoseconds: about as long as that has them.
const RETRY: Nanos = 1000;

/// Buckets of one direction.
#[derive(Debug)]
struct Limiter {
    packets: Option<Bucket>,
    bits: Option<Bucket>,
    /// Grants that are not settled yet.
    grants: AtomicU64,
}

impl Limiter {
    fn new(limit: Limit) -> Option<Self> {
        let limiter = Self {
            packets: limit.packets.map(Bucket::new),
            bits: limit.bits.map(Bucket::new),
            grants: AtomicU64::new(0),
        };
        (limit != Limit::default()).then_some(limiter)
    }

    /// Takes all available tokens; `None` if there are none.
    fn grant(&self, now: Nanos) -> Option<Budget> {
        // Before the tokens are missing to others.
        self.grants.fetch_add(1, Relaxed);
        let share = |bucket: &Option<Bucket>| match bucket {
            None => Share::ENDLESS,
            Some(bucket) => {
                let Grant { tokens, is_all } = bucket.take_all(now);
                let (granted, used) = (tokens, 0);
                Share {
                    granted,
                    used,
                    is_all,
                }
            }
        };
        let budget = Budget::new(share(&self.packets), share(&self.bits));
        if budget.packets.granted > 0 && budget.bits.granted > 0 {
            return Some(budget);
        }
        self.settle(&budget);
        None
    }

    /// Returns the unused tokens of a grant, or takes those used beyond it.
    fn settle(&self, budget: &Budget) {
        let shares = [(&self.packets, budget.packets), (&self.bits, budget.bits)];
        for (bucket, share) in shares {
            if let Some(bucket) = bucket {
                bucket.settle(share.granted, share.used);
            }
        }
        self.grants.fetch_sub(1, Relaxed);
    }

    /// Returns the time at which there are enough tokens for this cost, and for a batch. If another
    /// worker has some, or has just given them back, that is soon.
    fn ready_at(&self, cost: Cost, now: Nanos) -> Nanos {
        let buckets = [(&self.packets, cost.packets), (&self.bits, cost.bits)];
        let each = buckets.into_iter().filter_map(|(bucket, need)| {
            let bucket = bucket.as_ref()?;
            Some((bucket.ready_at(need), bucket.fills_in()))
        });
        let (ready, pause) = each.fold((0, MIN_WAIT), |(ready, pause), (at, fills_in)| {
            (at.max(ready), pause.min(fills_in / 2))
        });
        if ready <= now || self.grants.load(Relaxed) > 0 {
            return now + RETRY;
        }
        ready.max(now + pause)
    }

    fn admits(&self, cost: Cost, now: Nanos) -> bool {
        let take = |bucket: &Option<Bucket>, tokens| match bucket {
            None => true,
            Some(bucket) => bucket.take(tokens, now),
        };
        if !take(&self.packets, cost.packets) {
            return false;
        }
        let admits = take(&self.bits, cost.bits);
        if !admits && let Some(packets) = &self.packets {
            packets.settle(cost.packets, 0);
        }
        admits
    }
}

/// All buckets of a port.
#[derive(Debug)]
pub struct PortLimits {
    limits: Limits,
    from_guest: Option<Limiter>,
    to_guest: Option<Limiter>,
    broadcast: Option<Bucket>,
    multicast: Option<Bucket>,
    unknown_unicast: Option<Bucket>,
}

impl PortLimits {
    /// Returns full buckets; `None` if no limit is set.
    #[must_use]
    pub fn new(limits: Limits) -> Option<Arc<Self>> {
        let bucket = |rate: Option<Rate>| rate.map(Bucket::new);
        let made = || Self {
            limits,
            from_guest: Limiter::new(limits.from_guest),
            to_guest: Limiter::new(limits.to_guest),
            broadcast: bucket(limits.broadcast),
            multicast: bucket(limits.multicast),
            unknown_unicast: bucket(limits.unknown_unicast),
        };
        (!limits.is_nothing()).then(|| Arc::new(made()))
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns whether the from-guest direction is limited.
    pub(crate) fn limits_from_guest(&self) -> bool {
        self.from_guest.is_some()
    }

    /// Returns whether the to-guest direction is limited.
    pub(crate) fn limits_to_guest(&self) -> bool {
        self.to_guest.is_some()
    }

    /// Returns the budget of a batch, to be passed to [`PortLimits::settle`]; `None` without a
    /// limit.
    ///
    /// # Errors
    /// The time at which to retry, when there are no tokens.
    pub(crate) fn grant(&self, now: Nanos) -> Result<Option<Budget>, Nanos> {
        let Some(limiter) = &self.from_guest else {
            return Ok(None);
        };
        let one = Cost {
            packets: 1,
            bits: 1,
        };
        match limiter.grant(now) {
            None => Err(limiter.ready_at(one, now)),
            some => Ok(some),
        }
    }

    /// Settles a budget. Returns the time at which to retry, if it was too small for a frame.
    pub(crate) fn settle(&self, budget: &Budget, now: Nanos) -> Option<Nanos> {
        let limiter = self.from_guest.as_ref()?;
        limiter.settle(budget);
        budget.short.map(|cost| limiter.ready_at(cost, now))
    }

    /// Takes the tokens of a frame to the guest. Returns `false` if there are not enough.
    pub(crate) fn admits(&self, cost: Cost, now: Nanos) -> bool {
        let limiter = self.to_guest.as_ref();
        limiter.is_none_or(|limiter| limiter.admits(cost, now))
    }

    /// Takes the tokens of a flooded frame to this address. Returns `false` if there are not
    /// enough.
    pub(crate) fn admits_flood(&self, to: MacAddr, cost: Cost, now: Nanos) -> bool {
        let bucket = match to {
            MacAddr::BROADCAST => &self.broadcast,
            group if group.is_multicast() => &self.multicast,
            _ => &self.unknown_unicast,
        };
        let bucket = bucket.as_ref();
        bucket.is_none_or(|bucket| bucket.take(cost.packets, now))
    }
}
