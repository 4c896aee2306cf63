//! Start of `lasthop run`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use api::v1::DesiredState;
use channel::keeping::CRASH_RECORD_LEN;
use channel::owners::SocketKey;
use channel::state::StateFile;
use config::desired::{ADMIN_SOCKET, API_SOCKET};
use control::saved::Saved;
use port::PortId;

use super::admin::Admin;
use super::binaries::Binaries;
use super::child::{self, Child, Kind};
use super::drivers::Drivers;
use super::events::PendingEvents;
use super::guests::Guests;
use super::lock::{self, Lock};
use super::names;
use super::paths::Paths;
use super::reload::Reload;
use super::saved_sessions::SavedSessions;
use super::sockets::Sockets;
use super::{RunArgs, StartError, Supervisor, settings};

/// Reads the configuration, binds all sockets, opens all interfaces, starts control and the switch.
pub(super) fn start(args: &RunArgs) -> Result<Supervisor, StartError> {
    let desired = config::load(&args.config, &args.runtime_dir)?;
    names::check(&desired).map_err(|no| config::error_in(&args.config, &no))?;
    for warning in config::desired::warnings(&desired) {
        tracing::warn!("{}", warning.text);
    }
    let binaries = Binaries::own()?;
    let runtime_dir = prepare_dir(&args.runtime_dir)?;
    let lock = Lock::take(&runtime_dir)?;
    child::raise_descriptor_limit();
    let paths = Paths::of(&runtime_dir, &args.runtime_dir, &desired);
    let mut sockets = Sockets::new(paths);
    let mut own = |name| {
        let socket = sockets.listen_for_owner(name);
        socket.map_err(|error| listen_error(name, &error))
    };
    let api = own(API_SOCKET)?;
    let admin = Admin::new(own(ADMIN_SOCKET)?)?;
    bind_ports(&args.config, &desired, &mut sockets)?;
    bind_metrics(&args.config, &desired, &mut sockets)?;
    sockets.settled();
    let drivers = open_interfaces(&args.config, &desired)?;
    let settings = settings::of(&desired.switch);
    let state = StateFile::create()?;
    Saved::initial(desired).store(&state)?;
    Ok(Supervisor {
        config: std::path::absolute(&args.config).ok(),
        reload: Reload::default(),
        runtime_dir,
        sockets,
        drivers,
        api,
        state,
        counters: sys::file::fixed("lasthop-counters", port::counters::SIZE)?,
        thread_slots: sys::file::fixed("lasthop-marks", CRASH_RECORD_LEN)?,
        saved_sessions: SavedSessions::default(),
        guests: Guests::default(),
        events: PendingEvents::default(),
        settings,
        control: Child::start(Kind::Control, &binaries)?,
        switch: Child::start(Kind::Switch, &binaries)?,
        binaries,
        started: Instant::now(),
        ready: false,
        admin,
        upgrade: None,
        next: None,
        hand_over_result: None,
        lock,
    })
}

/// Binds the sockets of the configured ports.
fn bind_ports(
    config: &Path,
    desired: &DesiredState,
    sockets: &mut Sockets,
) -> Result<(), StartError> {
    for (at, port) in desired.ports.iter().enumerate() {
        if config::desired::listens(port) {
            let owner = config::desired::owner_of(port);
            let bound = sockets.listen_as(&port.socket, &owner);
            bound.map_err(|no| {
                let expected = match no.key {
                    SocketKey::Socket => "a path where a socket can be made",
                    _ => &no.expected,
                };
                config::port_error(config, at, no.key.as_str(), expected, &no.found)
            })?;
        }
    }
    Ok(())
}

/// Binds the socket of the metrics, if one is configured.
fn bind_metrics(
    config: &Path,
    desired: &DesiredState,
    sockets: &mut Sockets,
) -> Result<(), StartError> {
    let Some(path) = config::desired::metrics_socket(desired) else {
        return Ok(());
    };
    match sockets.listen(&path) {
        Ok(_) => Ok(()),
        Err(error) => {
            let invalid = config::desired::Invalid {
                place: config::desired::Place::Metrics,
                key: "listen",
                item: None,
                expected: "an address or a path where a socket can be made".to_owned(),
                found: error.to_string(),
                why: config::desired::Why::Taken,
            };
            Err(config::error_in(config, &invalid).into())
        }
    }
}

/// Opens the configured interfaces; the drivers are started when the switch dials.
fn open_interfaces(config: &Path, desired: &DesiredState) -> Result<Drivers, StartError> {
    let mut drivers = Drivers::default();
    let ports = (0..).map(PortId).zip(&desired.ports);
    let specs = ports.filter_map(|(id, port)| config::desired::driver_of(port, id));
    drivers.set(specs.collect()).map_err(|(name, found)| {
        let at = desired.ports.iter().position(|port| port.name == name);
        let expected = "an interface that can be opened";
        config::port_error(config, at.unwrap_or(0), "interface", expected, &found)
    })?;
    Ok(drivers)
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
