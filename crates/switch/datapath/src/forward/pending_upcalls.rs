//! Frames that wait for a decision.
//!
//! A frame without a flow is copied out of its sender's memory, so that the sender gets its buffer
//! back, and waits here until control answers. Frames of the same key wait together for one upcall.
//! Room is bounded for each port: one guest's new flows cannot displace another's.

use std::collections::{BTreeSet, HashMap, VecDeque};

use ipc::records::Connection;
use port::{Offload, PortId};
use wire::flow::{FlowKey, FlowMask};
use wire::vlan::HeaderBuf;

use crate::ports::batch::BATCH;

/// Pending frames of one port at most.
pub const FRAMES_PER_PORT: usize = 256;
/// Pending bytes of one port at most.
pub const BYTES_PER_PORT: usize = 2 << 20;
/// Bytes of the longest TSO frame.
const FRAME_MAX: usize = 65_536 + 64;
/// Open upcalls of one port at most; the others wait until one of these is answered. Those of many
/// ports fit into the ring, which keeps room for ports with few upcalls, and they are enough to
/// keep control busy while answers are in transit.
pub const UPCALLS_PER_PORT: usize = 64;
/// Timeout of a pending frame, milliseconds: longer than a restart of control.
pub const UPCALL_TIMEOUT_MS: u64 = 2_000;

/// Frame in private memory.
#[derive(Debug)]
pub struct PendingFrame {
    /// Queue pair by which it came.
    pub pair: u16,
    /// First bytes.
    pub headers: HeaderBuf,
    /// Remaining bytes.
    pub payload: Vec<u8>,
    /// Offload that the sender requested.
    pub offload: Offload,
}

/// Frames that wait for the answer to one upcall.
#[derive(Debug)]
pub struct PendingUpcall {
    /// Exact key of the frames.
    pub key: FlowKey,
    /// Their connection, when the first of them came.
    pub connection: Option<Connection>,
    /// Frames in order of arrival.
    pub frames: Vec<PendingFrame>,
    /// Arrival number of each frame, counted over all keys.
    arrivals: Vec<u64>,
    since: u64,
    /// Arrival of the first frame, nanoseconds.
    since_ns: u64,
    /// Whether the upcall was sent.
    sent: bool,
    /// Whether it is part of [`PendingUpcalls::upcalls_sent`].
    counted: bool,
}

impl PendingUpcall {
    /// Returns the port that sent the frames.
    #[must_use]
    pub fn port(&self) -> PortId {
        PortId(self.key.in_port())
    }

    /// Returns the arrival of the first frame, milliseconds.
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    fn into_arrivals(self) -> impl Iterator<Item = (u64, (FlowKey, PendingFrame))> {
        let key = self.key;
        let frames = self.frames.into_iter().map(move |frame| (key, frame));
        self.arrivals.into_iter().zip(frames)
    }

    /// Returns the frames with their key.
    pub fn into_frames(self) -> impl Iterator<Item = (FlowKey, PendingFrame)> {
        self.into_arrivals().map(|(_, frame)| frame)
    }
}

#[derive(Clone, Debug, Default)]
struct PortShare {
    frames: usize,
    bytes: usize,
    /// Open upcalls of the port.
    open: BTreeSet<u64>,
    /// Open upcalls that were not sent yet.
    unsent: BTreeSet<u64>,
}

impl PortShare {
    fn may_send(&self) -> bool {
        self.open.len() - self.unsent.len() < UPCALLS_PER_PORT
    }
}

/// Result of [`PendingUpcalls::add`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// First frame of its key: the upcall with this number has to be sent.
    Upcall(u64),
    /// Frame behind others of its key, or with an upcall that waits for its turn: see
    /// [`PendingUpcalls::next_unsent`].
    Queued,
    /// No room left for the port.
    Full,
}

/// Pending frames of a switch; see the module.
#[derive(Debug, Default)]
pub struct PendingUpcalls {
    /// Bytes of one port that may be pending beyond [`BYTES_PER_PORT`].
    extra: usize,
    waiting: HashMap<u64, PendingUpcall>,
    by_key: HashMap<FlowKey, u64>,
    shares: HashMap<PortId, PortShare>,
    next_id: u64,
    arrivals: u64,
    /// Number of upcalls sent, each counted once.
    pub(crate) upcalls_sent: u64,
    /// Time in nanoseconds of the monotonic clock.
    pub(crate) clock: u64,
    /// Ports with unsent upcalls, in the order of their turns.
    turns: VecDeque<PortId>,
}

