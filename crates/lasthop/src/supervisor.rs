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
//! SIGTERM, SIGINT, SIGHUP   all are told to stop, sockets are removed, exit status 0
//! we die         all get SIGKILL from the kernel
//! ```

mod child;
mod deposits;
mod drivers;
mod groups;
mod heartbeat;
mod notify;
mod settings;
mod sockets;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use api::v1::WantedState;
use channel::keeping::MARKS;
use channel::link;
use channel::state::StateFile;
use channel::supervision::{Ask, ProcessInfo, SwitchSettings, Tell};
use control::engine::Saved;
use control::wanted::API_SOCKET;
use port::PortId;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, MemfdFlags};

use child::{Child, Kind};
use deposits::Deposits;
use drivers::Drivers;
use heartbeat::Seen;
use sockets::Sockets;

/// How long the others may take to end by themselves.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// Messages of one child in a row, before others have their turn.
const MESSAGES: usize = 64;

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

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        let text = error.to_string();
        Self { status: 1, text }
    }
}

impl From<control::config::ConfigError> for Refusal {
    fn from(error: control::config::ConfigError) -> Self {
        let text = error.to_string();
        Self { status: 2, text }
    }
}

/// Runs everything in the foreground until told to end.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    crate::log::start();
    match supervise(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            drop(writeln!(io::stderr(), "lasthop: {}", refusal.text));
            ExitCode::from(refusal.status)
        }
    }
}

fn supervise(args: &RunArgs) -> Result<(), Refusal> {
    let signals = child::block_signals()?;
    let wanted = control::config::load(&args.config, &args.runtime_dir)?;
    let runtime_dir = prepare_dir(&args.runtime_dir)?;
    let lock = Lock::take(&runtime_dir)?;
    child::raise_descriptor_limit();
    let mut sockets = Sockets::new(runtime_dir.clone());
    let api = sockets.listen_for_owner(API_SOCKET)?;
    for (at, port) in wanted.ports.iter().enumerate() {
        if control::wanted::listens(port) {
            let bound = sockets.listen(&port.socket);
            bound.map_err(|error| {
                let expected = "a path where a socket can be made";
                let found = error.to_string();
                control::config::port_error(&args.config, at, "socket", expected, &found)
            })?;
        }
    }
    sockets.settled();
    let drivers = open_interfaces(&args.config, &wanted)?;
    let settings = settings::of(&wanted.switch);
    let state = StateFile::create()?;
    Saved::initial(wanted).store(&state)?;
    let mut supervisor = Supervisor {
        runtime_dir,
        sockets,
        drivers,
        api,
        state,
        counters: make_file("lasthop-counters", port::counters::SIZE)?,
        marks: make_file("lasthop-marks", MARKS)?,
        deposits: Deposits::default(),
        settings,
        control: Child::start(Kind::Control)?,
        switch: Child::start(Kind::Switch)?,
        started: Instant::now(),
        ready: false,
    };
    supervisor.introduce_switch()?;
    supervisor.introduce_control()?;
    let done = supervisor.serve(&signals);
    supervisor.stop();
    // The sockets go first: who gets the lock next finds none of them.
    drop(supervisor);
    drop(lock);
    Ok(done?)
}

/// Opens the interfaces of the configuration; the drivers are started when the switch asks for them.
fn open_interfaces(config: &Path, wanted: &WantedState) -> Result<Drivers, Refusal> {
    let mut drivers = Drivers::default();
    let ports = (0..).map(PortId).zip(&wanted.ports);
    let specs = ports.filter_map(|(id, port)| control::wanted::driver_of(port, id));
    drivers.want(specs.collect()).map_err(|(name, found)| {
        let at = wanted.ports.iter().position(|port| port.name == name);
        let expected = "an interface that can be opened";
        control::config::port_error(config, at.unwrap_or(0), "interface", expected, &found)
    })?;
    Ok(drivers)
}

