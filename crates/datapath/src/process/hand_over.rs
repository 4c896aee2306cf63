//! A planned hand-over from one switch process to the next. Both run; one of them serves.
//!
//! ```text
//!              serving process                 next process
//! supervisor                                   StartSwitch, a link to a control of its own
//! control                                      adds the ports, publishes the program;
//!                                              nothing is connected
//! supervisor   Quiesce
//!              workers end their batches
//!              and leave all queues;
//!              control decides open upcalls
//!              Quiesced
//! supervisor                                   saved sessions, TakeOver
//!                                              connections continue, workers serve their queues
//!                                              Serving
//! supervisor   Stop
//! ```
//!
//! The position of a queue is in guest memory or in its journal, as after a crash. The hand-over
//! happens between two batches, so that no frame is taken twice. Frames that wait for control are
//! decided or dropped before. Messages of VMMs wait in their sockets. `SupervisorEvent::Resume`
//! undoes the hand-over until the next process receives `SupervisorEvent::TakeOver`.

use std::io;
use std::time::{Duration, Instant};

use channel::supervision::SupervisorRequest;
use channel::timeouts::QUIESCE_UPCALLS;
use rustix::event::PollFlags;

use super::Process;

/// Interval between two checks for open upcalls, microseconds.
const CHECK_INTERVAL: Duration = Duration::from_micros(50);
/// Time after which open upcalls are sent again, milliseconds: the ring may have been full.
const RESEND_TIMEOUT: Duration = Duration::from_millis(4);

impl Process {
    /// Stops serving all queues, for the next switch process.
    pub(super) fn quiesce(&mut self) -> io::Result<()> {
        let at_ns = sys::time::monotonic_ns();
        self.workers.quiesce();
        self.drain_upcalls();
        self.quiesced = true;
        self.supervisor
            .send(&SupervisorRequest::Quiesced { at_ns }, &[])
    }

    /// Waits until no frame waits for control. Frames without a decision in time are dropped and
    /// counted.
    fn drain_upcalls(&self) {
        let began = Instant::now();
        let mut resent = false;
        while self
            .workers
            .each(|w| w.switch.has_pending())
            .contains(&true)
        {
            if began.elapsed() > QUIESCE_UPCALLS {
                self.workers.each(|w| w.switch.drop_pending());
                return;
            }
            if began.elapsed() > RESEND_TIMEOUT && !std::mem::replace(&mut resent, true) {
                self.workers.each(|w| w.resend_upcalls());
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Serves all queues again: the hand-over was cancelled.
    pub(super) fn resume(&mut self) {
        if std::mem::take(&mut self.quiesced) {
            self.workers.resume();
        }
    }

    /// Waits for messages of the supervisor only, while the switch is quiesced. [`Process::probe`]
    /// replies to pings.
    pub(super) fn wait_for_supervisor(&mut self) -> io::Result<()> {
        sys::wait::ready(&self.supervisor, PollFlags::IN, None)?;
        self.handle_supervisor()
    }

    /// Continues all saved connections: the previous switch process is quiesced, and its saved
    /// sessions are complete.
    pub(super) fn take_over(&mut self) -> io::Result<()> {
        if !self.saved.waits() {
            return Ok(());
        }
        for port in self.ports.values_mut() {
            if let Some(saved) = self.saved.claim(port.config()) {
                port.set_saved(saved);
            }
        }
        self.saved.stop_waiting();
        self.restore_all();
        let open = self.ports.values().filter(|port| port.socket().is_some());
        let connections = open.count() as u32;
        let at_ns = sys::time::monotonic_ns();
        for (id, port) in &self.ports {
            if let Err(error) = self.watch_listener(*id, port) {
                tracing::error!("watching a listening socket failed: {error}");
            }
        }
        self.supervisor
            .send(&SupervisorRequest::Serving { at_ns, connections }, &[])
    }
}
