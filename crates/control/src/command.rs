//! What the API server asks of the engine: one message a request, the answer over a channel of its own.
//!
//! The engine owns all state and is one task; it takes a [`Command`] after the other from its receiver and
//! never waits for a client.

use std::time::Duration;

use api::v1::{
    FdbDocument, FdbFilter, PortPatch, PortSpec, PortStatus, PortsDocument, Problem, StatsDocument,
    StatusDocument,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long a client waits for the engine.
const PATIENCE: Duration = Duration::from_secs(10);

/// What came of a command.
pub type Answer<T> = Result<T, Problem>;

/// Where the engine puts its answer. Sending fails when the client is gone, which is not an error.
pub type Reply<T> = oneshot::Sender<Answer<T>>;

/// A question or an order to the engine.
#[derive(Debug)]
pub enum Command {
    /// What is everything doing?
    Status(Reply<StatusDocument>),
    /// What are the ports doing?
    Ports(Reply<PortsDocument>),
    /// Add a port; see [`crate::wanted::add_port`] for what may be wrong with it.
    AddPort(PortSpec, Reply<PortStatus>),
    /// Change the port of this name; see [`crate::wanted::set_port`].
    SetPort(String, PortPatch, Reply<PortStatus>),
    /// Remove the port of this name.
    RemovePort(String, Reply<()>),
    /// How much traffic, how many drops?
    Stats(Reply<StatsDocument>),
    /// What was learned?
    Fdb(FdbFilter, Reply<FdbDocument>),
}

/// The engine, as everyone else sees it. Clones speak to the same engine.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
}

/// A handle, and the commands that come through it; at most `depth` of them wait.
///
/// # Panics
/// When `depth` is 0.
pub fn engine_channel(depth: usize) -> (EngineHandle, mpsc::Receiver<Command>) {
    let (commands, receiver) = mpsc::channel(depth);
    (EngineHandle { commands }, receiver)
}

impl EngineHandle {
    /// Asks [`Command::Status`].
    ///
    /// # Errors
    /// The engine's problem, or 503 when it is gone, busy or silent; so with all of these.
    pub async fn status(&self) -> Answer<StatusDocument> {
        self.ask(Command::Status).await
    }

    /// Asks [`Command::Ports`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn ports(&self) -> Answer<PortsDocument> {
        self.ask(Command::Ports).await
    }

    /// Orders [`Command::AddPort`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn add_port(&self, port: PortSpec) -> Answer<PortStatus> {
        self.ask(|reply| Command::AddPort(port, reply)).await
    }

    /// Orders [`Command::SetPort`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn set_port(&self, name: String, patch: PortPatch) -> Answer<PortStatus> {
        self.ask(|reply| Command::SetPort(name, patch, reply)).await
    }

    /// Orders [`Command::RemovePort`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn remove_port(&self, name: String) -> Answer<()> {
        self.ask(|reply| Command::RemovePort(name, reply)).await
    }

    /// Asks [`Command::Stats`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn stats(&self) -> Answer<StatsDocument> {
        self.ask(Command::Stats).await
    }

    /// Asks [`Command::Fdb`].
    ///
    /// # Errors
    /// As [`EngineHandle::status`].
    pub async fn fdb(&self, filter: FdbFilter) -> Answer<FdbDocument> {
        self.ask(|reply| Command::Fdb(filter, reply)).await
    }

    /// Sends one command and waits for its answer, both within [`PATIENCE`].
    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        let exchange = async {
            let gone = || Problem::unavailable("control is shutting down");
            let command = command(reply);
            self.commands.send(command).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        };
        let silent = |_| {
            let seconds = PATIENCE.as_secs();
            Problem::unavailable(format!("control did not answer within {seconds} s"))
        };
        timeout(PATIENCE, exchange).await.map_err(silent)?
    }
}
