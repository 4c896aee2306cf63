//! The state of one socket where ends of pipes meet. No I/O: events go in, outputs come out.
//!
//! ```text
//!            Register                       (first, or came back)      Offer
//!  waiting -----------> registered: waits ----------------------> creates ------> offers
//!                          |                                          |              |
//!                          | there is memory                          | memory of    | it is the
//!                          v                                          v another end  v memory now
//!                        joined <-------------------------------------+--------------+
//! ```
//!
//! Of an end without memory and one that comes back with some, the second has precedence: an offer
//! of the first waits until the second has offered, or is gone.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::message::{Answer, Create, DESCRIPTORS, End, Offer, Register, Request};

/// Most connections of a socket that have not registered.
pub const MAX_WAITING: usize = 16;
/// Most pipes of a socket.
pub const MAX_PIPES: usize = 64;
/// Time for a connection to register, and for an end to offer its memory, milliseconds.
const TIME_MS: u64 = 5000;

/// Number of a connection; the caller uses each once.
pub type Conn = u64;

/// Something to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output<F> {
    /// Send a message, with descriptors. If that fails, the connection is closed.
    Send(Conn, Answer, Vec<F>),
    /// Close a connection, which the server has forgotten.
    Close(Conn),
    /// Log an event.
    Log(Note),
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// An end has joined its pipe, or made it.
    Joined {
        /// Number of the pipe.
        id: u16,
        /// The end.
        end: End,
        /// Its process.
        status: EndStatus,
    },
    /// The connection of an end has ended.
    Left {
        /// Number of the pipe.
        id: u16,
        /// The end.
        end: End,
        /// Its process.
        status: EndStatus,
    },
    /// A connection was refused.
    Refused {
        /// Its process.
        pid: u32,
        /// The reason.
        reason: String,
    },
}

/// A connected end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndStatus {
    /// Process id, as the system says.
    pub pid: u32,
    /// Name of the program, as it says itself; printable.
    pub program: String,
    /// Time of the connection, milliseconds.
    pub since_ms: u64,
}

/// A pipe with at least one connected end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeStatus {
    /// Its number.
    pub id: u16,
    /// Slots of each ring, once there is memory.
    pub slots: Option<u16>,
    /// Bytes of its file, once there is memory.
    pub file_size: Option<u64>,
    /// Master and slave.
    pub ends: [Option<EndStatus>; 2],
}

/// Memory with its descriptors.
#[derive(Clone, Debug)]
struct Memory<F> {
    offer: Offer,
    fds: Vec<F>,
}

/// State of a registered end.
#[derive(Debug)]
enum Phase<F> {
    /// It waits for an answer to its registration.
    Waits,
    /// It was asked for memory, and has time for it until then.
    Creates(u64),
    /// It has offered memory and waits for an answer.
    Offers(Memory<F>),
    /// It has the memory of the pipe.
    Joined,
}

/// An end that has registered.
#[derive(Debug)]
struct RegisteredEnd<F> {
    conn: Conn,
    status: EndStatus,
    instance: u128,
    phase: Phase<F>,
}

impl<F> RegisteredEnd<F> {
    /// Returns whether it has memory from before that it was asked for.
    fn brings_back(&self) -> bool {
        self.instance != 0 && matches!(self.phase, Phase::Creates(_))
    }
}

#[derive(Debug)]
struct Pipe<F> {
    memory: Option<Memory<F>>,
    ends: [Option<RegisteredEnd<F>>; 2],
}

impl<F> Default for Pipe<F> {
    fn default() -> Self {
        Self {
            memory: None,
            ends: [None, None],
        }
    }
}

/// A connection that has not registered.
#[derive(Debug)]
struct Newcomer {
    pid: u32,
    since_ms: u64,
}

