//! The supervisor: what `lasthop run` becomes.
//!
//! It reads the configuration, binds every listening socket, makes the files that outlive the other
//! processes, and starts those. From then on it only waits: for their requests, their deaths, and a signal.
//!
//! ```text
//! control dies   a new one is started at once (later and later if it dies before it is ready), with a new link to
//!                the switch; the switch goes on meanwhile
//! switch dies    a new one is started and gets what was kept of its connections; control is ended, its successor
//!                sets the switch up, and guests go on
//! driver dies    see [`drivers`]
//! upgrade        see [`upgrade`]
//! SIGTERM, SIGINT   all are told to stop, sockets are removed, exit status 0
//! SIGHUP         see [`reload`]
//! we die         all get SIGKILL from the kernel
//! ```

mod admin;
mod binaries;
mod check;
mod child;
mod deposits;
mod dialling;
mod drivers;
mod environment;
mod events;
mod groups;
mod guests;
mod hand_over;
mod heartbeat;
mod introduce;
mod lock;
pub(crate) mod names;
mod notify;
mod paths;
mod reload;
mod renew;
mod replace;
mod running;
mod settings;
mod signals;
mod sockets;
mod start;
#[cfg(test)]
mod tests;
mod upgrade;
mod usage;
mod wait;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use channel::state::StateFile;
use channel::supervision::{Ask, ProcessInfo, SwitchSettings, Tell};

use admin::Admin;
use binaries::Binaries;
use child::{Child, Kind};
use deposits::Deposits;
use drivers::Drivers;
use events::{Death, Untold};
use guests::Guests;
use hand_over::{HandOver, Handed};
use heartbeat::Seen;
use lock::Lock;
use reload::Reload;
use signals::Wish;
use sockets::Sockets;
use upgrade::Upgrade;

/// How long the others may take to end by themselves.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// Messages of one child in a row, before others have their turn.
const MESSAGES: usize = 64;
/// Messages of a dead child that are heard: more than there is room for in a link, which others may have copies of.
const LAST_MESSAGES: usize = 4096;

/// What `lasthop run` was told.
pub(crate) struct RunArgs {
    /// The configuration file.
    pub(crate) config: PathBuf,
    /// Where the sockets are.
    pub(crate) runtime_dir: PathBuf,
}

/// Why it did not run, and the exit status that says so.
struct Refusal {
    status: u8,
    text: String,
}

impl Refusal {
    /// What was asked for is wrong, and nothing was done.
    fn wrong(text: String) -> Self {
        Self { status: 2, text }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        let text = error.to_string();
        Self { status: 1, text }
    }
}

impl From<control::config::ConfigError> for Refusal {
    fn from(error: control::config::ConfigError) -> Self {
        Self::wrong(error.to_string())
    }
}

/// Runs everything in the foreground until told to end.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    crate::log::start();
    supervise(|| start_anew(args))
}

/// Goes on where another supervisor was in this process, if there was one.
pub(crate) fn resume() -> Option<ExitCode> {
    std::env::var_os(replace::RESUME)?;
    crate::log::start();
    Some(supervise(|| {
        let resumed = replace::resume();
        resumed.map_err(|text| Refusal { status: 1, text })
    }))
}

/// Whether this build understands what a running supervisor would leave to it.
///
/// # Errors
/// Why not.
pub(crate) fn understand(record: &File) -> Result<(), String> {
    replace::load(record).map(drop)
}

fn start_anew(args: &RunArgs) -> Result<Supervisor, Refusal> {
    environment::check().map_err(Refusal::wrong)?;
    let mut supervisor = start::start(args)?;
    supervisor.introduce_switch()?;
    supervisor.introduce_control()?;
    Ok(supervisor)
}

