//! Hand-over of control and switch to a new pair, which is started before the old one stops.
//!
//! ```text
//!              old control     old switch      new control     new switch
//! start                                        runs            runs, with its workers
//! Freezing     Freeze; Frozen
//! Preparing                                    StartControl    ControlLink
//!                                              (frozen)        adds ports, gets the program
//!                                              Ready
//! Passing                                                      SavedSessions...,
//!                                                              Prepare; Prepared
//! Quiescing                    Quiesce;                                                the gap
//!                              Quiesced
//! Restoring                                                    those changed since,    the gap
//!                                                              Interface...
//! TakingOver                                                   TakeOver; Serving       the gap
//! done         ends            ends            Thaw
//! ```
//!
//! Each control communicates only with the switch of its own version. Until
//! [`EventToSwitch::TakeOver`] is sent, the old pair can resume without a trace. After that the
//! new switch may have moved positions in queues, which the old one does not know: if it fails
//! then, both pairs end, and a pair of the old version starts as after a crash.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ipc::supervision::{EventToControl, EventToSwitch, SwitchSettings};
use ipc::timeouts;

use super::binaries::Binaries;
use super::child::{Child, SwitchChild};
use super::kind::{Role, Switch};
use super::supervisor::hand_over_state::{
    HandOver, HandOverError, HandOverResult, Milestone, Stage,
};
use super::supervisor::pair::{Pair, PairRef};
use super::supervisor::{MAX_LAST_MESSAGES, Supervisor};

/// Time in which a killed process must end: 1 second.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts a new pair from other binaries. The result will be in `supervisor.hand_over`.
///
/// # Errors
/// It cannot be started.
pub(super) fn start(supervisor: &mut Supervisor, binaries: &Binaries) -> io::Result<()> {
    let mut switch = Child::start(binaries)?;
    let control = Child::start(binaries).inspect_err(|_| end(&mut switch))?;
    let next = HandOver {
        pair: Pair::new(control, switch),
        table: None,
        stage: Stage::Freezing,
        deadline: Instant::now() + timeouts::PREPARE,
        asked_to_prepare: false,
        quiesced_at_ns: 0,
        milestone: None,
    };
    // If a process cannot receive it, it has ended; the next poll reports that with its exit
    // status.
    log_send_error(start_switch(supervisor, &next.pair.switch));
    log_send_error(supervisor.pair.control.send(&EventToControl::Freeze, &[]));
    supervisor.hand_over.next = Some(next);
    Ok(())
}

fn start_switch(supervisor: &Supervisor, switch: &SwitchChild) -> io::Result<()> {
    let setup = &supervisor.setup;
    let settings = SwitchSettings {
        successor: true,
        waits: true,
        ..setup.settings.clone()
    };
    let fds = [setup.counters.as_fd(), setup.thread_slots.as_fd()];
    switch.send(&EventToSwitch::Start(settings), &fds)
}

/// Continues the hand-over: messages, ends of processes, and the deadline.
pub(super) fn poll(supervisor: &mut Supervisor) {
    if let Err(error) = advance(supervisor) {
        abort(supervisor, error);
    }
}

fn advance(supervisor: &mut Supervisor) -> Result<(), HandOverError> {
    let next = supervisor.hand_over.next.as_mut();
    if let Some(milestone) = next.and_then(|next| next.milestone.take()) {
        enter_next_stage(supervisor, milestone)?;
    }
    check_alive(supervisor, PairRef::Next)?;
    let Some(next) = &mut supervisor.hand_over.next else {
        return Ok(());
    };
    if Instant::now() >= next.deadline {
        return Err(HandOverError::Late(next.stage));
    }
    match next.stage {
        // The old pair does not matter any longer.
        Stage::TakingOver => Ok(()),
        Stage::Restoring => Ok(send_queued(supervisor)?),
        Stage::Passing => {
            send_ahead(supervisor)?;
            check_alive(supervisor, PairRef::Serving)
        }
        // The new pair lacks only its connections: it can have them now.
        Stage::Quiescing if supervisor.pair.switch.has_died().is_some() => {
            next.quiesced_at_ns = sys::time::monotonic_ns();
            if let Some(death) = supervisor.reap_switch() {
                supervisor.events.emit_ended(&death);
            }
            restore_after_death(supervisor)
        }
        _ => check_alive(supervisor, PairRef::Serving),
    }
}

