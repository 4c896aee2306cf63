//! Child process of the supervisor: state, link, restarts.

use std::fmt;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ipc::link::{self, Link, LinkEvent};
use ipc::supervision::{LINK_FD, ProcessInfo, Request, SPARE};
use rustix::process::Signal;
use sys::foreign::ForeignFd;
use sys::limit;

use super::binaries::Binaries;
use super::environment;
use super::heartbeat::{Heartbeat, HeartbeatStatus, is_stopped};
use super::kind::{self, Kind, Role};
use super::record::{IncomingFds, OutgoingFds, PassedChild, PassedProcess, RecordError};
use super::running::Running;

/// Descriptor number of the link in a child.
const CHILD_LINK: i32 = 3;
/// Number of turns in a row with pending messages after which a flood is logged; a correct process
/// has only a few.
const FLOOD_TURNS: u32 = 4096;
/// Uptime after which a death does not count as a failed start, and is followed by a restart at
/// once: a second.
const MIN_UPTIME: Duration = Duration::from_secs(1);
/// Time in which a killed process must end: 500 milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_millis(500);
/// Time within which the end of a process must be seen after another one has reported its loss: 2
/// seconds. A process that waits in the kernel is given up before.
const LOSS_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum delay of a restart: 2 seconds.
const MAX_RESTART_DELAY: Duration = Duration::from_secs(2);

/// Link to a process of this kind.
type LinkTo<R> = Link<<R as Role>::Event, <R as Role>::Request>;

/// Running process.
struct Alive<R: Role> {
    process: Running,
    link: LinkTo<R>,
    since: Instant,
    /// Set when the process has done its work once; a later death is no failed start.
    proved: bool,
    beat: Heartbeat,
    /// Set when it was killed because it hung, unless it was stopped by a signal or a debugger.
    hung: bool,
    /// Turns in a row with pending messages.
    flood: u32,
    /// Set while control waits for events.
    wants_events: bool,
}

impl<R: Role> Alive<R> {
    /// Returns the state of a process that has just been started.
    fn new(process: Running, link: LinkTo<R>) -> Self {
        let now = Instant::now();
        Self {
            process,
            link,
            since: now,
            proved: false,
            beat: Heartbeat::new(now, R::KIND),
            hung: false,
            flood: 0,
            wants_events: false,
        }
    }
}

/// End of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Death {
    /// Kind of the process.
    pub(super) kind: Kind,
    /// Exit status or signal as text.
    pub(super) how: String,
    /// Restarts before.
    pub(super) restarts: u32,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended ({})", self.kind, self.how)
    }
}

/// Process of a kind with its restart state.
pub(super) struct Child<R: Role> {
    alive: Option<Alive<R>>,
    /// Process that has started, has dropped its rights, and waits for its first message: the
    /// successor if this one dies.
    spare: Option<Alive<R>>,
    /// A spare process could not be started.
    spare_failed: bool,
    restarts: u32,
    /// Deaths in a row soon after the start.
    failures: u32,
    restart_at: Option<Instant>,
    /// Set when the end of the process is not its own failure: a process on which it depends is
    /// gone, or the supervisor replaces it.
    excused: bool,
    /// End of the time in which its report of a loss is an excuse: the end of the process that it
    /// has lost must be seen before.
    loss_until: Option<Instant>,
}

/// Control.
pub(super) type ControlChild = Child<kind::Control>;
/// The switch.
pub(super) type SwitchChild = Child<kind::Switch>;
/// A driver.
pub(super) type DriverChild = Child<kind::Driver>;

impl<R: Role> Child<R> {
    /// Starts the process.
    ///
    /// # Errors
    /// A missing binary, or a failed system call.
    pub(super) fn start(binaries: &Binaries) -> io::Result<Self> {
        Ok(Self::new(Some(spawn(binaries, false)?)))
    }

    fn new(alive: Option<Alive<R>>) -> Self {
        Self {
            restart_at: alive.is_none().then(Instant::now),
            alive,
            spare: None,
            spare_failed: false,
            restarts: 0,
            failures: 0,
            excused: false,
            loss_until: None,
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive.is_some()
    }

    /// Returns the socket of its requests.
    pub(super) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.alive.as_ref().map(|a| a.link.as_fd())
    }

