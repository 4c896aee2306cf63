//! Many guests of one thread: those that wait, and pairs that talk beside them.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::features::{CHECKSUM_ONLY, EVENT_IDX, MRG_RXBUF, PROTOCOL_FEATURES, VERSION_1};
use crate::guest::{FakeGuest, GuestConfig, GuestError};
use crate::guest_ram::RegionSpec;
use crate::packets::{Flow, Numbered, SequenceChecker, numbered_payload, payload_of, udp};

/// Memory of a guest: 16 MiB.
const MEMORY: u64 = 16 << 20;
/// Entries of a queue of a guest that waits.
const QUEUE: u16 = 64;
/// Frames on their way in one direction at most: fewer than a receiver's 256 buffers.
const WINDOW: u64 = 200;
/// Bytes of a frame's payload.
const PAYLOAD: usize = 32;
/// Events that are taken at once.
const EVENTS: usize = 256;

/// Returns a small guest with plain queues.
fn config(queue_size: u16) -> GuestConfig {
    GuestConfig {
        features: VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF | EVENT_IDX | CHECKSUM_ONLY,
        queue_size,
        regions: Some(vec![RegionSpec::at(0, MEMORY)]),
        ..GuestConfig::default()
    }
}

/// Guests that are connected and wait: none sends, and none has a thread.
#[derive(Debug)]
pub struct Crowd {
    guests: Vec<FakeGuest>,
    calls: OwnedFd,
    /// Guests that were notified since the last [`Crowd::forget`].
    notified: Vec<bool>,
    missing: usize,
}

impl Crowd {
    /// Connects a guest to each of these sockets. All have been served when it returns.
    ///
    /// # Errors
    /// A session fails.
    pub fn connect(sockets: &[PathBuf]) -> Result<Self, GuestError> {
        let connect = |path: &PathBuf| FakeGuest::connect(path, config(QUEUE));
        let guests = sockets.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
        let calls = epoll::create(CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let mut crowd = Self {
            notified: vec![false; guests.len()],
            missing: 0,
            guests,
            calls,
        };
        for (number, guest) in crowd.guests.iter_mut().enumerate() {
            guest.wait_link()?;
            let data = EventData::new_u64(number as u64);
            let call = &guest.pairs[0].rx_call;
            let flags = EventFlags::IN | EventFlags::ET;
            epoll::add(&crowd.calls, call, data, flags).map_err(std::io::Error::from)?;
        }
        crowd.forget();
        Ok(crowd)
    }

    /// Forgets who was notified.
    pub fn forget(&mut self) {
        self.notified.fill(true);
        self.take();
        self.notified.fill(false);
        self.missing = self.guests.len();
    }

    /// Returns the number of guests that were not notified since the last [`Crowd::forget`]. A
    /// switch that continues the connections notifies each guest once.
    pub fn missing(&mut self) -> usize {
        self.take();
        self.missing
    }

    /// Takes the notifications that have come, without waiting.
    fn take(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let at_once = Timespec::default();
        while let Ok(1..) = epoll::wait(&self.calls, spare_capacity(&mut events), Some(&at_once)) {
            for event in events.drain(..) {
                let number = event.data.u64() as usize;
                if let (Some(guest), Some(notified)) =
                    (self.guests.get(number), self.notified.get_mut(number))
                {
                    // A check of the descriptor would be reported again while it is readable.
                    let _ = rustix::io::read(&guest.pairs[0].rx_call, &mut [0u8; 8]);
                    self.missing -= usize::from(!std::mem::replace(notified, true));
                }
            }
        }
    }

    /// Checks that all sessions are those that were opened, and served.
    ///
    /// # Errors
    /// A session has ended.
    pub fn check(&mut self) -> Result<(), GuestError> {
        self.guests.iter_mut().try_for_each(FakeGuest::wait_link)
    }
}

/// Counts of the frames of a pair, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// Frames that arrived again.
    pub twice: u64,
    /// Frames that came after a later one.
    pub reordered: u64,
    /// Frames that arrived altered.
    pub damaged: u64,
}

impl Books {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            lost: self.lost + other.lost,
            twice: self.twice + other.twice,
            reordered: self.reordered + other.reordered,
            damaged: self.damaged + other.damaged,
        }
    }
}

/// Numbered frames in one direction.
#[derive(Debug)]
struct Direction {
    flow: Flow,
    stream: u16,
    sent: u64,
    checker: SequenceChecker,
    /// Time of the last arrival.
    last: Instant,
    /// Longest time without an arrival.
    gap: Duration,
}

