//! Many vhost-user front ends of one thread, none of which waits for a reply: all messages of a
//! session are sent at once, as fast as a back end can be asked to serve. The last one has a reply,
//! which says that the session is served.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use testkit::features::{PROTOCOL_FEATURES, VERSION_1, protocol};
use testkit::frontend::{FrontEnd, VERSION, packed, request};

use crate::stop;

/// Memory of a guest: 16 MiB.
const MEMORY: u64 = 16 << 20;
/// Where the front end has it.
const MAPPED_AT: u64 = 0x7f00_0000_0000;
/// Entries of a queue.
const ENTRIES: u32 = 256;
/// Place of the rings of each queue, and of the parts of a ring.
const RINGS: [u64; 2] = [0x1_0000, 0x2_0000];
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
/// Replies of a session: features twice, and protocol features. 20 bytes each.
const REPLIES: usize = 3 * 20;
/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(1);
/// Maximum time until all are served.
const LIMIT: Duration = Duration::from_secs(60);

/// A guest that is idle.
#[derive(Debug)]
struct Guest {
    path: PathBuf,
    memory: OwnedFd,
    /// Kick and call of each queue.
    events: Vec<OwnedFd>,
    session: Option<FrontEnd>,
    /// Bytes of replies so far.
    replied: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct FrontEnds(Vec<Guest>);

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

impl Guest {
    fn new(path: PathBuf) -> io::Result<Self> {
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, MEMORY)?;
        let event = |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            path,
            memory,
            events: (0..4).map(event).collect::<Result<_, _>>()?,
            session: None,
            replied: 0,
        })
    }

    /// Connects, and sends all messages of a session.
    fn begin(&mut self) -> Result<()> {
        let socket = UnixStream::connect(&self.path)?;
        let front = FrontEnd::over(socket, LIMIT)?;
        let send = |code, body: &[u8], fd: Option<BorrowedFd<'_>>| {
            let fds: Vec<_> = fd.into_iter().collect();
            front.send_bytes(&packed(code, VERSION, body), &fds)
        };
        send(request::GET_FEATURES, &[], None)?;
        send(request::GET_PROTOCOL_FEATURES, &[], None)?;
        let wanted = protocol::MQ | protocol::REPLY_ACK;
        send(request::SET_PROTOCOL_FEATURES, &longs(&[wanted]), None)?;
        send(request::SET_OWNER, &[], None)?;
        let features = VERSION_1 | PROTOCOL_FEATURES;
        send(request::SET_FEATURES, &longs(&[features]), None)?;
        let table = [words(&[1, 0]), longs(&[0, MEMORY, MAPPED_AT, 0])].concat();
        send(request::SET_MEM_TABLE, &table, Some(self.memory.as_fd()))?;
        for (queue, rings) in (0..).zip(RINGS) {
            send(request::SET_VRING_NUM, &words(&[queue, ENTRIES]), None)?;
            send(request::SET_VRING_BASE, &words(&[queue, 0]), None)?;
            let at = MAPPED_AT + rings;
            let addresses = longs(&[at, at + USED, at + AVAILABLE, 0]);
            let addresses = [words(&[queue, 0]), addresses].concat();
            send(request::SET_VRING_ADDR, &addresses, None)?;
            let [kick, call] = [0, 1].map(|of| self.events[2 * queue as usize + of].as_fd());
            let number = longs(&[queue.into()]);
            send(request::SET_VRING_KICK, &number, Some(kick))?;
            send(request::SET_VRING_CALL, &number, Some(call))?;
        }
        for queue in 0..RINGS.len() as u32 {
            send(request::SET_VRING_ENABLE, &words(&[queue, 1]), None)?;
        }
        send(request::GET_FEATURES, &[], None)?;
        front.socket().set_nonblocking(true)?;
        (self.session, self.replied) = (Some(front), 0);
        Ok(())
    }

    /// Reads replies. Returns whether the session is served.
    fn read(&mut self) -> io::Result<bool> {
        let session = self.session.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut buffer = [0; 4 * REPLIES];
        match session.socket().read(&mut buffer)? {
            0 => Err(io::ErrorKind::ConnectionReset.into()),
            read => {
                self.replied += read;
                Ok(self.replied >= REPLIES)
            }
        }
    }
}

impl FrontEnds {
    /// Front ends for these sockets, not connected yet.
    pub(super) fn new(sockets: impl IntoIterator<Item = PathBuf>) -> Result<Self> {
        let guests = sockets.into_iter().map(Guest::new);
        Ok(Self(guests.collect::<io::Result<_>>()?))
    }

    /// Closes all connections.
    pub(super) fn disconnect(&mut self) {
        self.0.iter_mut().for_each(|guest| guest.session = None);
    }

    /// Connects all at once, again and again where nothing listens yet, and waits until they are
    /// served; `meanwhile` is called again and again. Returns the time of each, sorted.
    ///
    /// # Errors
    /// They are not served in a minute.
    pub(super) fn connect(
        &mut self,
        mut meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<Vec<Duration>> {
        let (began, poll) = (Instant::now(), epoll::create(CreateFlags::CLOEXEC)?);
        let mut waiting: Vec<usize> = (0..self.0.len()).collect();
        let mut served = Vec::new();
        let mut events = Vec::with_capacity(256);
        while served.len() < self.0.len() {
            stop::check()?;
            ensure!(began.elapsed() < LIMIT, "only {} are served", served.len());
            let mut refused = Vec::new();
            for number in std::mem::take(&mut waiting) {
                let guest = &mut self.0[number];
                if guest.begin().is_err() {
                    refused.push(number);
                    continue;
                }
                let session = guest.session.as_ref().context("a session")?;
                let data = EventData::new_u64(number as u64);
                epoll::add(&poll, session.socket(), data, EventFlags::IN)?;
            }
            waiting = refused;
            meanwhile()?;
            let pause = Timespec::try_from(RETRY)?;
            epoll::wait(&poll, spare_capacity(&mut events), Some(&pause))?;
            for event in events.drain(..) {
                let number = event.data.u64() as usize;
                let guest = &mut self.0[number];
                match guest.read() {
                    Ok(false) => continue,
                    Ok(true) => served.push(began.elapsed()),
                    // The listener was that of a process that has ended since.
                    Err(_) => waiting.push(number),
                }
                if let Some(session) = &guest.session {
                    epoll::delete(&poll, session.socket())?;
                }
                if waiting.last() == Some(&number) {
                    guest.session = None;
                }
            }
        }
        Ok(served)
    }
}
