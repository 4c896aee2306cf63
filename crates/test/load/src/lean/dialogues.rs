//! Connections that are opened one after the other, each frame in answer to the one before it.
//!
//! ```text
//! numbers -> begun -> frames of port 0 ---> arrive at port 1
//!                              ^                   |
//!            arrive at port 0  |                   v
//!                   ^          +-- answers    answers -> frames of port 1
//!                   +----------------------------------------+
//! ```
//! The head of every received frame is read: its connection, and the kind of frame that it is,
//! which says what is sent next. Nothing is kept for a connection, so that a million are as cheap
//! as one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::port::Port;
use super::ring::Ring;
use super::segments::{CONNECTIONS, Segment, Templates, address};
use super::{Lean, LeanConfig, LeanError, Pinned, Ports};

/// Rounds between two looks at the clock.
const ROUNDS: u32 = 64;
/// How often those are begun again that were not opened.
const TRIES: u32 = 10;
/// There are as many connections at the same time as this part of a ring has entries: the client
/// sends three frames of a connection at once.
const SHARE: u16 = 4;
const TWO_PORTS: LeanError = LeanError::Config("two ports");
const NUMBER: LeanError = LeanError::Config("a number of connections with ports for each");
const ROOM: LeanError =
    LeanError::Config("frames of 54 bytes or more, not super-frames, and no IOMMU");

/// The frames of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialogue {
    /// TCP: SYN, SYN-ACK and ACK.
    Handshake,
    /// TCP: the same, data, FIN, FIN-ACK, ACK: 7 frames.
    Whole,
    /// UDP: a datagram and its answer.
    Datagrams,
}

impl Dialogue {
    /// How many there are.
    #[must_use]
    pub const fn frames(self) -> u64 {
        match self {
            Self::Handshake => 3,
            Self::Whole => 7,
            Self::Datagrams => 2,
        }
    }

    const fn first(self) -> Segment {
        match self {
            Self::Handshake | Self::Whole => Segment::Syn,
            Self::Datagrams => Segment::Datagram,
        }
    }

    const fn last(self) -> Segment {
        match self {
            Self::Handshake => Segment::Ack,
            Self::Whole => Segment::LastAck,
            Self::Datagrams => Segment::Answer,
        }
    }

    const fn answers(self, to: Segment) -> &'static [Segment] {
        match (self, to) {
            (_, Segment::Syn) => &[Segment::SynAck],
            (Self::Handshake, Segment::SynAck) => &[Segment::Ack],
            (Self::Whole, Segment::SynAck) => &[Segment::Ack, Segment::Data, Segment::Fin],
            (_, Segment::Fin) => &[Segment::FinAck],
            (_, Segment::FinAck) => &[Segment::LastAck],
            (_, Segment::Datagram) => &[Segment::Answer],
            _ => &[],
        }
    }

    /// The frames of the client and of the server while it is open.
    const fn repeated(self) -> [Segment; 2] {
        match self {
            Self::Handshake | Self::Whole => [Segment::Data, Segment::ServerData],
            Self::Datagrams => [Segment::Datagram, Segment::Answer],
        }
    }
}

/// Results of [`Lean::dialogues`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DialogueReport {
    /// How long it took.
    pub elapsed: Duration,
    /// Connections that came to their last frame in that time.
    pub whole: u64,
    /// Connections that were begun and stopped before their end.
    pub lost: u64,
    /// Share of the rounds without a frame sent or received, 0 to 1.
    pub idle: f64,
}

impl DialogueReport {
    /// Connections a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.whole as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Connections on their way.
#[derive(Debug)]
struct Dialogues {
    dialogue: Dialogue,
    templates: Templates,
    /// Frames that the client and the server are to send.
    due: [VecDeque<(u32, Segment)>; 2],
    open: u64,
    whole: u64,
}

impl Dialogues {
    fn new(dialogue: Dialogue, templates: Templates) -> Self {
        Self {
            dialogue,
            templates,
            due: [VecDeque::new(), VecDeque::new()],
            open: 0,
            whole: 0,
        }
    }

    fn begin(&mut self, number: u32) {
        self.due[0].push_back((number, self.dialogue.first()));
        self.open += 1;
    }

