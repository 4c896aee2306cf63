//! The thread that serves the API while the gate is open.

use std::io;
use std::sync::mpsc;

use sys::foreign::ForeignFd;

use crate::command::EngineHandle;
use crate::gate::ServerGate;

/// The thread before its start.
#[derive(Debug)]
pub(crate) struct ApiThread(pub(crate) ServerGate);

/// A started API thread, which waits for [`StartedApiThread::begin`].
pub(crate) struct StartedApiThread(mpsc::Sender<()>);

impl StartedApiThread {
    /// Begins to serve clients.
    pub(crate) fn begin(self) {
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
    pub(crate) fn start(
        self,
        api: ForeignFd,
        engine: EngineHandle,
    ) -> io::Result<StartedApiThread> {
        let (begin, begun) = mpsc::channel();
        let (started, ready) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("api".into());
        sys::thread::start(thread, move || {
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
    async fn serve(mut self, api: ForeignFd, engine: EngineHandle) {
        while self.0.desired.wait_for(|open| *open).await.is_ok() {
            self.0.open.send_replace(true);
            let (served, ()) = tokio::join!(
                self.serve_once(&api, &engine),
                self.serve_collectors(&engine)
            );
            if let Err(error) = served {
                tracing::error!("API server failed: {error}");
                return;
            }
            self.0.open.send_replace(false);
        }
    }

    async fn serve_once(&self, api: &ForeignFd, engine: &EngineHandle) -> io::Result<()> {
        let listener = super::listener(api.try_clone()?)?;
        let mut desired = self.0.desired.clone();
        let close = async move {
            // An engine that is gone closes the gate, too.
            let _ = desired.wait_for(|open| !*open).await;
        };
        super::serve(listener, engine.clone(), close).await;
        Ok(())
    }

    /// Serves metrics until the gate closes.
    async fn serve_collectors(&self, engine: &EngineHandle) {
        let mut sockets = self.0.metrics.clone();
        loop {
            let socket = sockets.borrow_and_update().clone();
            let (mut desired, mut others) = (self.0.desired.clone(), sockets.clone());
            let end = async move {
                tokio::select! {
                    _ = desired.wait_for(|open| !*open) => {}
                    _ = others.changed() => {}
                }
            };
            match socket.map(|socket| super::any_listener(socket.try_clone()?)) {
                Some(Ok(listener)) => super::serve_metrics(listener, engine.clone(), end).await,
                Some(Err(error)) => {
                    tracing::error!("metrics server failed: {error}");
                    end.await;
                }
                None => end.await,
            }
            if !*self.0.desired.borrow() || self.0.desired.has_changed().is_err() {
                return;
            }
        }
    }
}
