//! The API is served, or it is not: while one control takes over from another, one of them may change what is wanted.
//!
//! ```text
//! Tell::Freeze   the doors close: no connection is accepted any more, requests under way are answered
//!                what is known is saved, for the last time; Ask::Frozen
//!                upcalls are answered still; clients wait at the socket, which is the supervisor's
//! Tell::Thaw     the doors open
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use tokio::sync::watch;

use super::Engine;
use crate::command::EngineHandle;
use crate::server;

/// The engine's side.
#[derive(Debug)]
pub(super) struct Doors {
    wanted: watch::Sender<bool>,
    open: watch::Receiver<bool>,
    metrics: watch::Sender<Socket>,
}

/// Where metrics are served, if anywhere.
type Socket = Option<Arc<OwnedFd>>;

impl Default for Doors {
    /// Of an engine without a server.
    fn default() -> Self {
        Self {
            wanted: watch::Sender::new(false),
            open: watch::channel(false).1,
            metrics: watch::Sender::new(None),
        }
    }
}

impl Doors {
    /// Opens or closes them, when somebody has the time.
    fn set(&self, open: bool) {
        self.wanted
            .send_if_modified(|wanted| std::mem::replace(wanted, open) != open);
    }

    /// Serves metrics there, and nowhere else, while the doors are open.
    pub(super) fn serve_metrics(&self, socket: Socket) {
        self.metrics.send_replace(socket);
    }

    fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Changes when they were opened or closed.
    pub(super) fn closed(&self) -> watch::Receiver<bool> {
        self.open.clone()
    }
}

/// The server's side.
#[derive(Debug)]
pub(super) struct Porter {
    wanted: watch::Receiver<bool>,
    open: watch::Sender<bool>,
    metrics: watch::Receiver<Socket>,
}

/// New doors.
pub(super) fn hang(open: bool) -> (Doors, Porter) {
    let (wanted, to_do) = watch::channel(open);
    let (is, seen) = watch::channel(open);
    let (metrics, sockets) = watch::channel(None);
    let doors = Doors {
        wanted,
        open: seen,
        metrics,
    };
    let porter = Porter {
        wanted: to_do,
        open: is,
        metrics: sockets,
    };
    (doors, porter)
}

/// The server's thread, which waits for its first client.
pub(super) struct AtWork(mpsc::Sender<()>);

impl AtWork {
    /// Has clients heard.
    pub(super) fn begin(self) {
        // A thread that has ended has said why.
        let _ = self.0.send(());
    }
}

impl Porter {
    /// Starts a thread that serves the API: what clients send is read there, and answers are put into words, while the engine answers
    /// upcalls. It waits until it is told to begin, and ends with the process, or when the socket fails.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn start(self, api: OwnedFd, engine: EngineHandle) -> io::Result<AtWork> {
        let (begin, told) = mpsc::channel();
        let (runs, ready) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("api".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(runs.send(Err(error))),
                };
                let _ = runs.send(Ok(()));
                if told.recv().is_ok() {
                    runtime.block_on(self.serve(api, engine));
                }
            })?;
        ready.recv().map_err(io::Error::other)??;
        Ok(AtWork(begin))
    }

    /// Serves the API while the doors are open, until the engine is gone.
    async fn serve(mut self, api: OwnedFd, engine: EngineHandle) {
        while self.wanted.wait_for(|open| *open).await.is_ok() {
            self.open.send_replace(true);
            let (served, ()) = tokio::join!(
                self.serve_once(&api, &engine),
                self.serve_collectors(&engine)
            );
            if let Err(error) = served {
                tracing::error!("the API cannot be served: {error}");
                return;
            }
            self.open.send_replace(false);
        }
    }

    async fn serve_once(&self, api: &OwnedFd, engine: &EngineHandle) -> io::Result<()> {
        let listener = server::listener(api.try_clone()?)?;
        let mut wanted = self.wanted.clone();
        let close = async move {
            // An engine that is gone closes them too.
            let _ = wanted.wait_for(|open| !*open).await;
        };
        server::serve(listener, engine.clone(), close).await;
        Ok(())
    }

    /// Serves metrics until the doors close.
    async fn serve_collectors(&self, engine: &EngineHandle) {
        let mut sockets = self.metrics.clone();
        loop {
            let socket = sockets.borrow_and_update().clone();
            let (mut wanted, mut others) = (self.wanted.clone(), sockets.clone());
            let end = async move {
                tokio::select! {
                    _ = wanted.wait_for(|open| !*open) => {}
                    _ = others.changed() => {}
                }
            };
            match socket.map(|socket| server::any_listener(socket.try_clone()?)) {
                Some(Ok(listener)) => server::serve_metrics(listener, engine.clone(), end).await,
                Some(Err(error)) => {
                    tracing::error!("metrics cannot be served: {error}");
                    end.await;
                }
                None => end.await,
            }
            if !*self.wanted.borrow() || self.wanted.has_changed().is_err() {
                return;
            }
        }
    }
}

impl Engine {
    /// Does what the supervisor said last.
    pub(super) fn freeze_or_thaw(&mut self) -> io::Result<()> {
        let rest = self.supervisor.wants_rest();
        self.doors.set(!rest);
        if !rest {
            self.frozen = false;
            return Ok(());
        }
        // Their clients would hold the doors open.
        self.end_captures()?;
        self.events.end_clients();
        if !self.frozen && !self.doors.is_open() {
            self.save()?;
            self.frozen = true;
            self.supervisor.rested()?;
        }
        Ok(())
    }
}
