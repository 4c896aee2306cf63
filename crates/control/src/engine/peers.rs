//! Links to the switch and the supervisor.
//!
//! A request waits for its reply for at most [`PEER_TIMEOUT`]; other messages that arrive meanwhile
//! are queued.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use channel::driving::{DriverSpec, DriverState};
use channel::figures::WorkerFigures;
use channel::flows::FoundFlow;
use channel::link::{Link, Received};
use channel::supervision::{
    GuestWatch, ProcessInfo, ProcessUsage, SocketDir, SupervisorEvent, SupervisorRequest,
    WatchedGuests,
};
use channel::switching::{PortState, Request, SwitchCommand, SwitchEvent, SwitchFigures};
use port::PortId;
use rustix::event::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Time, 5 s, within which a peer has to reply.
pub(super) const PEER_TIMEOUT: Duration = channel::timeouts::PEER;

fn closed(peer: &str) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, format!("the {peer} is gone"))
}

/// Waits for the next message until `deadline`.
fn wait_for<Out: Serialize, In: DeserializeOwned>(
    link: &mut Link<Out, In>,
    peer: &str,
    deadline: Instant,
) -> io::Result<(In, Vec<OwnedFd>)> {
    loop {
        match link.recv()? {
            Received::Message(message, fds) => return Ok((message, fds)),
            Received::Closed => return Err(closed(peer)),
            Received::Nothing => {}
        }
        if sys::wait::ready(&*link, PollFlags::IN, Some(deadline))?.is_empty() {
            let text = format!("no reply from the {peer}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
    }
}

/// Counters of the switch other than those of ports.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Counters of the switch as a whole.
    pub(super) switch: SwitchFigures,
    /// Counters of each forwarding thread.
    pub(super) workers: Vec<WorkerFigures>,
}

/// The link to the switch.
#[derive(Debug)]
pub(super) struct SwitchPeer {
    link: Link<Request, SwitchEvent>,
    timeout: Duration,
    next: u64,
    /// Events that arrived while a reply was awaited.
    deferred: VecDeque<SwitchEvent>,
    /// A command that changes something had no reply: the state of the switch is unknown.
    out_of_sync: bool,
}

impl SwitchPeer {
    /// Creates the peer from one end of a link.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn new(fd: OwnedFd, timeout: Duration) -> io::Result<Self> {
        let link = Link::new(fd);
        link.set_nonblocking()?;
        Ok(Self {
            link,
            timeout,
            next: 0,
            deferred: VecDeque::new(),
            out_of_sync: false,
        })
    }

    /// Sends a command without waiting; returns its number.
    ///
    /// # Errors
    /// The switch is gone.
    pub(super) fn send(&mut self, order: SwitchCommand, fds: &[BorrowedFd<'_>]) -> io::Result<u64> {
        self.next += 1;
        let number = self.next;
        self.link.send(&Request { number, order }, fds)?;
        Ok(number)
    }

    /// Sends a command and waits until it is done. Events that the switch sends meanwhile go to
    /// `each`, which returns those that it does not consume.
    ///
    /// # Errors
    /// The switch is gone, does not reply in time, or refuses, with its reason.
    pub(super) fn request(
        &mut self,
        order: SwitchCommand,
        fds: &[BorrowedFd<'_>],
        mut each: impl FnMut(SwitchEvent, Vec<OwnedFd>) -> Option<SwitchEvent>,
    ) -> io::Result<()> {
        let is_query = matches!(
            order,
            SwitchCommand::PortStates
                | SwitchCommand::Stations { .. }
                | SwitchCommand::FindFlows(_)
        );
        let number = self.send(order, fds)?;
        let deadline = Instant::now() + self.timeout;
        loop {
            let (event, fds) = wait_for(&mut self.link, "switch", deadline)
                .inspect_err(|_| self.out_of_sync |= !is_query)?;
            match event {
                SwitchEvent::Done { number: n, error } if n == number => {
                    return error.map_or(Ok(()), |reason| Err(io::Error::other(reason)));
                }
                other => self.deferred.extend(each(other, fds)),
            }
        }
    }

    /// Checks that the state of the switch is known.
    ///
    /// # Errors
    /// A command was not replied to. Only a restart of control finds out its effect.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.out_of_sync {
            let text = "no reply from the switch to a command: restarting";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        Ok(())
    }

    /// Returns the states of all ports, and counters.
    ///
    /// # Errors
    /// As [`SwitchPeer::request`].
    pub(super) fn port_states(&mut self) -> io::Result<(Vec<PortState>, Figures)> {
        let mut states = Vec::new();
        let mut figures = Figures::default();
        self.request(SwitchCommand::PortStates, &[], |event, _| match event {
            SwitchEvent::PortStates(part, switch, workers) => {
                states.extend(part);
                figures = Figures { switch, workers };
                None
            }
            other => Some(other),
        })?;
        Ok((states, figures))
    }

    /// Returns the flows that frames with these keys have.
    ///
    /// # Errors
    /// As [`SwitchPeer::request`].
    pub(super) fn find_flows(&mut self, keys: Vec<[u64; 8]>) -> io::Result<Vec<FoundFlow>> {
        let mut found = Vec::new();
        self.request(
            SwitchCommand::FindFlows(keys),
            &[],
            |event, _| match event {
                SwitchEvent::Found(flows) => {
                    found = flows;
                    None
                }
                other => Some(other),
            },
        )?;
        Ok(found)
    }

    /// Returns the next event, if there is one.
    ///
    /// # Errors
    /// The switch is gone or sent a malformed message.
    pub(super) fn poll(&mut self) -> io::Result<Option<SwitchEvent>> {
        if let Some(event) = self.deferred.pop_front() {
            return Ok(Some(event));
        }
        match self.link.recv()? {
            Received::Message(event, _) => Ok(Some(event)),
            Received::Nothing => Ok(None),
            Received::Closed => Err(closed("switch")),
        }
    }
}

impl AsFd for SwitchPeer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The link to the supervisor. Only [`SupervisorEvent::Stop`], [`SupervisorEvent::Freeze`],
/// [`SupervisorEvent::Thaw`], [`SupervisorEvent::Ping`] and [`SupervisorEvent::Events`] arrive
/// without a request.
#[derive(Debug)]
pub(super) struct SupervisorPeer {
    link: Link<SupervisorRequest, SupervisorEvent>,
    timeout: Duration,
    /// A stop was requested, perhaps while a reply was awaited.
    stop: bool,
    /// A freeze was requested: nothing may be changed.
    frozen: bool,
    /// The sockets to connect to that were sent last, if they are known to be accepted.
    dials: Option<Dials>,
    /// Events that were received and not taken yet.
    events: Vec<String>,
}

/// Sockets of front ends, by port.
type Dials = Vec<(PortId, String)>;

impl SupervisorPeer {
    /// Creates the peer from the supervision link.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn new(
        link: Link<SupervisorRequest, SupervisorEvent>,
        timeout: Duration,
    ) -> io::Result<Self> {
        link.set_nonblocking()?;
        Ok(Self {
            link,
            timeout,
            stop: false,
            frozen: false,
            dials: None,
            events: Vec::new(),
        })
    }

    /// Sends a request and waits for the event from which `accept` returns a result. Late replies
    /// to earlier requests, which have timed out, are discarded.
    pub(super) fn request<T>(
        &mut self,
        request: &SupervisorRequest,
        mut accept: impl FnMut(SupervisorEvent, Vec<OwnedFd>) -> Option<T>,
    ) -> io::Result<T> {
        self.link.send(request, &[])?;
        let deadline = Instant::now() + self.timeout;
        loop {
            let (event, fds) = wait_for(&mut self.link, "supervisor", deadline)?;
            self.handle_unsolicited(&event)?;
            if let Some(answer) = accept(event, fds) {
                return Ok(answer);
            }
        }
    }

    /// Reports that everything desired is in place.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn ready(&self) -> io::Result<()> {
        self.link.send(&SupervisorRequest::Ready, &[])
    }

    /// Requests the events that only the supervisor knows, once. `had`: those of the last reply
    /// were published.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn request_events(&self, had: bool) -> io::Result<()> {
        self.link.send(&SupervisorRequest::Events { had }, &[])
    }

    /// Returns the events received since the last call.
    pub(super) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Reports that control ends because the switch is gone.
    pub(super) fn report_switch_gone(&self) {
        // If the supervisor is gone, the report has no receiver.
        let _ = self.link.send(&SupervisorRequest::SwitchGone, &[]);
    }

    /// Returns a listening socket at `path`.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub(super) fn listen(&mut self, path: &str) -> io::Result<OwnedFd> {
        let request = SupervisorRequest::Listen {
            path: path.to_owned(),
        };
        self.request(&request, |event, mut fds| match event {
            SupervisorEvent::Listening { path: of, error } if of == path => Some(match error {
                Some(reason) => Err(io::Error::new(io::ErrorKind::AddrInUse, reason)),
                None => fds
                    .pop()
                    .ok_or_else(|| io::Error::other("the supervisor sent no socket")),
            }),
            _ => None,
        })?
    }

    /// Removes a listening socket.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn unlisten(&self, path: &str) -> io::Result<()> {
        let path = path.to_owned();
        self.link.send(&SupervisorRequest::Unlisten { path }, &[])
    }

    /// Starts these drivers and ends all others.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time; the inner error is the first port whose
    /// interface cannot be opened, and the reason.
    pub(super) fn drivers(
        &mut self,
        desired: Vec<DriverSpec>,
    ) -> io::Result<Result<(), (String, String)>> {
        self.request(
            &SupervisorRequest::Drivers(desired),
            |event, _| match event {
                SupervisorEvent::Drivers { error } => Some(error.map_or(Ok(()), Err)),
                _ => None,
            },
        )
    }

    /// Sends the sockets of the front ends to which the switch may connect, by port.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time; the inner error is the reason of its
    /// refusal.
    pub(super) fn dials(&mut self, all: Dials) -> io::Result<Result<(), String>> {
        if self.dials.as_ref() == Some(&all) {
            return Ok(Ok(()));
        }
        self.dials = None;
        let accepted = self.request(
            &SupervisorRequest::Dials(all.clone()),
            |event, _| match event {
                SupervisorEvent::Dials { error } => Some(error.map_or(Ok(()), Err)),
                _ => None,
            },
        )?;
        self.dials = accepted.is_ok().then_some(all);
        Ok(accepted)
    }

    /// Returns the directories in which sockets may be.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(super) fn socket_dirs(&mut self) -> io::Result<Vec<SocketDir>> {
        self.request(&SupervisorRequest::SocketDirs, |event, _| match event {
            SupervisorEvent::SocketDirs(dirs) => Some(dirs),
            _ => None,
        })
    }

    /// Returns the states of the drivers.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(super) fn driver_states(&mut self) -> io::Result<Vec<DriverState>> {
        let mut states =
            self.request(&SupervisorRequest::DriverStates, |event, _| match event {
                SupervisorEvent::DriverStates(states) => Some(states),
                _ => None,
            })?;
        let addresses = self.request(
            &SupervisorRequest::InterfaceAddresses,
            |event, _| match event {
                SupervisorEvent::InterfaceAddresses(addresses) => Some(addresses),
                _ => None,
            },
        )?;
        let addresses: BTreeMap<String, [u8; 6]> = addresses.into_iter().collect();
        for state in &mut states {
            state.mac = addresses.get(&state.name).copied();
        }
        Ok(states)
    }

    /// Returns the processes.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(super) fn processes(&mut self) -> io::Result<Vec<ProcessInfo>> {
        self.request(&SupervisorRequest::Processes, |event, _| match event {
            SupervisorEvent::Processes(list) => Some(list),
            _ => None,
        })
    }

    /// Returns the CPU time and memory of the processes.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(super) fn process_usage(&mut self) -> io::Result<Vec<ProcessUsage>> {
        self.request(&SupervisorRequest::ProcessUsage, |event, _| match event {
            SupervisorEvent::ProcessUsage(list) => Some(list),
            _ => None,
        })
    }

    /// Sends the configuration of vCPU states.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn watch_guests(&self, watch: GuestWatch) -> io::Result<()> {
        self.link.send(&SupervisorRequest::WatchGuests(watch), &[])
    }

    /// Returns the report on vCPU states.
    ///
    /// # Errors
    /// The supervisor is gone or does not reply in time.
    pub(super) fn watched_guests(&mut self) -> io::Result<WatchedGuests> {
        self.request(&SupervisorRequest::WatchedGuests, |event, _| match event {
            SupervisorEvent::WatchedGuests(watched) => Some(watched),
            _ => None,
        })
    }

    /// Handles the unsolicited events that have arrived.
    pub(super) fn handle_events(&mut self) {
        loop {
            match self.link.recv() {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(event, _)) if self.handle_unsolicited(&event).is_ok() => {}
                _ => {
                    self.stop = true;
                    return;
                }
            }
        }
    }

    /// Handles an event if it is unsolicited.
    fn handle_unsolicited(&mut self, event: &SupervisorEvent) -> io::Result<()> {
        match event {
            SupervisorEvent::Stop => self.stop = true,
            SupervisorEvent::Freeze => self.frozen = true,
            SupervisorEvent::Thaw => self.frozen = false,
            SupervisorEvent::Ping => self.link.send(&SupervisorRequest::Heartbeat, &[])?,
            SupervisorEvent::Events(all) => self.events.extend_from_slice(all),
            _ => {}
        }
        Ok(())
    }

    /// Returns whether nothing may be changed: another control takes over, or still serves.
    pub(super) fn is_freezing(&self) -> bool {
        self.frozen
    }

    /// Sets the state that the supervisor sent at the start.
    pub(super) fn start_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Reports that nothing is changed any more.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn report_frozen(&self) -> io::Result<()> {
        self.link.send(&SupervisorRequest::Frozen, &[])
    }

    /// Returns whether the supervisor has requested a stop, or is gone.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop
    }
}

impl AsFd for SupervisorPeer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
