//! What a port may send and be sent.
//!
//! ```text
//! from the guest   a batch gets what there is (grant); frames that it is too small for stay in the guest's ring; what was not used
//!                  is given back (settle), and the pair waits until there is enough for the first of them
//! to the guest     frame by frame (admits); more is dropped
//! for many         frames that are flooded, frame by frame (admits_flood); more is dropped
//! ```
//!
//! All workers that serve a port share its buckets, so a limit is the port's as a whole. Between a grant and its settlement what is not
//! used is missing to others, for about a microsecond; who finds nothing then looks again soon.

mod bucket;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use channel::limits::{Limit, Limits, Rate};
use port::{Budget, Cost, Share};
use wire::MacAddr;

use bucket::{Bucket, Grant, Nanos};

/// Who has to wait waits at least for so long, so that there is something to do then; or half as long as the bucket takes to
/// fill, so that nothing is lost meanwhile.
const PAUSE: Nanos = 500_000;

/// The buckets of one direction.
#[derive(Debug)]
struct Limiter {
    packets: Option<Bucket>,
    bits: Option<Bucket>,
}

impl Limiter {
    fn new(limit: Limit) -> Option<Self> {
        let limiter = Self {
            packets: limit.packets.map(Bucket::new),
            bits: limit.bits.map(Bucket::new),
        };
        (limit != Limit::default()).then_some(limiter)
    }

    /// All that may be used now; `None` if that is nothing.
    fn grant(&self, now: Nanos) -> Option<Budget> {
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

    /// Gives back what was not used of a grant, or takes what was used beyond it.
    fn settle(&self, budget: &Budget) {
        let shares = [(&self.packets, budget.packets), (&self.bits, budget.bits)];
        for (bucket, share) in shares {
            if let Some(bucket) = bucket {
                bucket.settle(share.granted, share.used);
            }
        }
    }

    /// When to look again for so much.
    fn ready_at(&self, cost: Cost, now: Nanos) -> Nanos {
        let buckets = [(&self.packets, cost.packets), (&self.bits, cost.bits)];
        let each = buckets.into_iter().filter_map(|(bucket, need)| {
            let bucket = bucket.as_ref()?;
            Some((bucket.ready_at(need), bucket.fills_in()))
        });
        let (ready, pause) = each.fold((0, PAUSE), |(ready, pause), (at, fills_in)| {
            (at.max(ready), pause.min(fills_in / 2))
        });
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
    /// Full buckets; `None` where nothing is limited.
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

    /// What is limited.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether what its guest sends is limited.
    pub(crate) fn holds_back(&self) -> bool {
        self.from_guest.is_some()
    }

    /// Whether what its guest is sent is limited.
    pub(crate) fn drops(&self) -> bool {
        self.to_guest.is_some()
    }

    /// What its guest may send now, to be given to [`PortLimits::settle`]; `None` if that is not limited.
    ///
    /// # Errors
    /// Nothing; the time at which to look again.
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

    /// What was granted was used so far. The time at which to look again, if there was not enough for a frame.
    pub(crate) fn settle(&self, budget: &Budget, now: Nanos) -> Option<Nanos> {
        let limiter = self.from_guest.as_ref()?;
        limiter.settle(budget);
        budget.short.map(|cost| limiter.ready_at(cost, now))
    }

    /// Whether its guest may be sent a frame now; then that is paid for.
    pub(crate) fn admits(&self, cost: Cost, now: Nanos) -> bool {
        let limiter = self.to_guest.as_ref();
        limiter.is_none_or(|limiter| limiter.admits(cost, now))
    }

    /// Whether a frame of its guest for this address, which is flooded, may be; then that is paid for.
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