/// Makes the runtime directory; its absolute path.
fn prepare_dir(dir: &Path) -> io::Result<PathBuf> {
    let blame = |e: io::Error| {
        let text = format!("the runtime directory {}: {e}", dir.display());
        io::Error::new(e.kind(), text)
    };
    std::fs::create_dir_all(dir).map_err(blame)?;
    dir.canonicalize().map_err(blame)
}

/// The lock that keeps a second Lasthop out of the directory.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn take(dir: &Path) -> io::Result<Self> {
        let path = dir.join("lasthop.lock");
        loop {
            // Who may connect to ports must not be able to take it.
            let file = File::options()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&path)?;
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                let text = format!("another Lasthop runs in {}", dir.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            // Who had it before may have removed the file after we opened it: then others make a new one.
            let ours = file.metadata()?.ino();
            if path.symlink_metadata().is_ok_and(|now| now.ino() == ours) {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn make_file(name: &str, size: u64) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, size)?;
    Ok(fd)
}

/// See the module.
struct Supervisor {
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
    settings: SwitchSettings,
    control: Child,
    switch: Child,
    started: Instant,
    /// Control has said that everything is in place.
    ready: bool,
}

impl Supervisor {
    fn introduce_switch(&mut self) -> io::Result<()> {
        let start = Tell::StartSwitch(self.settings);
        let fds = [self.counters.as_fd(), self.marks.as_fd()];
        self.switch.tell(&start, &fds)?;
        self.deposits.pack();
        Ok(())
    }

    /// Gives a new control process all it needs, and the switch a link to it.
    fn introduce_control(&mut self) -> io::Result<()> {
        let (switch_end, control_end) = link::pair()?;
        self.switch
            .tell(&Tell::ControlLink, &[switch_end.as_fd()])?;
        let start = Tell::StartControl {
            runtime_dir: self.runtime_dir.display().to_string(),
        };
        let fds = [
            control_end.as_fd(),
            self.api.as_fd(),
            self.state.as_fd(),
            self.counters.as_fd(),
        ];
        self.control.tell(&start, &fds)
    }

    /// Waits and serves until a signal, or until control cannot even start.
    fn serve(&mut self, signals: &OwnedFd) -> io::Result<()> {
        loop {
            let (signal, heard) = self.wait(signals)?;
            if signal {
                return Ok(());
            }
            for kind in heard {
                self.hear(kind, MESSAGES)?;
            }
            self.restart_dead()?;
            for answer in self.drivers.turn() {
                let fds: Vec<_> = answer.socket.iter().map(AsFd::as_fd).collect();
                self.reply(Kind::Switch, &answer.tell, &fds);
            }
            self.look_after();
        }
    }

    /// Gives a new switch more of what it is to have, and ends who hangs.
    fn look_after(&mut self) {
        if self.switch.is_alive() {
            let switch = &self.switch;
            let given = self
                .deposits
                .hand_over(|tell, fds| switch.tell_at_once(tell, fds));
            self.switch.kill_unless(given);
        }
        self.control.look();
        if self.switch.look() == Seen::Missed {
            let gets_on = self.deposits.look(&self.marks);
            gets_on.then(|| self.switch.spare());
        }
    }

    /// Follows up to `most` messages of a child: one that never stops must not keep us from the others.
    fn hear(&mut self, kind: Kind, most: usize) -> io::Result<()> {
        for _ in 0..most {
            let Some((ask, fds)) = self.child(kind).hear() else {
                break;
            };
            self.answer(kind, ask, fds)?;
        }
        Ok(())
    }