    /// A frame has arrived; whether it was the last one of its connection.
    #[inline]
    fn arrived(&mut self, (number, segment): (u32, Segment)) -> bool {
        let answerer = usize::from(segment.is_of_client());
        let answers = self.dialogue.answers(segment).iter();
        self.due[answerer].extend(answers.map(|answer| (number, *answer)));
        let is_last = segment == self.dialogue.last();
        if is_last {
            self.whole += 1;
            self.open = self.open.saturating_sub(1);
        }
        is_last
    }

    /// Gives up what is open; how many.
    fn give_up(&mut self) -> u64 {
        self.due.iter_mut().for_each(VecDeque::clear);
        std::mem::take(&mut self.open)
    }

    /// One round; whether anything moved.
    fn round<R: Ring>(
        &mut self,
        ports: &mut [Port<R>; 2],
        finished: &mut impl FnMut(u32),
    ) -> Result<bool, LeanError> {
        let mut moved = false;
        for (side, port) in ports.iter_mut().enumerate() {
            let templates = self.templates.clone();
            moved |= port.receive_with(|frames, counts, id| {
                match templates.read(frames, id, side == 1) {
                    Some(frame) if self.arrived(frame) => finished(frame.0),
                    Some(_) => {}
                    None => counts.strange += 1,
                }
            })?;
        }
        for (port, due) in ports.iter_mut().zip(&mut self.due) {
            moved |= port.send_segments(due, &self.templates)?;
        }
        if !moved {
            ports.iter_mut().for_each(Port::idle);
        }
        Ok(moved)
    }

    /// Rounds until there are no more numbers and nothing is open, or nothing moved for `patience`.
    /// The first connection is alone: a switch may have to decide about each kind of frame.
    fn run<R: Ring>(
        &mut self,
        ports: &mut [Port<R>; 2],
        numbers: &mut impl Iterator<Item = u32>,
        patience: Duration,
        mut finished: impl FnMut(u32),
    ) -> Result<f64, LeanError> {
        let most = u64::from(ports[0].entries() / SHARE);
        let (mut rounds, mut moves, mut last) = (0u64, 0u64, Instant::now());
        loop {
            let before = moves;
            for _ in 0..ROUNDS {
                let room = if self.whole == 0 { 1 } else { most };
                while self.open < room
                    && let Some(number) = numbers.next()
                {
                    self.begin(number);
                }
                moves += u64::from(self.round(ports, &mut finished)?);
            }
            rounds += u64::from(ROUNDS);
            if self.open == 0 {
                break;
            }
            if moves > before {
                last = Instant::now();
            } else if last.elapsed() > patience {
                break;
            } else {
                // The back end may want this very CPU.
                std::thread::yield_now();
            }
        }
        Ok(1.0 - moves as f64 / rounds as f64)
    }
}

/// Numbers from `next` on, until `end`.
struct Numbers<'a> {
    next: &'a mut u32,
    end: Instant,
    looks: u32,
}

impl Iterator for Numbers<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(ROUNDS) && Instant::now() >= self.end {
            self.looks = u32::MAX;
            return None;
        }
        let number = *self.next;
        *self.next = if number + 1 < CONNECTIONS {
            number + 1
        } else {
            0
        };
        Some(number)
    }
}

impl Lean {
    /// Opens connections for `time`, on this thread, on the configured CPU, as many at the same
    /// time as a quarter of the ring has entries; each has a number, and so ports, of its own,
    /// which is greater than those before by [`Lean::dialogues`].
    ///
    /// # Errors
    /// As [`Lean::run`], and when frames are too short for TCP or there are more than two ports.
    pub fn dialogues(
        &mut self,
        dialogue: Dialogue,
        time: Duration,
    ) -> Result<DialogueReport, LeanError> {
        let _pinned = self.config.cpu.map(Pinned::to).transpose()?;
        let (start, patience) = (Instant::now(), self.config.patience);
        let mut all = Dialogues::new(dialogue, self.config.templates()?);
        let mut report = DialogueReport::default();
        while start.elapsed() < time {
            let mut numbers = Numbers {
                next: &mut self.next,
                end: start + time,
                looks: 0,
            };
            report.idle = match &mut self.ports {
                Ports::Split(ports) => all.run(pair(ports)?, &mut numbers, patience, |_| ()),
                Ports::Packed(ports) => all.run(pair(ports)?, &mut numbers, patience, |_| ()),
                Ports::Slots(ports) => all.run(pair(ports)?, &mut numbers, patience, |_| ()),
            }?;
            report.lost += all.give_up();
        }
        report.elapsed = start.elapsed();
        report.whole = all.whole;
        Ok(report)
    }