/// Returns an error if one of the old or new processes has ended.
fn check_alive(supervisor: &mut Supervisor, pair: PairRef) -> Result<(), HandOverError> {
    let ended = supervisor.ended_first(pair);
    ended.map_or(Ok(()), |(kind, status)| {
        Err(HandOverError::Ended(pair, kind, status))
    })
}

/// Starts to send what the old switch has left, after its death.
fn restore_after_death(supervisor: &mut Supervisor) -> Result<(), HandOverError> {
    let next = supervisor.hand_over.next.as_mut();
    match next.and_then(|next| next.milestone.take()) {
        // Its last message.
        Some(milestone) => enter_next_stage(supervisor, milestone),
        None => Ok(start_restore(supervisor)?),
    }
}

/// Enters the stage after a message that completes one.
fn enter_next_stage(
    supervisor: &mut Supervisor,
    milestone: Milestone,
) -> Result<(), HandOverError> {
    let Some(next) = &mut supervisor.hand_over.next else {
        return Ok(());
    };
    match milestone {
        Milestone::Frozen => {
            next.stage = Stage::Preparing;
            log_send_error(set_up_next(supervisor));
        }
        Milestone::Ready => {
            next.enter(Stage::Passing, timeouts::RESTORE);
            supervisor.saved_sessions.clear_queue();
            supervisor.saved_sessions.queue_changes();
            send_ahead(supervisor)?;
        }
        Milestone::Prepared => {
            next.enter(Stage::Quiescing, timeouts::QUIESCE);
            supervisor.pair.switch.send(&EventToSwitch::Quiesce, &[])?;
        }
        Milestone::Quiesced { at_ns } => {
            next.quiesced_at_ns = at_ns;
            start_restore(supervisor)?;
        }
        Milestone::Serving {
            at_ns,
            connections,
            table,
        } => {
            let gap = at_ns.saturating_sub(next.quiesced_at_ns);
            supervisor.hand_over.result = Some(HandOverResult::Done {
                gap_ms: gap as f64 / 1e6,
                connections,
                table,
            });
            install_next(supervisor);
        }
    }
    Ok(())
}

/// Sets up the new pair. The old control is frozen; the new one gets its state and the new switch.
fn set_up_next(supervisor: &Supervisor) -> io::Result<()> {
    match &supervisor.hand_over.next {
        Some(next) => supervisor.set_up(&next.pair, true),
        None => Ok(()),
    }
}

/// Sends the new switch what fits of the saved sessions, which the old one still serves; after the
/// last of it, asks for its answer.
fn send_ahead(supervisor: &mut Supervisor) -> io::Result<()> {
    supervisor.send_queued(PairRef::Next)?;
    let is_complete = !supervisor.has_queued();
    let next = supervisor.hand_over.next.as_mut();
    let next = next.filter(|next| is_complete && !next.asked_to_prepare);
    let Some(next) = next else { return Ok(()) };
    next.asked_to_prepare = true;
    next.pair.switch.send(&EventToSwitch::Prepare, &[])
}

/// Starts to send the sessions that have changed meanwhile, and interfaces. The old switch is
/// quiesced.
fn start_restore(supervisor: &mut Supervisor) -> io::Result<()> {
    if let Some(next) = &mut supervisor.hand_over.next {
        next.enter(Stage::Restoring, timeouts::RESTORE);
        supervisor.saved_sessions.queue_changes();
        supervisor.offer_interfaces();
    }
    send_queued(supervisor)
}

