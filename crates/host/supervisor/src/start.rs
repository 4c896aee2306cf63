//! Start of `lasthop run`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ipc::driving::DriverSpec;
use ipc::keeping::CRASH_RECORD_LEN;
use ipc::owners::{NoSocket, SocketKey};
use ipc::sockets::{ADMIN_SOCKET, API_SOCKET};
use ipc::start::{START_FD, Start, StartSocket, StartTable};
use ipc::state::StateFile;
use ipc::supervision::SwitchSettings;

use super::admin::Admin;
use super::binaries::Binaries;
use super::child::Child;
use super::connection_table::ConnectionTable;
use super::drivers::Drivers;
use super::events::PendingEvents;
use super::guests::Guests;
use super::lock::{self, Lock};
use super::paths::Paths;
use super::reload::Reload;
use super::rights;
use super::saved_sessions::SavedSessions;
use super::shares::{self, Shares};
use super::sockets::Sockets;
use super::supervisor::hand_over_state::HandOvers;
use super::supervisor::pair::Pair;
use super::supervisor::{Home, Setup, Supervisor};

/// Maximum size of a start record in bytes: its largest part is a document of the state file.
const MAX_RECORD_BYTES: u64 = 128 << 20;

/// Reason why Lasthop did not start, with its exit status.
pub(super) struct StartError {
    pub(super) status: u8,
    pub(super) text: String,
}

impl StartError {
    /// Returns the error of a start that may succeed later.
    pub(super) fn failed(error: impl ToString) -> Self {
        Self {
            status: 1,
            text: error.to_string(),
        }
    }

    /// Returns the error for an invalid configuration or environment; nothing was changed.
    pub(super) fn invalid(error: impl ToString) -> Self {
        Self {
            status: 2,
            text: error.to_string(),
        }
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        let text = sys::limit::in_words(&error);
        // A restart does not mend the environment: the unit has RestartPreventExitStatus=2.
        let status = if sys::lasting::is_lasting(&error) {
            2
        } else {
            1
        };
        Self { status, text }
    }
}

/// Reads the record of `lasthop run`.
///
/// # Errors
/// This program was started by hand, or the record is malformed.
pub(super) fn record() -> Result<Start, StartError> {
    let number = std::env::var(START_FD).ok().and_then(|n| n.parse().ok());
    let Some(number @ 3..) = number else {
        let text = "this is started by `lasthop run`, not by hand";
        return Err(StartError::invalid(text.to_owned()));
    };
    // SAFETY: the command line opened this descriptor for this program alone, and this is called
    // once, before this program opens any; reading fails for a number that is no descriptor.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
    let mut bytes = Vec::new();
    file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes)?;
    Start::from_bytes(&bytes).map_err(StartError::failed)
}

/// Binds all sockets, opens all interfaces, starts control and the switch.
pub(super) fn start(record: Start) -> Result<Supervisor, StartError> {
    let binaries = Binaries::own()?;
    let runtime_dir = prepare_dir(Path::new(&record.runtime_dir))?;
    let lock = Lock::take(&runtime_dir)?;
    let paths = Paths::of(&runtime_dir, record.socket_dirs);
    let listening = record.sockets.len() + usize::from(record.metrics.is_some());
    let drivers = record.drivers.len();
    shares::check(listening as u64, drivers as u64, Shares::now()).map_err(StartError::invalid)?;
    let mut sockets = Sockets::new(paths);
    let mut own = |name| {
        let socket = sockets.listen_for_owner(name);
        socket.map_err(|error| listen_error(name, &error))
    };
    let api = own(API_SOCKET)?;
    let admin = Admin::new(own(ADMIN_SOCKET)?)?;
    for socket in &record.sockets {
        bind(socket, &mut sockets)?;
    }
    if let Some(socket) = &record.metrics {
        bind_metrics(socket, &mut sockets)?;
    }
    sockets.settled();
    let drivers = open_interfaces(Drivers::within(record.forwards), &record.drivers)?;
    // Before any other process is started: those never have the rights for it.
    let guests = Guests::of(record.guest_states);
    rights::give_up();
    let table = record.connection_table.map(make_table).transpose()?;
    let settings = complete(record.settings);
    let state = StateFile::create()?;
    state.save(&record.state)?;
    Ok(Supervisor {
        reload: Reload::of_this_process(),
        sockets,
        drivers,
        saved_sessions: SavedSessions::default(),
        guests,
        events: PendingEvents::default(),
        setup: Setup {
            settings,
            state,
            counters: sys::file::fixed("lasthop-counters", port::counters::SIZE)?,
            table,
            thread_slots: sys::file::fixed("lasthop-marks", CRASH_RECORD_LEN)?,
        },
        pair: Pair::new(Child::start(&binaries)?, Child::start(&binaries)?),
        binaries,
        started: Instant::now(),
        ready: false,
        admin,
        upgrade: None,
        hand_over: HandOvers::default(),
        home: Home {
            dir: runtime_dir,
            api,
            lock,
        },
    })
}