impl PendingUpcalls {
    /// Returns an empty table whose upcalls are numbered from `first` on.
    #[must_use]
    pub fn numbered_from(first: u64) -> Self {
        Self {
            next_id: first,
            ..Self::default()
        }
    }

    /// Lets [`PendingUpcalls::has_room`] hold for whole batches, whatever the length of their
    /// frames.
    pub fn take_whole_batches(&mut self, on: bool) {
        self.extra = if on { BATCH * FRAME_MAX } else { 0 };
    }

    /// Returns whether a whole batch of a port may be added.
    #[must_use]
    pub fn has_room(&self, port: PortId) -> bool {
        let fits = |s: &PortShare| s.frames + BATCH <= FRAMES_PER_PORT && s.bytes <= BYTES_PER_PORT;
        self.shares.get(&port).is_none_or(fits)
    }

    /// Returns a number of no other upcall, for an upcall without pending frames or for a frame
    /// that is decided alone.
    pub(crate) fn number(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Returns the number of pending frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shares.values().map(|s| s.frames).sum()
    }

    /// Returns whether no frame is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether frames of a port's queue pair are pending.
    #[must_use]
    pub fn has(&self, port: PortId, pair: u16) -> bool {
        let open = self.shares.get(&port).map(|share| &share.open);
        let waiting = open.into_iter().flatten();
        let mut waiting = waiting.filter_map(|id| self.waiting.get(id));
        waiting.any(|w| w.frames.iter().any(|frame| frame.pair == pair))
    }

    /// Adds a frame of `bytes` bytes with its key and connection, which `make` copies if there is
    /// room.
    pub fn add(
        &mut self,
        (key, connection): (&FlowKey, Option<Connection>),
        bytes: usize,
        now: u64,
        make: impl FnOnce() -> PendingFrame,
    ) -> Admission {
        let share = self.shares.entry(PortId(key.in_port())).or_default();
        if share.frames == FRAMES_PER_PORT || share.bytes + bytes > BYTES_PER_PORT + self.extra {
            return Admission::Full;
        }
        share.frames += 1;
        share.bytes += bytes;
        self.arrivals += 1;
        if let Some(id) = self.by_key.get(key)
            && let Some(waiting) = self.waiting.get_mut(id)
        {
            waiting.frames.push(make());
            waiting.arrivals.push(self.arrivals);
            return Admission::Queued;
        }
        self.next_id += 1;
        let sent = share.may_send();
        share.open.insert(self.next_id);
        if !sent {
            share.unsent.insert(self.next_id);
        }
        self.by_key.insert(*key, self.next_id);
        self.waiting.insert(
            self.next_id,
            PendingUpcall {
                key: *key,
                connection,
                frames: vec![make()],
                arrivals: vec![self.arrivals],
                since: now,
                since_ns: self.clock,
                sent,
                counted: sent,
            },
        );
        self.upcalls_sent += u64::from(sent);
        if sent {
            Admission::Upcall(self.next_id)
        } else {
            Admission::Queued
        }
    }

    /// Notes that an upcall could not be sent; it gets another turn.
    pub fn retry(&mut self, id: u64) {
        let Some(waiting) = self.waiting.get_mut(&id) else {
            return;
        };
        waiting.sent = false;
        let port = waiting.port();
        if let Some(share) = self.shares.get_mut(&port) {
            share.unsent.insert(id);
        }
        self.give_turn(port);
    }

    /// Returns the next upcall to send, and marks it as sent. Ports take turns.
    pub fn next_unsent(&mut self) -> Option<(u64, &PendingUpcall)> {
        loop {
            let port = self.turns.pop_front()?;
            let Some(share) = self.shares.get_mut(&port) else {
                continue;
            };
            let Some(id) = share.unsent.first().copied().filter(|_| share.may_send()) else {
                continue;
            };
            share.unsent.remove(&id);
            self.turns.push_back(port);
            if let Some(waiting) = self.waiting.get_mut(&id) {
                waiting.sent = true;
                self.upcalls_sent += u64::from(!std::mem::replace(&mut waiting.counted, true));
                return self.waiting.get(&id).map(|waiting| (id, waiting));
            }
        }
    }

