//! Frames that wait for a decision.
//!
//! A frame without a flow is copied out of its sender's memory, so that the sender gets its buffer back,
//! and waits here until control answers. Frames of the same key wait together behind one upcall. Room is
//! bounded for each port: one guest's new flows cannot displace another's.

use std::collections::{BTreeSet, HashMap, VecDeque};

use port::{BATCH, Offload, PortId};
use wire::flow::{FlowKey, FlowMask};
use wire::vlan::HeaderBuf;

/// Frames of one port that may wait at a time.
pub const FRAMES_PER_PORT: usize = 256;
/// Bytes of one port that may wait at a time.
pub const BYTES_PER_PORT: usize = 2 << 20;
/// Bytes of the longest frame, a segment that is to be cut.
const FRAME_MAX: usize = 65_536 + 64;
/// Questions of one port that are asked at a time; others wait until one of these is answered. Those of many ports fit into the ring, so
/// that there is room in it for who asks seldom, and there are enough for control to have work while answers are on their way.
pub const ASKED_PER_PORT: usize = 64;
/// How long a frame waits, in milliseconds: long enough for control to be started again.
pub const PATIENCE_MS: u64 = 2_000;

/// A frame in private memory.
#[derive(Debug)]
pub struct ParkedFrame {
    /// The queue pair that it came by.
    pub pair: u16,
    /// The first bytes.
    pub headers: HeaderBuf,
    /// The rest.
    pub payload: Vec<u8>,
    /// What its sender left undone.
    pub offload: Offload,
}

/// Frames that wait for the answer to one upcall.
#[derive(Debug)]
pub struct Waiting {
    /// Their exact key.
    pub key: FlowKey,
    /// In order of arrival.
    pub frames: Vec<ParkedFrame>,
    /// Of each frame, counted over all keys.
    arrivals: Vec<u64>,
    since: u64,
    /// The same in nanoseconds.
    since_ns: u64,
    /// Control was asked.
    asked: bool,
    /// It was to be asked, at least once.
    tried: bool,
}

impl Waiting {
    /// The port that sent the frames.
    #[must_use]
    pub fn port(&self) -> PortId {
        PortId(self.key.in_port())
    }

    /// When the first of them came, milliseconds.
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    fn into_arrivals(self) -> impl Iterator<Item = (u64, (FlowKey, ParkedFrame))> {
        let key = self.key;
        let frames = self.frames.into_iter().map(move |frame| (key, frame));
        self.arrivals.into_iter().zip(frames)
    }

    /// The frames with their key.
    pub fn into_frames(self) -> impl Iterator<Item = (FlowKey, ParkedFrame)> {
        self.into_arrivals().map(|(_, frame)| frame)
    }
}

#[derive(Clone, Debug, Default)]
struct Share {
    frames: usize,
    bytes: usize,
    /// Open questions about this port's frames.
    open: BTreeSet<u64>,
    /// Those of them that control was not asked yet.
    unasked: BTreeSet<u64>,
}

impl Share {
    fn may_ask(&self) -> bool {
        self.open.len() - self.unasked.len() < ASKED_PER_PORT
    }
}

/// What became of a frame that was brought here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parked {
    /// The first of its key: an upcall with this number is to be sent.
    Ask(u64),
    /// It waits behind others of its key, or its question behind others of its port: see [`Parking::next_to_ask`].
    Behind,
    /// Its port has no room left.
    Full,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Parking {
    /// Bytes of one port that may wait beyond [`BYTES_PER_PORT`].
    extra: usize,
    waiting: HashMap<u64, Waiting>,
    by_key: HashMap<FlowKey, u64>,
    shares: HashMap<PortId, Share>,
    next_id: u64,
    arrivals: u64,
    /// Questions that were asked so far, each once.
    pub(crate) questions: u64,
    /// Nanoseconds of the machine's monotonic clock.
    pub(crate) clock: u64,
    /// Ports that may ask more, in the order in which they have their turns.
    turns: VecDeque<PortId>,
}

impl Parking {
    /// Nothing waits, and questions are numbered from `first` on.
    #[must_use]
    pub fn numbered_from(first: u64) -> Self {
        Self {
            next_id: first,
            ..Self::default()
        }
    }

    /// Whether what [`Parking::has_room`] says is true for whole batches, however long their frames are.
    pub fn take_whole_batches(&mut self, on: bool) {
        self.extra = if on { BATCH * FRAME_MAX } else { 0 };
    }

    /// Whether a whole batch of a port may be brought here.
    #[must_use]
    pub fn has_room(&self, port: PortId) -> bool {
        let fits = |s: &Share| s.frames + BATCH <= FRAMES_PER_PORT && s.bytes <= BYTES_PER_PORT;
        self.shares.get(&port).is_none_or(fits)
    }