fn supervise(start: impl FnOnce() -> Result<Supervisor, Refusal>) -> ExitCode {
    let supervised = || {
        let signals = signals::block()?;
        let mut supervisor = start()?;
        let done = supervisor.serve(&signals);
        supervisor.stop();
        Ok::<_, Refusal>(done?)
    };
    match supervised() {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            drop(writeln!(io::stderr(), "lasthop: {}", refusal.text));
            ExitCode::from(refusal.status)
        }
    }
}

/// A process of the pair that serves, or of the one that is to take its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Who {
    kind: Kind,
    next: bool,
}

/// Control of the pair that serves.
const CONTROL: Who = Who {
    kind: Kind::Control,
    next: false,
};
/// Its switch.
const SWITCH: Who = Who {
    kind: Kind::Switch,
    next: false,
};

/// See the module.
struct Supervisor {
    /// What new processes are started from.
    binaries: Binaries,
    /// The file with which it was started, if that is known.
    config: Option<PathBuf>,
    reload: Reload,
    runtime_dir: PathBuf,
    sockets: Sockets,
    drivers: Drivers,
    api: OwnedFd,
    state: StateFile,
    counters: OwnedFd,
    /// What the switch says of whom it serves.
    marks: OwnedFd,
    /// What the next switch gets of this one's connections.
    deposits: Deposits,
    /// What guests' processors do.
    guests: Guests,
    events: Untold,
    settings: SwitchSettings,
    control: Child,
    switch: Child,
    started: Instant,
    /// Control has said that everything is in place.
    ready: bool,
    admin: Admin,
    upgrade: Option<Upgrade>,
    /// The pair that is to take the place of control and switch.
    next: Option<HandOver>,
    /// What became of it.
    handed: Option<Handed>,
    /// The last that is dropped: who gets the lock next finds no sockets.
    lock: Lock,
}

impl Supervisor {
    /// Waits and serves until a signal, or until control cannot even start.
    fn serve(&mut self, signals: &OwnedFd) -> io::Result<()> {
        loop {
            let (signal, heard) = self.wait(signals)?;
            match signal.then(|| signals::next(signals)).flatten() {
                Some(Wish::End) => return Ok(()),
                Some(Wish::Reload(by)) => self.reload(by),
                None => {}
            }
            for who in heard {
                self.hear(who, MESSAGES)?;
            }
            self.turn_hand_over()?;
            if self.next.is_none() {
                self.restart_dead()?;
            }
            for answer in self.drivers.turn(&self.binaries) {
                let fds: Vec<_> = answer.socket.iter().map(AsFd::as_fd).collect();
                self.reply(SWITCH, &answer.tell, &fds);
            }
            self.turn_reload();
            self.turn_upgrade();
            self.look_after();
            self.turn_guests();
            self.tell_control();
        }
    }

    /// Gives a new switch more of what it is to have, and ends who hangs.
    fn look_after(&mut self) {
        if self.switch.is_alive() && !self.next_gets_deposits() {
            let switch = &self.switch;
            let given = self
                .deposits
                .hand_over(|tell, fds| switch.tell_at_once(tell, fds));
            self.switch.kill_unless(given);
        }
        // While a pair is to take over, everybody has a deadline, and who rests or has not begun yet does not hang.
        if self.next.is_some() {
            return;
        }
        self.control.look();
        if self.switch.look() == Seen::Missed {
            let gets_on = self.deposits.look(&self.marks);
            gets_on.then(|| self.switch.spare());
        }
    }

    /// Follows up to `most` messages of a child: one that never stops must not keep us from the others.
    fn hear(&mut self, who: Who, most: usize) -> io::Result<()> {
        for _ in 0..most {
            let Some((ask, fds)) = self.child(who).and_then(Child::hear) else {
                return Ok(());
            };
            self.answer(who, ask, fds)?;
        }
        if let Some(child) = self.child(who) {
            child.has_more_to_say();
        }
        Ok(())
    }

