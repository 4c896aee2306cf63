//! The metrics socket, and the data of the metrics page.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use api::v1::Problem;

use super::{Engine, unavailable};
use crate::metrics::{Facts, PortFacts};
use config::desired;

/// A listening socket for metrics.
#[derive(Clone, Debug)]
pub(super) struct MetricsSocket {
    /// Path or address by which the supervisor knows it.
    path: String,
    pub(super) socket: Arc<OwnedFd>,
}

impl Engine {
    /// Returns the desired socket: the open one, or a new one.
    ///
    /// # Errors
    /// 409 when it cannot be opened.
    pub(super) fn claim_metrics(&mut self) -> Result<Option<MetricsSocket>, Problem> {
        let Some(path) = desired::metrics_socket(&self.saved.desired) else {
            return Ok(None);
        };
        if let Some(listener) = &self.metrics
            && listener.path == path
        {
            return Ok(Some(listener.clone()));
        }
        let socket = self.supervisor.listen(&path);
        let conflict = |e: std::io::Error| Problem::conflict("metrics.listen", e.to_string());
        let socket = Arc::new(socket.map_err(conflict)?);
        Ok(Some(MetricsSocket { path, socket }))
    }

    /// Closes a socket, unless it is the one in use.
    pub(super) fn release_metrics(
        &mut self,
        listener: &Option<MetricsSocket>,
    ) -> Result<(), Problem> {
        let Some(listener) = listener else {
            return Ok(());
        };
        match &self.metrics {
            Some(have) if have.path == listener.path => Ok(()),
            _ => self
                .supervisor
                .unlisten(&listener.path)
                .map_err(unavailable),
        }
    }

    /// Serves metrics on this socket only.
    pub(super) fn serve_metrics(&mut self, listener: Option<MetricsSocket>) -> Result<(), Problem> {
        let path = |listener: &Option<MetricsSocket>| {
            listener.as_ref().map(|listener| listener.path.clone())
        };
        if path(&listener) == path(&self.metrics) {
            return Ok(());
        }
        self.api_gate.serve_metrics(
            listener
                .as_ref()
                .map(|listener| Arc::clone(&listener.socket)),
        );
        match std::mem::replace(&mut self.metrics, listener) {
            Some(old) => self.supervisor.unlisten(&old.path).map_err(unavailable),
            None => Ok(()),
        }
    }

    /// Returns the data of the metrics page.
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