    /// Opens connections 0 to `count`, for as long as frames arrive. Afterwards each port sends
    /// frames of them in turn: segments with data, always of the same sequence numbers, as
    /// retransmissions are; or datagrams.
    ///
    /// # Errors
    /// As [`Lean::dialogues`], and when there are connections that cannot be opened.
    pub fn establish(&mut self, dialogue: Dialogue, count: u32) -> Result<(), LeanError> {
        let _pinned = self.config.cpu.map(Pinned::to).transpose()?;
        let templates = self.config.templates()?;
        match &mut self.ports {
            Ports::Split(ports) => establish(ports, dialogue, count, &templates, &self.config),
            Ports::Packed(ports) => establish(ports, dialogue, count, &templates, &self.config),
            Ports::Slots(ports) => establish(ports, dialogue, count, &templates, &self.config),
        }
    }

    /// After this, each datagram of the first port has ports of its own, and the second port sends
    /// nothing.
    ///
    /// # Errors
    /// As [`Lean::dialogues`].
    pub fn unanswered(&mut self) -> Result<(), LeanError> {
        let templates = self.config.templates()?;
        match &mut self.ports {
            Ports::Split(ports) => unanswered(ports, &templates, self.config.patience),
            Ports::Packed(ports) => unanswered(ports, &templates, self.config.patience),
            Ports::Slots(ports) => unanswered(ports, &templates, self.config.patience),
        }
    }
}

impl LeanConfig {
    /// The frames of connections between the first two ports.
    fn templates(&self) -> Result<Templates, LeanError> {
        // The addresses that frames have in any case.
        let addresses = [0, 1].map(|port| address(self.mac(port)[5]));
        let templates = Templates::new(self.frame_len, addresses);
        let fits = !self.bulk && self.grants.is_empty();
        templates.filter(|_| fits).ok_or(ROOM)
    }
}

fn pair<R>(ports: &mut [Port<R>]) -> Result<&mut [Port<R>; 2], LeanError> {
    ports.try_into().map_err(|_| TWO_PORTS)
}

fn establish<R: Ring>(
    ports: &mut [Port<R>],
    dialogue: Dialogue,
    count: u32,
    templates: &Templates,
    config: &LeanConfig,
) -> Result<(), LeanError> {
    let ports = pair(ports)?;
    if count == 0 || count > CONNECTIONS {
        return Err(NUMBER);
    }
    let mut open = vec![false; count as usize];
    let mut all = Dialogues::new(dialogue, templates.clone());
    for _ in 0..TRIES {
        let left: Vec<u32> = (0..count).filter(|n| !open[*n as usize]).collect();
        if left.is_empty() {
            break;
        }
        let finished = |number: u32| {
            if let Some(one) = open.get_mut(number as usize) {
                *one = true;
            }
        };
        all.run(ports, &mut left.into_iter(), config.patience, finished)?;
        all.give_up();
    }
    if open.contains(&false) {
        return Err(LeanError::Device("connections that cannot be opened"));
    }
    let repeated = dialogue.repeated();
    for (port, segment) in ports.iter_mut().zip(repeated) {
        port.wait_for_buffers(config.patience)?;
        port.repeat(templates.of(segment), count);
    }
    Ok(())
}

fn unanswered<R: Ring>(
    ports: &mut [Port<R>],
    templates: &Templates,
    patience: Duration,
) -> Result<(), LeanError> {
    let ports = pair(ports)?;
    for port in ports.iter_mut() {
        port.wait_for_buffers(patience)?;
        port.repeat(templates.of(Segment::Datagram), CONNECTIONS);
    }
    ports[1].window = 0;
    Ok(())
}

#[cfg(test)]
mod tests;
