//! `lasthop run`: reads and checks the configuration file, then becomes the supervisor, which reads
//! no TOML. It gets the contents that it needs as a [record](ipc::start).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use api::v1::DesiredState;
use client::{ExitStatus, Failure, units};
use config::desired::{self, Invalid, Place};
use config::{ConfigError, KeyPlaces};
use ipc::owners::{SocketKey, SocketOwner};
use ipc::sockets::SocketType;
use ipc::start::{START_FD, Start, StartSocket, StartTable};
use port::PortId;
use serde::Serialize;
use sys::memory;

use super::siblings::{self, SUPERVISOR};
use super::{emit, warn};

/// Keys of an owner.
const OWNER_KEYS: [SocketKey; 5] = [
    SocketKey::Socket,
    SocketKey::User,
    SocketKey::Group,
    SocketKey::Mode,
    SocketKey::PeerUser,
];

/// First document of the state file.
#[derive(Serialize)]
struct State<'a> {
    desired: &'a DesiredState,
}

/// Configuration file that was read.
struct Configuration<'a> {
    file: &'a Path,
    runtime_dir: &'a Path,
    text: String,
}

impl<'a> Configuration<'a> {
    fn read(file: &'a Path, runtime_dir: &'a Path) -> Result<Self, Failure> {
        let text = config::text_of(std::fs::read(file), file).map_err(invalid)?;
        Ok(Self {
            file,
            runtime_dir,
            text,
        })
    }

    /// Returns the desired state of a valid file.
    fn desired(&self) -> Result<DesiredState, Failure> {
        let parsed = config::parse(&self.text, self.file, self.runtime_dir);
        let desired = parsed.map_err(invalid)?;
        let placed = |error: Invalid| invalid(self.places().error(&error));
        desired::check_owners(&desired).map_err(placed)?;
        Ok(desired)
    }

    fn places(&self) -> KeyPlaces<'_> {
        KeyPlaces::new(&self.text, self.file)
    }

    /// Returns the table of connections, if a rule needs it.
    fn table(&self, desired: &DesiredState) -> Option<StartTable> {
        let refused = desired::without_table(desired, "")?;
        Some(StartTable {
            bytes: desired::layout_of(&desired.switch.connections).bytes(),
            place: self.places().error(&refused).to_string(),
        })
    }

    /// Refuses a table of connections that this host, or a control group that this process is in,
    /// can never have. Whether it can be had now is seen when it is made.
    fn check_table(&self, desired: &DesiredState) -> Result<(), Failure> {
        let Some(StartTable { bytes, place }) = self.table(desired) else {
            return Ok(());
        };
        let checked = memory::check(bytes, memory::Which::Total);
        checked.map_err(|error| Failure::Invalid(format!("{place}{error}")))
    }

    /// Returns the record for the supervisor.
    fn record(&self, desired: &DesiredState) -> Result<Start, Failure> {
        let places = self.places();
        let named = std::path::absolute(self.runtime_dir);
        let named = named.unwrap_or_else(|_| self.runtime_dir.to_owned());
        let ports = || desired.ports.iter().enumerate();
        let listening = ports().filter(|(_, port)| desired::listens(port));
        let sockets = listening.map(|(at, port)| StartSocket {
            path: port.socket.clone(),
            socket_type: desired::socket_type_of(port),
            owner: desired::owner_of(port),
            keys: OWNER_KEYS
                .map(|key| (key, places.of(Place::Port(at), key.as_str())))
                .into(),
        });
        let pipes = desired::pipe_sockets(desired).map(|pipe| {
            let key = match pipe.place {
                Place::Port(_) => "pipes",
                _ => SocketKey::Socket.as_str(),
            };
            let place = |of: SocketKey| match of {
                SocketKey::Socket => places.of(pipe.place, key),
                of => places.of(pipe.place, of.as_str()),
            };
            StartSocket {
                path: pipe.path,
                socket_type: SocketType::SeqPacket,
                owner: pipe.owner,
                keys: OWNER_KEYS.map(|of| (of, place(of))).into(),
            }
        });
        let metrics = desired::metrics_socket(desired).map(|path| StartSocket {
            path,
            socket_type: SocketType::Stream,
            owner: SocketOwner::default(),
            keys: vec![(SocketKey::Socket, places.of(Place::Metrics, "listen"))],
        });
        let drivers = ports().filter_map(|(at, port)| {
            let spec = desired::driver_of(port, PortId(at as u32))?;
            Some((spec, places.of(Place::Port(at), "interface")))
        });
        let reach = desired::reach_of(desired, &named);
        Ok(Start {
            runtime_dir: text_of(self.runtime_dir)?,
            socket_dirs: reach.dirs().to_vec(),
            forwards: reach.forwards().clone(),
            sockets: sockets.chain(pipes).collect(),
            metrics,
            drivers: drivers.collect(),
            settings: desired::switch_settings(&desired.switch),
            guest_states: desired.switch.guest_state,
            connection_table: self.table(desired),
            state: serde_json::to_vec(&State { desired }).map_err(failed)?,
        })
    }
}

fn invalid(error: ConfigError) -> Failure {
    Failure::Invalid(error.to_string())
}

fn failed(error: impl ToString) -> Failure {
    Failure::Failed(format!("cannot start: {}", error.to_string()))
}

fn text_of(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::Invalid(format!("{}: expected UTF-8", path.display())))
}

/// Checks a configuration file; starts nothing.
pub(super) fn check(file: &Path, runtime_dir: &Path) -> ExitStatus {
    let configuration = Configuration::read(file, runtime_dir)?;
    let desired = configuration.desired()?;
    configuration.check_table(&desired)?;
    warn(&desired::warnings(&desired));
    let segments = units::plural(desired.segments.len() as u64, "segment");
    let ports = units::plural(desired.ports.len() as u64, "port");
    emit(&format!("{}: ok, {segments}, {ports}\n", file.display()))
}

/// Becomes the supervisor of a new Lasthop; returns only after an error.
pub(super) fn start(file: &Path, runtime_dir: &Path) -> ExitStatus {
    let configuration = Configuration::read(file, runtime_dir)?;
    let desired = configuration.desired()?;
    for warning in desired::warnings(&desired) {
        tracing::warn!("{}", warning.text);
    }
    let record = configuration.record(&desired)?.to_bytes().map_err(failed)?;
    let record = inheritable(&record).map_err(failed)?;
    Err(siblings::execute(SUPERVISOR, |supervisor| {
        supervisor
            .args(arguments(file, runtime_dir))
            .env(START_FD, record.as_raw_fd().to_string())
    }))
}

/// Returns the arguments of the supervisor: those of `lasthop run`, for ps(1).
fn arguments(file: &Path, runtime_dir: &Path) -> [PathBuf; 5] {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    [
        "run".into(),
        "--config".into(),
        absolute(file),
        "--runtime-dir".into(),
        absolute(runtime_dir),
    ]
}

/// Returns a memory file that an executed program inherits, positioned at its beginning.
fn inheritable(bytes: &[u8]) -> io::Result<File> {
    let file = sys::file::constant("lasthop-start", bytes)?;
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;
    Ok(file)
}
