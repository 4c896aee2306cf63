//! Our tracker, as the kernel is asked: by packets of two sides, all of which rules let through.

use conntrack::packet::{self, Message, Reading};
use conntrack::reference::{Ingress, Judgement, Tracker};
use conntrack::timeouts::{Settings, Timeout, Timeouts};
use conntrack::{Direction, Invalid, Progress, Side, Tuple};
use wire::ParsedHeaders;

use crate::answer::{Answer, Entry};

/// The sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// `>`
    A,
    /// `<`
    B,
}

/// Our tracker, with a clock.
pub(crate) struct Ours {
    pub(crate) tracker: Tracker,
    pub(crate) now: u32,
    /// The reason of the last packet that was invalid.
    pub(crate) why: Option<Invalid>,
}

/// Seconds that an established connection of TCP is kept in these comparisons: the kernel's default
/// of five days.
pub(crate) const ESTABLISHED: u32 = 432_000;

/// The clock may wrap at any time.
const START: u32 = u32::MAX - 50;

impl Ours {
    pub(crate) fn new() -> Self {
        let mut timeouts = Timeouts::default();
        timeouts.set(Timeout::TcpEstablished, ESTABLISHED * 1000);
        let settings = Settings {
            timeouts,
            ..Settings::default()
        };
        Self {
            tracker: Tracker::new(settings),
            now: START,
            why: None,
        }
    }

    /// Sets the clock to a time after its start.
    pub(crate) fn set_time(&mut self, since_start: std::time::Duration) {
        self.now = START.wrapping_add(since_start.as_millis() as u32);
    }

    /// Judges an IP packet, and commits what is new.
    pub(crate) fn ask(&mut self, from: From, packet: &[u8]) -> Answer {
        let (read, ingress) = (read(packet, false), ingress(from));
        let far = match from {
            From::A => PORTS[1],
            From::B => PORTS[0],
        };
        let judgement = self.tracker.judge(&read, ingress, self.now);
        match judgement {
            Judgement::New => self.tracker.commit(&read, ingress, Some(far), self.now),
            Judgement::Known { refused: true, .. } => {
                self.tracker.forget(&read, ingress, self.now);
            }
            _ => {}
        }
        self.why = match judgement {
            Judgement::Invalid(why) => Some(why),
            _ => None,
        };
        Answer {
            verdict: verdict(&judgement).to_owned(),
            entry: tuple(packet).and_then(|tuple| self.entry(&tuple)),
        }
    }

    /// The state of a tuple's connection.
    pub(crate) fn connection(&self, tuple: &Tuple) -> Option<(Progress, [Side; 2])> {
        let entry = self.tracker.entry(tuple, self.now)?;
        Some((entry.progress, entry.sides))
    }

    /// The entry of a tuple.
    pub(crate) fn entry(&self, tuple: &Tuple) -> Option<Entry> {
        let entry = self.tracker.entry(tuple, self.now)?;
        let left = entry.remaining(self.now, &self.tracker.settings)?;
        let state = entry.progress.tcp();
        Some(Entry {
            seconds: left / 1000,
            state: match entry.tuple.protocol() {
                wire::tcp::PROTOCOL => state.name().to_owned(),
                _ => "-".to_owned(),
            },
            replied: entry.progress.is_replied(),
            assured: entry.progress.is_assured(),
        })
    }
}

/// Ports of both sides.
const PORTS: [u16; 2] = [1, 2];

pub(crate) fn ingress(from: From) -> Ingress {
    let port = match from {
        From::A => PORTS[0],
        From::B => PORTS[1],
    };
    Ingress {
        port,
        is_home: false,
        ..Ingress::default()
    }
}

/// Reads an IP packet.
pub(crate) fn read(packet: &[u8], trusted: bool) -> Reading {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(if packet[0] >> 4 == 6 {
        [0x86, 0xdd]
    } else {
        [8, 0]
    });
    frame.extend(packet);
    let headers = &frame[..frame.len().min(wire::SNAPSHOT)];
    let parsed = ParsedHeaders::parse(headers, frame.len());
    packet::read(0, &parsed, headers, trusted)
}

/// The tuple of a packet that has one of its own, also if its checksum is wrong.
pub(crate) fn tuple(packet: &[u8]) -> Option<Tuple> {
    match read(packet, true) {
        Reading::Packet(packet) if packet.message != Message::Error => Some(packet.tuple),
        _ => None,
    }
}

/// The kernel's word for a judgement. To the kernel a connection stays new until it was answered;
/// here rules have let it in already.
fn verdict(judgement: &Judgement) -> &'static str {
    match judgement {
        Judgement::Untracked(_) => "untracked",
        Judgement::New => "new",
        Judgement::Known { connection, .. } => match connection.direction {
            Direction::Original if !connection.replied => "new",
            Direction::Original => "original",
            Direction::Reply => "reply",
        },
        Judgement::Related(connection) => match connection.direction {
            Direction::Original => "related-original",
            Direction::Reply => "related-reply",
        },
        Judgement::Invalid(_) => "invalid",
        Judgement::EarlyFragment => "lost",
    }
}
