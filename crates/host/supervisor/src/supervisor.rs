//! State of the supervisor: requests, deaths, and the resources of new processes.

pub(super) mod hand_over_state;
pub(super) mod pair;
mod requests;
#[cfg(test)]
mod tests;
pub(super) mod upgrade_state;

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Instant;

use ipc::keeping::SlotSnapshot;
use ipc::link;
use ipc::state::StateFile;
use ipc::supervision::{EventToControl, EventToSwitch, ProcessInfo, ProcessUsage, SwitchSettings};
use model::Requester;
use port::PortId;
use sys::foreign::ForeignFd;

use super::admin::Admin;
use super::binaries::Binaries;
use super::child::{Child, Death, SwitchChild};
use super::connection_table::ConnectionTable;
use super::drivers::Drivers;
use super::events::PendingEvents;
use super::guests::Guests;
use super::kind::{Control, Kind, Switch};
use super::lock::Lock;
use super::reload::Reload;
use super::reply::{Reply, opened};
use super::saved_sessions::SavedSessions;
use super::sockets::Sockets;
use super::{notify, running, usage};
use hand_over_state::HandOvers;
use pair::{Pair, PairRef};
use requests::InPair;
use upgrade_state::Upgrade;

/// Maximum number of messages of one child in a row, before the other children are served.
pub(super) const MAX_MESSAGES: usize = 64;
/// Maximum number of messages read from a dead child. A link holds fewer, but other processes may
/// have copies of its socket.
pub(super) const MAX_LAST_MESSAGES: usize = 4096;

/// Resources of each pair, which outlive it.
pub(super) struct Setup {
    pub(super) settings: SwitchSettings,
    pub(super) state: StateFile,
    pub(super) counters: OwnedFd,
    /// The table of connections, once a rule has needed it.
    pub(super) table: Option<ConnectionTable>,
    /// Shared memory with the port that each thread of the switch serves.
    pub(super) thread_slots: OwnedFd,
}

/// Runtime directory.
pub(super) struct Home {
    pub(super) dir: PathBuf,
    pub(super) api: ForeignFd,
    /// Dropped last: the next owner of the lock finds no sockets.
    pub(super) lock: Lock,
}

/// State of the supervisor.
pub(super) struct Supervisor {
    /// Executable files of new processes.
    pub(super) binaries: Binaries,
    pub(super) reload: Reload,
    pub(super) sockets: Sockets,
    pub(super) drivers: Drivers,
    /// Sessions for the next switch.
    pub(super) saved_sessions: SavedSessions,
    /// vCPU states of the guests.
    pub(super) guests: Guests,
    pub(super) events: PendingEvents,
    pub(super) setup: Setup,
    pub(super) pair: Pair,
    pub(super) started: Instant,
    /// Set when control has reported that everything is in place.
    pub(super) ready: bool,
    pub(super) admin: Admin,
    pub(super) upgrade: Option<Upgrade>,
    pub(super) hand_over: HandOvers,
    /// Dropped last.
    pub(super) home: Home,
}

impl Supervisor {
    /// Handles up to `most` messages of a child, so that one child cannot block the others.
    pub(super) fn receive<R: InPair>(&mut self, pair: PairRef, most: usize) {
        for _ in 0..most {
            let Some((request, fds)) = self.child::<R>(pair).and_then(Child::receive) else {
                return;
            };
            R::handle(self, pair, request, fds);
        }
        if let Some(child) = self.child::<R>(pair) {
            child.note_flood();
        }
    }

    /// Returns control or the switch; `None` without a next pair.
    pub(super) fn child<R: InPair>(&mut self, pair: PairRef) -> Option<&mut Child<R>> {
        Some(R::of(self.pair_at(pair)?))
    }

    fn pair_at(&mut self, pair: PairRef) -> Option<&mut Pair> {
        Some(match pair {
            PairRef::Serving => &mut self.pair,
            PairRef::Next => &mut self.hand_over.next.as_mut()?.pair,
        })
    }

