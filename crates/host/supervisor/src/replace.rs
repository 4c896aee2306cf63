//! Replacement of the supervisor in the same process: the other processes keep their parent.
//!
//! ```text
//! old supervisor   writes its state into a memory file ([`Record`]), clears close-on-exec of the
//!                  descriptors in it, and executes the new program
//! new supervisor   finds the file by its environment, takes copies of the descriptors, closes the
//!                  originals, and resumes
//! ```
//!
//! If the new supervisor cannot resume, it executes the old program again, which finds the same
//! file. Messages to the supervisor wait in the sockets meanwhile.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc::sockets::{ADMIN_SOCKET, API_SOCKET};
use ipc::start::START_FD;
use ipc::state::StateFile;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, getrlimit};

use sys::closer;

use super::admin::Admin;
use super::binaries::Binaries;
use super::child::Child;
use super::connection_table::ConnectionTable;
use super::drivers::Drivers;
use super::environment::RESUME;
use super::events::PendingEvents;
use super::guests::Guests;
use super::lock::Lock;
use super::paths::Paths;
use super::record::{
    IncomingFds, OutgoingFds, PassedPair, PassedSetup, PassedSockets, Record, RecordError,
    check_descriptor_limit,
};
use super::reload::Reload;
use super::running;
use super::saved_sessions::SavedSessions;
use super::sockets::Sockets;
use super::supervisor::hand_over_state::HandOvers;
use super::supervisor::pair::Pair;
use super::supervisor::upgrade_state::Upgrade;
use super::supervisor::{Home, Setup, Supervisor};

/// Reason why another program does not take the place of this one, or cannot continue for it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplaceError {
    #[error(
        "descriptors that others have sent are not closed within {} ms",
        CLOSER_TIMEOUT.as_millis()
    )]
    Unclosed,
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("cannot execute the new supervisor: {0}")]
    Execute(io::Error),
    #[error("malformed {RESUME}")]
    Variable,
}

/// Time in which what others have sent must be closed before an exec: 500 milliseconds.
const CLOSER_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum size of a record in bytes: 1024 ports with the longest records.
const MAX_RECORD_BYTES: u64 = 256 << 20;

fn record<'a>(
    supervisor: &'a Supervisor,
    upgrade: Option<&'a Upgrade>,
    failed: Option<String>,
    outgoing: &mut OutgoingFds<'a>,
) -> Result<Record, RecordError> {
    let binaries = supervisor.binaries.pass(outgoing);
    let passed = upgrade.map(|upgrade| upgrade.pass(failed, outgoing));
    let mut record = Record {
        fds: Vec::new(),
        runtime_dir: supervisor.home.dir.display().to_string(),
        sockets: PassedSockets {
            listening: supervisor.sockets.pass(outgoing),
            dirs: supervisor.sockets.dirs().to_vec(),
            dials: supervisor.sockets.dials().clone(),
        },
        lock: outgoing.add(supervisor.home.lock.as_fd()),
        setup: PassedSetup {
            state: outgoing.add(supervisor.setup.state.as_fd()),
            counters: outgoing.add(supervisor.setup.counters.as_fd()),
            table: supervisor
                .setup
                .table
                .as_ref()
                .map(|table| outgoing.add(table.as_fd())),
            thread_slots: outgoing.add(supervisor.setup.thread_slots.as_fd()),
            settings: supervisor.setup.settings.clone(),
        },
        pair: PassedPair {
            control: supervisor.pair.control.pass(outgoing),
            switch: supervisor.pair.switch.pass(outgoing),
            link: supervisor
                .pair
                .link
                .as_ref()
                .map(|link| outgoing.add(link.as_fd())),
        },
        saved_sessions: supervisor.saved_sessions.pass(outgoing),
        drivers: supervisor.drivers.pass(outgoing),
        uptime_ms: supervisor.started.elapsed().as_millis() as u64,
        binaries,
        upgrade: passed,
        guests: supervisor.guests.pass(outgoing),
        users: supervisor.drivers.pass_users(outgoing),
        prefilters: supervisor.drivers.pass_prefilters(outgoing),
    };
    record.fds = outgoing.numbers();
    // A rollback must be tried anyway: there is no alternative.
    if record
        .upgrade
        .as_ref()
        .is_none_or(|upgrade| upgrade.failed.is_none())
    {
        check_descriptor_limit(record.fds.len(), getrlimit(Resource::Nofile).current)?;
    }
    Ok(record)
}

/// Returns a record for the self-check of another supervisor.
///
/// # Errors
/// Failed system call, or a record that cannot be written.
pub(super) fn trial_record(supervisor: &Supervisor) -> Result<OwnedFd, RecordError> {
    let record = self::record(supervisor, None, None, &mut OutgoingFds::default())?;
    store(&record.to_bytes()?).map(OwnedFd::from)
}

