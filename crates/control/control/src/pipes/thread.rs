//! The thread that serves the sockets of pipes.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pipes::Conn;
use rustix::event::PollFlags;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::SocketFlags;
use rustix::process::{Resource, getrlimit};
use sys::closer;
use sys::foreign::ForeignFd;

use super::SharedPipes;
use super::connections::Meeting;
use crate::events::Events;

/// Most descriptors of all pipes, and their share of those that the process may have.
const MAX_DESCRIPTORS: usize = 16_384;
const SHARE: u64 = 4;
/// Most connections that a socket accepts within [`ACCEPT_WITHIN`]; more wait.
const ACCEPT_MOST: u32 = 128;
const ACCEPT_WITHIN: Duration = Duration::from_millis(500);
/// Time after which a failed step is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Events of one wait.
const EVENTS: usize = 64;

/// Marks the events of a listening socket; the rest is the socket's number.
const LISTENER: u64 = 1 << 63;
/// The event of the engine's bell.
const BELL: u64 = u64::MAX;

/// A socket with its connections, and its accepts.
#[derive(Debug)]
struct Place {
    meeting: Meeting,
    /// Whether the thread waits for connections.
    is_watched: bool,
    /// Start of the period that `accepted` counts for.
    since: Duration,
    accepted: u32,
}