/// See the module. `F` is a descriptor.
#[derive(Debug)]
pub struct Server<F> {
    /// Configured slots of each ring; 0: none.
    slots: u16,
    newcomers: BTreeMap<Conn, Newcomer>,
    pipes: BTreeMap<u16, Pipe<F>>,
    /// Pipe and end of registered connections.
    places: BTreeMap<Conn, (u16, End)>,
}

impl<F: Clone> Server<F> {
    /// Creates the server of a socket; `slots` is the configured number for new pipes, 0 for none.
    #[must_use]
    pub fn new(slots: u16) -> Self {
        Self {
            slots,
            newcomers: BTreeMap::new(),
            pipes: BTreeMap::new(),
            places: BTreeMap::new(),
        }
    }

    /// Changes the configured number of slots for new pipes.
    pub fn set_slots(&mut self, slots: u16) {
        self.slots = slots;
    }

    /// Notes a new connection of a process. If too many have not registered, the oldest of them is
    /// closed.
    pub fn connected(&mut self, conn: Conn, pid: u32, now_ms: u64, out: &mut Vec<Output<F>>) {
        if self.newcomers.len() >= MAX_WAITING
            && let Some((oldest, _)) = self.newcomers.pop_first()
        {
            out.push(Output::Close(oldest));
        }
        let since_ms = now_ms;
        self.newcomers.insert(conn, Newcomer { pid, since_ms });
    }

    /// Handles a message and its descriptors.
    pub fn received(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        fds: Vec<F>,
        now_ms: u64,
        out: &mut Vec<Output<F>>,
    ) {
        let request = match Request::from_bytes(bytes) {
            Ok(request) if request.descriptors() == fds.len() => request,
            Ok(_) => return self.refuse(conn, "the message has other descriptors", now_ms, out),
            Err(malformed) => return self.refuse(conn, malformed.0, now_ms, out),
        };
        let served = match (request, self.newcomers.contains_key(&conn)) {
            (Request::Register(register), true) => self.register(conn, &register, now_ms, out),
            (Request::Offer(offer), false) => self.offer(conn, Memory { offer, fds }, now_ms, out),
            _ => Err("the message is not in its place"),
        };
        if let Err(reason) = served {
            self.refuse(conn, reason, now_ms, out);
        }
    }

    /// Notes that a connection is closed.
    pub fn closed(&mut self, conn: Conn, now_ms: u64, out: &mut Vec<Output<F>>) {
        self.newcomers.remove(&conn);
        self.remove(conn, now_ms, out);
    }

    /// Closes the connections that have run out of time.
    pub fn expire(&mut self, now_ms: u64, out: &mut Vec<Output<F>>) {
        for (conn, _) in self
            .deadlines()
            .filter(|(_, at)| *at <= now_ms)
            .collect::<Vec<_>>()
        {
            self.refuse(conn, "it took too long", now_ms, out);
        }
    }

    /// Returns the time of the next call of [`Server::expire`], milliseconds.
    #[must_use]
    pub fn next_expiry(&self) -> Option<u64> {
        self.deadlines().map(|(_, at)| at).min()
    }

    /// Returns the pipes.
    pub fn pipes(&self) -> impl Iterator<Item = PipeStatus> {
        self.pipes.iter().map(|(id, pipe)| {
            let rings = pipe.memory.as_ref().map(|memory| &memory.offer.rings);
            let status = |end: &Option<RegisteredEnd<F>>| Some(end.as_ref()?.status.clone());
            PipeStatus {
                id: *id,
                slots: rings.map(|rings| rings.slots),
                file_size: rings.map(|rings| rings.file_size),
                ends: pipe.ends.each_ref().map(status),
            }
        })
    }

    /// Returns all connections: those that have not registered, and the ends.
    pub fn connections(&self) -> impl Iterator<Item = Conn> {
        self.newcomers.keys().chain(self.places.keys()).copied()
    }