/// Executes the new program of an upgrade, or, after a failure, the old one.
///
/// # Errors
/// The reason of the failure; everything is as before.
pub(super) fn exec(
    supervisor: &Supervisor,
    upgrade: &Upgrade,
    failed: Option<String>,
) -> Result<(), ReplaceError> {
    // exec(2) ends all other threads and waits for each, without end for one that closes a
    // descriptor which does not close.
    if !closer::settle(Instant::now() + CLOSER_TIMEOUT) {
        return Err(ReplaceError::Unclosed);
    }
    let old = supervisor.binaries.supervisor();
    let program = match failed {
        None => upgrade.new.supervisor(),
        Some(_) => old,
    };
    let mut outgoing = OutgoingFds::default();
    let record = self::record(supervisor, Some(upgrade), failed, &mut outgoing)?;
    let file = store(&record.to_bytes()?)?;
    let exec = || {
        outgoing.set_inheritable(true)?;
        fcntl_setfd(&file, FdFlags::empty())?;
        Err(execute(program, &resume_by(&file, old, None)))
    };
    let error: io::Error = match exec() {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    outgoing
        .set_inheritable(false)
        .map_err(ReplaceError::Execute)?;
    Err(ReplaceError::Execute(error))
}

fn store(bytes: &[u8]) -> Result<File, RecordError> {
    let file = sys::file::constant("lasthop-supervisor", bytes);
    file.map_err(RecordError::Write)
}

/// Reads a record from a file.
///
/// # Errors
/// It cannot be read, or is malformed.
pub(super) fn load(mut file: &File) -> Result<Record, RecordError> {
    let mut bytes = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes));
    read.map_err(RecordError::Read)?;
    Record::from_bytes(&bytes)
}

/// Returns the value of [`RESUME`].
fn resume_by(record: &File, old: BorrowedFd<'_>, why: Option<&str>) -> OsString {
    let (record, old) = (record.as_raw_fd(), old.as_raw_fd());
    let why = why.map(|why| format!(":{}", why.replace(['\0', '\n'], " ")));
    format!("{record}:{old}{}", why.unwrap_or_default()).into()
}

