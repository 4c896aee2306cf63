//! What control says of ports' limits.

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