    /// Returns the number of descriptors of pipes that it holds, connections left out.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        let of_end = |end: &RegisteredEnd<F>| matches!(end.phase, Phase::Offers(_)) as usize;
        let of_pipe = |pipe: &Pipe<F>| {
            let offers: usize = pipe.ends.iter().flatten().map(of_end).sum();
            offers + usize::from(pipe.memory.is_some())
        };
        DESCRIPTORS * self.pipes.values().map(of_pipe).sum::<usize>()
    }

    fn deadlines(&self) -> impl Iterator<Item = (Conn, u64)> {
        let newcomers = self.newcomers.iter();
        let newcomers = newcomers.map(|(conn, newcomer)| (*conn, newcomer.since_ms + TIME_MS));
        let ends = self
            .pipes
            .values()
            .flat_map(|pipe| pipe.ends.iter().flatten());
        let ends = ends.filter_map(|end| match end.phase {
            Phase::Creates(until) => Some((end.conn, until)),
            _ => None,
        });
        newcomers.chain(ends)
    }

    fn register(
        &mut self,
        conn: Conn,
        register: &Register,
        now_ms: u64,
        out: &mut Vec<Output<F>>,
    ) -> Result<(), &'static str> {
        let (id, end) = (register.id, register.end);
        if !self.pipes.contains_key(&id) && self.pipes.len() >= MAX_PIPES {
            return Err("there are 64 pipes at this socket");
        }
        let taken = self
            .pipes
            .get(&id)
            .and_then(|pipe| pipe.ends[end.index()].as_ref());
        if taken.is_some() {
            return Err("another process has this end");
        }
        let Some(newcomer) = self.newcomers.remove(&conn) else {
            return Ok(());
        };
        let status = EndStatus {
            pid: newcomer.pid,
            program: program(&register.program),
            since_ms: now_ms,
        };
        self.places.insert(conn, (id, end));
        self.pipes.entry(id).or_default().ends[end.index()] = Some(RegisteredEnd {
            conn,
            status,
            instance: register.instance,
            phase: Phase::Waits,
        });
        self.settle(id, now_ms, out);
        Ok(())
    }

    fn offer(
        &mut self,
        conn: Conn,
        memory: Memory<F>,
        now_ms: u64,
        out: &mut Vec<Output<F>>,
    ) -> Result<(), &'static str> {
        let Some((id, end)) = self.places.get(&conn).copied() else {
            return Err("the end has not registered");
        };
        let pipe = self.pipes.entry(id).or_default();
        match &mut pipe.ends[end.index()] {
            Some(end) if end.instance != 0 && end.instance != memory.offer.instance => {
                Err("the end has registered with other memory")
            }
            Some(end) if matches!(end.phase, Phase::Creates(_)) => {
                end.phase = Phase::Offers(memory);
                self.settle(id, now_ms, out);
                Ok(())
            }
            _ => Err("the end was not asked for memory"),
        }
    }

    /// Answers the ends of a pipe that can be answered.
    fn settle(&mut self, id: u16, now_ms: u64, out: &mut Vec<Output<F>>) {
        let Some(pipe) = self.pipes.get_mut(&id) else {
            return;
        };
        pipe.take_offer();
        let Some(memory) = &pipe.memory else {
            return pipe.ask(self.slots, now_ms + TIME_MS, out);
        };
        let mut stale = None;
        for (end, registered) in End::BOTH.into_iter().zip(&mut pipe.ends) {
            if let Some(registered) = registered {
                stale = stale.or(join((id, end), registered, memory, out));
            }
        }
        if let Some(conn) = stale {
            let reason = "another process has made this pipe anew meanwhile";
            self.refuse(conn, reason, now_ms, out);
        }
    }

    /// Refuses a connection and forgets it.
    fn refuse(&mut self, conn: Conn, reason: &str, now_ms: u64, out: &mut Vec<Output<F>>) {
        let newcomer = self.newcomers.remove(&conn).map(|newcomer| newcomer.pid);
        let registered = || {
            let (id, end) = self.places.get(&conn)?;
            let end = self.pipes.get(id)?.ends[end.index()].as_ref()?;
            Some(end.status.pid)
        };
        let Some(pid) = newcomer.or_else(registered) else {
            return;
        };
        let reason = reason.to_owned();
        out.push(Output::Send(
            conn,
            Answer::Refused(reason.clone()),
            Vec::new(),
        ));
        out.push(Output::Log(Note::Refused { pid, reason }));
        out.push(Output::Close(conn));
        self.remove(conn, now_ms, out);
    }

    /// Forgets a registered connection, and the pipe when it was the last.
    fn remove(&mut self, conn: Conn, now_ms: u64, out: &mut Vec<Output<F>>) {
        let Some((id, end)) = self.places.remove(&conn) else {
            return;
        };
        let Some(pipe) = self.pipes.get_mut(&id) else {
            return;
        };
        if let Some(RegisteredEnd { status, phase, .. }) = pipe.ends[end.index()].take()
            && matches!(phase, Phase::Joined)
        {
            out.push(Output::Log(Note::Left { id, end, status }));
        }
        if pipe.ends.iter().all(Option::is_none) {
            self.pipes.remove(&id);
        } else {
            self.settle(id, now_ms, out);
        }
    }
}