    /// Control or the switch; nobody where there is no next pair.
    fn child(&mut self, who: Who) -> Option<&mut Child> {
        match who {
            Who { kind, next: true } => self.next.as_mut().map(|next| next.child(kind)),
            CONTROL => Some(&mut self.control),
            _ => Some(&mut self.switch),
        }
    }

    fn answer(&mut self, who: Who, ask: Ask, fds: Vec<OwnedFd>) -> io::Result<()> {
        if !who.kind.may_ask(&ask) {
            tracing::error!("{} asks for what is not its own, and is ended", who.kind);
            if let Some(child) = self.child(who) {
                child.kill();
            }
            return Ok(());
        }
        match ask {
            Ask::Frozen | Ask::Rested { .. } | Ask::GoesOn { .. } => {
                return self.hear_of_hand_over(who, &ask);
            }
            Ask::Ready if who.next => return self.hear_of_hand_over(who, &ask),
            Ask::Ready => {
                self.control.prove();
                self.switch.prove();
                self.say_ready();
            }
            Ask::Listen { path } => {
                let (socket, error) = match self.sockets.listen(&path) {
                    Ok(socket) => (Some(socket), None),
                    Err(error) => (None, Some(error.to_string())),
                };
                let fds: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
                self.reply(who, &Tell::Listening { path, error }, &fds);
            }
            Ask::ListenFor { path, owner } => {
                let (socket, outcome) = match self.sockets.listen_as(&path, &owner) {
                    Ok((socket, peer)) => (Some(socket), Ok(peer)),
                    Err(no) => (None, Err(no)),
                };
                let fds: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
                self.reply(who, &Tell::ListeningFor { path, outcome }, &fds);
            }
            Ask::Unlisten { path } => {
                if let Err(error) = self.sockets.unlisten(&path) {
                    tracing::error!("{} would have a socket removed: {error}", who.kind);
                }
            }
            Ask::Dials(dials) => {
                let error = self.sockets.register(dials).err();
                let error = error.map(|error| error.to_string());
                self.reply(who, &Tell::Dials { error }, &[]);
            }
            Ask::SocketDirs => {
                let dirs = self.sockets.dirs().to_vec();
                self.reply(who, &Tell::SocketDirs(dirs), &[]);
            }
            Ask::Dial { port } => self.dial(who, port),
            Ask::DialPath { port, path } => self.dial_path(who, port, path),
            Ask::Processes => {
                let processes = self.processes();
                self.reply(who, &Tell::Processes(processes), &[]);
            }
            Ask::ProcessUsage => {
                let pids = self.processes().into_iter().map(|process| process.pid);
                let usage = pids.filter_map(usage::of).collect();
                self.reply(who, &Tell::ProcessUsage(usage), &[]);
            }
            Ask::Drivers(specs) => {
                let error = self.drivers.want(specs).err();
                self.reply(who, &Tell::Drivers { error }, &[]);
            }
            Ask::DriverStates => {
                let states = self.drivers.states();
                self.reply(who, &Tell::DriverStates(states), &[]);
            }
            Ask::InterfaceAddresses => {
                let addresses = self.drivers.addresses();
                self.reply(who, &Tell::InterfaceAddresses(addresses), &[]);
            }
            Ask::Bereft => {
                if let Some(child) = self.child(who) {
                    child.set_bereft();
                }
            }
            Ask::Events { had } => {
                if had && who == CONTROL {
                    self.events.were_told();
                }
                if let Some(child) = self.child(who) {
                    child.set_wants_events(true);
                }
            }
            Ask::WatchGuests(watch) => self.guests.watch(watch),
            Ask::WatchedGuests => {
                let watched = self.guests.watched();
                self.reply(who, &Tell::WatchedGuests(watched), &[]);
            }
            Ask::Alive => {
                if let Some(child) = self.child(who) {
                    // Unasked or not, it lives.
                    let _ = child.answered();
                }
            }
            // Of drivers, which `drivers` hears.
            Ask::Pong(_) | Ask::DriverEnds { .. } => {}
            // Whose connections they are not.
            Ask::Keep { .. } | Ask::KeepRecord { .. } | Ask::Forget { .. }
                if !self.is_serving(who) => {}
            Ask::Keep { port, number } => self.deposits.keep(port, number, fds),
            Ask::KeepRecord {
                port,
                record,
                numbers,
            } => self.deposits.record(port, record, &numbers),
            Ask::Forget { port } => self.deposits.forget(port),
        }
        Ok(())
    }

