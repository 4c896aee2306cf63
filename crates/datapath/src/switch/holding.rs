//! Senders whose frames stay where they are for now: those of ports that may send only so much.

use std::sync::Arc;

use channel::limits::Limits;
use port::{Port, PortId};

use super::Switch;
use crate::batching::Nanos;
use crate::limits::PortLimits;

/// Who has to wait.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// Whether anybody may have to: a limit is set, or the switch is patient.
    pub(super) any: bool,
    /// Ports whose guests are limited in what they send.
    ports: Vec<PortId>,
    /// When to look again at the pair that was served last.
    until: Option<Nanos>,
}

impl<P: Port> Switch<P> {
    /// What a port may send and be sent is this from now on; workers share it.
    pub fn set_limits(&mut self, id: PortId, limits: Option<Arc<PortLimits>>) {
        self.holding.ports.retain(|port| *port != id);
        if limits.as_ref().is_some_and(|limits| limits.holds_back()) {
            self.holding.ports.push(id);
        }
        self.fabric.set_limits(id, limits);
        self.look_who_waits();
    }

    /// What a port may send and be sent.
    #[must_use]
    pub fn limits(&mut self, id: PortId) -> Limits {
        let limits = self.limits_of(id);
        limits.map(|limits| limits.limits()).unwrap_or_default()
    }

    /// Whether what a port's guest sends is limited.
    #[must_use]
    pub(crate) fn holds_back(&self, id: PortId) -> bool {
        self.holding.any && self.holding.ports.contains(&id)
    }

    /// When the pair is to be looked at again that was served last, in nanoseconds, if there are frames that it may not send yet;
    /// said once.
    #[inline]
    pub(crate) fn take_pause(&mut self) -> Option<Nanos> {
        match self.holding.any {
            true => self.holding.until.take(),
            false => None,
        }
    }

    pub(super) fn look_who_waits(&mut self) {
        self.holding.any = self.patient_until != 0 || !self.holding.ports.is_empty();
        if !self.holding.any {
            self.batch.set_budget(None);
        }
    }

    fn limits_of(&mut self, id: PortId) -> Option<Arc<PortLimits>> {
        self.fabric.slot(id)?.limits.clone()
    }

    /// Gives the batch what its sender may send now; whether that is nothing.
    pub(super) fn is_over_its_limit(&mut self, id: PortId) -> bool {
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
        self.holding.until = until;
        until.is_some()
    }

    /// Gives back what the batch that was taken did not use.
    #[inline(never)]
    pub(super) fn settle_limits(&mut self, id: PortId) {
        let now = self.fabric.now;
        let Some(budget) = self.batch.budget().copied() else {
            return;
        };
        self.batch.set_budget(None);
        if let Some(limits) = self.fabric.slot(id).and_then(|slot| slot.limits.as_deref()) {
            self.holding.until = limits.settle(&budget, now);
        }
    }
}
