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

mod fds;
mod record;
mod setting;
mod switch_settings;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use channel::sockets::{ADMIN_SOCKET, API_SOCKET};
use channel::start::START_FD;
use channel::state::StateFile;
use channel::supervision::SwitchSettings;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, getrlimit};
use sched::topology;

use sys::closer;

use super::admin::Admin;
use super::binaries::Binaries;
use super::child::{Child, Kind};
use super::drivers::Drivers;
use super::events::PendingEvents;
use super::guests::Guests;
use super::hand_over::HandOvers;
use super::lock::Lock;
use super::notify;
use super::paths::Paths;
use super::reload::Reload;
use super::saved_sessions::SavedSessions;
use super::sockets::Sockets;
use super::start;
use super::upgrade::Upgrade;
use super::{Home, Pair, Setup, Supervisor, running};
pub(super) use fds::{FdIndex, IncomingFds, OutgoingFds};
pub(super) use record::{
    CommandLineFiles, PassedBinaries, PassedChild, PassedCrashCounts, PassedDriver, PassedFlows,
    PassedGuests, PassedPair, PassedProcess, PassedSession, PassedSessions, PassedSetup,
    PassedSockets, PassedUpgrade, PassedUsers, Record,
};

/// Time in which what others have sent must be closed before an exec: 500 milliseconds.
const CLOSER_TIMEOUT: Duration = Duration::from_millis(500);

/// Environment variable for a supervisor that replaces another: the number of the record's
/// descriptor, the number of the other program's descriptor, and, for a rollback, the reason;
/// separated by colons.
pub(super) const RESUME: &str = "LASTHOP_RESUME";

/// Removes from a new process's environment what is the supervisor's: only it notifies the service
/// manager, and only it was started with descriptors.
pub(super) fn without_own_variables(command: &mut Command) -> &mut Command {
    let own = [notify::SOCKET, RESUME, START_FD];
    own.into_iter()
        .fold(command, |command, name| command.env_remove(name))
}

/// Maximum size of a record in bytes: 1024 ports with the longest records.
const MAX_RECORD_BYTES: u64 = 256 << 20;

impl Supervisor {
    fn record<'a>(
        &'a self,
        upgrade: Option<&'a Upgrade>,
        failed: Option<String>,
        outgoing: &mut OutgoingFds<'a>,
    ) -> Result<Record, String> {
        let (binaries, command_line) = self.binaries.pass(outgoing);
        let (passed, new_command_line) = upgrade
            .map(|upgrade| upgrade.pass(failed, outgoing))
            .unzip();
        let mut record = Record {
            fds: Vec::new(),
            runtime_dir: self.home.dir.display().to_string(),
            sockets: PassedSockets {
                listening: self.sockets.pass(outgoing),
                dirs: self.sockets.dirs().to_vec(),
                dials: self.sockets.dials().clone(),
            },
            lock: outgoing.add(self.home.lock.as_fd()),
            setup: PassedSetup {
                state: outgoing.add(self.setup.state.as_fd()),
                counters: outgoing.add(self.setup.counters.as_fd()),
                thread_slots: outgoing.add(self.setup.thread_slots.as_fd()),
                settings: self.setup.settings.clone(),
            },
            pair: PassedPair {
                control: self.pair.control.pass(outgoing),
                switch: self.pair.switch.pass(outgoing),
            },
            saved_sessions: self.saved_sessions.pass(outgoing),
            drivers: self.drivers.pass(outgoing),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            binaries,
            upgrade: passed,
            command_line: CommandLineFiles {
                own: Some(command_line),
                new: new_command_line,
            },
            version: upgrade.map(Upgrade::record_version).unwrap_or_default(),
            guests: Some(self.guests.pass(outgoing)),
            users: self.drivers.pass_users(outgoing),
        };
        record.fds = outgoing.numbers();
        // A rollback must be tried anyway: there is no alternative.
        if record
            .upgrade
            .as_ref()
            .is_none_or(|upgrade| upgrade.failed.is_none())
        {
            fds::check_descriptor_limit(record.fds.len(), getrlimit(Resource::Nofile).current)?;
        }
        Ok(record)
    }

    /// Returns a record for the self-check of another supervisor.
    ///
    /// # Errors
    /// Failed system call, or a record that cannot be written.
    pub(super) fn trial_record(&self) -> Result<OwnedFd, String> {
        let record = self.record(None, None, &mut OutgoingFds::default())?;
        store(&record.to_trial_bytes()?).map(OwnedFd::from)
    }

    /// Executes the new program of an upgrade, or, after a failure, the old one.
    ///
    /// # Errors
    /// The reason of the failure; everything is as before.
    pub(super) fn exec_supervisor(
        &self,
        upgrade: &Upgrade,
        failed: Option<String>,
    ) -> Result<(), String> {
        // exec(2) ends all other threads and waits for each, without end for one that closes a
        // descriptor which does not close.
        if !closer::settle(Instant::now() + CLOSER_TIMEOUT) {
            return Err(format!(
                "descriptors that others have sent are not closed within {} ms",
                CLOSER_TIMEOUT.as_millis()
            ));
        }
        let old = self.binaries.supervisor();
        let program = match failed {
            None => upgrade.new_binaries().supervisor(),
            Some(_) => old,
        };
        let mut outgoing = OutgoingFds::default();
        let record = self.record(Some(upgrade), failed, &mut outgoing)?;
        let file = store(&record.to_bytes(record.version)?)?;
        let exec = || {
            outgoing.set_inheritable(true)?;
            fcntl_setfd(&file, FdFlags::empty())?;
            Err(execute(program, &resume_by(&file, old, None)))
        };
        let error: io::Error = match exec() {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        outgoing.set_inheritable(false).map_err(|e| e.to_string())?;
        Err(format!("cannot execute the new supervisor: {error}"))
    }
}

