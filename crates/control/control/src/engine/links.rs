//! Links to the switch and the supervisor. Nothing here waits: a request returns a future of its
//! reply, which ends with an error after [`PEER_TIMEOUT`]. The engine's loop reads the messages
//! that have arrived: replies complete their futures, and everything else is queued.

pub(super) mod loss;
pub(super) mod supervisor;
pub(super) mod switch;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::time::Duration;

use ipc::link::{Link, LinkEvent};
use ipc::supervision::{ControlRequest, EventToControl};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use supervisor::SupervisorLink;
use switch::SwitchLink;
use sys::foreign::ForeignFd;

/// Time, 5 s, within which a peer has to reply.
pub(super) const PEER_TIMEOUT: Duration = ipc::timeouts::PEER;

fn closed(peer: &str) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, format!("the {peer} is gone"))
}

/// Waits for a reply until `deadline`.
async fn reply_of<T>(peer: &str, reply: oneshot::Receiver<T>, deadline: Instant) -> io::Result<T> {
    let late = |_| {
        let text = format!("no reply from the {peer}");
        io::Error::new(io::ErrorKind::TimedOut, text)
    };
    let reply = timeout_at(deadline, reply).await.map_err(late)?;
    reply.map_err(|_| closed(peer))
}

/// Returns a descriptor that the runtime can wait for until it is readable.
#[expect(
    deprecated,
    reason = "the successor is unsafe for the sake of borrowed descriptors; this one is owned"
)]
pub(super) fn watch(fd: &impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    let copy = fd.as_fd().try_clone_to_owned()?;
    AsyncFd::with_interest(copy, Interest::READABLE)
}

/// A link with a queue of messages for which it had no room.
#[derive(Debug)]
struct Line<Out, In> {
    link: Link<Out, In>,
    unsent: VecDeque<(Out, Vec<ForeignFd>)>,
}

impl<Out: Serialize, In: DeserializeOwned> Line<Out, In> {
    fn new(link: Link<Out, In>) -> io::Result<Self> {
        link.set_nonblocking()?;
        let unsent = VecDeque::new();
        Ok(Self { link, unsent })
    }

    /// Sends a message, at once or when there is room.
    fn send(&mut self, message: Out, fds: Vec<ForeignFd>) -> io::Result<()> {
        self.unsent.push_back((message, fds));
        self.flush()
    }

    /// Sends the queued messages for which there is room.
    fn flush(&mut self) -> io::Result<()> {
        while let Some((message, fds)) = self.unsent.front() {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let sent = self.link.send_at_once(message, &fds);
            if matches!(&sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                return Ok(());
            }
            self.unsent.pop_front();
            sent?;
        }
        Ok(())
    }

    fn recv(&mut self) -> io::Result<LinkEvent<In>> {
        self.link.recv()
    }
}

impl<Out, In> AsFd for Line<Out, In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The links to both peers.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) switch: SwitchLink,
    pub(super) supervisor: SupervisorLink,
}

impl Links {
    /// Creates the links.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn new(
        switch: OwnedFd,
        supervisor: Link<ControlRequest, EventToControl>,
        timeout: Duration,
    ) -> io::Result<Self> {
        Ok(Self {
            switch: SwitchLink::new(switch, timeout)?,
            supervisor: SupervisorLink::new(supervisor, timeout)?,
        })
    }

    /// Returns whether messages wait for room.
    pub(super) fn has_unsent(&self) -> bool {
        self.switch.has_unsent() || self.supervisor.has_unsent()
    }

    /// Sends the messages for which there is room now.
    ///
    /// # Errors
    /// The switch is gone.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.supervisor.flush();
        self.switch.flush()
    }

    /// Reads what the switch has sent.
    ///
    /// # Errors
    /// The switch is gone or sent a malformed message.
    pub(super) fn receive_from_switch(&mut self) -> io::Result<()> {
        self.switch.receive()
    }

    /// Reads what the peers have sent.
    ///
    /// # Errors
    /// The switch is gone or sent a malformed message.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        self.flush()?;
        self.supervisor.receive();
        self.receive_from_switch()
    }

    /// Returns the descriptors for [`LinkWatch::complete`].
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn watch(&self) -> io::Result<LinkWatch> {
        Ok(LinkWatch {
            switch: watch(&self.switch)?,
            supervisor: watch(&self.supervisor)?,
        })
    }
}

/// Waits for messages of the peers.
#[derive(Debug)]
pub(super) struct LinkWatch {
    pub(super) switch: AsyncFd<OwnedFd>,
    pub(super) supervisor: AsyncFd<OwnedFd>,
}

impl LinkWatch {
    /// Completes `requests` while nothing else is served; `receive` reads what has arrived.
    ///
    /// # Errors
    /// Those of `receive`.
    pub(super) async fn complete<T>(
        &self,
        mut receive: impl FnMut() -> io::Result<()>,
        requests: impl Future<Output = T>,
    ) -> io::Result<T> {
        let mut requests = pin!(requests);
        loop {
            receive()?;
            tokio::select! {
                biased;
                done = &mut requests => return Ok(done),
                ready = self.switch.readable() => {
                    let mut ready = ready?;
                    receive()?;
                    ready.clear_ready();
                }
                ready = self.supervisor.readable() => {
                    let mut ready = ready?;
                    receive()?;
                    ready.clear_ready();
                }
            }
        }
    }
}
