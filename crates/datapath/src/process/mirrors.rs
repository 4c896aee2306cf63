//! Mirrors: control configures them, the workers copy the frames.

use std::sync::Arc;

use channel::mirrors::{MAX_MIRRORS, Mirror as MirrorConfig};
use port::PortId;

use super::Process;
use crate::forward::mirror::Mirror;

impl Process {
    /// Replaces all mirrors. Nothing changes if one of them is invalid.
    pub(super) fn set_mirrors(&mut self, configs: Vec<MirrorConfig>) -> Result<(), String> {
        if configs.len() > MAX_MIRRORS {
            return Err(format!("more than {MAX_MIRRORS} mirrors"));
        }
        let known = |port: &PortId| self.ports.contains_key(port);
        if !configs
            .iter()
            .all(|m| known(&m.to) && m.ports.iter().all(known))
        {
            return Err("no such port".to_owned());
        }
        let mirrors = configs.iter().cloned().map(Mirror::new);
        let mirrors: Arc<[Mirror]> = mirrors
            .collect::<Result<_, _>>()
            .map_err(|e| e.to_string())?;
        if configs != self.mirrors {
            self.mirrors = configs;
            self.workers
                .each(move |w| w.switch.set_mirrors(Arc::clone(&mirrors)));
        }
        Ok(())
    }

    /// Removes a port from all mirrors, before its number can be used by another port.
    pub(super) fn forget_mirrors_of(&mut self, port: PortId) -> Result<(), String> {
        let left = self.mirrors.iter().cloned();
        let left = left.filter_map(|mirror| mirror.without(port)).collect();
        self.set_mirrors(left)
    }
}
