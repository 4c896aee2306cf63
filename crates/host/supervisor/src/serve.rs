//! Loop of the supervisor, and its end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ipc::supervision::{EventToControl, ProcessInfo};
use ipc::timeouts;
use rustix::event::{PollFd, PollFlags};

use super::child::Child;
use super::heartbeat::HeartbeatStatus;
use super::kind::{Control, Role, Switch};
use super::signals::{self, Signal};
use super::supervisor::pair::{Pair, PairRef};
use super::supervisor::{MAX_MESSAGES, Supervisor};
use super::{hand_over, running, upgrade};

/// Serves until a terminating signal, or until control cannot start.
///
/// # Errors
/// A failed system call, or a process that cannot start.
pub(super) fn serve(supervisor: &mut Supervisor, signals: &OwnedFd) -> io::Result<()> {
    loop {
        let signal = wait(supervisor, signals)?;
        match signal.then(|| signals::next(signals)).flatten() {
            Some(Signal::Terminate) => return Ok(()),
            Some(Signal::Reload(by)) => supervisor.reload(by),
            None => {}
        }
        for pair in [PairRef::Serving, PairRef::Next] {
            supervisor.receive::<Control>(pair, MAX_MESSAGES);
            supervisor.receive::<Switch>(pair, MAX_MESSAGES);
        }
        hand_over::poll(supervisor);
        if supervisor.hand_over.next.is_none() {
            supervisor.restart_dead()?;
            supervisor.keep_spares();
        }
        poll_drivers(supervisor);
        for page in supervisor.drivers.take_pages() {
            let event = EventToControl::Users(page);
            supervisor.send::<Control>(PairRef::Serving, &event, &[]);
        }
        supervisor.poll_reload();
        upgrade::poll(supervisor);
        check_processes(supervisor);
        poll_guests(supervisor);
        supervisor.send_events();
    }
}

/// Polls the drivers, and sends the switch what it gets of them.
pub(super) fn poll_drivers(supervisor: &mut Supervisor) {
    let serving = supervisor.hand_over.serving();
    let poll_us = supervisor.setup.settings.poll_us;
    for reply in supervisor.drivers.poll(&supervisor.binaries, poll_us) {
        reply.send_by(|event, fds| supervisor.send::<Switch>(serving, event, fds));
    }
}

/// Sends a new switch what it gets of the one before, and checks the heartbeats.
fn check_processes(supervisor: &mut Supervisor) {
    let next_receives = supervisor.hand_over.next_receives_sessions();
    if supervisor.pair.switch.is_alive() && !next_receives {
        let sent = supervisor.send_queued(PairRef::Serving);
        supervisor.pair.switch.kill_on_error(sent);
        supervisor.link_switch();
    }
    let Pair {
        control, switch, ..
    } = &mut supervisor.pair;
    let sessions = &mut supervisor.saved_sessions;
    // During a hand-over each step has a deadline instead; a quiesced or a waiting switch does not
    // count as hung.
    if supervisor.hand_over.next.is_some() {
        return;
    }
    control.check_heartbeat();
    if switch.check_heartbeat() == HeartbeatStatus::Missed
        && sessions.session_thread_progressed(&supervisor.setup.thread_slots)
    {
        switch.excuse_missed();
    }
}

/// Updates the state of guests, and sends the changes to the switches.
fn poll_guests(supervisor: &mut Supervisor) {
    let counters = &supervisor.setup.counters;
    supervisor.guests.poll(&supervisor.saved_sessions, counters);
    let next = supervisor.hand_over.next.iter();
    let next = next.map(|next| &next.pair.switch);
    let switches: Vec<_> = std::iter::once(&supervisor.pair.switch)
        .chain(next)
        .collect();
    supervisor.guests.send_to(&switches);
}

/// Waits for signals, messages and timers. Returns whether a signal is pending.
fn wait(supervisor: &Supervisor, signals: &OwnedFd) -> io::Result<bool> {
    let next = supervisor.hand_over.next.iter();
    let pairs = std::iter::once(&supervisor.pair).chain(next.map(|next| &next.pair));
    let sources = std::iter::once(signals.as_fd())
        .chain(pairs.clone().flat_map(Pair::sources))
        .chain(supervisor.drivers.sources())
        .chain(supervisor.reload.source())
        .chain(upgrade::sources(supervisor));
    let mut fds: Vec<_> = sources
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let receiver = match &supervisor.hand_over.next {
        Some(next) if supervisor.hand_over.next_receives_sessions() => &next.pair.switch,
        _ => &supervisor.pair.switch,
    };
    if let (true, Some(link)) = (supervisor.has_queued(), receiver.link()) {
        fds.push(PollFd::from_borrowed_fd(link, PollFlags::OUT));
    }
    // During a hand-over no process of the pair is restarted or checked.
    let alone = supervisor.hand_over.next.is_none();
    let due = (pair_due(supervisor).filter(|_| alone).into_iter())
        .chain(pairs.filter_map(|pair| pair.control.loss_due()))
        .chain(supervisor.drivers.due())
        .chain(supervisor.guests.due())
        .chain(upgrade::due(supervisor))
        .min();
    sys::wait::poll(&mut fds, due)?;
    Ok(!fds[0].revents().is_empty())
}

/// Returns the time of the next restart or heartbeat check of control and switch.
fn pair_due(supervisor: &Supervisor) -> Option<Instant> {
    let Pair {
        control, switch, ..
    } = &supervisor.pair;
    let switch_runs = supervisor.switch_runs();
    let due = [
        control.heartbeat_due(),
        switch.heartbeat_due(),
        control.restart_at().filter(|_| switch_runs),
        switch.restart_at(),
        control.give_up_due(),
        switch.give_up_due(),
    ];
    due.into_iter().flatten().min()
}

/// Stops all processes and waits for their ends.
pub(super) fn stop(supervisor: &mut Supervisor) {
    supervisor.reload.stop();
    supervisor.end_spares();
    hand_over::stop(supervisor);
    supervisor.drivers.stop();
    let Pair {
        control, switch, ..
    } = &mut supervisor.pair;
    // A process that is gone needs no message.
    let _ = control.send(&Control::STOP, &[]);
    let _ = switch.send(&Switch::STOP, &[]);
    let deadline = Instant::now() + timeouts::STOP;
    end_by(deadline, control);
    end_by(deadline, switch);
    for one in running::reap_unreaped() {
        let pid = one.pid.as_raw_nonzero().get();
        tracing::error!(pid, "killed {} cannot be reaped: left behind", one.name);
    }
}

/// Waits for the end of a process that is stopped.
fn end_by<R: Role>(deadline: Instant, child: &mut Child<R>) {
    if !child.wait(deadline) {
        let ProcessInfo { name, pid, .. } = child.info();
        tracing::error!(pid, "killed {name} does not end: left behind");
    }
}
