//! A stack that threads share: who handles frames, and when.
//!
//! Every call handles the frames that have come, under one lock. A thread that must wait looks on
//! while that has been cheaper lately (crate `polling`). Then it sleeps, on a descriptor of its own
//! that the others signal. One of those who sleep, the leader, sleeps on the switch's call and on
//! the stack's timers too. A thread of the library is the leader while no other thread sleeps or
//! calls:
//!
//! * It looks every [`LOOK`] whether it is needed, and is not while there were calls.
//! * While another thread has been the leader for longer than that, it does not look; that
//!   thread wakes it when it goes.
//! * A call that arms a new timer wakes the leader so that it recomputes its deadline.

mod sleepers;
#[cfg(test)]
mod tests;
mod waits;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use interpose::{Mask, system};
use libc::{POLLIN, pollfd};
use polling::Waiter;
use rustix::io::Errno;

use crate::config::{Config, Network};
use crate::link::{self, Events, Link, is_hang_up};
use crate::stack::{Id, Kind, Options, ReceivedBytes, Stack};
use crate::{SAY, random};
pub(crate) use sleepers::Set;
use sleepers::Sleeper;
use waits::with_waiter;

/// Time between two looks of the library's thread.
const LOOK: Duration = Duration::from_millis(10);
/// Interval of attempts to connect again.
const REDIAL: Duration = Duration::from_millis(100);
/// Time for an address by DHCP.
const DHCP: Duration = Duration::from_secs(15);
/// Time for what was sent last to arrive, at the end of the program.
const LAST: Duration = Duration::from_secs(2);
/// Looks between two looks at descriptors of others, while looking on.
const LOOKS_PER_SYSTEM_CALL: u32 = 64;

/// A failure to plug in.
#[derive(Debug)]
pub enum Error {
    /// The port's socket cannot be used: why.
    Socket(io::Error),
    /// Another process has the port.
    Busy,
    /// There was no address by DHCP in time.
    NoAddress,
    /// The system's refusal.
    System(io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(error) => write!(f, "cannot connect to the port: {error}"),
            Self::Busy => f.write_str("another process has the port"),
            Self::NoAddress => f.write_str("no address by DHCP"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

/// A socket, and its events that a thread waits for.
#[derive(Clone, Copy, Debug)]
pub struct Interest {
    /// The socket.
    pub id: Id,
    /// The events of poll(2).
    pub events: i16,
    /// Edge-triggered: the number of changes that is known ([`Net::changes`]). `None`:
    /// level-triggered.
    pub known: Option<u64>,
}

/// The thread that sleeps on the call.
#[derive(Debug)]
struct Leader {
    event: Arc<OwnedFd>,
    since: Instant,
    /// When it wakes by itself.
    until: Option<Duration>,
}

/// How the library's thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    /// It looks soon.
    Looks,
    /// It sleeps until a frame comes, a timer that it knew is due, or it is woken.
    Sleeps,
}

#[derive(Debug)]
struct State {
    stack: Stack<Link>,
    sleepers: Vec<Sleeper>,
    leader: Option<Leader>,
    service: Service,
    /// Counts calls of the program.
    calls: u64,
    is_over: bool,
    /// Wakes the library's thread.
    wake: OwnedFd,
}

/// See the module.
#[derive(Debug)]
pub struct Net {
    state: Mutex<State>,
    events: Arc<Events>,
    config: Config,
}

/// A thread that was, or was called to be, the leader: when it goes, another one is.
struct Lead<'a> {
    net: &'a Net,
    is_held: bool,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if self.is_held {
            self.net.lock().pass_on();
        }
    }
}

thread_local! {
    static EVENT: std::cell::OnceCell<Arc<OwnedFd>> = const { std::cell::OnceCell::new() };
}

