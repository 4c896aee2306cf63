//! The API gate opens and closes the API: while one control takes over from another, only one of
//! them may change the desired state.
//!
//! ```text
//! EventToControl::Freeze   the gate closes: no connection is accepted, open requests complete
//! ControlRequest::Frozen   the state is saved for the last time; upcalls are still handled;
//!                          clients wait at the socket, which the supervisor holds
//! EventToControl::Thaw     the gate opens
//! ```

use std::sync::Arc;

use sys::foreign::ForeignFd;
use tokio::sync::watch;

/// The engine's side of the gate.
#[derive(Debug)]
pub(crate) struct ApiGate {
    desired: watch::Sender<bool>,
    open: watch::Receiver<bool>,
    metrics: watch::Sender<Socket>,
}

/// The socket on which metrics are served, if any.
pub(crate) type Socket = Option<Arc<ForeignFd>>;

impl Default for ApiGate {
    /// Creates the gate of an engine without a server.
    fn default() -> Self {
        Self {
            desired: watch::Sender::new(false),
            open: watch::channel(false).1,
            metrics: watch::Sender::new(None),
        }
    }
}

impl ApiGate {
    /// Requests that the API thread opens or closes the API.
    pub(crate) fn set(&self, open: bool) {
        self.desired
            .send_if_modified(|desired| std::mem::replace(desired, open) != open);
    }

    /// Serves metrics on this socket only, while the gate is open.
    pub(crate) fn serve_metrics(&self, socket: Socket) {
        self.metrics.send_replace(socket);
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Returns a receiver that changes when the API was opened or closed.
    pub(crate) fn changes(&self) -> watch::Receiver<bool> {
        self.open.clone()
    }
}

/// The server's side of the gate.
#[derive(Debug)]
pub(crate) struct ServerGate {
    pub(crate) desired: watch::Receiver<bool>,
    pub(crate) open: watch::Sender<bool>,
    pub(crate) metrics: watch::Receiver<Socket>,
}

/// Creates both sides of a gate.
pub(crate) fn install(open: bool) -> (ApiGate, ServerGate) {
    let (desired, requested) = watch::channel(open);
    let (is_open, seen) = watch::channel(open);
    let (metrics, sockets) = watch::channel(None);
    let api_gate = ApiGate {
        desired,
        open: seen,
        metrics,
    };
    let server_gate = ServerGate {
        desired: requested,
        open: is_open,
        metrics: sockets,
    };
    (api_gate, server_gate)
}