/// Executes an open program with the arguments of this one. Blocked signals stay blocked.
fn execute(program: BorrowedFd<'_>, resume: &OsStr) -> io::Error {
    let text = |bytes: Vec<u8>| CString::new(bytes).unwrap_or_default();
    let arguments: Vec<CString> = std::env::args_os().map(|a| text(a.into_vec())).collect();
    let mut environment: Vec<CString> = std::env::vars_os()
        .filter(|(name, _)| name != RESUME && name != START_FD)
        .map(|(name, value)| text([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect();
    environment.push(text([RESUME.as_bytes(), b"=", resume.as_bytes()].concat()));
    let pointers = |all: &[CString]| {
        let all = all.iter().map(|text| text.as_ptr());
        all.chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (arguments, environment) = (pointers(&arguments), pointers(&environment));
    let path: &CStr = c"";
    // SAFETY: both lists end with a null pointer, and they and the texts that they point to live
    // until the call returns, which it does only when it fails.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            path.as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

/// Rollback to the previous program.
struct Rollback {
    record: File,
    /// Number of the program's descriptor, which is in the record.
    old: RawFd,
    /// Reason of a rollback; set if this is the old program.
    why: Option<String>,
}

impl Rollback {
    /// Parses the environment variable.
    fn find(value: &OsStr) -> Option<Self> {
        let mut parts = value.to_str()?.splitn(3, ':');
        let mut number = || parts.next()?.parse().ok().filter(|n: &RawFd| *n > 2);
        let (record, old) = (number()?, number()?);
        // SAFETY: the previous supervisor left it open for this purpose alone, and this is called
        // once.
        let record = unsafe { OwnedFd::from_raw_fd(record) };
        Some(Self {
            record: record.into(),
            old,
            why: parts.next().map(str::to_owned),
        })
    }

    /// Executes the previous program; returns only on failure, or if this is it. It must not be
    /// called after the descriptors of the record were closed.
    fn execute(&self, why: &str) {
        tracing::error!("cannot resume: {why}");
        if self.why.is_some() {
            return;
        }
        // SAFETY: the number is in the record, whose descriptors are open until the end of the
        // restoration.
        let old = unsafe { BorrowedFd::borrow_raw(self.old) };
        let error = execute(old, &resume_by(&self.record, old, Some(why)));
        tracing::error!("cannot execute the previous supervisor: {error}");
    }
}

/// Resumes as the successor of the previous supervisor.
///
/// # Errors
/// The reason of the failure, if a rollback is not possible either.
pub(super) fn resume() -> Result<Supervisor, ReplaceError> {
    let value = std::env::var_os(RESUME).unwrap_or_default();
    let Some(rollback) = Rollback::find(&value) else {
        return Err(ReplaceError::Variable);
    };
    let rollback = Arc::new(rollback);
    let hook = Arc::clone(&rollback);
    std::panic::set_hook(Box::new(move |panic| hook.execute(&panic.to_string())));
    let restored = load(&rollback.record).and_then(|record| {
        let failed = rollback.why.clone();
        restore(record, failed)
    });
    drop(std::panic::take_hook());
    if let Err(error) = &restored {
        rollback.execute(&error.to_string());
    }
    Ok(restored?)
}

/// Restores the supervisor from a record. Nothing has changed after a failure: values with effects
/// when they are dropped are made last.
fn restore(record: Record, failed: Option<String>) -> Result<Supervisor, RecordError> {
    let mut fds = IncomingFds::new(record.fds)?;
    let mut listening = BTreeMap::new();
    for (path, index) in record.sockets.listening {
        listening.insert(path, fds.take(index)?);
    }
    let api = copy_of(&listening, API_SOCKET)?;
    let admin = Admin::new(copy_of(&listening, ADMIN_SOCKET)?)?;
    let setup = take_setup(record.setup, &mut fds)?;
    let lock = fds.take(record.lock)?;
    let mut pair = take_pair(record.pair, &mut fds)?;
    let earlier = record.upgrade.as_ref();
    if failed.is_some() || earlier.is_some_and(|upgrade| upgrade.failed.is_some()) {
        // This version has started it, and it has requested events before.
        pair.control.set_wants_events(true);
    }
    let saved_sessions = SavedSessions::take(record.saved_sessions, &mut fds)?;
    let mut drivers = Drivers::take(record.drivers, record.users.reach, &mut fds)?;
    drivers.take_flows(record.users.flows, &mut fds)?;
    drivers.take_prefilters(record.prefilters, &mut fds)?;
    let guests = Guests::take(record.guests, &mut fds)?;
    let binaries = Binaries::take(record.binaries, &mut fds)?;
    let upgrade = record
        .upgrade
        .map(|upgrade| Upgrade::take(upgrade, failed, &mut fds))
        .transpose()?;
    let drivers_now = drivers.processes();
    let known = [pair.control.info(), pair.switch.info()]
        .into_iter()
        .chain(drivers_now);
    running::adopt_given_up(&known.map(|process| process.pid).collect::<Vec<_>>());
    // A rollback is not possible any longer, and nothing can fail.
    fds.close_originals();
    drivers.set_networks(record.users.networks);
    let runtime_dir = PathBuf::from(record.runtime_dir);
    let paths = Paths::in_dirs(&runtime_dir, record.sockets.dirs);
    let now = Instant::now();
    let uptime = Duration::from_millis(record.uptime_ms);
    Ok(Supervisor {
        binaries,
        reload: Reload::of_this_process(),
        sockets: Sockets::take(paths, listening, record.sockets.dials),
        drivers,
        saved_sessions,
        guests,
        events: PendingEvents::default(),
        setup,
        pair,
        started: now.checked_sub(uptime).unwrap_or(now),
        ready: true,
        admin,
        upgrade,
        hand_over: HandOvers::default(),
        home: Home {
            lock: Lock::of(&runtime_dir, lock),
            dir: runtime_dir,
            api: api.into(),
        },
    })
}

fn take_setup(from: PassedSetup, fds: &mut IncomingFds) -> Result<Setup, RecordError> {
    Ok(Setup {
        settings: from.settings,
        state: StateFile::from_fd(fds.take(from.state)?),
        counters: fds.take(from.counters)?,
        table: from
            .table
            .map(|table| fds.take(table).map(ConnectionTable::of))
            .transpose()?,
        thread_slots: fds.take(from.thread_slots)?,
    })
}

fn take_pair(from: PassedPair, fds: &mut IncomingFds) -> Result<Pair, RecordError> {
    let control = Child::take(from.control, fds)?;
    let switch = Child::take(from.switch, fds)?;
    let link = from.link.map(|link| fds.take(link)).transpose()?;
    Ok(Pair {
        link,
        ..Pair::new(control, switch)
    })
}

fn copy_of(
    listening: &BTreeMap<String, OwnedFd>,
    path: &'static str,
) -> Result<OwnedFd, RecordError> {
    let socket = listening.get(path);
    Ok(socket.ok_or(RecordError::NoSocket(path))?.try_clone()?)
}