/// The descriptor that this thread sleeps on.
fn own_event() -> Result<Arc<OwnedFd>, Errno> {
    let made = || sys::event::create().map(system::out_of_the_way);
    let made = || made().map(Arc::new).map_err(|_| Errno::MFILE);
    let found = EVENT.try_with(|event| match event.get() {
        Some(event) => Ok(Arc::clone(event)),
        None => {
            let made = made()?;
            Ok(Arc::clone(event.get_or_init(|| made)))
        }
    });
    // A thread that ends has none any more.
    found.unwrap_or_else(|_| made())
}

fn now() -> Duration {
    sys::time::monotonic()
}

fn is_ready(stack: &Stack<Link>, interests: &[Interest]) -> bool {
    interests.iter().any(|interest| {
        let is_new = |known| stack.changes(interest.id) != known;
        interest.known.is_none_or(is_new) && stack.ready(interest.id, interest.events) != 0
    })
}

fn reads(fd: impl AsFd) -> pollfd {
    pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: POLLIN,
        revents: 0,
    }
}

impl State {
    /// Handles frames, and wakes those who sleep for something that is there.
    fn poll(&mut self) {
        let has_changed = self.stack.poll(now());
        self.stack.device.wire.flush();
        if has_changed {
            self.wake();
            self.schedule();
        }
    }

    /// Sees to it that a thread wakes for the stack's next timer.
    fn schedule(&mut self) {
        let Some(leader) = &mut self.leader else {
            return self.call_service();
        };
        let now = now();
        let Some(due) = self.stack.delay(now).map(|delay| now + delay) else {
            return;
        };
        if leader.until.is_none_or(|until| due < until) {
            leader.until = Some(due);
            let _ = sys::event::ring(&*leader.event);
        }
    }

    fn call_service(&mut self) {
        if self.service == Service::Sleeps {
            self.service = Service::Looks;
            let _ = sys::event::ring(&self.wake);
        }
    }

    fn wake(&mut self) {
        for sleeper in &mut self.sleepers {
            if is_ready(&self.stack, &sleeper.interests) {
                sleeper.wake();
            }
        }
    }

    fn is_ready(&self, interests: &[Interest]) -> bool {
        is_ready(&self.stack, interests)
    }

    /// Another sleeper becomes the leader, if there is none.
    fn pass_on(&mut self) {
        if self.leader.is_some() {
            return;
        }
        match self.sleepers.first_mut() {
            Some(next) => {
                next.is_called = true;
                next.wake();
            }
            None => self.call_service(),
        }
    }
}

impl Net {
    /// Connects to a port, gets an address if none was given, and starts the library's thread.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn plug_in(config: Config) -> Result<Arc<Self>, Error> {
        let events = Arc::new(Events::new().map_err(Error::System)?);
        let link = Link::open(&config.socket, &events, true).map_err(|error| {
            let is_busy = is_hang_up(&error);
            if is_busy {
                Error::Busy
            } else {
                Error::Socket(error)
            }
        })?;
        let wake = sys::event::create().map(system::out_of_the_way);
        let net = Arc::new(Self {
            state: Mutex::new(State {
                stack: Stack::new(link, &config, random, now()),
                sleepers: Vec::new(),
                leader: None,
                service: Service::Looks,
                calls: 0,
                is_over: false,
                wake: wake.map_err(Error::System)?,
            }),
            events,
            config,
        });
        net.get_address()?;
        let own = Arc::clone(&net);
        let thread = std::thread::Builder::new().name("lasthop-sockets".to_owned());
        thread.spawn(move || own.serve()).map_err(Error::System)?;
        Ok(net)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles frames until there is an address.
    fn get_address(&self) -> Result<(), Error> {
        let until = Instant::now() + DHCP;
        while Instant::now() < until {
            let mut state = self.lock();
            state.poll();
            if state.stack.has_address() {
                return Ok(());
            }
            let limit = if state.stack.device.wire.arm() {
                Duration::ZERO
            } else {
                state
                    .stack
                    .delay(now())
                    .map_or(LOOK, |delay| delay.min(LOOK))
            };
            drop(state);
            let mut fds = [reads(self.events.call())];
            // An interrupted sleep is a short one.
            let _ = system::poll(&mut fds, Some(limit), Mask::NONE);
            sys::event::clear(self.events.call());
        }
        Err(Error::NoAddress)
    }

