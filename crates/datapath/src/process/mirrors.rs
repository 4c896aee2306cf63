//! Mirrors, as the session thread keeps them: control says what there is, the workers copy.

use std::sync::Arc;

use channel::mirrors::{MAX_MIRRORS, Mirror as Order};
use port::PortId;

use super::Process;
use crate::mirror::Mirror;

impl Process {
    /// From now on there are these mirrors and no others. What is wrong with one changes nothing.
    pub(super) fn set_mirrors(&mut self, orders: Vec<Order>) -> Result<(), String> {
        if orders.len() > MAX_MIRRORS {
            return Err(format!("more than {MAX_MIRRORS} mirrors"));
        }
        let known = |port: &PortId| self.ports.contains_key(port);
        if !orders
            .iter()
            .all(|m| known(&m.to) && m.ports.iter().all(known))
        {
            return Err("no such port".to_owned());
        }
        let mirrors = orders.iter().cloned().map(Mirror::new);
        let mirrors: Arc<[Mirror]> = mirrors
            .collect::<Result<_, _>>()
            .map_err(|e| e.to_string())?;
        if orders != self.mirrors {
            self.mirrors = orders;
            self.workers
                .each(move |w| w.switch.set_mirrors(Arc::clone(&mirrors)));
        }
        Ok(())
    }

    /// A port leaves: its number may be another one's soon.
    pub(super) fn forget_mirrors_of(&mut self, port: PortId) -> Result<(), String> {
        let left = self.mirrors.iter().cloned();
        let left = left.filter_map(|mirror| mirror.without(port)).collect();
        self.set_mirrors(left)
    }
}
