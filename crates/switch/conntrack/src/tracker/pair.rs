//! The tracker over the table beside the slow one, for property tests and a fuzzer: every frame
//! has the same judgement, also by a reader of the memory, and both have the same connections.
//! Parts of walks, flushes, and successors that take over the memory come between the frames.

use std::sync::Arc;

use mapping::Mapping;
use wire::flow::Ct;

use super::*;
use crate::packet::Message;
use crate::reference;
use crate::segment::Brief;
use crate::table::{
    Account, Kind, Layout, MAX_PORTS, MIN_CAPACITY, PortLimits, Reader, Rule, Walk,
};

const LAYOUT: Layout = Layout::new(MIN_CAPACITY);
/// Flags of segments that end a connection or open another one in its place.
const TURNS: u8 = (wire::tcp::FIN | wire::tcp::RST | wire::tcp::SYN) as u8;
/// Ports below this are guests'.
const GUESTS: Port = 3;

/// Connections that a walk has at the same time: fewer than what any limit is.
const CONNECTIONS: usize = 50;

/// A step of a random walk: a frame, or an event between two.
#[derive(Clone, Debug)]
pub enum Step {
    /// A frame.
    Frame(Frame),
    /// Milliseconds go by.
    Wait(Millis),
    /// The rules change.
    Rules,
    /// A zone is flushed.
    Flush(u16),
    /// A part of a walk.
    Walk,
    /// The switch dies, and its successor takes over the memory.
    Restart,
}

/// A frame, and what its rules say.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The port that it comes from.
    pub from: Ingress,
    /// Its reading.
    pub read: Reading,
    /// The port that it goes to, if it is known.
    pub far: Option<Port>,
    /// Whether rules allow it, if they are asked.
    pub allowed: bool,
}

/// Both trackers.
#[derive(Debug)]
pub struct Pair {
    memory: Arc<Mapping>,
    table: Table,
    ours: Tracker,
    walker: Worker,
    walk: Walk,
    slow: reference::Tracker,
    now: Millis,
}

impl Pair {
    /// Both without connections.
    ///
    /// # Panics
    /// When there is no memory.
    #[must_use]
    pub fn new(pick_up: bool, now: Millis) -> Self {
        let settings = Settings {
            pick_up,
            ..Settings::default()
        };
        let memory = Arc::new(Mapping::heap(LAYOUT.bytes()));
        let table = adopt(&memory, now);
        Self {
            ours: Tracker::new(&table).expect("a slot"),
            walker: table.walker().expect("a slot"),
            walk: Walk::default(),
            memory,
            table,
            slow: reference::Tracker::new(settings),
            now,
        }
    }

    /// Whether several ports use a tuple.
    fn is_shared(&self, tuple: &Tuple) -> bool {
        let all = self.slow.entries(self.now);
        let same =
            |entry: &&reference::Entry| entry.tuple == *tuple || entry.tuple.reversed() == *tuple;
        all.filter(same).count() > 1
    }