fn store(bytes: &[u8]) -> Result<File, String> {
    let file = sys::file::constant("lasthop-supervisor", bytes);
    file.map_err(|e| format!("cannot write the record: {e}"))
}

/// Reads a record from a file.
///
/// # Errors
/// It cannot be read, or is malformed.
pub(super) fn load(mut file: &File) -> Result<Record, String> {
    let mut bytes = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes));
    read.map_err(|e| format!("cannot read the record: {e}"))?;
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
pub(super) fn resume() -> Result<Supervisor, String> {
    let value = std::env::var_os(RESUME).unwrap_or_default();
    let Some(rollback) = Rollback::find(&value) else {
        return Err(format!("malformed {RESUME}"));
    };
    let rollback = Arc::new(rollback);
    let hook = Arc::clone(&rollback);
    std::panic::set_hook(Box::new(move |panic| hook.execute(&panic.to_string())));
    let restored = load(&rollback.record).and_then(|record| {
        let failed = rollback.why.clone();
        restore(record, failed)
    });
    drop(std::panic::take_hook());
    if let Err(reason) = &restored {
        rollback.execute(reason);
    }
    restored
}

/// Restores the supervisor from a record. Nothing has changed after a failure: values with effects
/// when they are dropped are made last.
fn restore(record: Record, failed: Option<String>) -> Result<Supervisor, String> {
    let mut fds = IncomingFds::new(record.fds)?;
    let version = record.version;
    let mut listening = BTreeMap::new();
    for (path, index) in record.sockets.listening {
        listening.insert(path, fds.take(index)?);
    }
    let api = copy_of(&listening, API_SOCKET)?;
    let admin = Admin::new(copy_of(&listening, ADMIN_SOCKET)?).map_err(|e| e.to_string())?;
    let state = StateFile::from_fd(fds.take(record.setup.state)?);
    setting::check(&state)?;
    let (counters, thread_slots) = (
        fds.take(record.setup.counters)?,
        fds.take(record.setup.thread_slots)?,
    );
    let lock = fds.take(record.lock)?;
    let mut control = Child::take(Kind::Control, record.pair.control, &mut fds)?;
    let is_back = failed.is_some()
        || record
            .upgrade
            .as_ref()
            .is_some_and(|upgrade| upgrade.failed.is_some());
    if is_back {
        // This version has started it, and it has requested events before.
        control.set_wants_events(true);
    }
    let switch = Child::take(Kind::Switch, record.pair.switch, &mut fds)?;
    let saved_sessions = SavedSessions::take(record.saved_sessions, &mut fds)?;
    let mut drivers = Drivers::take(record.drivers, record.users.reach, &mut fds)?;
    drivers.take_flows(record.users.flows, &mut fds)?;
    let guests = record.guests.map(|guests| Guests::take(guests, &mut fds));
    let guests = guests.transpose()?.unwrap_or_default();
    let CommandLineFiles { own, new } = record.command_line;
    let binaries = Binaries::take((record.binaries, own), &mut fds)?;
    let upgrade = record
        .upgrade
        .map(|upgrade| Upgrade::take((upgrade, new), version, failed, &mut fds))
        .transpose()?;
    let drivers_now = drivers.processes();
    let known = [control.info(), switch.info()]
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
        reload: Reload::of(start::configuration()),
        sockets: Sockets::take(paths, listening, record.sockets.dials),
        drivers,
        saved_sessions,
        guests,
        events: PendingEvents::default(),
        setup: Setup {
            settings: SwitchSettings {
                // They may have changed since.
                cores: topology::cores(),
                ..record.setup.settings
            },
            state,
            counters,
            thread_slots,
        },
        pair: Pair { control, switch },
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

fn copy_of(listening: &BTreeMap<String, OwnedFd>, path: &str) -> Result<OwnedFd, String> {
    let socket = listening.get(path);
    let socket = socket.ok_or_else(|| format!("no listening socket for {path}"))?;
    socket.try_clone().map_err(|e| e.to_string())
}
