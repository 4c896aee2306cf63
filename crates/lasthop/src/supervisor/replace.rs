//! One supervisor takes the place of another in the same process: other processes see the same parent.
//!
//! ```text
//! the old one   writes all that it knows into a memory file ([`Record`]), has the descriptors that are in it outlive
//!               `exec`, and becomes the new program
//! the new one   finds the file by its environment, takes copies of the descriptors, closes the others, and goes on
//! ```
//!
//! If the new one cannot go on, it becomes the old program again, which finds the same file. Nobody is asked for anything on
//! the way: what is said to the supervisor meanwhile waits in sockets.

mod fds;
mod record;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use channel::files;
use channel::link::sealed_file;
use channel::state::StateFile;
use control::engine::Saved;
use control::wanted::{ADMIN_SOCKET, API_SOCKET};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, getrlimit};

use super::Supervisor;
use super::admin::Admin;
use super::binaries::Binaries;
use super::child::{Child, Kind};
use super::deposits::Deposits;
use super::drivers::Drivers;
use super::events::Untold;
use super::guests::Guests;
use super::lock::Lock;
use super::paths::Paths;
use super::reload::Reload;
use super::sockets::Sockets;
use super::upgrade::Upgrade;
pub(super) use fds::{Giving, Place, Taking};
pub(super) use record::{
    PassedBinaries, PassedBlame, PassedChild, PassedDeposit, PassedDeposits, PassedDevice,
    PassedDriver, PassedProcess, PassedReach, PassedReport, PassedUpgrade, PassedXdp, Record,
};

/// The environment variable by which a supervisor knows that it takes the place of another: the number of the record's
/// descriptor, that of the other one's program, and, when that one gets its place back, why; with colons between.
pub(super) const RESUME: &str = "LASTHOP_RESUME";

/// Bytes of a record at most: 1024 ports with the longest records.
const RECORD_MAX: u64 = 256 << 20;

impl Supervisor {
    fn record<'a>(
        &'a self,
        upgrade: Option<&'a Upgrade>,
        failed: Option<String>,
        giving: &mut Giving<'a>,
    ) -> Result<Record, String> {
        let mut record = Record {
            fds: Vec::new(),
            runtime_dir: self.runtime_dir.display().to_string(),
            sockets: self.sockets.pass(giving),
            lock: giving.give(self.lock.as_fd()),
            state: giving.give(self.state.as_fd()),
            counters: giving.give(self.counters.as_fd()),
            marks: giving.give(self.marks.as_fd()),
            settings: self.settings.clone().into(),
            control: self.control.pass(giving),
            switch: self.switch.pass(giving),
            deposits: self.deposits.pass(giving),
            drivers: self.drivers.pass(giving),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            binaries: self.binaries.pass(giving),
            upgrade: upgrade.map(|upgrade| upgrade.pass(failed, giving)),
            reach: Some(PassedReach {
                dirs: self.sockets.dirs().to_vec(),
                dials: self.sockets.dials().clone(),
            }),
            version: upgrade.map(Upgrade::record_version).unwrap_or_default(),
        };
        record.fds = giving.numbers();
        // Who goes back must try: there is nothing better left.
        if record
            .upgrade
            .as_ref()
            .is_none_or(|upgrade| upgrade.failed.is_none())
        {
            fds::fit(record.fds.len(), getrlimit(Resource::Nofile).current)?;
        }
        Ok(record)
    }

    /// What another supervisor would be given, for it to look at.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn trial_record(&self) -> Result<OwnedFd, String> {
        let record = self.record(None, None, &mut Giving::default())?;
        store(&record.to_trial_bytes()?).map(OwnedFd::from)
    }

    /// Becomes the program that the upgrade is to, or, when it has failed, the one that it was from.
    ///
    /// # Errors
    /// Why it could not; everything is as it was.
    pub(super) fn become_another(
        &self,
        upgrade: &Upgrade,
        failed: Option<String>,
    ) -> Result<(), String> {
        let old = self.binaries.supervisor();
        let program = match failed {
            None => upgrade.new_binaries().supervisor(),
            Some(_) => old,
        };
        let mut giving = Giving::default();
        let record = self.record(Some(upgrade), failed, &mut giving)?;
        let file = store(&record.to_bytes(record.version)?)?;
        let become_it = || {
            giving.outlive_exec(true)?;
            fcntl_setfd(&file, FdFlags::empty())?;
            Err(execute(program, &resume_by(&file, old, None)))
        };
        let error: io::Error = match become_it() {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        giving.outlive_exec(false).map_err(|e| e.to_string())?;
        Err(format!("the new supervisor cannot be executed: {error}"))
    }
}

