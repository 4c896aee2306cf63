//! Pairs that are looked at once more after their kicks were requested.
//!
//! A client that stores its index and then loads the request for kicks without a fence between may
//! see no request, while the worker sees no frame: each of the two stores waits in its core for a
//! moment (virtio 1.3, 2.7.13.4.1 has the fence; clients of memif lack it, see
//! [`may_miss_kicks`](virtio::queue::Queue::may_miss_kicks)). After [`SECOND_LOOK`] the client's
//! store has long become visible, and one look finds the frame. From then on every further store
//! sees the request, so one look is enough.

use std::collections::VecDeque;

use port::PortId;

use crate::ports::coalescing::Nanos;

/// Time from a request to the look: many times longer than a store stays in a core.
pub(super) const SECOND_LOOK: Nanos = 100_000;

type Pair = (PortId, u16);

/// Pairs and the times of their looks, in order.
#[derive(Debug, Default)]
pub(super) struct SecondLooks(VecDeque<(Nanos, Pair)>);

impl SecondLooks {
    /// Adds a pair whose kicks were requested at `now`.
    pub(super) fn add(&mut self, pair: Pair, now: Nanos) {
        self.remove(pair);
        self.0.push_back((now + SECOND_LOOK, pair));
    }

    /// Removes a pair, if it is listed.
    pub(super) fn remove(&mut self, pair: Pair) {
        self.0.retain(|(_, listed)| *listed != pair);
    }

    /// Returns the time of the next look.
    #[inline]
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.front().map(|(due, _)| *due)
    }

    /// Removes the next pair whose look is due.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<Pair> {
        self.next().filter(|due| *due <= now)?;
        self.0.pop_front().map(|(_, pair)| pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_one_look_after_it() {
        let [a, b] = [(PortId(1), 0), (PortId(2), 0)];
        let mut looks = SecondLooks::default();
        assert_eq!((looks.next(), looks.take_due(u64::MAX)), (None, None));
        looks.add(a, 10);
        looks.add(b, 20);
        looks.add(a, 30);
        assert_eq!(looks.next(), Some(20 + SECOND_LOOK));
        assert_eq!(looks.take_due(19 + SECOND_LOOK), None);
        assert_eq!(looks.take_due(30 + SECOND_LOOK), Some(b));
        assert_eq!(looks.take_due(30 + SECOND_LOOK), Some(a));
        assert_eq!(looks.take_due(u64::MAX), None, "no further one");
        looks.add(a, 40);
        looks.remove(a);
        assert_eq!(looks.next(), None);
    }
}
