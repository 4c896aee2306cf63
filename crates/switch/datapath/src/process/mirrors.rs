//! Mirrors: control configures them, the workers copy the frames.

use std::sync::Arc;

use ipc::mirrors::{MAX_MIRRORS, Mirror as MirrorConfig};
use port::PortId;

use crate::forward::mirror::Mirror;
use crate::worker::workers::Workers;

/// The configured mirrors.
#[derive(Debug, Default)]
pub(super) struct Mirrors(Vec<MirrorConfig>);

impl Mirrors {
    /// Returns the configurations.
    pub(super) fn configs(&self) -> &[MirrorConfig] {
        &self.0
    }

    /// Replaces all mirrors. Nothing changes if one of them is invalid. `known` returns whether
    /// there is a port.
    pub(super) fn set(
        &mut self,
        configs: Vec<MirrorConfig>,
        known: impl Fn(&PortId) -> bool,
        workers: &Workers,
    ) -> Result<(), String> {
        if configs.len() > MAX_MIRRORS {
            return Err(format!("more than {MAX_MIRRORS} mirrors"));
        }
        if !configs
            .iter()
            .all(|m| known(&m.to) && m.ports.iter().all(&known))
        {
            return Err("no such port".to_owned());
        }
        let mirrors = configs.iter().cloned().map(Mirror::new);
        let mirrors: Arc<[Mirror]> = mirrors
            .collect::<Result<_, _>>()
            .map_err(|e| e.to_string())?;
        if configs != self.0 {
            self.0 = configs;
            workers.each(move |w| w.switch.set_mirrors(Arc::clone(&mirrors)));
        }
        Ok(())
    }

    /// Removes a port from all mirrors, before its number can be used by another port.
    pub(super) fn forget(
        &mut self,
        port: PortId,
        known: impl Fn(&PortId) -> bool,
        workers: &Workers,
    ) -> Result<(), String> {
        let left = self.0.iter().cloned();
        let left = left.filter_map(|mirror| mirror.without(port)).collect();
        self.set(left, known, workers)
    }
}
