//! A process that the supervisor started: its life, its link, its restarts.

mod kind;

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use channel::link::{self, Link, Received};
use channel::supervision::{Ask, LINK_FD, ProcessInfo, Tell};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

pub(super) use self::kind::Kind;
use super::binaries::Binaries;
use super::events::Death;
use super::heartbeat::{Heartbeat, Seen, is_stopped};
use super::replace::{self, Giving, PassedChild, PassedProcess, Taking};
use super::running::Running;

/// The number under which a child finds its link.
const CHILD_LINK: i32 = 3;
/// Turns in a row in which it had more to say than it was heard of, before that is worth a line in the log: for an honest one
/// a few are many.
const FLOOD: u32 = 4096;
/// A process that lived this long was no failure to start.
const STEADY: Duration = Duration::from_secs(10);
/// How long the death of a killed process is waited for.
const DEATH: Duration = Duration::from_millis(500);
/// Longest wait before a restart.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// A running process.
struct Alive {
    process: Running,
    link: Link<Tell, Ask>,
    since: Instant,
    /// It has done what it is there for: however it dies, its start did not fail.
    proved: bool,
    beat: Heartbeat,
    /// It was killed because it hung, and nobody else had stopped it.
    hung: bool,
    /// Turns in a row in which it had more to say than it was heard of.
    flood: u32,
    /// It has asked for what happens, and has got nothing yet.
    wants_events: bool,
}

/// See the module.
pub(super) struct Child {
    kind: Kind,
    alive: Option<Alive>,
    restarts: u32,
    /// Deaths in a row soon after the start, before it was of any use.
    failures: u32,
    restart_at: Option<Instant>,
    /// It ends, or has ended, because a process that it cannot do without is gone.
    bereft: bool,
}

impl Child {
    /// Starts the process.
    ///
    /// # Errors
    /// Its binary is missing, or the system's refusal.
    pub(super) fn start(kind: Kind, binaries: &Binaries) -> io::Result<Self> {
        Ok(Self {
            kind,
            alive: Some(spawn(kind, binaries)?),
            restarts: 0,
            failures: 0,
            restart_at: None,
            bereft: false,
        })
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive.is_some()
    }

