//! Messages to a back end while frames flow: how long it takes to answer.
//!
//! GET_QUEUE_NUM and INVALIDATE of a page that nothing uses take turns. They are sent and their
//! answers are read between two looks at the rings, so frames do not wait for them, and no other
//! thread has to get the CPU for them.

use std::sync::Weak;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::histogram::Histogram;
use super::port::Port;
use super::ring::Ring;
use super::{Lean, LeanError, Ports};
use testkit::frontend::{
    FLAG_NEED_REPLY, FrontError, IotlbMessage, Line, VERSION, packed, request,
};

/// From an answer to the next message.
const GAP: Duration = Duration::from_micros(200);
/// Rounds between two looks for an answer.
const LOOK: u32 = 4;
/// An answer: its head, and a number.
const ANSWER: usize = 20;
/// How long an answer is waited for that has to be there before anything else.
const PATIENCE: Duration = Duration::from_secs(5);

/// Times from a message to its answer, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    /// Of GET_QUEUE_NUM, which only has to be answered.
    pub question: Histogram,
    /// Of INVALIDATE.
    pub invalidate: Histogram,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Probe {
    line: Weak<Line>,
    /// A GET_QUEUE_NUM and an INVALIDATE.
    messages: [Vec<u8>; 2],
    /// Which of them is next, or on its way.
    turn: usize,
    sent: Option<Instant>,
    ended: Instant,
    rounds: u32,
    times: Probed,
}

impl Probe {
    /// INVALIDATE is this message.
    pub(super) fn new(line: Weak<Line>, invalidate: IotlbMessage) -> Self {
        let flags = VERSION | FLAG_NEED_REPLY;
        Self {
            line,
            messages: [
                packed(request::GET_QUEUE_NUM, VERSION, &[]),
                packed(request::IOTLB_MSG, flags, &invalidate.to_bytes()),
            ],
            turn: 0,
            sent: None,
            ended: Instant::now(),
            rounds: 0,
            times: Probed::default(),
        }
    }

    /// In a new round: sends what is due, or looks for its answer; waits for nothing.
    pub(super) fn step(&mut self) -> Result<(), LeanError> {
        self.rounds = self.rounds.wrapping_add(1);
        if !self.rounds.is_multiple_of(LOOK) {
            return Ok(());
        }
        match self.sent {
            Some(sent) => self.look(sent),
            None if self.ended.elapsed() >= GAP => self.send(),
            None => Ok(()),
        }
    }

    fn send(&mut self) -> Result<(), LeanError> {
        let line = self.line.upgrade().ok_or(FrontError::Closed)?;
        let message = &self.messages[self.turn];
        let now = Instant::now();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(line.socket(), message, flags) {
            Ok(n) if n == message.len() => {
                self.sent = Some(now);
                Ok(())
            }
            Ok(_) => Err(LeanError::Device("a socket takes a part of a message")),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(LeanError::Io(error.into())),
        }
    }

    fn look(&mut self, sent: Instant) -> Result<(), LeanError> {
        let line = self.line.upgrade().ok_or(FrontError::Closed)?;
        let mut answer = [0; ANSWER];
        match recv(line.socket(), &mut answer, RecvFlags::DONTWAIT) {
            Ok((ANSWER, _)) => self.end(sent, &answer),
            Ok((0, _)) => Err(FrontError::Closed.into()),
            Ok(_) => Err(LeanError::Device("an answer in parts")),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(LeanError::Io(error.into())),
        }
    }

    fn end(&mut self, sent: Instant, answer: &[u8; ANSWER]) -> Result<(), LeanError> {
        self.ended = Instant::now();
        let code = [request::GET_QUEUE_NUM, request::IOTLB_MSG][self.turn];
        if answer[..4] != code.to_le_bytes() {
            return Err(LeanError::Device("an answer to another message"));
        }
        // The number that an INVALIDATE is answered with.
        if self.turn == 1 && answer[12..] != [0; 8] {
            return Err(LeanError::Device("an INVALIDATE that is refused"));
        }
        let histogram = match self.turn {
            0 => &mut self.times.question,
            _ => &mut self.times.invalidate,
        };
        histogram.record((self.ended - sent).as_nanos() as u64);
        self.turn ^= 1;
        self.sent = None;
        Ok(())
    }

    /// Waits for the answer that is due, if there is one.
    pub(super) fn settle(&mut self) -> Result<(), LeanError> {
        let begin = Instant::now();
        while let Some(sent) = self.sent {
            self.look(sent)?;
            if begin.elapsed() > PATIENCE {
                return Err(FrontError::Timeout(request::IOTLB_MSG).into());
            }
        }
        Ok(())
    }

    pub(super) fn into_times(self) -> Probed {
        self.times
    }
}

impl Lean {
    /// Begins with messages for port 0, which has an IOMMU, while the client runs, or ends with
    /// them. Returns the times of those so far, if messages had begun.
    ///
    /// # Errors
    /// When an answer does not come.
    pub fn probe(&mut self, on: bool) -> Result<Option<Probed>, LeanError> {
        fn first<R: Ring>(ports: &mut [Port<R>], on: bool) -> Result<Option<Probed>, LeanError> {
            let grants = ports.first_mut().and_then(Port::grants);
            grants.ok_or(LeanError::Config("an IOMMU"))?.probe(on)
        }
        match &mut self.ports {
            Ports::Split(ports) => first(ports, on),
            Ports::Packed(ports) => first(ports, on),
            Ports::Slots(ports) => first(ports, on),
        }
    }
}
