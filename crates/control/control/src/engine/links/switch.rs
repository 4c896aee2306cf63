//! The link to the switch.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ipc::figures::WorkerFigures;
use ipc::flows::FoundFlow;
use ipc::link::{Link, LinkEvent};
use ipc::switching::{PortState, Request, SwitchCommand, SwitchEvent, SwitchFigures};
use sys::foreign::ForeignFd;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Line, closed, reply_of};

/// Counters of the switch other than those of ports.
#[derive(Debug, Default)]
pub(in crate::engine) struct Figures {
    /// Counters of the switch as a whole.
    pub(in crate::engine) switch: SwitchFigures,
    /// Counters of each forwarding thread.
    pub(in crate::engine) workers: Vec<WorkerFigures>,
}

/// Events that belong to a reply, with their descriptors.
pub(in crate::engine) type Parts = Vec<(SwitchEvent, Vec<ForeignFd>)>;

/// A command that the switch has not completed.
#[derive(Debug)]
struct Pending {
    number: u64,
    /// It changes nothing.
    is_query: bool,
    /// Whether an event is a part of the reply. The switch replies to commands with such parts in
    /// their order.
    is_part: fn(&SwitchEvent) -> bool,
    parts: Parts,
    reply: oneshot::Sender<io::Result<Parts>>,
}

/// The link to the switch.
#[derive(Debug)]
pub(in crate::engine) struct SwitchLink {
    line: Line<Request, SwitchEvent>,
    timeout: Duration,
    next: u64,
    /// Commands whose replies are awaited, in the order in which they were sent.
    pending: Vec<Pending>,
    /// Events that are no reply.
    events: VecDeque<SwitchEvent>,
    /// A command that changes something had no reply in time: the state of the switch is unknown.
    out_of_sync: bool,
}

fn parts_of(order: &SwitchCommand) -> fn(&SwitchEvent) -> bool {
    match order {
        SwitchCommand::Adopt => |event| {
            matches!(
                event,
                SwitchEvent::Adopted { .. } | SwitchEvent::Stations(_)
            )
        },
        SwitchCommand::PortStates => |event| matches!(event, SwitchEvent::PortStates(..)),
        SwitchCommand::EgressUse => |event| matches!(event, SwitchEvent::EgressUse(..)),
        SwitchCommand::FindFlows(_) => |event| matches!(event, SwitchEvent::Found(_)),
        SwitchCommand::Capture(_) => |event| matches!(event, SwitchEvent::Capture { .. }),
        _ => |_| false,
    }
}

