//! The API gate opens and closes the API: while one control takes over from another, only one of
//! them may change the desired state.
//!
//! ```text
//! SupervisorEvent::Freeze     the gate closes: no connection is accepted, open requests complete
//! SupervisorRequest::Frozen   the state is saved for the last time; upcalls are still handled;
//!                             clients wait at the socket, which the supervisor holds
//! SupervisorEvent::Thaw       the gate opens
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use tokio::sync::watch;

use super::Engine;
use crate::command::EngineHandle;
use crate::server;

/// The engine's side of the gate.
#[derive(Debug)]
pub(super) struct ApiGate {
    desired: watch::Sender<bool>,
    open: watch::Receiver<bool>,
    metrics: watch::Sender<Socket>,
}

/// The socket on which metrics are served, if any.
type Socket = Option<Arc<OwnedFd>>;

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
    fn set(&self, open: bool) {
        self.desired
            .send_if_modified(|desired| std::mem::replace(desired, open) != open);
    }

    /// Serves metrics on this socket only, while the gate is open.
    pub(super) fn serve_metrics(&self, socket: Socket) {
        self.metrics.send_replace(socket);
    }

    fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Returns a receiver that changes when the API was opened or closed.
    pub(super) fn changes(&self) -> watch::Receiver<bool> {
        self.open.clone()
    }
}

/// The server's side of the gate.
#[derive(Debug)]
pub(super) struct ApiThread {
    desired: watch::Receiver<bool>,
    open: watch::Sender<bool>,
    metrics: watch::Receiver<Socket>,
}

/// Creates both sides of a gate.
pub(super) fn install(open: bool) -> (ApiGate, ApiThread) {
    let (desired, requested) = watch::channel(open);
    let (is_open, seen) = watch::channel(open);
    let (metrics, sockets) = watch::channel(None);
    let api_gate = ApiGate {
        desired,
        open: seen,
        metrics,
    };
    let api_thread = ApiThread {
        desired: requested,
        open: is_open,
        metrics: sockets,
    };
    (api_gate, api_thread)
}

/// A started API thread, which waits for [`StartedApiThread::begin`].
pub(super) struct StartedApiThread(mpsc::Sender<()>);

impl StartedApiThread {
    /// Begins to serve clients.
    pub(super) fn begin(self) {
        // A thread that has ended has logged the reason.
        let _ = self.0.send(());
    }
}

impl ApiThread {
    /// Starts the thread that serves the API: requests are parsed and responses encoded there,
    /// while the engine handles upcalls. It waits for [`StartedApiThread::begin`], and ends with
    /// the process or when the socket fails.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn start(self, api: OwnedFd, engine: EngineHandle) -> io::Result<StartedApiThread> {
        let (begin, begun) = mpsc::channel();
        let (started, ready) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("api".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(started.send(Err(error))),
                };
                let _ = started.send(Ok(()));
                if begun.recv().is_ok() {
                    runtime.block_on(self.serve(api, engine));
                }
            })?;
        ready.recv().map_err(io::Error::other)??;
        Ok(StartedApiThread(begin))
    }

    /// Serves the API while the gate is open, until the engine is gone.
    async fn serve(mut self, api: OwnedFd, engine: EngineHandle) {
        while self.desired.wait_for(|open| *open).await.is_ok() {
            self.open.send_replace(true);
            let (served, ()) = tokio::join!(
                self.serve_once(&api, &engine),
                self.serve_collectors(&engine)
            );
            if let Err(error) = served {
                tracing::error!("API server failed: {error}");
                return;
            }
            self.open.send_replace(false);
        }
    }

    async fn serve_once(&self, api: &OwnedFd, engine: &EngineHandle) -> io::Result<()> {
        let listener = server::listener(api.try_clone()?)?;
        let mut desired = self.desired.clone();
        let close = async move {
            // An engine that is gone closes the gate, too.
            let _ = desired.wait_for(|open| !*open).await;
        };
        server::serve(listener, engine.clone(), close).await;
        Ok(())
    }

    /// Serves metrics until the gate closes.
    async fn serve_collectors(&self, engine: &EngineHandle) {
        let mut sockets = self.metrics.clone();
        loop {
            let socket = sockets.borrow_and_update().clone();
            let (mut desired, mut others) = (self.desired.clone(), sockets.clone());
            let end = async move {
                tokio::select! {
                    _ = desired.wait_for(|open| !*open) => {}
                    _ = others.changed() => {}
                }
            };
            match socket.map(|socket| server::any_listener(socket.try_clone()?)) {
                Some(Ok(listener)) => server::serve_metrics(listener, engine.clone(), end).await,
                Some(Err(error)) => {
                    tracing::error!("metrics server failed: {error}");
                    end.await;
                }
                None => end.await,
            }
            if !*self.desired.borrow() || self.desired.has_changed().is_err() {
                return;
            }
        }
    }
}

impl Engine {
    /// Follows the supervisor's last freeze or thaw request.
    pub(super) fn freeze_or_thaw(&mut self) -> io::Result<()> {
        let freeze = self.supervisor.is_freezing();
        self.api_gate.set(!freeze);
        if !freeze {
            self.frozen = false;
            return Ok(());
        }
        // Streams to their clients would keep the gate open.
        self.end_captures()?;
        self.events.end_clients();
        if !self.frozen && !self.api_gate.is_open() {
            self.save()?;
            self.frozen = true;
            self.supervisor.report_frozen()?;
        }
        Ok(())
    }
}