    /// Returns the process of a pair that has ended before the other one, see
    /// [`Pair::ended_first`]. Control's last messages are handled before: they say whether it ended
    /// because of the switch.
    pub(super) fn ended_first(&mut self, pair: PairRef) -> Option<(Kind, ExitStatus)> {
        let control_end = self.child::<Control>(pair)?.has_died();
        if control_end.is_some() {
            self.receive::<Control>(pair, MAX_LAST_MESSAGES);
        }
        self.pair_at(pair)?.ended_first(control_end, Instant::now())
    }

    /// Sends an event. A child that is gone or does not read gets none.
    pub(super) fn send<R: InPair>(&mut self, pair: PairRef, event: &R::Event, fds: &[ForeignFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let child = self.child::<R>(pair);
        if let Some(Err(error)) = child.map(|child| child.send(event, &fds)) {
            tracing::debug!("cannot send to {}: {error}", R::KIND);
        }
    }

    pub(super) fn report_ready(&mut self) {
        if !std::mem::replace(&mut self.ready, true) {
            let mut out = io::stdout().lock();
            // Standard output may be closed.
            drop(
                out.write_all(b"lasthop: ready\n")
                    .and_then(|()| out.flush()),
            );
            if let Err(error) = notify::ready() {
                tracing::warn!("cannot notify the service manager: {error}");
            }
        }
    }

    pub(super) fn processes(&self) -> Vec<ProcessInfo> {
        let own = ProcessInfo {
            name: "supervisor".to_owned(),
            pid: std::process::id(),
            restarts: 0,
            uptime_ms: self.started.elapsed().as_millis() as u64,
        };
        let mut all = vec![own, self.pair.control.info(), self.pair.switch.info()];
        all.extend(self.drivers.processes());
        all.extend(running::reap_unreaped().iter().map(|one| ProcessInfo {
            name: format!("{} (given up)", one.name),
            pid: one.pid.as_raw_nonzero().get().unsigned_abs(),
            restarts: 0,
            uptime_ms: one.since.elapsed().as_millis() as u64,
        }));
        all
    }

    fn process_usage(&self) -> Vec<ProcessUsage> {
        let pids = self.processes().into_iter().map(|process| process.pid);
        pids.filter_map(usage::of).collect()
    }

    pub(super) fn restart_dead(&mut self) -> io::Result<()> {
        running::reap_unreaped();
        let died = self.reap_pair();
        for death in died.iter().flatten() {
            self.events.emit_ended(death);
        }
        if !self.ready
            && let Some(status) = died.into_iter().flatten().next()
        {
            return Err(io::Error::other(format!(
                "{status} before everything was ready"
            )));
        }
        if self.pair.switch.restart_if_due(&self.binaries) {
            self.events.emit_restarted(self.pair.switch.info());
            // Control belongs to the dead switch; its successor sets up the new one.
            self.pair.link = None;
            self.pair.control.excuse_end();
            self.pair.control.kill();
            let sent = self.set_up_switch();
            self.pair.switch.kill_on_error(sent);
        }
        if self.switch_runs() && self.pair.control.restart_if_due(&self.binaries) {
            self.events.emit_restarted(self.pair.control.info());
            self.set_up_control();
        }
        Ok(())
    }

    /// Keeps a spare process for control and for the switch. An upgrade needs none, and starts
    /// others.
    pub(super) fn keep_spares(&mut self) {
        if self.ready && self.upgrade.is_none() {
            self.pair.control.keep_spare(&self.binaries);
            self.pair.switch.keep_spare(&self.binaries);
        }
    }

    /// Ends the spare processes.
    pub(super) fn end_spares(&mut self) {
        self.pair.control.end_spare();
        self.pair.switch.end_spare();
    }

    /// Returns whether the switch runs. Control is not started before.
    pub(super) fn switch_runs(&self) -> bool {
        let switch = &self.pair.switch;
        switch.is_alive() && !switch.is_ending()
    }

    /// Returns whether the switch runs and has all that it gets of the one before.
    fn switch_is_complete(&self) -> bool {
        self.switch_runs() && !self.has_queued()
    }

    /// Reaps the processes of the serving pair that have died, in the order of their ends.
    fn reap_pair(&mut self) -> [Option<Death>; 2] {
        match self.ended_first(PairRef::Serving) {
            Some((Kind::Control, _)) => [self.pair.control.reap(), self.reap_switch()],
            Some(_) => {
                let switch = self.reap_switch();
                let follows = self.ended_first(PairRef::Serving).is_some();
                [switch, follows.then(|| self.pair.control.reap()).flatten()]
            }
            None => [None, None],
        }
    }

    /// Reaps the switch if it has died. Its last messages are handled first, because its successor
    /// depends on them.
    pub(super) fn reap_switch(&mut self) -> Option<Death> {
        let status = self.pair.switch.has_died()?;
        self.receive::<Switch>(PairRef::Serving, MAX_LAST_MESSAGES);
        // Those that have ended since have closed what they had.
        let standing = self.pair.switch.standing_closers();
        let slots = SlotSnapshot::at(&self.setup.thread_slots);
        let culprits = slots.map(|slots| slots.closed_by(&standing));
        if self.pair.switch.has_hung() {
            self.saved_sessions.record_hang(&self.setup.thread_slots)
        } else {
            self.saved_sessions
                .record_crash(status, &self.setup.thread_slots)
        }
        self.saved_sessions.quarantine(culprits.unwrap_or_default());
        self.drivers.lose_switch();
        self.setup.settings.successor = true;
        self.pair.switch.reap()
    }

    /// Returns whether control and switch run, and the switch is complete.
    pub(super) fn pair_is_complete(&self) -> bool {
        let control = &self.pair.control;
        let is_linked = self.switch_is_complete() && self.pair.link.is_none();
        is_linked && control.is_alive() && !control.is_ending()
    }

    /// Applies the configuration file, or once more after the reload in progress.
    pub(super) fn reload(&mut self, by: Option<Requester>) {
        let (dir, events) = (&self.home.dir, &mut self.events);
        self.reload.request(by, &self.binaries, dir, events);
    }

    /// Reports the end of a reload.
    pub(super) fn poll_reload(&mut self) {
        let (dir, events) = (&self.home.dir, &mut self.events);
        self.reload.poll(&self.binaries, dir, events);
    }

    /// Sends queued events to control if it waits for them; events that do not fit stay queued.
    pub(super) fn send_events(&mut self) {
        self.take_driver_events();
        self.events.send_to(&mut self.pair.control);
    }

    /// Sends all events before another supervisor takes over, which does not get them, even if
    /// control has not acknowledged the last ones.
    pub(super) fn flush_events(&mut self) {
        self.take_driver_events();
        self.events.flush_to(&mut self.pair.control);
    }

    fn take_driver_events(&mut self) {
        for event in self.drivers.take_events() {
            self.events.add(event);
        }
    }

    /// Sets up a new switch; what it gets of the one before follows.
    ///
    /// # Errors
    /// It cannot receive.
    pub(super) fn set_up_switch(&mut self) -> io::Result<()> {
        let start = EventToSwitch::Start(self.setup.settings.clone());
        let fds = [self.setup.counters.as_fd(), self.setup.thread_slots.as_fd()];
        self.pair.switch.send(&start, &fds)?;
        if self.setup.settings.successor {
            self.queue_all();
            self.drivers.change_switch();
        }
        Ok(())
    }

    /// Queues what a new switch gets of the one before: saved sessions, and interfaces.
    pub(super) fn queue_all(&mut self) {
        self.saved_sessions.queue_all();
        self.offer_interfaces();
    }

    /// Queues the interfaces that a new switch gets of the one before.
    pub(super) fn offer_interfaces(&mut self) {
        let (sessions, now) = (&self.saved_sessions, Instant::now());
        let is_quarantined = |port| sessions.is_quarantined(port, now);
        self.drivers.offer_interfaces(is_quarantined);
    }

    /// Drops what is queued for a new switch.
    pub(super) fn clear_queue(&mut self) {
        self.saved_sessions.clear_queue();
        self.drivers.withdraw_offers();
    }

    /// Returns whether something is queued for a new switch.
    pub(super) fn has_queued(&self) -> bool {
        self.saved_sessions.has_queued() || self.drivers.has_offers()
    }

    /// Sends the switch of a pair what is queued for a new one and fits into its link.
    ///
    /// # Errors
    /// It cannot receive.
    pub(super) fn send_queued(&mut self, to: PairRef) -> io::Result<()> {
        let switch = match (to, &self.hand_over.next) {
            (PairRef::Serving, _) => &self.pair.switch,
            (PairRef::Next, Some(next)) => &next.pair.switch,
            (PairRef::Next, None) => return Ok(()),
        };
        let send = |event: &EventToSwitch, fds: &[BorrowedFd<'_>]| switch.try_send(event, fds);
        self.saved_sessions.send_queued(send)?;
        if self.saved_sessions.has_queued() {
            return Ok(());
        }
        self.drivers.send_offers(send)
    }

    /// Sets up a new control process of the serving pair, beside a switch that may not be complete.
    /// One that cannot be set up is killed.
    fn set_up_control(&mut self) {
        let sent = link::pair().and_then(|(switch_end, control_end)| {
            self.pair.link = Some(switch_end);
            self.start_control(&self.pair, &control_end, false)
        });
        self.pair.control.kill_on_error(sent);
        self.link_switch();
    }

    /// Sends the switch its end of the link with control, once it is complete. If it cannot
    /// receive, this is no failure of control.
    pub(super) fn link_switch(&mut self) {
        if !self.switch_is_complete() {
            return;
        }
        let Some(end) = self.pair.link.take() else {
            return;
        };
        let sent = send_link(&self.pair.switch, &end);
        if sent.is_err() {
            self.pair.control.excuse_end();
        }
        self.pair.control.kill_on_error(sent);
    }

    /// Sets up a new control process, and links it with the switch.
    ///
    /// # Errors
    /// One of them cannot receive.
    pub(super) fn set_up(&self, pair: &Pair, frozen: bool) -> io::Result<()> {
        let (switch_end, control_end) = link::pair()?;
        send_link(&pair.switch, &switch_end)?;
        self.start_control(pair, &control_end, frozen)
    }

    fn start_control(&self, pair: &Pair, link: &OwnedFd, frozen: bool) -> io::Result<()> {
        let start = EventToControl::Start {
            runtime_dir: self.home.dir.display().to_string(),
            frozen,
        };
        let fds = [
            link.as_fd(),
            self.home.api.as_fd(),
            self.setup.state.as_fd(),
            self.setup.counters.as_fd(),
        ];
        pair.control.send(&start, &fds)
    }

    /// Connects for a port with a front end that listens; `None` for a driver, whose reply is sent
    /// when it is ready.
    pub(super) fn dial(&mut self, port: PortId) -> Option<Reply> {
        let is_quarantined = self.saved_sessions.is_quarantined(port, Instant::now());
        if self.drivers.dial(port, is_quarantined) {
            return None;
        }
        let path = self.sockets.dialled(port).unwrap_or_default().to_owned();
        let (socket, error) = opened(self.sockets.dial(port));
        let event = EventToSwitch::Dialed { port, path, error };
        let fds = socket.into_iter().collect();
        Some(Reply { event, fds })
    }
}

/// Sends the switch its end of a link with control.
fn send_link(switch: &SwitchChild, end: &OwnedFd) -> io::Result<()> {
    switch.send(&EventToSwitch::ControlLink, &[end.as_fd()])
}