    /// Returns the descriptors that become readable when the process ends.
    pub(super) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let alive = self.alive.iter();
        alive.flat_map(|alive| alive.process.sources())
    }

    /// Returns the time of the next restart.
    pub(super) fn restart_at(&self) -> Option<Instant> {
        self.restart_at
    }

    /// Sends a message without waiting. A process whose link is full is killed.
    ///
    /// # Errors
    /// The process is gone or its link is full.
    pub(super) fn send(&self, event: &R::Event, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = self.try_send(event, fds);
        if is_full(&sent) {
            tracing::error!("link to {} full: killed", R::KIND);
            self.kill();
        }
        sent
    }

    /// Sends a message without waiting. A full link has no consequences.
    ///
    /// # Errors
    /// The process is gone or its link is full.
    pub(super) fn try_send(&self, event: &R::Event, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        match &self.alive {
            Some(alive) => alive.link.send_at_once(event, fds),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Checks the heartbeat and kills a process that hangs.
    pub(super) fn check_heartbeat(&mut self) -> HeartbeatStatus {
        let Some(alive) = &mut self.alive else {
            return HeartbeatStatus::Ok;
        };
        let link = &alive.link;
        // A failed send to a dead process is no full link.
        let request = || !is_full(&link.send_at_once(&R::PING, &[]));
        let seen = alive.beat.check(Instant::now(), request);
        if seen == HeartbeatStatus::Hung {
            tracing::error!("{} hung: killed", R::KIND);
            alive.hung = !is_stopped(alive.process.id());
            self.kill();
        }
        seen
    }

    /// Returns the heartbeat of a living process.
    pub(super) fn beat(&self) -> Option<&Heartbeat> {
        self.alive.as_ref().map(|alive| &alive.beat)
    }

    /// Excuses a missed heartbeat of a process that makes progress.
    pub(super) fn excuse_missed(&mut self) {
        if let Some(alive) = &mut self.alive {
            alive.beat.excuse();
        }
    }

    /// Records a heartbeat reply. Returns `false` if no ping was sent.
    pub(super) fn on_heartbeat_reply(&mut self) -> bool {
        let Some(alive) = &mut self.alive else {
            return false;
        };
        // It has its threads. A driver's interface is free once it is reaped.
        if R::KIND != Kind::Driver {
            alive.process.watch_threads();
        }
        alive.beat.replied()
    }

    /// Returns the time of the next heartbeat check.
    pub(super) fn heartbeat_due(&self) -> Option<Instant> {
        self.beat()?.due()
    }

    /// Returns the time of the next check whether a killed process is to be given up.
    pub(super) fn give_up_due(&self) -> Option<Instant> {
        self.alive.as_ref()?.process.due()
    }

    /// Returns whether it was killed because it hung.
    pub(super) fn has_hung(&self) -> bool {
        self.alive.as_ref().is_some_and(|alive| alive.hung)
    }

    /// Returns the next request. A malformed message or a closed link kills the process, because it
    /// cannot work without the supervisor.
    pub(super) fn receive(&mut self) -> Option<(R::Request, Vec<ForeignFd>)> {
        let alive = self.alive.as_mut()?;
        match alive.link.recv_within(R::Request::MAX_BYTES) {
            Ok(LinkEvent::Message(request, fds)) => Some((request, fds)),
            Ok(LinkEvent::Nothing) => {
                alive.flood = 0;
                None
            }
            Ok(LinkEvent::Closed) => {
                self.kill();
                None
            }
            Err(error) => {
                tracing::error!("malformed message from {}: {error}", R::KIND);
                self.kill();
                None
            }
        }
    }

    /// Counts a turn that left messages in the link. The turns of the others are not affected, but
    /// a correct process does not do this.
    pub(super) fn note_flood(&mut self) {
        let Some(alive) = &mut self.alive else {
            return;
        };
        alive.flood = alive.flood.saturating_add(1);
        if alive.flood == FLOOD_TURNS {
            tracing::error!("{} floods its link", R::KIND);
        }
    }

    /// Sets whether the process waits for events.
    pub(super) fn set_wants_events(&mut self, wants: bool) {
        if let Some(alive) = &mut self.alive {
            alive.wants_events = wants;
        }
    }

    /// Returns whether the process waits for events.
    pub(super) fn wants_events(&self) -> bool {
        self.alive.as_ref().is_some_and(|alive| alive.wants_events)
    }

    /// Notes that the process does its work.
    pub(super) fn set_proved(&mut self) {
        if let Some(alive) = &mut self.alive {
            alive.proved = true;
        }
    }

    /// Notes that the end of the process, which comes soon, is not its own failure: a process on
    /// which it depends is gone, or the supervisor replaces it. Without effect after its end.
    pub(super) fn excuse_end(&mut self) {
        self.excused |= self.alive.is_some();
    }

    /// Notes its report of a loss: it ends because a process that it depends on is gone.
    pub(super) fn note_loss(&mut self) {
        let until = self.alive.is_some().then(|| Instant::now() + LOSS_TIMEOUT);
        self.loss_until = self.loss_until.or(until);
    }

    /// Returns until when the end of the process that it has lost may be seen; `None` if it has
    /// reported no loss, or is excused anyway.
    pub(super) fn loss_until(&self) -> Option<Instant> {
        self.loss_until.filter(|_| !self.excused)
    }

    /// As [`Child::loss_until`], for a process that has ended, and so waits to be reaped.
    pub(super) fn loss_due(&self) -> Option<Instant> {
        let has_ended = self.alive.as_ref().is_some_and(|a| a.process.is_over());
        self.loss_until().filter(|_| has_ended)
    }

    /// Returns whether it was killed, has closed its link or has reported a loss, and so ends.
    pub(super) fn is_ending(&self) -> bool {
        let alive = self.alive.as_ref();
        self.loss_until.is_some() || alive.is_some_and(|alive| alive.process.is_killed())
    }

    /// Returns whether the process never runs code of its program again: it ends, whatever comes.
    pub(super) fn cannot_return(&self) -> bool {
        let alive = self.alive.as_ref();
        alive.is_some_and(|alive| alive.process.cannot_return())
    }

    /// Returns the exit status of a process that has died and was not reaped. Its last messages can
    /// still be received.
    pub(super) fn has_died(&mut self) -> Option<ExitStatus> {
        self.alive.as_mut()?.process.has_ended()
    }

    /// Reaps a dead process and schedules its restart.
    pub(super) fn reap(&mut self) -> Option<Death> {
        let status = self.has_died()?;
        // A driver whose switch ends the connection has done its work.
        if R::KIND == Kind::Driver && status.success() {
            self.excuse_end();
        }
        let mut how = status.to_string();
        if self.has_hung() {
            how.push_str(", hung");
        }
        if self.is_given_up() {
            how.push_str(", given up: it waits in the kernel and cannot be reaped");
        }
        self.loss_until = None;
        let started = |a: Alive<R>| a.proved || a.since.elapsed() >= MIN_UPTIME;
        let started = self.alive.take().is_some_and(started);
        self.failures = if started { 0 } else { self.failures + 1 };
        // The first restart is immediate; then 20 ms, 40 ms, ...
        let delay = match self.failures {
            0 | 1 => Duration::ZERO,
            n => Duration::from_millis(5 << n.min(10)).min(MAX_RESTART_DELAY),
        };
        self.restart_at = Some(Instant::now() + delay);
        let (kind, restarts) = (R::KIND, self.restarts);
        Some(Death {
            kind,
            how,
            restarts,
        })
    }

    /// Restarts the process when its time has come. Returns whether it was started; a failed start
    /// is repeated later.
    pub(super) fn restart_if_due(&mut self, binaries: &Binaries) -> bool {
        if self.restart_at.is_none_or(|at| at > Instant::now()) {
            return false;
        }
        let started = self.take_spare().map_or_else(|| spawn(binaries, false), Ok);
        match started {
            Ok(alive) => {
                self.restart_at = None;
                self.spare_failed = false;
                self.alive = Some(alive);
                // An alarm on restarts must name the process that died first.
                self.restarts += u32::from(!mem::take(&mut self.excused));
                true
            }
            Err(error) => {
                tracing::error!("cannot start {}: {error}", R::KIND);
                self.restart_at = Some(Instant::now() + MAX_RESTART_DELAY);
                false
            }
        }
    }

    /// Starts the spare process, unless there is one. It is not started beside others: this process
    /// has done its work, and is up for a while.
    pub(super) fn keep_spare(&mut self, binaries: &Binaries) {
        self.reap_spare();
        let settled = |alive: &Alive<R>| alive.proved && alive.since.elapsed() >= MIN_UPTIME;
        let has_settled = self.alive.as_ref().is_some_and(settled);
        if !has_settled || self.spare.is_some() || self.spare_failed {
            return;
        }
        match spawn(binaries, true) {
            Ok(spare) => self.spare = Some(spare),
            Err(error) => {
                tracing::warn!("no spare process for {}: {error}", R::KIND);
                self.spare_failed = true;
            }
        }
    }

    /// Reaps a spare process that has ended. One that ended soon after its start has no successor.
    fn reap_spare(&mut self) {
        let Some(spare) = &mut self.spare else {
            return;
        };
        if let Some(status) = spare.process.has_ended() {
            tracing::warn!("spare process for {} ended ({status})", R::KIND);
            self.spare_failed = spare.since.elapsed() < MIN_UPTIME;
            self.spare = None;
        }
    }

    /// Ends the spare process, if there is one.
    pub(super) fn end_spare(&mut self) {
        if let Some(mut spare) = self.spare.take() {
            spare.process.kill();
            spare.process.ends_by(Instant::now() + KILL_TIMEOUT);
        }
    }

    /// Returns the spare process, if it lives, as one that starts now.
    fn take_spare(&mut self) -> Option<Alive<R>> {
        let Alive {
            mut process, link, ..
        } = self.spare.take()?;
        let has_ended = process.has_ended().is_some();
        (!has_ended).then(|| Alive::new(process, link))
    }

    /// Kills a process that could not be set up; it is restarted then.
    pub(super) fn kill_on_error(&mut self, sent: io::Result<()>) {
        if let Err(error) = sent {
            tracing::warn!("cannot set up {}: {error}", R::KIND);
            self.kill();
        }
    }

    /// Kills the process.
    pub(super) fn kill(&self) {
        if let Some(alive) = &self.alive {
            alive.process.kill();
        }
    }

    /// Returns whether the process was killed, did not end, and is given up.
    pub(super) fn is_given_up(&self) -> bool {
        self.alive
            .as_ref()
            .is_some_and(|alive| alive.process.is_given_up())
    }

    /// Returns the numbers of its closers that wait in the kernel, if it is given up.
    pub(super) fn standing_closers(&self) -> Vec<usize> {
        let given_up = self.alive.iter().map(|alive| &alive.process);
        let given_up = given_up.filter(|process| process.is_given_up());
        given_up.flat_map(Running::standing_closers).collect()
    }

    /// Waits for its end, kills it at the deadline, and waits [`KILL_TIMEOUT`] more, because the
    /// kernel may delay a death. Returns `false` if it is still there then.
    pub(super) fn wait(&mut self, deadline: Instant) -> bool {
        if !self.dies_by(deadline) {
            self.kill();
            if !self.dies_by(Instant::now() + KILL_TIMEOUT) {
                return false;
            }
        }
        self.alive = None;
        true
    }

    /// Waits for its death; its last messages can be received afterwards. Returns `false` after the
    /// deadline.
    pub(super) fn dies_by(&mut self, deadline: Instant) -> bool {
        let alive = self.alive.as_mut();
        alive.is_none_or(|alive| alive.process.ends_by(deadline))
    }

    /// Returns the process with this restart counter.
    pub(super) fn restarted(self, restarts: u32) -> Self {
        Self { restarts, ..self }
    }

    /// Takes over the restart counter of a process that this one replaces, which may have died
    /// meanwhile.
    pub(super) fn take_place_of(&mut self, before: &Self) {
        let has_died = !before.is_alive() && !before.excused;
        self.restarts = before.restarts + u32::from(has_died);
        self.set_proved();
    }

    /// Adds the process to the record for the next supervisor.
    pub(super) fn pass<'a>(&'a self, outgoing: &mut OutgoingFds<'a>) -> PassedChild {
        let alive = self.alive.as_ref().map(|alive| PassedProcess {
            pid: alive.process.id(),
            link: outgoing.add(alive.link.as_fd()),
            uptime_ms: alive.since.elapsed().as_millis() as u64,
            proved: alive.proved,
            beat: alive.beat.pass(),
        });
        PassedChild {
            restarts: self.restarts,
            alive,
        }
    }

    /// Takes a process from the previous supervisor's record.
    ///
    /// # Errors
    /// It is no child of this process.
    pub(super) fn take(from: PassedChild, fds: &mut IncomingFds) -> Result<Self, RecordError> {
        let take = |passed: PassedProcess| -> Result<Alive<R>, RecordError> {
            let process = Running::with_pid(R::KIND, passed.pid)?;
            let now = Instant::now();
            let uptime = Duration::from_millis(passed.uptime_ms);
            // The version of the process may have other events: it has to request them.
            Ok(Alive {
                since: now.checked_sub(uptime).unwrap_or(now),
                proved: passed.proved,
                beat: Heartbeat::take(passed.beat, now, R::KIND),
                ..Alive::new(process, Link::new(fds.take(passed.link)?))
            })
        };
        let alive = from.alive.map(take).transpose()?;
        Ok(Self {
            restarts: from.restarts,
            ..Self::new(alive)
        })
    }

    /// Returns the process information of `lasthop status`.
    pub(super) fn info(&self) -> ProcessInfo {
        let alive = self.alive.as_ref();
        ProcessInfo {
            name: R::KIND.to_string(),
            pid: alive.map_or(0, |a| a.process.id()),
            restarts: self.restarts,
            uptime_ms: alive.map_or(0, |a| a.since.elapsed().as_millis() as u64),
        }
    }
}

