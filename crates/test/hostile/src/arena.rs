//! Environment of a trick: ports, an end, and counts.

use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::{ClockId, clock_gettime};
use wire::hash::SplitMix64;

use super::attack::Tally;
use testkit::features::{
    ALL_OFFLOADS, EVENT_IDX, INDIRECT_DESC, LOG_ALL, MQ, MRG_RXBUF, PROTOCOL_FEATURES, VERSION_1,
    protocol,
};
use testkit::frontend::FrontEnd;
use testkit::guest_ram::RegionSpec;
use testkit::{FakeGuest, GuestConfig};

/// How long an attacker waits for a port's first answer: ports pause after faults.
const FIRST_ANSWER: Duration = Duration::from_millis(60);
/// How long it waits for others.
const ANSWER: Duration = Duration::from_millis(300);
/// Features of an attacker; a trick that needs LOG_ALL adds it.
const FEATURES: u64 =
    VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF | MQ | INDIRECT_DESC | EVENT_IDX | ALL_OFFLOADS;
const PROTOCOL: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::LOG_SHMFD
    | protocol::RARP
    | protocol::MTU
    | protocol::BACKEND_REQ
    | protocol::INFLIGHT_SHMFD
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::STATUS;

/// Random numbers that a seed repeats.
pub(super) struct Random(SplitMix64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0.number()
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }

    /// Mostly something near a limit.
    pub(super) fn number(&mut self) -> u64 {
        let edge = [
            0,
            1,
            0xff,
            0x1000,
            0xffff,
            1 << 20,
            1 << 32,
            1 << 47,
            1 << 63,
            u64::MAX,
        ];
        match self.below(3) {
            0 => self.below(1024),
            1 => edge[self.below(edge.len() as u64) as usize].wrapping_sub(self.below(3)),
            _ => self.next(),
        }
    }
}

/// Processor time of the calling thread.
pub(super) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(super) struct Arena<'a> {
    ports: &'a [PathBuf],
    next: AtomicUsize,
    end: Instant,
    stop: &'a AtomicBool,
    seeds: AtomicU64,
    tally: &'a Tally,
}

impl<'a> Arena<'a> {
    pub(super) fn new(
        ports: &'a [PathBuf],
        end: Instant,
        stop: &'a AtomicBool,
        seed: u64,
        tally: &'a Tally,
    ) -> Self {
        Self {
            ports,
            next: AtomicUsize::new(0),
            end,
            stop,
            seeds: AtomicU64::new(seed),
            tally,
        }
    }

    /// Plays a trick to its end.
    pub(super) fn attack(&self, run: fn(&Arena<'_>)) {
        self.crew(1, |_| run(self));
    }

    /// So many threads that attack at once; their CPU time is counted. A guest's driver
    /// panics when memory or rings that were taken from it are no longer what it knows: that ends a
    /// thread's part.
    pub(super) fn crew(&self, threads: usize, work: impl Fn(usize) + Sync) {
        std::thread::scope(|scope| {
            for index in 0..threads {
                let work = &work;
                scope.spawn(move || {
                    let first = thread_cpu();
                    if catch_unwind(AssertUnwindSafe(|| work(index))).is_err() {
                        self.tally.panics.fetch_add(1, Ordering::Relaxed);
                    }
                    let used = (thread_cpu() - first).as_nanos() as u64;
                    self.tally.cpu_ns.fetch_add(used, Ordering::Relaxed);
                });
            }
        });
    }

    /// Returns whether the trick continues.
    pub(super) fn on(&self) -> bool {
        Instant::now() < self.end && !self.stop.load(Ordering::Relaxed)
    }

    /// One more of what the trick does again and again.
    pub(super) fn step(&self) {
        self.tally.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn random(&self) -> Random {
        let seed = self.seeds.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        Random(SplitMix64(seed))
    }

    /// The next port in turn.
    pub(super) fn port(&self) -> &Path {
        &self.ports[self.next.fetch_add(1, Ordering::Relaxed) % self.ports.len()]
    }

    pub(super) fn ports(&self) -> &[PathBuf] {
        self.ports
    }

    /// A connection to the next port on which nothing was said yet; none when its queue is full.
    pub(super) fn dial(&self) -> Option<FrontEnd> {
        let socket = dial(self.port()).ok();
        let front = socket.and_then(|socket| FrontEnd::over(socket, ANSWER).ok());
        if front.is_none() {
            self.tally.unanswered.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        }
        front
    }

    /// A front end that has negotiated, at the first port that answers; none when all pause.
    pub(super) fn front(&self) -> Option<FrontEnd> {
        self.front_with(0)
    }

    /// As [`Arena::front`], with LOG_ALL.
    pub(super) fn logging_front(&self) -> Option<FrontEnd> {
        self.front_with(LOG_ALL)
    }

    fn front_with(&self, more: u64) -> Option<FrontEnd> {
        for _ in 0..self.ports.len() {
            if !self.on() {
                return None;
            }
            let Some(mut front) = self.answered() else {
                continue;
            };
            if front.negotiate(FEATURES | more, PROTOCOL).is_ok() {
                return Some(front);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
        None
    }

    /// A connection on which the port has answered; none while it pauses or is in use.
    fn answered(&self) -> Option<FrontEnd> {
        let mut front = self.dial()?;
        let socket = front.socket();
        let _ = socket.set_read_timeout(Some(FIRST_ANSWER));
        if front.get_features().is_err() {
            self.tally.unanswered.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let _ = front.socket().set_read_timeout(Some(ANSWER));
        Some(front)
    }

    /// A small guest with running queues, at the first port that answers.
    pub(super) fn guest(&self, config: GuestConfig) -> Option<FakeGuest> {
        let config = GuestConfig {
            regions: config
                .regions
                .or_else(|| Some(vec![RegionSpec::at(0x10_0000, 16 << 20)])),
            timeout: ANSWER,
            protocol: PROTOCOL,
            queue_size: 64,
            ..config
        };
        for _ in 0..self.ports.len() {
            if !self.on() {
                return None;
            }
            let front = self.answered();
            let guest = front.map(|front| FakeGuest::over(front, config.clone()));
            if let Some(Ok(guest)) = guest {
                return Some(guest);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
        None
    }

    /// Such guests, one after the other, until the attack ends.
    pub(super) fn guests(&self, config: GuestConfig) -> impl Iterator<Item = FakeGuest> {
        self.while_on(move || self.guest(config.clone()))
    }

    /// Connections, one after the other, until the attack ends.
    pub(super) fn fronts(&self) -> impl Iterator<Item = FrontEnd> {
        self.while_on(|| self.front())
    }

    fn while_on<T>(&self, make: impl Fn() -> Option<T>) -> impl Iterator<Item = T> {
        let tries = std::iter::repeat_with(make);
        tries.take_while(|_| self.on()).flatten()
    }
}

/// Connects without waiting for room in the listener's queue.
pub(super) fn dial(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}