    /// Returns the port that sent the frames of an upcall; `None` if it is not open.
    #[must_use]
    pub(crate) fn port_of(&self, id: u64) -> Option<PortId> {
        self.waiting.get(&id).map(PendingUpcall::port)
    }

    /// Returns for how long an upcall has been open, nanoseconds; `None` if it is not open.
    #[must_use]
    pub(crate) fn open_for(&self, id: u64) -> Option<u64> {
        let waiting = self.waiting.get(&id)?;
        Some(self.clock.saturating_sub(waiting.since_ns))
    }

    /// Returns whether [`PendingUpcalls::next_unsent`] may return an upcall.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        !self.turns.is_empty()
    }

    fn give_turn(&mut self, port: PortId) {
        if !self.turns.contains(&port) {
            self.turns.push_back(port);
        }
    }

    /// Removes and returns the frames of an upcall; `None` if they are gone already.
    pub fn release(&mut self, id: u64) -> Option<PendingUpcall> {
        let waiting = self.waiting.remove(&id)?;
        self.by_key.remove(&waiting.key);
        if let Some(share) = self.shares.get_mut(&waiting.port()) {
            share.frames -= waiting.frames.len();
            share.bytes -= waiting
                .frames
                .iter()
                .map(PendingFrame::bytes)
                .sum::<usize>();
            share.open.remove(&id);
            share.unsent.remove(&id);
            let more = !share.unsent.is_empty();
            if share.frames == 0 {
                self.shares.remove(&waiting.port());
            }
            if more {
                self.give_turn(waiting.port());
            }
        }
        Some(waiting)
    }

    /// Removes and returns the frames of `upcall` and all others that a flow of this key and mask
    /// covers, in order of arrival and with their exact keys: later frames match the flow and must
    /// not overtake them.
    pub fn release_covered(
        &mut self,
        upcall: Option<u64>,
        key: &FlowKey,
        mask: &FlowMask,
    ) -> Vec<(FlowKey, PendingFrame)> {
        let key = key.masked(mask);
        // Flows of one port are usually covered by keys of that port only; so the search is bounded
        // by its share.
        let open = self.shares.get(&PortId(key.in_port())).map(|s| &s.open);
        let covered = |id: &u64| {
            self.waiting
                .get(id)
                .is_some_and(|w| w.key.masked(mask) == key)
        };
        let mut ids: Vec<u64> = open
            .into_iter()
            .flatten()
            .copied()
            .filter(covered)
            .collect();
        ids.extend(upcall.filter(|id| !ids.contains(id)));
        let released = ids.into_iter().filter_map(|id| self.release(id));
        let mut frames: Vec<_> = released.flat_map(PendingUpcall::into_arrivals).collect();
        frames.sort_unstable_by_key(|(arrival, _)| *arrival);
        frames.into_iter().map(|(_, frame)| frame).collect()
    }

    /// Removes and returns the frames that timed out.
    pub fn expire(&mut self, now: u64) -> Vec<PendingUpcall> {
        self.release_if(|w| now.saturating_sub(w.since) > UPCALL_TIMEOUT_MS)
    }

    /// Removes and returns the frames of a port that is removed or whose guest disconnected.
    pub fn forget_port(&mut self, port: PortId) -> Vec<PendingUpcall> {
        self.release_if(|w| w.port() == port)
    }

    fn release_if(&mut self, over: impl Fn(&PendingUpcall) -> bool) -> Vec<PendingUpcall> {
        let ids: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, w)| over(w))
            .map(|(&id, _)| id)
            .collect();
        ids.into_iter().filter_map(|id| self.release(id)).collect()
    }

    /// Returns all open upcalls that were sent: the first of each port, then the second of each, in
    /// the order of their numbers.
    #[must_use]
    pub fn open(&self) -> Vec<(u64, &PendingUpcall)> {
        let sent = |id: &u64| self.waiting.get(id).filter(|waiting| waiting.sent);
        let mut open = Vec::with_capacity(self.waiting.len());
        for share in self.shares.values() {
            let ids = share.open.iter();
            let waiting = ids.filter_map(|id| Some((*id, sent(id)?)));
            open.extend(waiting.enumerate());
        }
        open.sort_unstable_by_key(|(rank, (id, _))| (*rank, *id));
        open.into_iter().map(|(_, upcall)| upcall).collect()
    }
}

impl PendingFrame {
    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.headers.as_slice().len() + self.payload.len()
    }
}