impl Place {
    /// Returns the time at which connections are accepted again.
    fn resumes(&self) -> Duration {
        self.since + ACCEPT_WITHIN
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Thread {
    shared: Arc<SharedPipes>,
    events: Events,
    epoll: Arc<OwnedFd>,
    /// Number of the state that was taken last.
    round: u64,
    open: bool,
    places: BTreeMap<u64, Place>,
    /// The socket of each connection.
    conns: BTreeMap<Conn, u64>,
    next: u64,
    most: usize,
}

impl Thread {
    pub(super) fn new(shared: Arc<SharedPipes>, events: Events) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let bell = EventData::new_u64(BELL);
        epoll::add(&epoll, &shared.bell, bell, EventFlags::IN)?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let share = usize::try_from(limit / SHARE).unwrap_or(usize::MAX);
        Ok(Self {
            shared,
            events,
            epoll,
            round: 0,
            open: false,
            places: BTreeMap::new(),
            conns: BTreeMap::new(),
            next: 1,
            most: share.min(MAX_DESCRIPTORS),
        })
    }

    /// Serves until the process ends.
    pub(super) fn run(mut self) {
        loop {
            if let Err(error) = self.step() {
                // It is the system's, for example of a lack of memory: later ones may succeed.
                tracing::error!("server of pipes: {error}");
                // A wait, because the process may not call nanosleep(2).
                let until = Some(Instant::now() + RETRY);
                let _ = sys::wait::ready(&self.shared.bell, PollFlags::empty(), until);
            }
        }
    }

    /// Waits for events and handles them.
    pub(super) fn step(&mut self) -> io::Result<()> {
        self.take_changes();
        self.watch()?;
        self.publish();
        let mut buffer = [MaybeUninit::<Event>::uninit(); EVENTS];
        let limit = self.next_step().map(|at| at.saturating_sub(now()));
        let ready = sys::wait::events(&self.epoll, &mut buffer, limit)?;
        let ready: Vec<u64> = ready.iter().map(|event| event.data.u64()).collect();
        for data in ready {
            match data {
                BELL => sys::event::clear(&self.shared.bell),
                data if data & LISTENER != 0 => self.accept(data & !LISTENER)?,
                conn => self.receive(conn),
            }
        }
        for place in self.places.values_mut() {
            place.meeting.expire(now(), &self.events);
        }
        self.forget_closed();
        Ok(())
    }

    /// Takes the sockets that the engine wants.
    fn take_changes(&mut self) {
        let (listeners, now) = {
            let state = self.shared.state();
            if state.round == self.round {
                return;
            }
            (self.round, self.open) = (state.round, state.open);
            (state.listeners.clone(), now())
        };
        let same = |place: &Place| {
            let own = &place.meeting.listener;
            listeners
                .iter()
                .find(|one| Arc::ptr_eq(&one.socket, &own.socket))
        };
        let gone = self.places.extract_if(.., |_, place| same(place).is_none());
        for (_, place) in gone {
            let _ = epoll::delete(&self.epoll, &place.meeting.listener.socket);
        }
        for place in self.places.values_mut() {
            if let Some(listener) = same(place).cloned() {
                place.meeting.change(listener, now, &self.events);
            }
        }
        for listener in listeners {
            let mut own = self.places.values().map(|place| &place.meeting.listener);
            if own.any(|own| Arc::ptr_eq(&own.socket, &listener.socket)) {
                continue;
            }
            // The next wait may find it empty: another control accepts there, too.
            if let Err(error) = rustix::io::ioctl_fionbio(&listener.socket, true) {
                tracing::error!("server of pipes: {error}");
                continue;
            }
            let place = Place {
                meeting: Meeting::new(listener),
                is_watched: false,
                since: Duration::ZERO,
                accepted: 0,
            };
            self.places.insert(self.next, place);
            self.next += 1;
        }
        self.forget_closed();
    }

    /// Waits for connections at the sockets that may accept some now.
    fn watch(&mut self) -> io::Result<()> {
        let now = now();
        for (number, place) in &mut self.places {
            if place.resumes() <= now {
                (place.since, place.accepted) = (now, 0);
            }
            let may_accept = self.open && place.accepted < ACCEPT_MOST && !closer::is_full();
            let socket = &place.meeting.listener.socket;
            match (may_accept, place.is_watched) {
                (true, false) => {
                    let data = EventData::new_u64(LISTENER | *number);
                    epoll::add(&self.epoll, socket, data, EventFlags::IN)?;
                }
                (false, true) => epoll::delete(&self.epoll, socket)?,
                _ => {}
            }
            place.is_watched = may_accept;
        }
        Ok(())
    }

    /// Returns the time of the next step without an event.
    fn next_step(&self) -> Option<Duration> {
        let waiting = |place: &Place| {
            let resumes = (self.open && !place.is_watched).then(|| place.resumes());
            resumes.into_iter().chain(place.meeting.next_expiry()).min()
        };
        self.places.values().filter_map(waiting).min()
    }

    /// Accepts one connection of a socket; others have their turn between two.
    fn accept(&mut self, number: u64) -> io::Result<()> {
        let Some(place) = self.places.get(&number) else {
            return Ok(());
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&place.meeting.listener.socket, flags) {
            Ok(socket) => ForeignFd::connection(socket),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // It may have been made since a change that permits its user.
        self.take_changes();
        let places = self.places.values();
        let used: usize = places.map(|place| place.meeting.descriptors()).sum();
        let Some(place) = self.places.get_mut(&number) else {
            return Ok(());
        };
        place.accepted += 1;
        let pipe = &place.meeting.listener.pipe.name;
        if used >= self.most {
            tracing::warn!(pipe, "end rejected: all pipes have {used} descriptors");
            return Ok(());
        }
        if !socket.author().may_connect() {
            tracing::warn!(
                pipe,
                "end rejected: its user's descriptors are not closed yet"
            );
            return Ok(());
        }
        let conn = self.next;
        self.next += 1;
        let new = (conn, socket);
        if place.meeting.add(new, &self.epoll, now(), &self.events) {
            self.conns.insert(conn, number);
        }
        Ok(())
    }

    fn receive(&mut self, conn: Conn) {
        let place = self
            .conns
            .get(&conn)
            .and_then(|number| self.places.get_mut(number));
        if let Some(place) = place {
            place.meeting.receive(conn, now(), &self.events);
        }
    }

    /// Forgets the connections that were closed.
    fn forget_closed(&mut self) {
        self.conns.retain(|conn, number| {
            let place = self.places.get(number);
            place.is_some_and(|place| place.meeting.has(*conn))
        });
    }

    /// Publishes the pipes.
    fn publish(&mut self) {
        let all = self.places.values().flat_map(|place| {
            let path = &place.meeting.listener.pipe.path;
            place.meeting.pipes().map(move |pipe| (path.clone(), pipe))
        });
        self.shared.state().pipes = all.collect();
    }
}

fn now() -> Duration {
    sys::time::monotonic()
}