/// Adds to the settings what only the supervisor can read: the switch opens no paths, so it does
/// not see a CPU quota.
fn complete(settings: SwitchSettings) -> SwitchSettings {
    SwitchSettings {
        workers: Some(settings.worker_count()),
        ..settings
    }
}

/// Returns the error for a key of the configuration; `place` is its place in the file.
fn error_at(place: &str, expected: &str, found: &str) -> StartError {
    StartError::invalid(format!("{place} expected {expected}, found {found}"))
}

/// Binds the socket of a port or a pipe.
fn bind(socket: &StartSocket, sockets: &mut Sockets) -> Result<(), StartError> {
    let bound = sockets.listen_as(&socket.path, &socket.owner, socket.socket_type);
    // Others have no copy yet: it is closed now, and no descriptor waits for that.
    let bound = bound.map(|(socket, _)| drop(socket.vouch()));
    bound.map_err(|no: NoSocket| {
        let expected = match no.key {
            SocketKey::Socket => "a path where a socket can be made",
            _ => &no.expected,
        };
        error_at(socket.place(no.key), expected, &no.found)
    })
}

/// Binds the socket of the metrics.
fn bind_metrics(socket: &StartSocket, sockets: &mut Sockets) -> Result<(), StartError> {
    let expected = "an address or a path where a socket can be made";
    let bound = sockets.listen(&socket.path).map(drop);
    bound.map_err(|error| {
        let place = socket.place(SocketKey::Socket);
        error_at(place, expected, &error.to_string())
    })
}

/// Opens the configured interfaces; the drivers are started when the switch dials.
fn open_interfaces(
    mut drivers: Drivers,
    specs: &[(DriverSpec, String)],
) -> Result<Drivers, StartError> {
    let all: Vec<_> = specs.iter().map(|(spec, _)| spec.clone()).collect();
    drivers.prepare(&all);
    drivers.set(all).map_err(|(name, found)| {
        let place = specs.iter().find(|(spec, _)| *spec.name == *name);
        let place = place.map_or("", |(_, place)| place);
        error_at(place, "an interface that can be opened", &found)
    })?;
    Ok(drivers)
}

/// Makes the table of connections.
fn make_table(StartTable { bytes, place }: StartTable) -> Result<ConnectionTable, StartError> {
    let made = ConnectionTable::make(bytes);
    made.map_err(|error| StartError::invalid(format!("{place}{error}")))
}

/// Makes the runtime directory; returns its absolute path.
fn prepare_dir(dir: &Path) -> io::Result<PathBuf> {
    let made = std::fs::create_dir_all(dir).and_then(|()| dir.canonicalize());
    made.map_err(|error| lock::dir_error(dir, &error))
}

/// Returns the error for one of Lasthop's own sockets: the path is in use, or the runtime directory
/// is not suitable.
fn listen_error(name: &str, error: &io::Error) -> StartError {
    StartError::invalid(format!(
        "cannot listen on the socket {name} of Lasthop itself: {error}"
    ))
}
