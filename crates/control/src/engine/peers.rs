//! Asking the switch and the supervisor, and waiting for what they say.
//!
//! A question waits for its answer at most [`PATIENCE`]; what else arrives meanwhile is kept for later.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use channel::driving::{DriverSpec, DriverState};
use channel::figures::WorkerFigures;
use channel::flows::FoundFlow;
use channel::link::{Link, Received};
use channel::supervision::{
    Ask, GuestWatch, ProcessInfo, ProcessUsage, SocketDir, Tell, WatchedGuests,
};
use channel::switching::{Order, PortState, Report, Request, SwitchFigures};
use port::PortId;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a peer may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

fn gone(who: &str) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, format!("the {who} is gone"))
}

/// Waits for the next message until `deadline`.
fn wait_for<Out: Serialize, In: DeserializeOwned>(
    link: &mut Link<Out, In>,
    who: &str,
    deadline: Instant,
) -> io::Result<(In, Vec<OwnedFd>)> {
    loop {
        match link.recv()? {
            Received::Message(message, fds) => return Ok((message, fds)),
            Received::Closed => return Err(gone(who)),
            Received::Nothing => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = format!("the {who} did not answer");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&*link, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What the switch has counted beside ports.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// As a whole.
    pub(super) switch: SwitchFigures,
    /// Of each thread that forwards.
    pub(super) workers: Vec<WorkerFigures>,
}

/// The switch.
#[derive(Debug)]
pub(super) struct SwitchPeer {
    link: Link<Request, Report>,
    patience: Duration,
    next: u64,
    /// What came while something else was waited for.
    later: VecDeque<Report>,
    /// An order that changes something had no answer: what the switch has is unknown.
    unsure: bool,
}

impl SwitchPeer {
    /// Over one end of a link.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn new(fd: OwnedFd, patience: Duration) -> io::Result<Self> {
        let link = Link::new(fd);
        link.set_nonblocking()?;
        Ok(Self {
            link,
            patience,
            next: 0,
            later: VecDeque::new(),
            unsure: false,
        })
    }

    /// Sends an order without waiting; its number.
    ///
    /// # Errors
    /// The switch is gone.
    pub(super) fn order(&mut self, order: Order, fds: &[BorrowedFd<'_>]) -> io::Result<u64> {
        self.next += 1;
        let number = self.next;
        self.link.send(&Request { number, order }, fds)?;
        Ok(number)
    }

    /// Sends an order and waits until it is done. What the switch reported on the way goes to `each`, which
    /// returns what it does not want.
    ///
    /// # Errors
    /// The switch is gone, silent, or refuses, with its reason.
    pub(super) fn request(
        &mut self,
        order: Order,
        fds: &[BorrowedFd<'_>],
        mut each: impl FnMut(Report, Vec<OwnedFd>) -> Option<Report>,
    ) -> io::Result<()> {
        let question = matches!(
            order,
            Order::PortStates | Order::Stations { .. } | Order::FindFlows(_)
        );
        let number = self.order(order, fds)?;
        let deadline = Instant::now() + self.patience;
        loop {
            let (report, fds) = wait_for(&mut self.link, "switch", deadline)
                .inspect_err(|_| self.unsure |= !question)?;
            match report {
                Report::Done { number: n, error } if n == number => {
                    return error.map_or(Ok(()), |reason| Err(io::Error::other(reason)));
                }
                other => self.later.extend(each(other, fds)),
            }
        }
    }

    /// Whether it is known what the switch has.
    ///
    /// # Errors
    /// It is not: an order was sent and not answered. Only a new start finds out.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.unsure {
            let text = "the switch did not answer an order: starting over";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        Ok(())
    }

    /// States of all ports, and figures.
    ///
    /// # Errors
    /// As [`SwitchPeer::request`].
    pub(super) fn port_states(&mut self) -> io::Result<(Vec<PortState>, Figures)> {
        let mut states = Vec::new();
        let mut figures = Figures::default();
        self.request(Order::PortStates, &[], |report, _| match report {
            Report::PortStates(part, switch, workers) => {
                states.extend(part);
                figures = Figures { switch, workers };
                None
            }
            other => Some(other),
        })?;
        Ok((states, figures))
    }

    /// The flows that frames with these keys have.
    ///
    /// # Errors
    /// As [`SwitchPeer::request`].
    pub(super) fn find_flows(&mut self, keys: Vec<[u64; 8]>) -> io::Result<Vec<FoundFlow>> {
        let mut found = Vec::new();
        self.request(Order::FindFlows(keys), &[], |report, _| match report {
            Report::Found(flows) => {
                found = flows;
                None
            }
            other => Some(other),
        })?;
        Ok(found)
    }

    /// The next report, if there is one.
    ///
    /// # Errors
    /// The switch is gone or makes no sense.
    pub(super) fn poll(&mut self) -> io::Result<Option<Report>> {
        if let Some(report) = self.later.pop_front() {
            return Ok(Some(report));
        }
        match self.link.recv()? {
            Received::Message(report, _) => Ok(Some(report)),
            Received::Nothing => Ok(None),
            Received::Closed => Err(gone("switch")),
        }
    }
}

impl AsFd for SwitchPeer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The supervisor. It speaks only when asked, but for [`Tell::Stop`], [`Tell::Freeze`], [`Tell::Thaw`], [`Tell::Ping`] and
/// [`Tell::Events`].
#[derive(Debug)]
pub(super) struct SupervisorPeer {
    link: Link<Ask, Tell>,
    patience: Duration,
    /// It has told us to end, perhaps while we waited for something else.
    stop: bool,
    /// Whether it wants us to change nothing.
    frozen: bool,
    /// What it knows of whom to dial, as far as that is known.
    dials: Option<Dials>,
    /// What it has said that has happened.
    events: Vec<String>,
}

/// Where front ends listen, by port.
type Dials = Vec<(PortId, String)>;

impl SupervisorPeer {
    /// Over the supervision link.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn new(link: Link<Ask, Tell>, patience: Duration) -> io::Result<Self> {
        link.set_nonblocking()?;
        Ok(Self {
            link,
            patience,
            stop: false,
            frozen: false,
            dials: None,
            events: Vec::new(),
        })
    }

    /// Asks, and waits for what `wanted` says is the answer. An answer to an earlier question, which nobody
    /// waits for any more, is thrown away.
    pub(super) fn ask<T>(
        &mut self,
        ask: &Ask,
        mut wanted: impl FnMut(Tell, Vec<OwnedFd>) -> Option<T>,
    ) -> io::Result<T> {
        self.link.send(ask, &[])?;
        let deadline = Instant::now() + self.patience;
        loop {
            let (tell, fds) = wait_for(&mut self.link, "supervisor", deadline)?;
            self.note(&tell)?;
            if let Some(answer) = wanted(tell, fds) {
                return Ok(answer);
            }
        }
    }

    /// Everything wanted is in place.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn ready(&self) -> io::Result<()> {
        self.link.send(&Ask::Ready, &[])
    }

    /// Has it say what happens of which only it knows, once. `had`: all that it has said was told.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn ask_for_events(&self, had: bool) -> io::Result<()> {
        self.link.send(&Ask::Events { had }, &[])
    }

    /// What it has said so since this was asked last.
    pub(super) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// The switch is gone, and we go, too.
    pub(super) fn bereft(&self) {
        // If it was the supervisor that is gone, nobody counts.
        let _ = self.link.send(&Ask::Bereft, &[]);
    }

    /// A listening socket at `path`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn listen(&mut self, path: &str) -> io::Result<OwnedFd> {
        let ask = Ask::Listen {
            path: path.to_owned(),
        };
        self.ask(&ask, |tell, mut fds| match tell {
            Tell::Listening { path: of, error } if of == path => Some(match error {
                Some(reason) => Err(io::Error::new(io::ErrorKind::AddrInUse, reason)),
                None => fds.pop().ok_or_else(|| io::Error::other("no socket came")),
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
        self.link.send(&Ask::Unlisten { path }, &[])
    }

    /// Has these drivers and no others.
    ///
    /// # Errors
    /// The supervisor is gone or silent; or, inside, the first port whose interface cannot be had, and why.
    pub(super) fn drivers(
        &mut self,
        wanted: Vec<DriverSpec>,
    ) -> io::Result<Result<(), (String, String)>> {
        self.ask(&Ask::Drivers(wanted), |tell, _| match tell {
            Tell::Drivers { error } => Some(error.map_or(Ok(()), Err)),
            _ => None,
        })
    }

    /// Says where the front ends of these ports are, which are to be dialled, and of no others.
    ///
    /// # Errors
    /// The supervisor is gone or silent; or, inside, why it dials none of them.
    pub(super) fn dials(&mut self, all: Dials) -> io::Result<Result<(), String>> {
        if self.dials.as_ref() == Some(&all) {
            return Ok(Ok(()));
        }
        self.dials = None;
        let taken = self.ask(&Ask::Dials(all.clone()), |tell, _| match tell {
            Tell::Dials { error } => Some(error.map_or(Ok(()), Err)),
            _ => None,
        })?;
        self.dials = taken.is_ok().then_some(all);
        Ok(taken)
    }

    /// In which directories sockets may be.
    ///
    /// # Errors
    /// The supervisor is gone or silent.
    pub(super) fn socket_dirs(&mut self) -> io::Result<Vec<SocketDir>> {
        self.ask(&Ask::SocketDirs, |tell, _| match tell {
            Tell::SocketDirs(dirs) => Some(dirs),
            _ => None,
        })
    }

    /// How the drivers are.
    ///
    /// # Errors
    /// The supervisor is gone or silent.
    pub(super) fn driver_states(&mut self) -> io::Result<Vec<DriverState>> {
        let mut states = self.ask(&Ask::DriverStates, |tell, _| match tell {
            Tell::DriverStates(states) => Some(states),
            _ => None,
        })?;
        let addresses = self.ask(&Ask::InterfaceAddresses, |tell, _| match tell {
            Tell::InterfaceAddresses(addresses) => Some(addresses),
            _ => None,
        })?;
        let addresses: BTreeMap<String, [u8; 6]> = addresses.into_iter().collect();
        for state in &mut states {
            state.mac = addresses.get(&state.name).copied();
        }
        Ok(states)
    }

    /// How the processes are.
    ///
    /// # Errors
    /// The supervisor is gone or silent.
    pub(super) fn processes(&mut self) -> io::Result<Vec<ProcessInfo>> {
        self.ask(&Ask::Processes, |tell, _| match tell {
            Tell::Processes(list) => Some(list),
            _ => None,
        })
    }

    /// What the processes use.
    ///
    /// # Errors
    /// The supervisor is gone or silent.
    pub(super) fn process_usage(&mut self) -> io::Result<Vec<ProcessUsage>> {
        self.ask(&Ask::ProcessUsage, |tell, _| match tell {
            Tell::ProcessUsage(list) => Some(list),
            _ => None,
        })
    }

    /// Says how guests are to be looked at.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn watch_guests(&self, watch: GuestWatch) -> io::Result<()> {
        self.link.send(&Ask::WatchGuests(watch), &[])
    }

    /// How they are looked at.
    ///
    /// # Errors
    /// The supervisor is gone or silent.
    pub(super) fn watched_guests(&mut self) -> io::Result<WatchedGuests> {
        self.ask(&Ask::WatchedGuests, |tell, _| match tell {
            Tell::WatchedGuests(watched) => Some(watched),
            _ => None,
        })
    }

    /// Takes what it said unasked.
    pub(super) fn hear(&mut self) {
        loop {
            match self.link.recv() {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(tell, _)) if self.note(&tell).is_ok() => {}
                _ => {
                    self.stop = true;
                    return;
                }
            }
        }
    }

    /// Follows what it says unasked.
    fn note(&mut self, tell: &Tell) -> io::Result<()> {
        match tell {
            Tell::Stop => self.stop = true,
            Tell::Freeze => self.frozen = true,
            Tell::Thaw => self.frozen = false,
            Tell::Ping => self.link.send(&Ask::Alive, &[])?,
            Tell::Events(all) => self.events.extend_from_slice(all),
            _ => {}
        }
        Ok(())
    }

    /// Whether nothing is to be changed: another control is on its way, or serves still.
    pub(super) fn wants_rest(&self) -> bool {
        self.frozen
    }

    /// As the supervisor said at the start.
    pub(super) fn start_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Nothing is changed any more.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub(super) fn rested(&self) -> io::Result<()> {
        self.link.send(&Ask::Frozen, &[])
    }

    /// Whether the supervisor wants us to end, or is gone.
    pub(super) fn wants_stop(&self) -> bool {
        self.stop
    }
}

impl AsFd for SupervisorPeer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
