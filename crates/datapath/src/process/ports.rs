//! Ports' limits, and what is counted of their queues.

use std::collections::BTreeMap;

use channel::figures::QueueCounts;
use channel::limits::Limits;
use port::PortId;

use super::Process;
use crate::limits::PortLimits;

impl Process {
    /// Those of all ports that have any.
    pub(super) fn limits(&self) -> Vec<(PortId, Limits)> {
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        self.workers.first(move |w| {
            let limits = |id| (id, w.switch.limits(id));
            let all = ports.into_iter().map(limits);
            all.filter(|(_, limits)| !limits.is_nothing()).collect()
        })
    }

    /// What was counted of all queues.
    pub(super) fn queue_counts(&self) -> BTreeMap<PortId, BTreeMap<u16, QueueCounts>> {
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        self.workers.first(move |w| {
            let mut counts = |id| {
                let port = w.switch.port_mut(id)?;
                Some((id, port.counts().into_iter().collect()))
            };
            ports.into_iter().filter_map(&mut counts).collect()
        })
    }

    /// Gives a port's workers these limits to share. Those that they have already go on as they are.
    pub(super) fn set_limits(&mut self, id: PortId, limits: Limits) -> Result<(), String> {
        if !self.ports.contains_key(&id) {
            return Err("no such port".into());
        }
        if self.workers.first(move |w| w.switch.limits(id)) == limits {
            return Ok(());
        }
        let shared = PortLimits::new(limits);
        self.workers.each(move |w| w.set_limits(id, shared.clone()));
        Ok(())
    }
}