/// Starts a process; a spare one is called so until it gets its first message.
fn spawn<R: Role>(binaries: &Binaries, is_spare: bool) -> io::Result<Alive<R>> {
    let kind = R::KIND;
    let (ours, theirs) = link::pair()?;
    let number = theirs.as_raw_fd();
    let mut command = binaries.command(kind);
    environment::without_own_variables(&mut command)
        .env(LINK_FD, CHILD_LINK.to_string())
        .env_remove(SPARE)
        .stdin(Stdio::null());
    if is_spare {
        command.env(SPARE, "1");
    }
    // SAFETY: the closure only makes system calls, which are async-signal-safe, on values that it
    // owns.
    unsafe { command.pre_exec(move || prepare_child(number)) };
    let process = command
        .spawn()
        .map_err(|error| cannot_start(kind.binary(), &error))?;
    watched(&process, ours)
}

fn cannot_start(binary: &str, error: &io::Error) -> io::Error {
    let text = format!("{binary}: {}", limit::of_start(error));
    io::Error::new(error.kind(), text)
}

/// Returns the state of a new process with the supervisor's end of its link.
fn watched<R: Role>(process: &std::process::Child, ours: OwnedFd) -> io::Result<Alive<R>> {
    let link = Link::new(ours);
    link.set_nonblocking()?;
    Ok(Alive::new(Running::of(R::KIND, process)?, link))
}

