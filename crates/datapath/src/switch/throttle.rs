//! Senders whose frames stay in their queues: rate limits and backpressure.

use std::sync::Arc;

use channel::limits::Limits;
use port::{Port, PortId};

use super::Switch;
use crate::coalescing::Nanos;
use crate::limits::PortLimits;

/// Senders that have to wait.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Whether any sender may have to wait: a limit is set, or backpressure is on.
    pub(super) active: bool,
    /// Ports with a from-guest rate limit.
    ports: Vec<PortId>,
    /// Time at which the pair that was served last can be served again.
    until: Option<Nanos>,
}

impl<P: Port> Switch<P> {
    /// Sets the limits of a port; workers share them.
    pub fn set_limits(&mut self, id: PortId, limits: Option<Arc<PortLimits>>) {
        self.throttle.ports.retain(|port| *port != id);
        if limits
            .as_ref()
            .is_some_and(|limits| limits.limits_from_guest())
        {
            self.throttle.ports.push(id);
        }
        self.fabric.set_limits(id, limits);
        self.update_throttle();
    }

    /// Returns the limits of a port.
    #[must_use]
    pub fn limits(&mut self, id: PortId) -> Limits {
        let limits = self.limits_of(id);
        limits.map(|limits| limits.limits()).unwrap_or_default()
    }

    /// Returns whether the port has a from-guest rate limit.
    #[must_use]
    pub(crate) fn limits_from_guest(&self, id: PortId) -> bool {
        self.throttle.active && self.throttle.ports.contains(&id)
    }

    /// Returns and clears the time, in nanoseconds, until which the pair that was served last has
    /// to wait because of its rate limit.
    #[inline]
    pub(crate) fn take_pause(&mut self) -> Option<Nanos> {
        if self.throttle.active {
            self.throttle.until.take()
        } else {
            None
        }
    }

    pub(super) fn update_throttle(&mut self) {
        self.throttle.active = self.backpressure_until != 0 || !self.throttle.ports.is_empty();
        if !self.throttle.active {
            self.batch.set_budget(None);
        }
    }

    fn limits_of(&mut self, id: PortId) -> Option<Arc<PortLimits>> {
        self.fabric.slot(id)?.limits.clone()
    }

    /// Sets the budget of the batch from its sender's rate limit. Returns whether it is zero.
    pub(super) fn exceeds_rate_limit(&mut self, id: PortId) -> bool {
        let now = self.fabric.now;
        let granted = match self.fabric.slot(id).and_then(|slot| slot.limits.as_deref()) {
            Some(limits) => limits.grant(now),
            None => Ok(None),
        };
        let (budget, until) = match granted {
            Ok(budget) => (budget, None),
            Err(until) => (None, Some(until)),
        };
        self.batch.set_budget(budget);
        self.throttle.until = until;
        until.is_some()
    }

    /// Returns the unused budget of the batch.
    #[inline(never)]
    pub(super) fn settle_limits(&mut self, id: PortId) {
        let now = self.fabric.now;
        let Some(budget) = self.batch.budget().copied() else {
            return;
        };
        self.batch.set_budget(None);
        if let Some(limits) = self.fabric.slot(id).and_then(|slot| slot.limits.as_deref()) {
            self.throttle.until = limits.settle(&budget, now);
        }
    }
}
