//! What `lasthop run` makes before anything runs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use api::v1::WantedState;
use channel::files;
use channel::keeping::MARKS;
use channel::owners::SocketKey;
use channel::state::StateFile;
use control::engine::Saved;
use control::wanted::{ADMIN_SOCKET, API_SOCKET};
use port::PortId;

use super::admin::Admin;
use super::binaries::Binaries;
use super::child::{self, Child, Kind};
use super::deposits::Deposits;
use super::drivers::Drivers;
use super::events::Untold;
use super::guests::Guests;
use super::lock::{self, Lock};
use super::names;
use super::paths::Paths;
use super::reload::Reload;
use super::sockets::Sockets;
use super::{Refusal, RunArgs, Supervisor, settings};

/// Reads the configuration, binds every socket, opens every interface, starts control and the switch.
pub(super) fn start(args: &RunArgs) -> Result<Supervisor, Refusal> {
    let wanted = control::config::load(&args.config, &args.runtime_dir)?;
    names::check(&wanted).map_err(|no| control::config::error_in(&args.config, &no))?;
    for warning in control::wanted::warnings(&wanted) {
        tracing::warn!("{}", warning.text);
    }
    let binaries = Binaries::own()?;
    let runtime_dir = prepare_dir(&args.runtime_dir)?;
    let lock = Lock::take(&runtime_dir)?;
    child::raise_descriptor_limit();
    let paths = Paths::of(&runtime_dir, &args.runtime_dir, &wanted);
    let mut sockets = Sockets::new(paths);
    let mut own = |name| {
        let socket = sockets.listen_for_owner(name);
        socket.map_err(|error| unheard(name, &error))
    };
    let api = own(API_SOCKET)?;
    let admin = Admin::new(own(ADMIN_SOCKET)?)?;
    bind_ports(&args.config, &wanted, &mut sockets)?;
    bind_metrics(&args.config, &wanted, &mut sockets)?;
    sockets.settled();
    let drivers = open_interfaces(&args.config, &wanted)?;
    let settings = settings::of(&wanted.switch);
    let state = StateFile::create()?;
    Saved::initial(wanted).store(&state)?;
    Ok(Supervisor {
        config: std::path::absolute(&args.config).ok(),
        reload: Reload::default(),
        runtime_dir,
        sockets,
        drivers,
        api,
        state,
        counters: files::fixed("lasthop-counters", port::counters::SIZE)?,
        marks: files::fixed("lasthop-marks", MARKS)?,
        deposits: Deposits::default(),
        guests: Guests::default(),
        events: Untold::default(),
        settings,
        control: Child::start(Kind::Control, &binaries)?,
        switch: Child::start(Kind::Switch, &binaries)?,
        binaries,
        started: Instant::now(),
        ready: false,
        admin,
        upgrade: None,
        next: None,
        handed: None,
        lock,
    })
}

/// Binds the sockets of the ports of the configuration.
fn bind_ports(config: &Path, wanted: &WantedState, sockets: &mut Sockets) -> Result<(), Refusal> {
    for (at, port) in wanted.ports.iter().enumerate() {
        if control::wanted::listens(port) {
            let owner = control::wanted::owner_of(port);
            let bound = sockets.listen_as(&port.socket, &owner);
            bound.map_err(|no| {
                let expected = match no.key {
                    SocketKey::Socket => "a path where a socket can be made",
                    _ => &no.expected,
                };
                control::config::port_error(config, at, no.key.as_str(), expected, &no.found)
            })?;
        }
    }
    Ok(())
}

/// Binds the socket of the metrics, if one is wanted.
fn bind_metrics(config: &Path, wanted: &WantedState, sockets: &mut Sockets) -> Result<(), Refusal> {
    let Some(path) = control::wanted::metrics_socket(wanted) else {
        return Ok(());
    };
    match sockets.listen(&path) {
        Ok(_) => Ok(()),
        Err(error) => {
            let invalid = control::wanted::Invalid {
                place: control::wanted::Place::Metrics,
                key: "listen",
                item: None,
                expected: "an address or a path where a socket can be made".to_owned(),
                found: error.to_string(),
                why: control::wanted::Why::Taken,
            };
            Err(control::config::error_in(config, &invalid).into())
        }
    }
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
    let made = std::fs::create_dir_all(dir).and_then(|()| dir.canonicalize());
    made.map_err(|error| lock::blame(dir, &error))
}

/// A socket of our own cannot be had: somebody else's is in its place, or the runtime directory is not fit for it.
fn unheard(name: &str, error: &io::Error) -> Refusal {
    Refusal::wrong(format!(
        "cannot listen on the socket {name} of Lasthop itself: {error}"
    ))
}