/// Returns whether a send failed because the link was full.
pub(super) fn is_full(sent: &io::Result<()>) -> bool {
    let kind = sent.as_ref().err().map(io::Error::kind);
    kind == Some(io::ErrorKind::WouldBlock)
}

/// Prepares a child before `exec`: it ends with the supervisor, has its own session, no blocked
/// signals, and no open descriptor but its link.
fn prepare_child(link: i32) -> io::Result<()> {
    // SAFETY: both numbers are descriptors of this process; the copy does not close on exec. If the
    // link already has its number, only that flag is cleared.
    let done = unsafe {
        if link == CHILD_LINK {
            libc::fcntl(link, libc::F_SETFD, 0)
        } else {
            libc::dup2(link, CHILD_LINK)
        }
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    prepare(CHILD_LINK + 1)
}

/// Prepares a child without a link; descriptors from `first` on are closed.
pub(super) fn prepare(first: i32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The terminal of the supervisor is not for its children: they get no signals of its keys and
    // cannot write to its input.
    rustix::process::setsid()?;
    // SAFETY: an empty signal set is made before it is used; the calls touch no other memory.
    unsafe {
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
    let (last, flags) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: the call takes three numbers, and closes nothing before `exec`. Linux before 5.11
    // does not have it; our descriptors close there too, because they were opened close-on-exec.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    Ok(())
}

/// Raises the limit of open descriptors to the maximum: each guest needs several.
pub(super) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it, the soft limit stays.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
impl<R: Role> Child<R> {
    /// Returns an idle process and its end of the link.
    pub(super) fn idle() -> (Self, Link<R::Request, R::Event>) {
        let (ours, theirs) = link::pair().unwrap();
        let mut command = std::process::Command::new("sleep");
        command.arg("infinity");
        // SAFETY: the closure makes one system call.
        unsafe {
            command.pre_exec(|| {
                Ok(rustix::process::set_parent_process_death_signal(Some(
                    Signal::KILL,
                ))?)
            });
        }
        let alive = watched(&command.spawn().unwrap(), ours).unwrap();
        let child = Self::new(Some(alive));
        (child, Link::new(theirs))
    }
}