impl<F: Clone> Pipe<F> {
    /// Makes an offer the memory of the pipe, if there is none and no end brings back some.
    fn take_offer(&mut self) {
        let ends = || self.ends.iter().flatten();
        if self.memory.is_some() || ends().any(RegisteredEnd::brings_back) {
            return;
        }
        let offers = |end: &RegisteredEnd<F>| match &end.phase {
            Phase::Offers(memory) => Some((end.instance != 0, Reverse(end.conn), memory.clone())),
            _ => None,
        };
        // Memory from before has precedence, then that of the older connection.
        let best = ends().filter_map(offers);
        let best = best.max_by_key(|(is_back, conn, _)| (*is_back, *conn));
        self.memory = best.map(|(.., memory)| memory);
    }

    /// Asks an end for memory: one that has some from before, else the first.
    fn ask(&mut self, slots: u16, until_ms: u64, out: &mut Vec<Output<F>>) {
        let ends = || self.ends.iter().flatten();
        let busy = ends().any(|end| !matches!(end.phase, Phase::Waits));
        let first = ends().map(|end| end.conn).min();
        let back = ends().any(|end| end.instance != 0);
        for end in self.ends.iter_mut().flatten() {
            let is_first = Some(end.conn) == first && !back && !busy;
            if matches!(end.phase, Phase::Waits) && (end.instance != 0 || is_first) {
                end.phase = Phase::Creates(until_ms);
                let create = Answer::Create(Create { slots });
                out.push(Output::Send(end.conn, create, Vec::new()));
            }
        }
    }
}

/// Gives an end that waits the memory of the pipe. Returns its connection if it has other memory.
fn join<F: Clone>(
    (id, end): (u16, End),
    waiting: &mut RegisteredEnd<F>,
    memory: &Memory<F>,
    out: &mut Vec<Output<F>>,
) -> Option<Conn> {
    if !matches!(waiting.phase, Phase::Waits | Phase::Offers(_)) {
        return None;
    }
    let conn = waiting.conn;
    if waiting.instance != 0 && waiting.instance != memory.offer.instance {
        return Some(conn);
    }
    waiting.phase = Phase::Joined;
    let answer = Answer::Join(memory.offer);
    out.push(Output::Send(conn, answer, memory.fds.clone()));
    let status = waiting.status.clone();
    out.push(Output::Log(Note::Joined { id, end, status }));
    None
}

/// Returns the name that a program gives itself, without bytes that a terminal would interpret.
fn program(name: &[u8; 16]) -> String {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let printable = |byte: &u8| match byte.is_ascii_graphic() || *byte == b' ' {
        true => char::from(*byte),
        false => '?',
    };
    name.iter().map(printable).collect()
}