    /// The socket on which it asks.
    pub(super) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.alive.as_ref().map(|a| a.link.as_fd())
    }

    /// Readable when it has died.
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.alive.as_ref().map(|a| a.process.as_fd())
    }

    /// When it is to be started again.
    pub(super) fn restart_at(&self) -> Option<Instant> {
        self.restart_at
    }

    /// Sends it a message without waiting. One that leaves no room for it does not listen, and is ended.
    ///
    /// # Errors
    /// It is gone or does not read.
    pub(super) fn tell(&self, tell: &Tell, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let told = self.tell_at_once(tell, fds);
        if is_full(&told) {
            tracing::error!("{} does not listen: it is killed", self.kind);
            self.kill();
        }
        told
    }

    /// The same for what may wait until there is room.
    ///
    /// # Errors
    /// It is gone, or there is no room for the message.
    pub(super) fn tell_at_once(&self, tell: &Tell, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        match &self.alive {
            Some(alive) => alive.link.send_at_once(tell, fds),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Looks after its heart-beat, and ends a process that hangs.
    pub(super) fn look(&mut self) -> Seen {
        let Some(alive) = &mut self.alive else {
            return Seen::Nothing;
        };
        let link = &alive.link;
        // One that is gone need not be asked.
        let ask = || !is_full(&link.send_at_once(&Tell::Ping, &[]));
        let seen = alive.beat.look(Instant::now(), ask);
        if seen == Seen::Hangs {
            tracing::error!("{} hangs: it is killed", self.kind);
            alive.hung = !is_stopped(alive.process.id());
            self.kill();
        }
        seen
    }

    /// It has not answered, and gets on all the same.
    pub(super) fn spare(&mut self) {
        if let Some(alive) = &mut self.alive {
            alive.beat.spare();
        }
    }

    /// It has shown that it lives. `false` when nobody had asked for that.
    pub(super) fn answered(&mut self) -> bool {
        let alive = self.alive.as_mut();
        alive.is_some_and(|alive| alive.beat.answered())
    }

    /// Whether it has ever shown that.
    pub(super) fn has_answered(&self) -> bool {
        self.alive.as_ref().is_some_and(|alive| alive.beat.lives())
    }

    /// Whether it leaves no room for questions.
    pub(super) fn does_not_listen(&self) -> bool {
        let alive = self.alive.as_ref();
        alive.is_some_and(|alive| alive.beat.is_unheard())
    }

    /// When to look after it next.
    pub(super) fn look_at(&self) -> Option<Instant> {
        self.alive.as_ref().and_then(|alive| alive.beat.due())
    }

    /// Whether it was killed because it hung of itself.
    pub(super) fn has_hung(&self) -> bool {
        self.alive.as_ref().is_some_and(|alive| alive.hung)
    }

    /// The next thing that it asks, if there is one. What makes no sense ends it, and so does a closed link:
    /// there is nothing that a process could do without us.
    pub(super) fn hear(&mut self) -> Option<(Ask, Vec<OwnedFd>)> {
        let alive = self.alive.as_mut()?;
        match alive.link.recv_within(Ask::most_bytes) {
            Ok(Received::Message(ask, fds)) => Some((ask, fds)),
            Ok(Received::Nothing) => {
                alive.flood = 0;
                None
            }
            Ok(Received::Closed) => {
                self.kill();
                None
            }
            Err(error) => {
                tracing::error!("{} makes no sense: {error}", self.kind);
                self.kill();
                None
            }
        }
    }

    /// It was heard for a whole turn, and there may be more. That costs nobody a turn, but is not what an honest one does.
    pub(super) fn has_more_to_say(&mut self) {
        let Some(alive) = &mut self.alive else {
            return;
        };
        alive.flood = alive.flood.saturating_add(1);
        if alive.flood == FLOOD {
            tracing::error!("{} floods its link", self.kind);
        }
    }

    /// It has asked for what happens, or has got it.
    pub(super) fn set_wants_events(&mut self, wants: bool) {
        if let Some(alive) = &mut self.alive {
            alive.wants_events = wants;
        }
    }

    /// Whether it waits for that.
    pub(super) fn wants_events(&self) -> bool {
        self.alive.as_ref().is_some_and(|alive| alive.wants_events)
    }

    /// It does what it is there for.
    pub(super) fn prove(&mut self) {
        if let Some(alive) = &mut self.alive {
            alive.proved = true;
        }
    }

    /// Its end is another's: a process that it cannot do without is gone. Of no effect when it has ended already.
    pub(super) fn set_bereft(&mut self) {
        self.bereft |= self.alive.is_some();
    }

    /// How it ended, if it has died and was not reaped yet. What it has said before can still be heard.
    pub(super) fn has_died(&mut self) -> Option<ExitStatus> {
        self.alive.as_mut()?.process.has_ended()
    }

    /// If it has died: notes when to start it again, and says how it died.
    pub(super) fn reap(&mut self) -> Option<Death> {
        let status = self.has_died()?;
        let how = match self.has_hung() {
            true => format!("{status}, because it hung"),
            false => status.to_string(),
        };
        let started = |a: Alive| a.proved || a.since.elapsed() >= STEADY;
        let started = self.alive.take().is_some_and(started);
        self.failures = if started { 0 } else { self.failures + 1 };
        // The first time at once; then 20 ms, 40 ms, ...
        let delay = match self.failures {
            0 | 1 => Duration::ZERO,
            n => Duration::from_millis(5 << n.min(10)).min(MAX_DELAY),
        };
        self.restart_at = Some(Instant::now() + delay);
        let kind = self.kind;
        Some(Death { kind, how })
    }

    /// Starts it again when it is time. `true` when that was done; when it cannot be started, it is tried
    /// again later.
    pub(super) fn restart_if_due(&mut self, binaries: &Binaries) -> bool {
        if self.restart_at.is_none_or(|at| at > Instant::now()) {
            return false;
        }
        match spawn(self.kind, binaries) {
            Ok(alive) => {
                self.restart_at = None;
                self.alive = Some(alive);
                // An alarm is to name the one that died first.
                self.restarts += u32::from(!mem::take(&mut self.bereft));
                true
            }
            Err(error) => {
                tracing::error!("{} cannot be started: {error}", self.kind);
                self.restart_at = Some(Instant::now() + MAX_DELAY);
                false
            }
        }
    }

    /// Ends a process that could not be told how to start; it is then started again.
    pub(super) fn kill_unless(&mut self, told: io::Result<()>) {
        if let Err(error) = told {
            tracing::warn!("{} could not be introduced: {error}", self.kind);
            self.kill();
        }
    }

    /// Ends it now.
    pub(super) fn kill(&self) {
        if let Some(alive) = &self.alive {
            alive.process.kill();
        }
    }

    /// Waits for its end, kills it at the deadline, and waits a moment more: who is killed may be held up in the system.
    /// `false` when it has not ended even then.
    pub(super) fn wait(&mut self, deadline: Instant) -> bool {
        if !self.dies_by(deadline) {
            self.kill();
            if !self.dies_by(Instant::now() + DEATH) {
                return false;
            }
        }
        self.alive = None;
        true
    }

    /// Waits for its death; what it has said can be heard after it. `false` when it did not die in time.
    pub(super) fn dies_by(&mut self, deadline: Instant) -> bool {
        while self.has_died().is_none() {
            let Some(alive) = &self.alive else {
                return true;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(left @ 1..) = i64::try_from(left.as_nanos()) else {
                return false;
            };
            let left = Timespec {
                tv_sec: left / 1_000_000_000,
                tv_nsec: left % 1_000_000_000,
            };
            let mut ended = [PollFd::new(&alive.process, PollFlags::IN)];
            // Interrupted or not, the loop looks.
            let _ = rustix::event::poll(&mut ended, Some(&left));
        }
        true
    }

    /// It takes the place of one that did not fail.
    pub(super) fn take_place_of(&mut self, before: &Self) {
        self.restarts = before.restarts;
        self.prove();
    }

    /// Whether it owes an answer, and whether it has ever given one.
    pub(super) fn beat(&self) -> (bool, bool) {
        let alive = self.alive.as_ref();
        alive.map_or((false, false), |alive| alive.beat.pass())
    }

    /// For the supervisor that takes the place of this one.
    pub(super) fn pass<'a>(&'a self, giving: &mut Giving<'a>) -> PassedChild {
        let alive = self.alive.as_ref().map(|alive| PassedProcess {
            pid: alive.process.id(),
            link: giving.give(alive.link.as_fd()),
            uptime_ms: alive.since.elapsed().as_millis() as u64,
            proved: alive.proved,
            beat: alive.beat.pass(),
        });
        PassedChild {
            restarts: self.restarts,
            alive,
        }
    }

    /// One that the supervisor before this one has started.
    ///
    /// # Errors
    /// It is none of our processes.
    pub(super) fn take(kind: Kind, from: PassedChild, fds: &mut Taking) -> Result<Self, String> {
        let take = |passed: PassedProcess| -> Result<Alive, String> {
            let process = Running::with_pid(passed.pid).map_err(|e| e.to_string())?;
            let now = Instant::now();
            let uptime = Duration::from_millis(passed.uptime_ms);
            Ok(Alive {
                process,
                link: Link::new(fds.take(passed.link)?),
                since: now.checked_sub(uptime).unwrap_or(now),
                proved: passed.proved,
                beat: Heartbeat::take(passed.beat, now, kind),
                hung: false,
                flood: 0,
                // Its version may be one that knows of none.
                wants_events: false,
            })
        };
        let alive = from.alive.map(take).transpose()?;
        Ok(Self {
            kind,
            restart_at: alive.is_none().then(Instant::now),
            alive,
            restarts: from.restarts,
            failures: 0,
            bereft: false,
        })
    }

    /// For `lasthop status`.
    pub(super) fn info(&self) -> ProcessInfo {
        let alive = self.alive.as_ref();
        ProcessInfo {
            name: self.kind.to_string(),
            pid: alive.map_or(0, |a| a.process.id()),
            restarts: self.restarts,
            uptime_ms: alive.map_or(0, |a| a.since.elapsed().as_millis() as u64),
        }
    }
}

fn spawn(kind: Kind, binaries: &Binaries) -> io::Result<Alive> {
    let (ours, theirs) = link::pair()?;
    let number = theirs.as_raw_fd();
    let mut command = binaries.command(kind);
    command
        .env(LINK_FD, CHILD_LINK.to_string())
        // It is not for them to say that all is ready.
        .env_remove(super::notify::SOCKET)
        .env_remove(replace::RESUME)
        .stdin(Stdio::null());
    // SAFETY: the closure only makes system calls, which are async-signal-safe, on values that it owns.
    unsafe { command.pre_exec(move || prepare_child(number)) };
    let process = command
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", kind.binary())))?;
    watched(kind, &process, ours)
}

/// A process that was started, with our end of its link.
fn watched(kind: Kind, process: &std::process::Child, ours: OwnedFd) -> io::Result<Alive> {
    let process = Running::of(process)?;
    let link = Link::new(ours);
    link.set_nonblocking()?;
    Ok(Alive {
        process,
        link,
        since: Instant::now(),
        proved: false,
        beat: Heartbeat::new(Instant::now(), kind),
        hung: false,
        flood: 0,
        wants_events: false,
    })
}

/// Whether there was no room for a message.
pub(super) fn is_full(told: &io::Result<()>) -> bool {
    let kind = told.as_ref().err().map(io::Error::kind);
    kind == Some(io::ErrorKind::WouldBlock)
}

/// In the child, before `exec`: it ends with us, has a session of its own and no signals blocked, and finds its link and no other descriptor that we or
/// whoever started us left open.
fn prepare_child(link: i32) -> io::Result<()> {
    // SAFETY: both numbers are descriptors of this process; the copy does not close on exec. When the link
    // already has its number, only that flag is taken off.
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

/// The same for one that has no link: descriptors from `first` on are not for it.
pub(super) fn prepare(first: i32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // A terminal that we were started from is none of its own: no key typed there is for it, and it can type none.
    rustix::process::setsid()?;
    // SAFETY: an empty signal set is made before it is used; the calls touch nothing else of ours.
    unsafe {
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
    let (last, flags) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: the call takes three numbers, and closes nothing before `exec`. Linux before 5.11 does not know it: there what is
    // ours closes all the same, because it was opened so.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    Ok(())
}

/// Every guest brings descriptors: takes as many as the system allows.
pub(super) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // The soft limit that we had will do otherwise.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
impl Child {
    /// A process that does nothing, and its end of the link.
    pub(super) fn idle(kind: Kind) -> (Self, Link<Ask, Tell>) {
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
        let child = Self {
            kind,
            alive: Some(watched(kind, &command.spawn().unwrap(), ours).unwrap()),
            restarts: 0,
            failures: 0,
            restart_at: None,
            bereft: false,
        };
        (child, Link::new(theirs))
    }
}
