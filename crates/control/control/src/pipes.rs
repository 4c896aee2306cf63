//! The server at which the ends of pipes meet: its thread, and the engine's handle of it.
//!
//! The sockets are the supervisor's, as those of ports, so they survive control. Ends that lose
//! their connection dial again and bring what they have ([`pipes`]). The server has a thread of its
//! own, a bounded number of connections and descriptors, and a bounded rate of new connections:
//! processes that flood it take nothing from upcalls and the API. It maps nothing.

mod connections;
#[cfg(test)]
mod tests;
mod thread;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use api::v1::{OpenPipe, PipeEnd, PipesDocument};
use config::desired::PipeSocket;
use pipes::{End, PipeStatus};
use sys::foreign::ForeignFd;

use crate::events::Events;
use thread::Thread;

/// A listening socket of pipes.
#[derive(Clone, Debug)]
pub(crate) struct PipeListener {
    /// The pipe, or the port with pipes.
    pub(crate) pipe: PipeSocket,
    /// The only user whose processes may connect.
    pub(crate) peer: Option<u32>,
    /// The socket.
    pub(crate) socket: Arc<ForeignFd>,
}

/// The engine's requests, and the state of the thread.
#[derive(Debug, Default)]
struct State {
    listeners: Vec<PipeListener>,
    /// Connections are accepted.
    open: bool,
    /// Grows with each change of the two above.
    round: u64,
    /// Pipes with an end, by the path of their socket.
    pipes: Vec<(String, PipeStatus)>,
}

#[derive(Debug)]
struct SharedPipes {
    state: Mutex<State>,
    /// Rings when the engine has changed something.
    bell: OwnedFd,
}

impl SharedPipes {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent even if a thread panicked with the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's handle of the server.
#[derive(Clone, Debug)]
pub(crate) struct PipeServer(Arc<SharedPipes>);

impl PipeServer {
    /// Creates the handle of a server that has not been started.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new() -> io::Result<Self> {
        let shared = SharedPipes {
            state: Mutex::default(),
            bell: sys::event::create()?,
        };
        Ok(Self(Arc::new(shared)))
    }

    /// Starts the thread, which ends with the process. It runs when this returns: the system calls
    /// of its start are not permitted later.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn start(&self, events: Events) -> io::Result<()> {
        let thread = Thread::new(Arc::clone(&self.0), events)?;
        let (started, running) = mpsc::sync_channel(1);
        let builder = std::thread::Builder::new().name("pipes".into());
        sys::thread::start(builder, move || {
            // The other end waits for it.
            let _ = started.send(());
            thread.run();
        })?;
        running.recv().map_err(io::Error::other)
    }

    /// Serves these sockets only. The ends of others run on without a server.
    pub(crate) fn serve(&self, listeners: Vec<PipeListener>) {
        self.change(|state| state.listeners = listeners);
    }

    /// Accepts connections, or leaves them waiting at the sockets.
    pub(crate) fn set_open(&self, open: bool) {
        if self.0.state().open != open {
            self.change(|state| state.open = open);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.state();
        change(&mut state);
        state.round += 1;
        // The counter of an eventfd that was created here has room.
        let _ = sys::event::ring(&self.0.bell);
    }

    /// Returns the sockets.
    pub(crate) fn listeners(&self) -> Vec<PipeListener> {
        self.0.state().listeners.clone()
    }

    /// Returns the pipes, those of ports first.
    pub(crate) fn document(&self) -> PipesDocument {
        let now = sys::time::monotonic();
        let state = self.0.state();
        let of = |listener: &PipeListener| {
            let open = state.pipes.iter();
            let open = open.filter(|(path, _)| *path == listener.pipe.path);
            api::v1::PipeStatus {
                name: listener.pipe.name.clone(),
                socket: listener.pipe.path.clone(),
                slots: listener.pipe.slots,
                open: open.map(|(_, pipe)| open_pipe(pipe, now)).collect(),
            }
        };
        PipesDocument {
            pipes: state.listeners.iter().map(of).collect(),
        }
    }
}

/// Returns a pipe with an end as a document.
fn open_pipe(pipe: &PipeStatus, now: Duration) -> OpenPipe {
    let end = |(end, status): (End, &Option<pipes::EndStatus>)| {
        let status = status.as_ref()?;
        let since = Duration::from_millis(status.since_ms);
        Some(PipeEnd {
            end: end.as_str().to_owned(),
            program: status.program.clone(),
            pid: status.pid,
            connected_seconds: now.saturating_sub(since).as_secs(),
        })
    };
    OpenPipe {
        id: pipe.id,
        slots: pipe.slots,
        memory_bytes: pipe.file_size,
        ends: End::BOTH
            .into_iter()
            .zip(&pipe.ends)
            .filter_map(end)
            .collect(),
    }
}