    /// Answers; a child that is gone needs no answer, and one that does not listen gets none.
    fn reply(&mut self, who: Who, tell: &Tell, fds: &[BorrowedFd<'_>]) {
        let told = self.child(who).map(|child| child.tell(tell, fds));
        if let Some(Err(error)) = told {
            tracing::debug!("{} does not listen: {error}", who.kind);
        }
    }

    fn say_ready(&mut self) {
        if !std::mem::replace(&mut self.ready, true) {
            let mut out = io::stdout().lock();
            // Nobody has to listen.
            drop(
                out.write_all(b"lasthop: ready\n")
                    .and_then(|()| out.flush()),
            );
            if let Err(error) = notify::ready() {
                tracing::warn!("the service manager could not be told: {error}");
            }
        }
    }

    fn processes(&self) -> Vec<ProcessInfo> {
        let own = ProcessInfo {
            name: "supervisor".to_owned(),
            pid: std::process::id(),
            restarts: 0,
            uptime_ms: self.started.elapsed().as_millis() as u64,
        };
        let mut all = vec![own, self.control.info(), self.switch.info()];
        all.extend(self.drivers.processes());
        all
    }

    fn restart_dead(&mut self) -> io::Result<()> {
        let died = [self.control.reap(), self.reap_switch()?];
        for (kind, death) in [Kind::Control, Kind::Switch].into_iter().zip(&died) {
            if let Some(death) = death {
                self.tell_ended(kind, death);
            }
        }
        if !self.ready
            && let Some(status) = died.into_iter().flatten().next()
        {
            return Err(io::Error::other(format!(
                "{status} before everything was ready"
            )));
        }
        if self.switch.restart_if_due(&self.binaries) {
            self.tell_restarted(Kind::Switch);
            // Control belongs to the switch that is gone; its successor sets the new one up.
            self.control.set_bereft();
            self.control.kill();
            let told = self.introduce_switch();
            self.switch.kill_unless(told);
        }
        if self.switch_is_whole() && self.control.restart_if_due(&self.binaries) {
            self.tell_restarted(Kind::Control);
            let told = self.introduce_control();
            self.control.kill_unless(told);
        }
        Ok(())
    }

    /// Whether the switch can be set up: without one, or before it has everything, control cannot be started.
    fn switch_is_whole(&self) -> bool {
        self.switch.is_alive() && !self.deposits.is_handing_over()
    }

    /// If the switch has died: what it said last is what its successor goes by.
    fn reap_switch(&mut self) -> io::Result<Option<Death>> {
        let Some(status) = self.switch.has_died() else {
            return Ok(None);
        };
        self.hear(SWITCH, LAST_MESSAGES)?;
        match self.switch.has_hung() {
            true => self.deposits.blame_hung(&self.marks),
            false => self.deposits.blame(status, &self.marks),
        }
        self.settings.successor = true;
        Ok(self.switch.reap())
    }

    /// Ends all and waits for them.
    fn stop(&mut self) {
        self.reload.stop();
        self.drop_next();
        self.drivers.stop();
        for child in [&self.control, &self.switch] {
            // One that is gone need not be told.
            let _ = child.tell(&Tell::Stop, &[]);
        }
        let deadline = Instant::now() + STOP_PATIENCE;
        for child in [&mut self.control, &mut self.switch] {
            child.wait(deadline);
        }
    }
}
