//! A planned change from one switch process to the next. Both run; one of them serves.
//!
//! ```text
//!              the one that serves              the next one
//! supervisor                                    Tell::StartSwitch, a link to a control of its own
//! control                                       adds the ports, publishes the program; nothing is connected
//! supervisor   Tell::Rest
//!              workers end their batches
//!              and leave all queues;
//!              control answers what is open
//!              Ask::Rested
//! supervisor                                    what was kept, Tell::GoOn
//!                                               connections go on, workers serve their queues
//!                                               Ask::GoesOn
//! supervisor   ends it
//! ```
//!
//! Where a queue stands is in guest memory or in its journal, as after a death, but between two batches: nothing is
//! taken twice. Frames that waited for control have left. Messages of VMMs wait in their sockets. Until the next one is
//! told to go on, [`Tell::Unrest`] takes it all back.

use std::io;
use std::time::{Duration, Instant};

use channel::supervision::{Ask, monotonic_ns};
use rustix::event::{PollFd, PollFlags};

use super::Process;

/// How long answers of control are waited for. It is running, so they are on their way.
const OPEN: Duration = Duration::from_millis(20);
/// Between two looks for them.
const LOOK: Duration = Duration::from_micros(50);
/// When control is asked again: its ring may have been full.
const AGAIN: Duration = Duration::from_millis(4);

impl Process {
    /// Leaves all queues to the next switch.
    pub(super) fn rest(&mut self) -> io::Result<()> {
        let at_ns = monotonic_ns();
        self.workers.rest();
        self.settle_open_questions();
        self.resting = true;
        self.supervisor.send(&Ask::Rested { at_ns }, &[])
    }

    /// Waits until no frame waits for control; what gets no answer in time is dropped by name.
    fn settle_open_questions(&self) {
        let began = Instant::now();
        let mut asked_again = false;
        while self.workers.each(|w| w.switch.has_parked()).contains(&true) {
            if began.elapsed() > OPEN {
                self.workers.each(|w| w.switch.drop_parked());
                return;
            }
            if began.elapsed() > AGAIN && !std::mem::replace(&mut asked_again, true) {
                self.workers.each(|w| w.ask_again());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// There is no next switch.
    pub(super) fn unrest(&mut self) {
        if std::mem::take(&mut self.resting) {
            self.workers.unrest();
        }
    }

    /// While it rests: nobody else is heard. Pings are answered by `ask_for_life`.
    pub(super) fn wait_for_supervisor(&mut self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.supervisor, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.hear_supervisor()
    }

    /// The switch before this one rests, and all that it has kept is here.
    pub(super) fn take_over(&mut self) -> io::Result<()> {
        if !self.kept.waits() {
            return Ok(());
        }
        for port in self.ports.values_mut() {
            if let Some(kept) = self.kept.claim(port.config()) {
                port.hand(kept);
            }
        }
        self.kept.wait_no_more();
        self.go_on_with_all();
        let open = self.ports.values().filter(|port| port.socket().is_some());
        let connections = open.count() as u32;
        let at_ns = monotonic_ns();
        for (id, port) in &self.ports {
            if let Err(error) = self.watch_listener(*id, port) {
                tracing::error!("connections of a port cannot be waited for: {error}");
            }
        }
        self.supervisor
            .send(&Ask::GoesOn { at_ns, connections }, &[])
    }
}