/// Sends the new switch what fits. After the last of it, it may take over.
fn send_queued(supervisor: &mut Supervisor) -> io::Result<()> {
    supervisor.send_queued(PairRef::Next)?;
    let is_complete = !supervisor.has_queued();
    let Some(next) = supervisor.hand_over.next.as_mut().filter(|_| is_complete) else {
        return Ok(());
    };
    // The old switch cannot resume after this message.
    next.enter(Stage::TakingOver, timeouts::TAKE_OVER);
    supervisor.drivers.change_switch();
    next.pair.switch.send(&EventToSwitch::TakeOver, &[])
}

/// Makes the new pair the serving one.
fn install_next(supervisor: &mut Supervisor) {
    let Some(mut next) = supervisor.hand_over.next.take() else {
        return;
    };
    next.pair.switch.take_place_of(&supervisor.pair.switch);
    next.pair.control.take_place_of(&supervisor.pair.control);
    std::mem::swap(&mut supervisor.pair, &mut next.pair);
    if let Some(table) = next.table.take() {
        supervisor.setup.table = Some(table);
    }
    supervisor.setup.settings.successor = true;
    thaw(supervisor);
    // The old switch is quiesced, and its queue positions are out of date.
    end_pair(&mut next.pair);
}

fn thaw(supervisor: &mut Supervisor) {
    let control = &mut supervisor.pair.control;
    let thawed = control.send(&EventToControl::Thaw, &[]);
    control.kill_on_error(thawed);
}

/// Aborts the hand-over: the old version resumes.
fn abort(supervisor: &mut Supervisor, error: HandOverError) {
    if supervisor.hand_over.is_at(Stage::TakingOver) {
        end_both_pairs(supervisor);
    } else if let Some(mut next) = supervisor.hand_over.next.take() {
        if matches!(next.stage, Stage::Passing | Stage::Restoring) {
            supervisor.clear_queue();
        }
        // Dead processes are restarted as usual.
        let _ = supervisor.pair.switch.send(&EventToSwitch::Resume, &[]);
        thaw(supervisor);
        end_pair(&mut next.pair);
        // The new switch may have recorded a crash. The serving one sets its slots again with its
        // next batches.
        if let Err(error) = ipc::keeping::wipe(&supervisor.setup.thread_slots) {
            tracing::error!("cannot clear the thread slots: {error}");
        }
    }
    supervisor.hand_over.result = Some(HandOverResult::Failed(error));
}

/// Ends both pairs after a failure of the new switch that already owned the queues: a pair of the
/// old version starts with the saved sessions.
fn end_both_pairs(supervisor: &mut Supervisor) {
    let Some(next) = &mut supervisor.hand_over.next else {
        return;
    };
    next.pair.control.kill();
    next.pair.switch.kill();
    next.pair.switch.dies_by(Instant::now() + KILL_TIMEOUT);
    // The successor depends on the last messages.
    supervisor.receive::<Switch>(PairRef::Next, MAX_LAST_MESSAGES);
    supervisor.hand_over.next = None;
    supervisor.setup.settings.successor = true;
    // The old switch is quiesced; its successor is started when its death is seen. It is the new
    // one that has failed.
    let Pair {
        control, switch, ..
    } = &mut supervisor.pair;
    switch.excuse_end();
    switch.kill();
    control.excuse_end();
    control.kill();
}

/// Ends the new pair.
pub(super) fn stop(supervisor: &mut Supervisor) {
    if let Some(mut next) = supervisor.hand_over.next.take() {
        end_pair(&mut next.pair);
    }
}

/// Logs a failed send; the end of the process will be handled.
fn log_send_error(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::debug!("cannot send to a process of an upgrade: {error}");
    }
}

/// Ends both processes. Control is first: it would log the loss of its switch.
fn end_pair(pair: &mut Pair) {
    end(&mut pair.control);
    end(&mut pair.switch);
}

/// Kills a process and waits for its end.
fn end<R: Role>(child: &mut Child<R>) {
    child.kill();
    child.wait(Instant::now() + KILL_TIMEOUT);
}
