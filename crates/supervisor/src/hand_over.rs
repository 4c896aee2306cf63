//! Hand-over of control and switch to a new pair, which is started before the old one stops.
//!
//! ```text
//!              old control     old switch      new control     new switch
//! start                                        runs            runs, with its workers
//! Freezing     Freeze; Frozen
//! Preparing                                    StartControl    ControlLink
//!                                              (frozen)        adds ports, gets the program
//!                                              Ready
//! Quiescing                    Quiesce;                                                the gap
//!                              Quiesced
//! Restoring                                                    SavedSession...         the gap
//! TakingOver                                                   TakeOver; Serving       the gap
//! done         ends            ends            Thaw
//! ```
//!
//! Each control communicates only with the switch of its own version. Until
//! [`SupervisorEvent::TakeOver`] is sent, the old pair can resume without a trace. After that the
//! new switch may have moved positions in queues, which the old one does not know: if it fails
//! then, both pairs end, and a pair of the old version starts as after a crash.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use channel::supervision::{SupervisorEvent, SupervisorRequest, SwitchSettings};
use channel::timeouts;

use super::binaries::Binaries;
use super::child::{Child, Kind};
use super::{MAX_LAST_MESSAGES, Pair, ProcessRef, SWITCH, Supervisor};

/// Time in which a killed process must end: 1 second.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Stage of the hand-over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Stage {
    Freezing,
    Preparing,
    Quiescing,
    Restoring,
    TakingOver,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Freezing => "the old control did not freeze",
            Stage::Preparing => "the new processes were not ready",
            Stage::Quiescing => "the old switch did not quiesce",
            Stage::Restoring => "the new switch did not read the saved sessions",
            Stage::TakingOver => "the new switch did not take over",
        })
    }
}

/// Hand-over in progress, and the result of the last one.
#[derive(Default)]
pub(super) struct HandOvers {
    /// Pair that is to replace control and the switch.
    pub(super) next: Option<HandOver>,
    pub(super) result: Option<HandOverResult>,
}

/// Hand-over in progress, with the new pair.
pub(super) struct HandOver {
    pub(super) pair: Pair,
    stage: Stage,
    deadline: Instant,
    /// Time on the monotonic clock when the old switch left its first queue.
    quiesced_at_ns: u64,
}

/// Result of a hand-over.
pub(super) enum HandOverResult {
    /// The new pair serves.
    Done {
        /// Time without a switch in milliseconds.
        gap_ms: f64,
        /// Number of connections that were taken over.
        connections: u32,
    },
    /// The old version serves; the reason.
    Failed(String),
}

impl HandOver {
    /// Returns the deadline of the stage.
    pub(super) fn due(&self) -> Instant {
        self.deadline
    }

    fn enter(&mut self, stage: Stage, timeout: Duration) {
        self.stage = stage;
        self.deadline = Instant::now() + timeout;
    }

    /// Ends both. Control is first: it would log the loss of its switch.
    fn end(&mut self) {
        end(&mut self.pair.control);
        end(&mut self.pair.switch);
    }
}

/// Returns the reason if one of the old or new processes has ended.
fn lost(which: &str, pair: &mut Pair) -> Option<String> {
    [&mut pair.control, &mut pair.switch]
        .into_iter()
        .find_map(|child| {
            let status = child.has_died()?;
            Some(format!("the {which} {} ended ({status})", child.kind()))
        })
}