impl Direction {
    fn new(flow: Flow, stream: u16, now: Instant) -> Self {
        Self {
            flow,
            stream,
            sent: 0,
            checker: SequenceChecker::default(),
            last: now,
            gap: Duration::ZERO,
        }
    }

    fn arrived(&self) -> u64 {
        self.checker.next_of(self.stream)
    }

    fn send(&mut self, from: &mut FakeGuest) -> Result<(), GuestError> {
        if self.sent >= self.arrived() + WINDOW {
            return Ok(());
        }
        let (stream, seq) = (self.stream, self.sent);
        let payload = numbered_payload(Numbered { stream, seq }, PAYLOAD);
        self.sent += 1;
        from.send(&udp(&self.flow, &payload))
    }

    fn receive(&mut self, to: &mut FakeGuest, now: Instant) -> Result<(), GuestError> {
        let before = self.checker.received;
        for packet in to.recv_all()? {
            if let Ok(payload) = payload_of(&packet.frame) {
                self.checker.see(payload);
            }
        }
        if self.checker.received > before {
            self.gap = self.gap.max(now.saturating_duration_since(self.last));
            self.last = now;
        }
        Ok(())
    }

    fn books(&self) -> Books {
        Books {
            sent: self.sent,
            lost: self.sent - self.arrived() + self.checker.lost(),
            twice: self.checker.duplicated,
            reordered: self.checker.reordered,
            damaged: self.checker.damaged,
        }
    }
}

/// Two guests that send each other numbered frames. No more are on their way than the receiver has
/// buffers for, so none may be dropped.
#[derive(Debug)]
pub struct Talk {
    guests: [FakeGuest; 2],
    directions: [Direction; 2],
}

impl Talk {
    /// Connects two guests with the addresses of test guests `first` and `first + 1`.
    ///
    /// # Errors
    /// A session fails.
    pub fn connect(sockets: [&Path; 2], first: u8, packed: bool) -> Result<Self, GuestError> {
        let connect = |path: &Path, number| {
            let config = config(256).guest(number);
            let config = if packed { config.packed() } else { config };
            FakeGuest::connect(path, config)
        };
        let now = Instant::now();
        let mut guests = [connect(sockets[0], first)?, connect(sockets[1], first + 1)?];
        for guest in &mut guests {
            guest.wait_link()?;
        }
        let there = Flow::v4(first, first + 1);
        let directions = [there, there.reversed()];
        Ok(Self {
            guests,
            directions: directions.map(|flow| Direction::new(flow, first.into(), now)),
        })
    }

    /// Sends a frame in each direction, unless the window is full or `sends` is not set, and takes
    /// what has come.
    ///
    /// # Errors
    /// The device broke a rule.
    pub fn step(&mut self, sends: bool) -> Result<(), GuestError> {
        let [a, b] = &mut self.guests;
        let [there, back] = &mut self.directions;
        if sends {
            there.send(a)?;
            back.send(b)?;
        }
        let now = Instant::now();
        there.receive(b, now)?;
        back.receive(a, now)
    }

    /// Begins to measure gaps anew.
    pub fn forget_gaps(&mut self) {
        let now = Instant::now();
        for direction in &mut self.directions {
            (direction.gap, direction.last) = (Duration::ZERO, now);
        }
    }

    /// Returns the longest time without an arrival in one direction. One that lasts does not count.
    #[must_use]
    pub fn gap(&self) -> Duration {
        let [there, back] = &self.directions;
        there.gap.max(back.gap)
    }

    /// Returns the number of frames that were sent in each direction.
    #[must_use]
    pub fn sent(&self) -> [u64; 2] {
        [0, 1].map(|at: usize| self.directions[at].sent)
    }

    /// Returns whether frames with these numbers, or later ones, have arrived.
    #[must_use]
    pub fn is_past(&self, numbers: [u64; 2]) -> bool {
        let both = self.directions.iter().zip(numbers);
        both.into_iter()
            .all(|(direction, number)| direction.arrived() > number)
    }

    /// Returns whether all frames have arrived.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let mut both = self.directions.iter();
        both.all(|direction| direction.arrived() == direction.sent)
    }

    /// Returns what became of the frames since the guests have connected.
    #[must_use]
    pub fn books(&self) -> Books {
        let [there, back] = &self.directions;
        there.books().plus(back.books())
    }
}
