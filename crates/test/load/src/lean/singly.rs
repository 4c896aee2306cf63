//! One frame at a time: how long it takes where the back end has to ask for its page.

use std::time::{Duration, Instant};

use super::grants::Granted;
use super::histogram::Histogram;
use super::port::Port;
use super::ring::Ring;
use super::{Lean, LeanError, Pinned, Ports};

/// Results of [`Lean::singly`], in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct SinglyReport {
    /// From offering a frame to its arrival.
    pub frame: Histogram,
    /// From reading the first question about it to its arrival; empty if nothing was asked.
    pub question: Histogram,
}

impl Lean {
    /// Sends frames from port 0 to port 1 for a time, on this thread, on the configured CPU, each
    /// when the one before it has arrived and the sender's buffer has come back.
    ///
    /// # Errors
    /// As [`Lean::run`], and when a frame does not arrive.
    pub fn singly(&mut self, time: Duration) -> Result<SinglyReport, LeanError> {
        let _pinned = self.config.cpu.map(Pinned::to).transpose()?;
        let times = [time, self.config.timeout];
        match &mut self.ports {
            Ports::Split(ports) => run(ports, times),
            Ports::Packed(ports) => run(ports, times),
            Ports::Slots(ports) => run(ports, times),
        }
    }
}

fn run<R: Ring>(
    ports: &mut [Port<R>],
    [time, patience]: [Duration; 2],
) -> Result<SinglyReport, LeanError> {
    let [sender, receiver, ..] = ports else {
        return Err(LeanError::Config("two ports"));
    };
    let mut report = SinglyReport::default();
    let begin = Instant::now();
    while begin.elapsed() < time {
        sender.grants().map(Granted::take_asked);
        let (expected, offered) = (receiver.counts.received + 1, Instant::now());
        let sent = sender.send(1)?;
        while receiver.counts.received < expected {
            if !sent || offered.elapsed() > patience {
                return Err(LeanError::Device("a frame does not arrive"));
            }
            look(sender, receiver)?;
        }
        let arrived = Instant::now();
        report.frame.record((arrived - offered).as_nanos() as u64);
        if let Some(asked) = sender.grants().and_then(Granted::take_asked) {
            report.question.record((arrived - asked).as_nanos() as u64);
        }
        // Its mapping is revoked before the next one.
        while sender.tx_outstanding() > 0 && offered.elapsed() < patience {
            sender.reclaim()?;
            look(sender, receiver)?;
        }
    }
    Ok(report)
}

fn look<R: Ring>(sender: &mut Port<R>, receiver: &mut Port<R>) -> Result<(), LeanError> {
    // What is flooded to the sender, and the questions about its pages.
    sender.receive()?;
    receiver.receive()?;
    sender.idle();
    receiver.idle();
    Ok(())
}