fn store(bytes: &[u8]) -> Result<File, String> {
    let file = sealed_file("lasthop-supervisor", bytes);
    file.map_err(|e| format!("the record cannot be written: {e}"))
}

/// A record from a file.
///
/// # Errors
/// It cannot be read, or is none.
pub(super) fn load(mut file: &File) -> Result<Record, String> {
    let mut bytes = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(RECORD_MAX).read_to_end(&mut bytes));
    read.map_err(|e| format!("the record cannot be read: {e}"))?;
    Record::from_bytes(&bytes)
}

/// The value of [`RESUME`].
fn resume_by(record: &File, old: BorrowedFd<'_>, why: Option<&str>) -> OsString {
    let (record, old) = (record.as_raw_fd(), old.as_raw_fd());
    let why = why.map(|why| format!(":{}", why.replace(['\0', '\n'], " ")));
    format!("{record}:{old}{}", why.unwrap_or_default()).into()
}

/// Becomes an open program, with the arguments of this one. Signals that are blocked stay so.
fn execute(program: BorrowedFd<'_>, resume: &OsStr) -> io::Error {
    let text = |bytes: Vec<u8>| CString::new(bytes).unwrap_or_default();
    let arguments: Vec<CString> = std::env::args_os().map(|a| text(a.into_vec())).collect();
    let mut environment: Vec<CString> = std::env::vars_os()
        .filter(|(name, _)| name != RESUME)
        .map(|(name, value)| text([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect();
    environment.push(text([RESUME.as_bytes(), b"=", resume.as_bytes()].concat()));
    let pointers = |all: &[CString]| {
        let all = all.iter().map(|text| text.as_ptr());
        all.chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (arguments, environment) = (pointers(&arguments), pointers(&environment));
    let path: &CStr = c"";
    // SAFETY: both lists end with a null pointer, and they and the texts that they point to live until the call returns,
    // which it does only when it fails.
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

/// The way back to the program before this one.
struct WayBack {
    record: File,
    /// The number of the program's descriptor, which is one of the record's.
    old: RawFd,
    /// This is that program, and why it is needed again.
    why: Option<String>,
}

impl WayBack {
    /// By the environment.
    fn find(value: &OsStr) -> Option<Self> {
        let mut parts = value.to_str()?.splitn(3, ':');
        let mut number = || parts.next()?.parse().ok().filter(|n: &RawFd| *n > 2);
        let (record, old) = (number()?, number()?);
        // SAFETY: the supervisor before this one left it open for this purpose alone, and this is called once.
        let record = unsafe { OwnedFd::from_raw_fd(record) };
        Some(Self {
            record: record.into(),
            old,
            why: parts.next().map(str::to_owned),
        })
    }

    /// Becomes that program; returns only if that cannot be done, or it is this one. Not to be called when the
    /// descriptors of the record were closed.
    fn go(&self, why: &str) {
        tracing::error!("this supervisor cannot go on: {why}");
        if self.why.is_some() {
            return;
        }
        // SAFETY: the number is one of the record's, all of which are open until the taking over is done.
        let old = unsafe { BorrowedFd::borrow_raw(self.old) };
        let error = execute(old, &resume_by(&self.record, old, Some(why)));
        tracing::error!("the one before cannot be executed: {error}");
    }
}

/// Goes on as the supervisor before this one.
///
/// # Errors
/// Why that cannot be done, where there is no way back either.
pub(super) fn resume() -> Result<Supervisor, String> {
    let value = std::env::var_os(RESUME).unwrap_or_default();
    // It was started from an open file, which has no name of its own.
    let _ = rustix::thread::set_name(c"lasthop");
    let Some(way_back) = WayBack::find(&value) else {
        return Err(format!("{RESUME} makes no sense"));
    };
    let way_back = Arc::new(way_back);
    let way = Arc::clone(&way_back);
    std::panic::set_hook(Box::new(move |panic| way.go(&panic.to_string())));
    let restored = load(&way_back.record).and_then(|record| {
        let failed = way_back.why.clone();
        restore(record, failed)
    });
    drop(std::panic::take_hook());
    if let Err(reason) = &restored {
        way_back.go(reason);
    }
    restored
}

/// Takes everything. Where that fails, nothing has happened: what ends or removes something when it is dropped is made last.
fn restore(record: Record, failed: Option<String>) -> Result<Supervisor, String> {
    let mut fds = Taking::new(record.fds)?;
    let version = record.version;
    let mut listening = BTreeMap::new();
    for (path, place) in record.sockets {
        listening.insert(path, fds.take(place)?);
    }
    let api = copy_of(&listening, API_SOCKET)?;
    let admin = Admin::new(copy_of(&listening, ADMIN_SOCKET)?).map_err(|e| e.to_string())?;
    let state = StateFile::from_fd(fds.take(record.state)?);
    let (counters, marks) = (fds.take(record.counters)?, fds.take(record.marks)?);
    let lock = fds.take(record.lock)?;
    let mut control = Child::take(Kind::Control, record.control, &mut fds)?;
    let is_back = failed.is_some()
        || record
            .upgrade
            .as_ref()
            .is_some_and(|upgrade| upgrade.failed.is_some());
    if is_back {
        // It is one that this version has started, and has asked before.
        control.set_wants_events(true);
    }
    let switch = Child::take(Kind::Switch, record.switch, &mut fds)?;
    let deposits = Deposits::take(record.deposits, &mut fds)?;
    let drivers = Drivers::take(record.drivers, &mut fds)?;
    let binaries = Binaries::take(record.binaries, &mut fds)?;
    let upgrade = record
        .upgrade
        .map(|upgrade| Upgrade::take(upgrade, version, failed, &mut fds))
        .transpose()?;
    // From here on there is no way back, and nothing that can go wrong.
    fds.done();
    let runtime_dir = PathBuf::from(record.runtime_dir);
    let reach = record
        .reach
        .unwrap_or_else(|| reach_of(&runtime_dir, &state));
    let paths = Paths::in_dirs(&runtime_dir, reach.dirs);
    for (file, what) in [
        (state.as_fd(), "state"),
        (counters.as_fd(), "counters"),
        (marks.as_fd(), "marks"),
    ] {
        if !files::is_fixed(file).unwrap_or_default() {
            tracing::warn!(
                "the file of {what} was made by a version that did not seal it: only a restart makes one that nobody can cut off"
            );
        }
    }
    let now = Instant::now();
    let uptime = Duration::from_millis(record.uptime_ms);
    Ok(Supervisor {
        binaries,
        config: crate::cli::configuration(),
        reload: Reload::default(),
        sockets: Sockets::take(paths, listening, reach.dials),
        drivers,
        api,
        state,
        counters,
        marks,
        deposits,
        guests: Guests::default(),
        events: Untold::default(),
        settings: record.settings.into(),
        control,
        switch,
        started: now.checked_sub(uptime).unwrap_or(now),
        ready: true,
        admin,
        upgrade,
        next: None,
        handed: None,
        lock: Lock::of(&runtime_dir, lock),
        runtime_dir,
    })
}

/// Where sockets may be and front ends are, after a version that did not keep that: what is wanted by now is what it was started
/// with.
fn reach_of(runtime_dir: &Path, state: &StateFile) -> PassedReach {
    let mut saved = Saved::load(state).unwrap_or_else(|error| {
        tracing::error!("where sockets may be is not known: {error}");
        Saved::default()
    });
    let paths = Paths::of(runtime_dir, runtime_dir, &saved.wanted);
    let client = saved.wanted.ports.iter();
    let client = client.filter(|port| control::wanted::dials(port));
    let dials = client.map(|port| (saved.numbers.port_id(&port.name), port.socket.clone()));
    PassedReach {
        dials: dials.collect(),
        dirs: paths.dirs().to_vec(),
    }
}

fn copy_of(listening: &BTreeMap<String, OwnedFd>, path: &str) -> Result<OwnedFd, String> {
    let socket = listening.get(path);
    let socket = socket.ok_or_else(|| format!("nobody listens on {path}"))?;
    socket.try_clone().map_err(|e| e.to_string())
}