impl Supervisor {
    /// Starts a new pair from other binaries. The result will be in `hand_over_result`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start_hand_over(&mut self, binaries: &Binaries) -> io::Result<()> {
        let mut switch = Child::start(Kind::Switch, binaries)?;
        let control = Child::start(Kind::Control, binaries).inspect_err(|_| end(&mut switch))?;
        let next = HandOver {
            pair: Pair { control, switch },
            stage: Stage::Freezing,
            deadline: Instant::now() + timeouts::PREPARE,
            quiesced_at_ns: 0,
        };
        // If a process cannot receive it, it has ended; the next poll reports that with its exit
        // status.
        log_send_error(self.start_next_switch(&next.pair.switch));
        log_send_error(self.pair.control.send(&SupervisorEvent::Freeze, &[]));
        self.hand_over.next = Some(next);
        Ok(())
    }

    fn start_next_switch(&self, switch: &Child) -> io::Result<()> {
        let settings = SwitchSettings {
            successor: true,
            waits: true,
            ..self.setup.settings.clone()
        };
        let fds = [self.setup.counters.as_fd(), self.setup.thread_slots.as_fd()];
        switch.send(&SupervisorEvent::StartSwitch(settings), &fds)
    }

    /// Polls the hand-over: ends of processes, and the deadline.
    pub(super) fn poll_hand_over(&mut self) -> io::Result<()> {
        let Some(next) = &mut self.hand_over.next else {
            return Ok(());
        };
        if let Some(reason) = lost("new", &mut next.pair) {
            return self.abort_hand_over(reason);
        }
        if Instant::now() >= next.deadline {
            let reason = format!("{} in time", next.stage);
            return self.abort_hand_over(reason);
        }
        match next.stage {
            // The old pair does not matter any longer.
            Stage::TakingOver => Ok(()),
            Stage::Restoring => {
                let result = self.send_sessions();
                self.abort_on_error(result)
            }
            // The new pair lacks only its connections: it can have them now.
            Stage::Quiescing if self.pair.switch.has_died().is_some() => {
                if let Some(next) = &mut self.hand_over.next {
                    next.quiesced_at_ns = sys::time::monotonic_ns();
                }
                self.reap_switch()?;
                let result = self.start_restore();
                self.abort_on_error(result)
            }
            _ => match lost("old", &mut self.pair) {
                Some(reason) => self.abort_hand_over(reason),
                None => Ok(()),
            },
        }
    }

    fn abort_on_error(&mut self, sent: io::Result<()>) -> io::Result<()> {
        match sent {
            Ok(()) => Ok(()),
            Err(error) => self.abort_hand_over(format!("cannot send to a process: {error}")),
        }
    }

    /// Handles a message of the hand-over. One that does not fit the stage is ignored: a faulty
    /// sender runs into the deadline.
    pub(super) fn on_hand_over_request(
        &mut self,
        process: ProcessRef,
        request: &SupervisorRequest,
    ) -> io::Result<()> {
        let Some(next) = &mut self.hand_over.next else {
            return Ok(());
        };
        let result = match (process.next, next.stage, request) {
            (false, Stage::Freezing, SupervisorRequest::Frozen) => {
                log_send_error(self.set_up_next());
                Ok(())
            }
            (true, Stage::Preparing, SupervisorRequest::Ready) => {
                next.enter(Stage::Quiescing, timeouts::QUIESCE);
                self.pair.switch.send(&SupervisorEvent::Quiesce, &[])
            }
            (false, Stage::Quiescing, SupervisorRequest::Quiesced { at_ns }) => {
                next.quiesced_at_ns = *at_ns;
                self.start_restore()
            }
            (true, Stage::TakingOver, SupervisorRequest::Serving { at_ns, connections }) => {
                let gap = at_ns.saturating_sub(next.quiesced_at_ns);
                self.hand_over.result = Some(HandOverResult::Done {
                    gap_ms: gap as f64 / 1e6,
                    connections: *connections,
                });
                self.install_next();
                Ok(())
            }
            _ => Ok(()),
        };
        self.abort_on_error(result)
    }

    /// Sets up the new pair. The old control is frozen; the new one gets its state and the new
    /// switch.
    fn set_up_next(&mut self) -> io::Result<()> {
        if let Some(next) = &mut self.hand_over.next {
            next.stage = Stage::Preparing;
        }
        match &self.hand_over.next {
            Some(next) => self.set_up(&next.pair, true),
            None => Ok(()),
        }
    }

    /// Starts to send the saved sessions. The old switch is quiesced.
    fn start_restore(&mut self) -> io::Result<()> {
        if let Some(next) = &mut self.hand_over.next {
            next.enter(Stage::Restoring, timeouts::RESTORE);
            self.saved_sessions.queue_all();
        }
        self.send_sessions()
    }

    /// Sends the new switch the sessions that fit. After the last one it may take over.
    fn send_sessions(&mut self) -> io::Result<()> {
        let Some(next) = &mut self.hand_over.next else {
            return Ok(());
        };
        let switch = &next.pair.switch;
        self.saved_sessions
            .send_queued(|event, fds| switch.try_send(event, fds))?;
        if self.saved_sessions.has_queued() {
            return Ok(());
        }
        // The old switch cannot resume after this message.
        next.enter(Stage::TakingOver, timeouts::TAKE_OVER);
        next.pair.switch.send(&SupervisorEvent::TakeOver, &[])
    }

    /// Returns whether a switch owns the sessions.
    pub(super) fn is_serving(&self, process: ProcessRef) -> bool {
        process.next == self.next_is(Stage::TakingOver)
    }

    fn next_is(&self, stage: Stage) -> bool {
        let next = self.hand_over.next.as_ref();
        next.is_some_and(|next| next.stage == stage)
    }

    /// Returns whether control and switch run, and the switch has all saved sessions.
    pub(super) fn pair_is_complete(&self) -> bool {
        self.switch_is_complete() && self.pair.control.is_alive()
    }

    /// Returns whether the new switch, and not the serving one, is to receive the saved sessions.
    pub(super) fn next_receives_sessions(&self) -> bool {
        self.next_is(Stage::Restoring)
    }

    /// Makes the new pair the serving one.
    fn install_next(&mut self) {
        let Some(mut next) = self.hand_over.next.take() else {
            return;
        };
        next.pair.switch.take_place_of(&self.pair.switch);
        next.pair.control.take_place_of(&self.pair.control);
        std::mem::swap(&mut self.pair, &mut next.pair);
        self.setup.settings.successor = true;
        let thawed = self.pair.control.send(&SupervisorEvent::Thaw, &[]);
        self.pair.control.kill_on_error(thawed);
        // The old switch is quiesced, and its queue positions are out of date.
        next.end();
    }

    /// Aborts the hand-over: the old version resumes.
    fn abort_hand_over(&mut self, reason: String) -> io::Result<()> {
        if self.next_is(Stage::TakingOver) {
            self.end_both_pairs()?;
        } else if let Some(mut next) = self.hand_over.next.take() {
            if next.stage == Stage::Restoring {
                self.saved_sessions.clear_queue();
            }
            // Dead processes are restarted as usual.
            let _ = self.pair.switch.send(&SupervisorEvent::Resume, &[]);
            let thawed = self.pair.control.send(&SupervisorEvent::Thaw, &[]);
            self.pair.control.kill_on_error(thawed);
            next.end();
            // The new switch may have recorded a crash. The serving one sets its slots again with
            // its next batches.
            if let Err(error) = channel::keeping::wipe(&self.setup.thread_slots) {
                tracing::error!("cannot clear the thread slots: {error}");
            }
        }
        self.hand_over.result = Some(HandOverResult::Failed(reason));
        Ok(())
    }

    /// Ends both pairs after a failure of the new switch that already owned the queues: a pair of
    /// the old version starts with the saved sessions.
    fn end_both_pairs(&mut self) -> io::Result<()> {
        let Some(next) = &mut self.hand_over.next else {
            return Ok(());
        };
        next.pair.control.kill();
        next.pair.switch.kill();
        next.pair.switch.dies_by(Instant::now() + KILL_TIMEOUT);
        // The successor depends on the last messages.
        let switch = ProcessRef {
            next: true,
            ..SWITCH
        };
        self.receive(switch, MAX_LAST_MESSAGES)?;
        self.hand_over.next = None;
        self.setup.settings.successor = true;
        // The old switch is quiesced; its successor is started when its death is seen.
        self.pair.switch.kill();
        self.pair.control.kill();
        Ok(())
    }

    /// Ends the new pair.
    pub(super) fn drop_next(&mut self) {
        if let Some(mut next) = self.hand_over.next.take() {
            next.end();
        }
    }
}

/// Logs a failed send; the end of the process will be handled.
fn log_send_error(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::debug!("cannot send to a process of an upgrade: {error}");
    }
}

/// Kills a process and waits for its end.
fn end(child: &mut Child) {
    child.kill();
    child.wait(Instant::now() + KILL_TIMEOUT);
}