impl SwitchLink {
    /// Creates the link from its descriptor.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn new(fd: impl Into<ForeignFd>, timeout: Duration) -> io::Result<Self> {
        Ok(Self {
            line: Line::new(Link::new(fd))?,
            timeout,
            next: 0,
            pending: Vec::new(),
            events: VecDeque::new(),
            out_of_sync: false,
        })
    }

    /// Sends a command whose completion is an event as any other; returns its number.
    ///
    /// # Errors
    /// The switch is gone.
    pub(in crate::engine) fn send(&mut self, order: SwitchCommand) -> io::Result<u64> {
        self.send_with(order, Vec::new())
    }

    fn send_with(&mut self, order: SwitchCommand, fds: Vec<ForeignFd>) -> io::Result<u64> {
        self.next += 1;
        let number = self.next;
        self.line.send(Request { number, order }, fds)?;
        Ok(number)
    }

    /// Sends a command; the future completes when the command is done, with the parts of the reply.
    ///
    /// # Errors
    /// The switch is gone, does not reply in time, or refuses, with its reason.
    pub(in crate::engine) fn request(
        &mut self,
        order: SwitchCommand,
        fds: Vec<ForeignFd>,
    ) -> impl Future<Output = io::Result<Parts>> + use<> {
        let is_query = matches!(
            order,
            SwitchCommand::PortStates
                | SwitchCommand::EgressUse
                | SwitchCommand::Stations { .. }
                | SwitchCommand::FindFlows(_)
        );
        let is_part = parts_of(&order);
        let (reply, receiver) = oneshot::channel();
        let sent = self.send_with(order, fds).map(|number| {
            self.pending.push(Pending {
                number,
                is_query,
                is_part,
                parts: Vec::new(),
                reply,
            });
        });
        let deadline = Instant::now() + self.timeout;
        async move {
            sent?;
            reply_of("switch", receiver, deadline).await?
        }
    }

    /// Requests the states of all ports, and counters.
    ///
    /// # Errors
    /// As [`SwitchLink::request`].
    pub(in crate::engine) fn port_states(
        &mut self,
    ) -> impl Future<Output = io::Result<(Vec<PortState>, Figures)>> + use<> {
        let reply = self.request(SwitchCommand::PortStates, Vec::new());
        async move {
            let mut states = Vec::new();
            let mut figures = Figures::default();
            for (event, _) in reply.await? {
                if let SwitchEvent::PortStates(part, switch, workers) = event {
                    states.extend(part);
                    figures = Figures { switch, workers };
                }
            }
            Ok((states, figures))
        }
    }

    /// Requests the flows that frames with these keys have.
    ///
    /// # Errors
    /// As [`SwitchLink::request`].
    pub(in crate::engine) fn find_flows(
        &mut self,
        keys: Vec<[u64; 8]>,
    ) -> impl Future<Output = io::Result<Vec<FoundFlow>>> + use<> {
        let reply = self.request(SwitchCommand::FindFlows(keys), Vec::new());
        async move {
            let mut found = Vec::new();
            for (event, _) in reply.await? {
                if let SwitchEvent::Found(flows) = event {
                    found = flows;
                }
            }
            Ok(found)
        }
    }

    /// Reads what the switch has sent.
    ///
    /// # Errors
    /// The switch is gone or sent a malformed message.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        loop {
            match self.line.recv()? {
                LinkEvent::Message(event, fds) => self.sort(event, fds),
                LinkEvent::Nothing => return Ok(()),
                LinkEvent::Closed => return Err(closed("switch")),
            }
        }
    }

    fn sort(&mut self, event: SwitchEvent, fds: Vec<ForeignFd>) {
        match event {
            SwitchEvent::Done { number, error } if self.is_pending(number) => {
                self.complete(number, error);
            }
            event => {
                let mut open = self.pending.iter_mut();
                let open = open.find(|p| !p.reply.is_closed() && (p.is_part)(&event));
                match open {
                    Some(pending) => pending.parts.push((event, fds)),
                    None => self.events.push_back(event),
                }
            }
        }
    }

    fn is_pending(&self, number: u64) -> bool {
        self.pending.iter().any(|p| p.number == number)
    }

    /// Completes a command, in time or late.
    fn complete(&mut self, number: u64, error: Option<String>) {
        let mut late = false;
        let open = std::mem::take(&mut self.pending);
        for mut pending in open {
            if pending.number == number {
                let parts = std::mem::take(&mut pending.parts);
                let done = error
                    .clone()
                    .map_or(Ok(parts), |e| Err(io::Error::other(e)));
                late = pending.reply.send(done).is_err();
                // The requester counts the command as failed.
                self.out_of_sync |= late && !pending.is_query;
                continue;
            }
            if late {
                // They are parts of the late reply.
                pending.parts.clear();
            }
            // The switch has lost an earlier query.
            let is_lost = pending.number < number && pending.is_query && pending.reply.is_closed();
            if !is_lost {
                self.pending.push(pending);
            }
        }
    }

    /// Returns the next event that is no reply.
    pub(in crate::engine) fn next_event(&mut self) -> Option<SwitchEvent> {
        self.events.pop_front()
    }

    /// Checks that the state of the switch is known.
    ///
    /// # Errors
    /// A command was not replied to in time. Only a restart of control finds out its effect.
    pub(in crate::engine) fn check(&self) -> io::Result<()> {
        let is_lost = |p: &Pending| !p.is_query && p.reply.is_closed();
        if self.out_of_sync || self.pending.iter().any(is_lost) {
            let text = "no reply from the switch to a command: restarting";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        Ok(())
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.line.unsent.is_empty()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.line.flush()
    }
}

impl AsFd for SwitchLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}