    /// A call of the program: handles frames before and after it.
    fn call<T>(&self, act: impl FnOnce(&mut Stack<Link>) -> T) -> T {
        let mut state = self.lock();
        state.calls = state.calls.wrapping_add(1);
        state.poll();
        let result = act(&mut state.stack);
        state.poll();
        result
    }

    /// A question of the program that moves no frame.
    fn ask<T>(&self, act: impl FnOnce(&mut Stack<Link>) -> T) -> T {
        act(&mut self.lock().stack)
    }

    /// Opens a socket.
    ///
    /// # Errors
    /// `EMFILE`: there are too many.
    pub fn open(&self, kind: Kind) -> Result<Id, Errno> {
        self.ask(|stack| stack.open(kind))
    }

    /// Closes a socket. A connection ends by itself, after what was sent.
    pub fn close(&self, id: Id) {
        self.call(|stack| stack.close(id));
        // A thread that waits for the socket is to find that out.
        self.lock().wake();
    }

    /// bind(2).
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn bind(&self, id: Id, address: std::net::SocketAddr) -> Result<(), Errno> {
        self.ask(|stack| stack.bind(id, address))
    }

    /// listen(2).
    ///
    /// # Errors
    /// Those of listen(2).
    pub fn listen(&self, id: Id, backlog: i32) -> Result<(), Errno> {
        self.call(|stack| stack.listen(id, backlog))
    }

    /// accept(2), which does not wait.
    ///
    /// # Errors
    /// Those of accept(2).
    pub fn accept(&self, id: Id) -> Result<Id, Errno> {
        self.call(|stack| stack.accept(id))
    }