    /// A number that no question has and no other call gives: for a question behind which no frame waits, and for a frame that is
    /// decided alone.
    pub(crate) fn number(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Frames that wait now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shares.values().map(|s| s.frames).sum()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether frames wait that came by a port's queue pair.
    #[must_use]
    pub fn has(&self, port: PortId, pair: u16) -> bool {
        let open = self.shares.get(&port).map(|share| &share.open);
        let waiting = open.into_iter().flatten();
        let mut waiting = waiting.filter_map(|id| self.waiting.get(id));
        waiting.any(|w| w.frames.iter().any(|frame| frame.pair == pair))
    }

    /// Takes in a frame of `bytes` bytes, which `make` copies when there is room.
    pub fn park(
        &mut self,
        key: &FlowKey,
        bytes: usize,
        now: u64,
        make: impl FnOnce() -> ParkedFrame,
    ) -> Parked {
        let share = self.shares.entry(PortId(key.in_port())).or_default();
        if share.frames == FRAMES_PER_PORT || share.bytes + bytes > BYTES_PER_PORT + self.extra {
            return Parked::Full;
        }
        share.frames += 1;
        share.bytes += bytes;
        self.arrivals += 1;
        if let Some(id) = self.by_key.get(key)
            && let Some(waiting) = self.waiting.get_mut(id)
        {
            waiting.frames.push(make());
            waiting.arrivals.push(self.arrivals);
            return Parked::Behind;
        }
        self.next_id += 1;
        let asked = share.may_ask();
        share.open.insert(self.next_id);
        if !asked {
            share.unasked.insert(self.next_id);
        }
        self.by_key.insert(*key, self.next_id);
        self.waiting.insert(
            self.next_id,
            Waiting {
                key: *key,
                frames: vec![make()],
                arrivals: vec![self.arrivals],
                since: now,
                since_ns: self.clock,
                asked,
                tried: asked,
            },
        );
        self.questions += u64::from(asked);
        match asked {
            true => Parked::Ask(self.next_id),
            false => Parked::Behind,
        }
    }

    /// A question could not be asked: it has its turn again.
    pub fn ask_later(&mut self, id: u64) {
        let Some(waiting) = self.waiting.get_mut(&id) else {
            return;
        };
        waiting.asked = false;
        let port = waiting.port();
        if let Some(share) = self.shares.get_mut(&port) {
            share.unasked.insert(id);
        }
        self.give_turn(port);
    }

    /// The next question that may be asked, and is from now on: ports have their turns.
    pub fn next_to_ask(&mut self) -> Option<(u64, &Waiting)> {
        loop {
            let port = self.turns.pop_front()?;
            let Some(share) = self.shares.get_mut(&port) else {
                continue;
            };
            let Some(id) = share.unasked.first().copied().filter(|_| share.may_ask()) else {
                continue;
            };
            share.unasked.remove(&id);
            self.turns.push_back(port);
            if let Some(waiting) = self.waiting.get_mut(&id) {
                waiting.asked = true;
                self.questions += u64::from(!std::mem::replace(&mut waiting.tried, true));
                return self.waiting.get(&id).map(|waiting| (id, waiting));
            }
        }
    }

    /// How long a question has been open, nanoseconds; `None` when it is not any more.
    #[must_use]
    pub(crate) fn open_for(&self, id: u64) -> Option<u64> {
        let waiting = self.waiting.get(&id)?;
        Some(self.clock.saturating_sub(waiting.since_ns))
    }

    /// Whether [`Parking::next_to_ask`] may have something.
    #[must_use]
    pub fn has_to_ask(&self) -> bool {
        !self.turns.is_empty()
    }

    fn give_turn(&mut self, port: PortId) {
        if !self.turns.contains(&port) {
            self.turns.push_back(port);
        }
    }

    /// Gives out the frames behind an upcall; `None` when they are gone already.
    pub fn release(&mut self, id: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        self.by_key.remove(&waiting.key);
        if let Some(share) = self.shares.get_mut(&waiting.port()) {
            share.frames -= waiting.frames.len();
            share.bytes -= waiting.frames.iter().map(ParkedFrame::bytes).sum::<usize>();
            share.open.remove(&id);
            share.unasked.remove(&id);
            let more = !share.unasked.is_empty();
            if share.frames == 0 {
                self.shares.remove(&waiting.port());
            }
            if more {
                self.give_turn(waiting.port());
            }
        }
        Some(waiting)
    }

    /// Gives out the frames behind `upcall` and all others that a flow of this key and mask covers, in order
    /// of arrival and with their exact keys: later frames will find the flow, and must not overtake them.
    pub fn release_covered(
        &mut self,
        upcall: Option<u64>,
        key: &FlowKey,
        mask: &FlowMask,
    ) -> Vec<(FlowKey, ParkedFrame)> {
        let key = key.masked(mask);
        // Flows of one port are covered by keys of that port only, as a rule; the bound is its share.
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
        let mut frames: Vec<_> = released.flat_map(Waiting::into_arrivals).collect();
        frames.sort_unstable_by_key(|(arrival, _)| *arrival);
        frames.into_iter().map(|(_, frame)| frame).collect()
    }

    /// Gives out everything that has waited too long.
    pub fn expire(&mut self, now: u64) -> Vec<Waiting> {
        self.release_if(|w| now.saturating_sub(w.since) > PATIENCE_MS)
    }

    /// Gives out the frames of a port that goes away, or whose guest does.
    pub fn forget_port(&mut self, port: PortId) -> Vec<Waiting> {
        self.release_if(|w| w.port() == port)
    }

    fn release_if(&mut self, over: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let ids: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, w)| over(w))
            .map(|(&id, _)| id)
            .collect();
        ids.into_iter().filter_map(|id| self.release(id)).collect()
    }

    /// All open questions that were asked, to be asked again: the first of each port, then the second of each, in the order
    /// they arose.
    #[must_use]
    pub fn open(&self) -> Vec<(u64, &Waiting)> {
        let asked = |id: &u64| self.waiting.get(id).filter(|waiting| waiting.asked);
        let mut open = Vec::with_capacity(self.waiting.len());
        for share in self.shares.values() {
            let ids = share.open.iter();
            let waiting = ids.filter_map(|id| Some((*id, asked(id)?)));
            open.extend(waiting.enumerate());
        }
        open.sort_unstable_by_key(|(rank, (id, _))| (*rank, *id));
        open.into_iter().map(|(_, question)| question).collect()
    }
}

impl ParkedFrame {
    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.headers.as_slice().len() + self.payload.len()
    }
}