    /// Whether a signal came, and which children said something.
    fn wait(&self, signals: &OwnedFd) -> io::Result<(bool, Vec<Kind>)> {
        let mut sources: Vec<(Option<Kind>, BorrowedFd<'_>)> = vec![(None, signals.as_fd())];
        for child in [&self.control, &self.switch] {
            sources.extend(child.link().map(|fd| (Some(child.kind()), fd)));
            sources.extend(child.pidfd().map(|fd| (Some(child.kind()), fd)));
        }
        sources.extend(self.drivers.sources().map(|fd| (None, fd)));
        let mut fds: Vec<_> = sources
            .iter()
            .map(|(_, fd)| PollFd::new(fd, PollFlags::IN))
            .collect();
        if let (true, Some(link)) = (self.deposits.is_handing_over(), self.switch.link()) {
            fds.push(PollFd::from_borrowed_fd(link, PollFlags::OUT));
        }
        let control_due = self.control.restart_at().filter(|_| self.switch_is_whole());
        let due = self
            .switch
            .restart_at()
            .into_iter()
            .chain(control_due)
            .chain(self.drivers.due())
            .chain(self.control.look_at())
            .chain(self.switch.look_at())
            .min();
        let timeout = due.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let heard = sources.iter().zip(&fds);
        let heard = heard
            .filter(|(_, fd)| happened(fd))
            .filter_map(|((kind, _), _)| *kind);
        Ok((happened(&fds[0]), heard.collect()))
    }

    /// Control or the switch.
    fn child(&mut self, kind: Kind) -> &mut Child {
        match kind {
            Kind::Control => &mut self.control,
            _ => &mut self.switch,
        }
    }

    fn answer(&mut self, kind: Kind, ask: Ask, fds: Vec<OwnedFd>) -> io::Result<()> {
        if !kind.may_ask(&ask) {
            tracing::error!("{kind} asks for what is not its own, and is ended");
            self.child(kind).kill();
            return Ok(());
        }
        match ask {
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
                self.reply(kind, &Tell::Listening { path, error }, &fds);
            }
            Ask::Unlisten { path } => self.sockets.unlisten(&path),
            Ask::Dial { port, path } => {
                if self.drivers.dial(port, &path) {
                    // Answered when the driver runs.
                    return Ok(());
                }
                let (socket, error) = match self.sockets.dial(&path) {
                    Ok(socket) => (Some(socket), None),
                    Err(error) => (None, Some(error.to_string())),
                };
                let fds: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
                self.reply(kind, &Tell::Dialed { port, path, error }, &fds);
            }
            Ask::Processes => {
                let processes = self.processes();
                self.reply(kind, &Tell::Processes(processes), &[]);
            }
            Ask::Drivers(specs) => {
                let error = self.drivers.want(specs).err();
                self.reply(kind, &Tell::Drivers { error }, &[]);
            }
            Ask::DriverStates => {
                let states = self.drivers.states();
                self.reply(kind, &Tell::DriverStates(states), &[]);
            }
            Ask::Alive => self.child(kind).answered(),
            // Of drivers, which `drivers` hears.
            Ask::Pong(_) | Ask::DriverEnds { .. } => {}
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

    /// Answers; a child that is gone needs no answer.
    fn reply(&mut self, kind: Kind, tell: &Tell, fds: &[BorrowedFd<'_>]) {
        if let Err(error) = self.child(kind).tell(tell, fds) {
            tracing::debug!("{kind} does not listen: {error}");
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
        if !self.ready
            && let Some(status) = died.into_iter().flatten().next()
        {
            return Err(io::Error::other(format!(
                "{status} before everything was ready"
            )));
        }
        if self.switch.restart_if_due() {
            // Control belongs to the switch that is gone; its successor sets the new one up.
            self.control.kill();
            let told = self.introduce_switch();
            self.switch.kill_unless(told);
        }
        if self.switch_is_whole() && self.control.restart_if_due() {
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
    fn reap_switch(&mut self) -> io::Result<Option<String>> {
        let Some(status) = self.switch.has_died() else {
            return Ok(None);
        };
        self.hear(Kind::Switch, usize::MAX)?;
        match self.switch.has_hung() {
            true => self.deposits.blame_hung(&self.marks),
            false => self.deposits.blame(status, &self.marks),
        }
        self.settings.successor = true;
        Ok(self.switch.reap())
    }

    /// Ends all and waits for them.
    fn stop(&mut self) {
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