    /// connect(2), which does not wait; of TCP `EINPROGRESS`.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(&self, id: Id, to: std::net::SocketAddr) -> Result<(), Errno> {
        self.call(|stack| stack.connect(id, to))
    }

    /// Takes a UDP socket's peer away.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`: the socket is of TCP.
    pub fn disconnect(&self, id: Id) -> Result<(), Errno> {
        self.ask(|stack| stack.disconnect(id))
    }

    /// sendto(2), which does not wait.
    ///
    /// # Errors
    /// Those of sendto(2).
    pub fn send(
        &self,
        id: Id,
        bytes: &[u8],
        to: Option<std::net::SocketAddr>,
    ) -> Result<usize, Errno> {
        self.call(|stack| stack.send(id, bytes, to))
    }

    /// recvfrom(2), which does not wait; `peek`: what is received stays.
    ///
    /// # Errors
    /// Those of recvfrom(2).
    pub fn receive(&self, id: Id, bytes: &mut [u8], peek: bool) -> Result<ReceivedBytes, Errno> {
        self.call(|stack| stack.receive(id, bytes, peek))
    }

    /// shutdown(2).
    ///
    /// # Errors
    /// Those of shutdown(2).
    pub fn shutdown(&self, id: Id, reads: bool, writes: bool) -> Result<(), Errno> {
        let result = self.call(|stack| stack.shutdown(id, reads, writes));
        self.lock().wake();
        result
    }

    /// The events of poll(2) that a socket has, after the frames that have come.
    #[must_use]
    pub fn ready(&self, id: Id, requested: i16) -> i16 {
        self.ask(|stack| stack.ready(id, requested))
    }

    /// Number of events of a socket so far.
    #[must_use]
    pub fn changes(&self, id: Id) -> u64 {
        self.ask(|stack| stack.changes(id))
    }

    /// Bytes that can be received at once, and bytes that wait to be sent.
    #[must_use]
    pub fn queued(&self, id: Id) -> (usize, usize) {
        self.call(|stack| stack.queued(id))
    }

    /// Takes the error of a socket (`SO_ERROR`).
    #[must_use]
    pub fn take_error(&self, id: Id) -> Option<Errno> {
        self.call(|stack| stack.take_error(id))
    }

    /// getsockname(2).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn local(&self, id: Id) -> Result<std::net::SocketAddr, Errno> {
        self.ask(|stack| stack.local(id))
    }

    /// getpeername(2).
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn peer(&self, id: Id) -> Result<std::net::SocketAddr, Errno> {
        self.ask(|stack| stack.peer(id))
    }

    /// The options of a socket.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn options(&self, id: Id) -> Result<Options, Errno> {
        self.ask(|stack| stack.options(id))
    }

    /// Changes the options of a socket.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn change(&self, id: Id, change: impl FnOnce(&mut Options)) -> Result<(), Errno> {
        self.call(|stack| {
            let mut options = stack.options(id)?;
            change(&mut options);
            stack.set_options(id, options)
        })
    }

    /// Whether a socket was neither bound nor connected.
    #[must_use]
    pub fn is_fresh(&self, id: Id) -> bool {
        self.ask(|stack| stack.is_fresh(id))
    }

    /// Bytes of the buffers of a socket: for what is received, and for what is sent.
    #[must_use]
    pub fn buffers(&self, id: Id) -> (usize, usize) {
        self.ask(|stack| stack.buffers(id))
    }

    /// Bytes that a socket can take to send at once.
    #[must_use]
    pub fn room(&self, id: Id) -> usize {
        self.call(|stack| stack.room(id))
    }

    /// The state of a connection, as Linux numbers it.
    #[must_use]
    pub fn state(&self, id: Id) -> u8 {
        self.ask(|stack| stack.state(id))
    }

    /// Bytes of an IP packet.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.config.mtu
    }

    /// Whether a socket listens.
    #[must_use]
    pub fn listens(&self, id: Id) -> bool {
        self.ask(|stack| stack.listens(id))
    }

    /// The addresses of the port.
    #[must_use]
    pub fn addresses(&self) -> Vec<Network> {
        self.ask(|stack| stack.addresses().collect())
    }

    /// The resolvers.
    #[must_use]
    pub fn resolvers(&self) -> Vec<std::net::IpAddr> {
        self.ask(|stack| stack.resolvers().to_vec())
    }

    /// Waits for sockets, and for descriptors of others. Fills in the events of the latter, and
    /// returns how many have some: 0 if a socket has, or at the limit. `limit`: `None` waits
    /// without end.
    ///
    /// # Errors
    /// Those of ppoll(2).
    pub fn wait(
        &self,
        interests: &[Interest],
        others: &mut [pollfd],
        limit: Option<Duration>,
        mask: Mask,
    ) -> Result<usize, Errno> {
        self.wait_for(interests, others, (limit, mask), None)
    }

    /// As [`Self::wait`], for the interests of a set: when it has changed, the wait is over, too.
    ///
    /// # Errors
    /// Those of ppoll(2).
    pub(crate) fn wait_for(
        &self,
        interests: &[Interest],
        others: &mut [pollfd],
        (limit, mask): (Option<Duration>, Mask),
        set: Option<&Set<'_>>,
    ) -> Result<usize, Errno> {
        let until = limit.and_then(|limit| now().checked_add(limit));
        if let Some(ready) = self.look_on(interests, others, until, set)? {
            return Ok(ready);
        }
        let mut fds = others.to_vec();
        let own = own_event()?;
        fds.push(reads(&*own));
        let mut lead = Lead {
            net: self,
            is_held: false,
        };
        loop {
            fds.truncate(others.len() + 1);
            let Some((sleep, is_leader)) = self.lie_down(interests, &own, until, set) else {
                return Ok(0);
            };
            lead.is_held = false;
            if is_leader {
                fds.push(reads(self.events.call()));
            }
            let longest = self.config.longest_look;
            let measured = with_waiter(longest, Waiter::before_sleep);
            let result = system::poll(&mut fds, sleep, mask);
            if let Some(measured) = measured {
                with_waiter(longest, |waiter| waiter.slept(measured));
            }
            let (is_ready, is_called) = self.get_up(interests, &own, is_leader);
            lead.is_held = is_leader || is_called;
            result?;
            for (to, from) in others.iter_mut().zip(&fds) {
                to.revents = from.revents;
            }
            let of_others = others.iter().filter(|fd| fd.revents != 0).count();
            if of_others > 0 || is_ready {
                with_waiter(longest, Waiter::found);
            }
            let is_over = until.is_some_and(|until| now() >= until) || Set::is_other(set);
            if of_others > 0 || is_ready || is_over {
                return Ok(of_others);
            }
        }
    }

    /// A set has changed: those who wait for its interests take them anew.
    pub(crate) fn set_has_changed(&self, number: i32) {
        for sleeper in &self.lock().sleepers {
            if sleeper.set == Some(number) {
                // Full only if it is awake anyway.
                let _ = sys::event::ring(&*sleeper.event);
            }
        }
    }

    /// Looks for a while. `None`: it is time to sleep.
    fn look_on(
        &self,
        interests: &[Interest],
        others: &mut [pollfd],
        until: Option<Duration>,
        set: Option<&Set<'_>>,
    ) -> Result<Option<usize>, Errno> {
        let (longest, mut looks) = (self.config.longest_look, 0_u32);
        loop {
            let mut state = self.lock();
            state.calls = state.calls.wrapping_add(1);
            state.poll();
            let is_ready = state.is_ready(interests);
            drop(state);
            let is_over = until.is_some_and(|until| now() >= until) || Set::is_other(set);
            let looks_at_others =
                is_ready || is_over || looks.is_multiple_of(LOOKS_PER_SYSTEM_CALL);
            let mut of_others = 0;
            if looks_at_others && others.iter().any(|fd| fd.fd >= 0) {
                of_others = system::poll(others, Some(Duration::ZERO), Mask::NONE)?;
            }
            if is_ready || of_others > 0 {
                with_waiter(longest, Waiter::found);
            }
            if is_ready || is_over || of_others > 0 {
                return Ok(Some(of_others));
            }
            // Each look yields the core: the switch may have no other one.
            if with_waiter(longest, |waiter| waiter.looks_on(now())) != Some(true) {
                return Ok(None);
            }
            looks = looks.wrapping_add(1);
        }
    }

    /// Prepares to sleep: returns for how long, and whether as the leader. `None`: there is
    /// something already.
    fn lie_down(
        &self,
        interests: &[Interest],
        own: &Arc<OwnedFd>,
        until: Option<Duration>,
        set: Option<&Set<'_>>,
    ) -> Option<(Option<Duration>, bool)> {
        let mut state = self.lock();
        sys::event::clear(&**own);
        // A signal handler may have left the last sleep of this thread for good (siglongjmp(3)).
        state
            .sleepers
            .retain(|sleeper| !Arc::ptr_eq(&sleeper.event, own));
        let is_own = |leader: &Leader| Arc::ptr_eq(&leader.event, own);
        if state.leader.as_ref().is_some_and(is_own) {
            state.leader = None;
        }
        let is_leader = state.leader.is_none();
        while is_leader && state.stack.device.wire.arm() {
            state.poll();
        }
        if state.is_ready(interests) || Set::is_other(set) {
            return None;
        }
        let now = now();
        let mut sleep = until.map(|until| until.saturating_sub(now));
        if is_leader {
            let timer = state.stack.delay(now);
            sleep = [sleep, timer].into_iter().flatten().min();
            state.leader = Some(Leader {
                event: Arc::clone(own),
                since: Instant::now(),
                until: sleep.and_then(|sleep| now.checked_add(sleep)),
            });
        }
        state.sleepers.push(Sleeper {
            event: Arc::clone(own),
            interests: interests.to_vec(),
            set: set.map(|set| set.number),
            is_called: false,
            is_woken: false,
        });
        Some((sleep, is_leader))
    }

    /// After a sleep. Returns whether there is something, and whether the thread was called to be
    /// the leader.
    fn get_up(&self, interests: &[Interest], own: &Arc<OwnedFd>, is_leader: bool) -> (bool, bool) {
        let mut state = self.lock();
        let place = |sleeper: &Sleeper| Arc::ptr_eq(&sleeper.event, own);
        let at = state.sleepers.iter().position(place);
        let is_called = at.is_some_and(|at| state.sleepers.swap_remove(at).is_called);
        if is_leader {
            state.leader = None;
            sys::event::clear(self.events.call());
        }
        state.poll();
        (state.is_ready(interests), is_called)
    }

    /// Closes all sockets, and waits a while for what was sent last to arrive.
    pub fn finish(&self) {
        let until = Instant::now() + LAST;
        loop {
            let mut state = self.lock();
            state.is_over = true;
            let is_done = state.stack.close_all();
            state.poll();
            let is_lost = state.stack.device.wire.is_lost();
            let is_done = is_done && state.stack.close_all();
            if is_done || is_lost || Instant::now() >= until {
                return;
            }
            let limit = state
                .stack
                .delay(now())
                .map_or(LOOK, |delay| delay.min(LOOK));
            let is_busy = state.stack.device.wire.arm();
            drop(state);
            if !is_busy {
                let mut fds = [reads(self.events.call())];
                let _ = system::poll(&mut fds, Some(limit), Mask::NONE);
                sys::event::clear(self.events.call());
            }
        }
    }

    /// The number of the session's descriptor, which a child after fork(2) closes.
    pub(crate) fn session(&self) -> i32 {
        self.ask(|stack| stack.device.wire.session().as_raw_fd())
    }

    /// The library's thread.
    fn serve(&self) {
        block_signals();
        let mut calls = 0;
        loop {
            let mut state = self.lock();
            if state.is_over {
                return;
            }
            if state.stack.device.wire.is_lost() {
                drop(state);
                self.dial_again();
                continue;
            }
            let has_called = std::mem::replace(&mut calls, state.calls) != state.calls;
            if state.leader.is_none() {
                state.poll();
            }
            let mut fds = vec![reads(&state.wake), reads(state.stack.device.wire.session())];
            let led = state.leader.as_ref().map(|leader| leader.since.elapsed());
            let limit = match led {
                Some(time) if time > LOOK => {
                    state.service = Service::Sleeps;
                    None
                }
                Some(_) => Some(LOOK),
                None if has_called => Some(LOOK),
                None if state.stack.device.wire.arm() => Some(Duration::ZERO),
                None => {
                    state.service = Service::Sleeps;
                    fds.push(reads(self.events.call()));
                    state.stack.delay(now())
                }
            };
            drop(state);
            let slept = system::poll(&mut fds, limit, Mask::NONE);
            let mut state = self.lock();
            state.service = Service::Looks;
            if fds[0].revents != 0 {
                sys::event::clear(&state.wake);
            }
            // After the set-up the switch says nothing: it is gone.
            if slept.is_ok() && fds[1].revents != 0 {
                state.stack.device.wire.lose();
            }
            if fds.get(2).is_some_and(|fd| fd.revents != 0) && state.leader.is_none() {
                sys::event::clear(self.events.call());
            }
        }
    }

    /// Connects again. Frames that were on their way are lost; connections are not.
    fn dial_again(&self) {
        SAY.once("the connection to the switch is lost; it is dialled again");
        loop {
            if self.lock().is_over {
                return;
            }
            if let Ok(link) = Link::open(&self.config.socket, &self.events, true) {
                let mut state = self.lock();
                state.stack.device.wire = link;
                link::note_session(state.stack.device.wire.session().as_raw_fd());
                state.poll();
                return;
            }
            std::thread::sleep(REDIAL);
        }
    }
}

/// Signals are the program's threads'.
fn block_signals() {
    // SAFETY: the set is filled before it is used; blocking signals in this thread harms no other.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}