    /// Takes a step.
    ///
    /// # Panics
    /// When the two differ.
    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Wait(time) => self.now = self.now.wrapping_add(*time),
            Step::Rules => self.slow.epoch += 1,
            Step::Flush(zone) => {
                self.slow.flush(*zone);
                self.table.flush_zone(*zone);
            }
            Step::Walk => {
                let time = (&self.slow.settings, self.now);
                self.walker.walk(&mut self.walk, 5, time, |_| true);
            }
            Step::Restart => {
                self.table = adopt(&self.memory, self.now);
                self.ours = Tracker::new(&self.table).expect("a slot");
                self.walker = self.table.walker().expect("a slot");
            }
            Step::Frame(frame) => self.frame(frame),
        }
    }

    fn frame(&mut self, frame: &Frame) {
        // The slow one forgets by a search, which may find another one of several; and in the
        // place of one of them it opens a third, where the table finds the other. Such frames are
        // left out.
        if let Reading::Packet(packet) = &frame.read
            && let Message::Tcp(segment) = packet.message
            && segment.flags & TURNS != 0
            && self.is_shared(&packet.tuple)
        {
            return;
        }
        // No two connections are of one time.
        self.now = self.now.wrapping_add(1);
        let Frame { from, read, .. } = frame;
        let (epoch, settings) = (self.slow.epoch, self.slow.settings);
        let sighted = self.sighted(read, *from);
        let expected = self.slow.judge(read, *from, self.now);
        let differs = sighted.filter(|sighted| *sighted != expected);
        assert_eq!(differs, None, "{frame:?} {expected:?}");
        let mut tracking = self.ours.begin(&settings, self.now);
        let probe = tracking.probe(read);
        if let Some((ct, far)) = pass(&tracking, read, (probe, *from, epoch)) {
            let Judgement::Known {
                connection,
                refused: false,
            } = expected
            else {
                panic!("{expected:?} {frame:?}");
            };
            assert_eq!(ct, Ct::new(expected.state(), 0), "{frame:?}");
            assert_eq!(far, connection.far, "{frame:?}");
            return;
        }
        let judged = tracking.judge(read, probe, *from, epoch);
        assert_eq!(judged.judgement, expected, "{frame:?}");
        let refused = matches!(expected, Judgement::Known { refused: true, .. });
        let asks = CtState::NEW | CtState::STALE | CtState::MOVED;
        let asks = expected.state().intersects(asks);
        if asks && !frame.allowed {
            if let Some(place) = judged.place {
                self.slow.deny(read, *from, self.now);
                tracking.deny(place, from.port);
            }
        } else if refused {
            if let Some(place) = judged.place {
                self.slow.forget(read, *from, self.now);
                tracking.forget(place, from.port);
            }
        } else if asks && self.slow.entries(self.now).count() < CONNECTIONS {
            self.slow.commit(read, *from, frame.far, self.now);
            commit(&mut tracking, frame, (probe, epoch));
            let probe = tracking.probe(read);
            let judged = tracking.judge(read, probe, *from, epoch).state();
            let again = self.slow.judge(read, *from, self.now).state();
            assert_eq!(judged, again, "{frame:?}");
        }
    }

    /// The judgement that another process comes to, of a frame that is no fragment.
    fn sighted(&self, read: &Reading, from: Ingress) -> Option<Judgement> {
        let Reading::Packet(packet @ Packet { piece: None, .. }) = read else {
            return None;
        };
        let reader = Reader::over(self.memory.clone(), LAYOUT).expect("a table");
        let time = (&self.slow.settings, self.now);
        Some(reader.judge(packet, from, self.slow.epoch, time).judgement)
    }

    /// Checks that both have the same connections, and that accounts add up to them.
    ///
    /// # Panics
    /// When they differ.
    pub fn check(&mut self) {
        let expected = self.slow.entries(self.now).count();
        let time = (&self.slow.settings, self.now);
        let mut seen = 0;
        let mut walk = Walk::default();
        self.walker.walk(&mut walk, usize::MAX, time, |connection| {
            let mut all = self.slow.entries(self.now);
            assert!(
                all.any(|entry| entry.tuple == connection.tuple
                    && entry.ports == [Some(connection.opener()), connection.far()]
                    && entry.stations == connection.stations
                    && entry.progress == connection.progress
                    && entry.sides == connection.sides
                    && entry.created == connection.opened
                    && entry.epoch == connection.epoch),
                "{connection:?}"
            );
            seen += 1;
            true
        });
        assert_eq!(seen, expected);
        let count = |port| {
            let of = |kind| self.table.counts(Account { port, kind }).all;
            of(Kind::Opened) + of(Kind::OpenedTo)
        };
        let counted: u32 = (0..MAX_PORTS as u16).map(count).sum();
        assert_eq!(counted as usize, expected);
    }
}

/// Commits a frame, in the short way unless that is declined.
fn commit(tracking: &mut Tracking<'_>, frame: &Frame, (probe, epoch): (Probe, u16)) {
    let rule = Rule {
        epoch,
        number: 1,
        mark: 0,
    };
    let (read, ends) = (&frame.read, (frame.from, frame.far));
    if open(tracking, read, probe, ends, rule).is_none() {
        tracking.commit(read, probe, ends, rule);
    }
}

/// Has a frame that rules allow open its connection in the short way, unless that is declined.
fn open(
    tracking: &mut Tracking<'_>,
    read: &Reading,
    probe: Probe,
    (from, far): (Ingress, Option<Port>),
    rule: Rule,
) -> Option<Result<(), Refusal>> {
    match read {
        Reading::Packet(packet) if packet.message == Message::Udp && packet.piece.is_none() => {
            let known = probe.leads();
            let tuple = (&packet.tuple, probe);
            let ends = ((from.port, far), from.stations);
            (!known).then(|| tracking.open_datagram(tuple, ends, rule, 100))?
        }
        _ => None,
    }
}

/// Judges a frame in the short way. Returns the field of flow keys and the far port, unless it is
/// declined.
pub(super) fn pass(
    tracking: &Tracking<'_>,
    read: &Reading,
    (probe, from, epoch): (Probe, Ingress, u16),
) -> Option<(Ct, Option<Port>)> {
    let Reading::Packet(packet) = read else {
        return None;
    };
    let run = Run::begin(tracking, (&packet.tuple, probe), from, epoch)?;
    let passes = match &packet.message {
        _ if packet.piece.is_some() => false,
        Message::Tcp(segment) => run.pass_segment(Brief::of(segment)),
        Message::Udp => run.pass_datagrams(),
        _ => false,
    };
    passes.then(|| (run.ct(), Some(run.far())))
}

fn adopt(memory: &Arc<Mapping>, now: Millis) -> Table {
    let (table, _) = Table::adopt(memory.clone(), LAYOUT, 3, now).expect("memory of its length");
    for port in 0..GUESTS {
        let limits = PortLimits {
            guest: true,
            connections: None,
        };
        table.set_limits(port, limits);
    }
    table
}
