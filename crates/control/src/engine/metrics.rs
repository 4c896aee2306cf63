//! Where metrics are served, and what they are made of.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use api::v1::Problem;

use super::{Engine, unavailable};
use crate::metrics::{Facts, PortFacts};
use crate::wanted;

/// A socket that listens for those who collect metrics.
#[derive(Clone, Debug)]
pub(super) struct MetricsDoor {
    /// As the supervisor knows it.
    path: String,
    pub(super) socket: Arc<OwnedFd>,
}

impl Engine {
    /// The socket that is wanted: the one that there is, or another.
    ///
    /// # Errors
    /// 409 when it cannot be had.
    pub(super) fn claim_metrics(&mut self) -> Result<Option<MetricsDoor>, Problem> {
        let Some(path) = wanted::metrics_socket(&self.saved.wanted) else {
            return Ok(None);
        };
        if let Some(door) = &self.metrics
            && door.path == path
        {
            return Ok(Some(door.clone()));
        }
        let socket = self.supervisor.listen(&path);
        let taken = |e: std::io::Error| Problem::conflict("metrics.listen", e.to_string());
        let socket = Arc::new(socket.map_err(taken)?);
        Ok(Some(MetricsDoor { path, socket }))
    }

    /// Gives a socket back that is not the one there is.
    pub(super) fn drop_metrics(&mut self, door: &Option<MetricsDoor>) -> Result<(), Problem> {
        let Some(door) = door else { return Ok(()) };
        match &self.metrics {
            Some(have) if have.path == door.path => Ok(()),
            _ => self.supervisor.unlisten(&door.path).map_err(unavailable),
        }
    }

    /// Serves metrics there, and nowhere else.
    pub(super) fn serve_metrics(&mut self, door: Option<MetricsDoor>) -> Result<(), Problem> {
        let path = |door: &Option<MetricsDoor>| door.as_ref().map(|door| door.path.clone());
        if path(&door) == path(&self.metrics) {
            return Ok(());
        }
        self.doors
            .serve_metrics(door.as_ref().map(|door| Arc::clone(&door.socket)));
        match std::mem::replace(&mut self.metrics, door) {
            Some(old) => self.supervisor.unlisten(&old.path).map_err(unavailable),
            None => Ok(()),
        }
    }

    /// What metrics are made of.
    pub(super) fn facts(&mut self) -> Result<Facts, Problem> {
        let (states, figures) = self.switch.port_states().map_err(unavailable)?;
        let status = self.status_of(&states, &figures.switch)?;
        let ports = status.ports.iter().map(|port| {
            let id = self.saved.numbers.ports.get(&port.name).copied();
            PortFacts {
                counts: id.map(|id| self.counters.read(id)).unwrap_or_default(),
                state: states.iter().find(|s| Some(s.config.id) == id).cloned(),
            }
        });
        Ok(Facts {
            ports: ports.collect(),
            status,
            figures: figures.switch,
            workers: figures.workers,
            ticks_per_second: self.counters.ticks_per_second(),
            mirrors: self.mirror_stats(),
            rules: self.counted(),
            stations: self.fdb.list(self.now()).len() as u64,
        })
    }
}
