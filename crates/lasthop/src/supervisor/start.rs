//! What `lasthop run` makes before anything runs.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use api::v1::WantedState;
use channel::keeping::MARKS;
use channel::state::StateFile;
use control::engine::Saved;
use control::wanted::API_SOCKET;
use port::PortId;
use rustix::fs::MemfdFlags;

use super::admin::Admin;
use super::binaries::Binaries;
use super::child::{self, Child, Kind};
use super::deposits::Deposits;
use super::drivers::Drivers;
use super::guests::Guests;
use super::lock::Lock;
use super::reload::Reload;
use super::sockets::Sockets;
use super::{Refusal, RunArgs, Supervisor, settings};

/// Reads the configuration, binds every socket, opens every interface, starts control and the switch.
pub(super) fn start(args: &RunArgs) -> Result<Supervisor, Refusal> {
    let wanted = control::config::load(&args.config, &args.runtime_dir)?;
    let binaries = Binaries::own()?;
    let runtime_dir = prepare_dir(&args.runtime_dir)?;
    let lock = Lock::take(&runtime_dir)?;
    child::raise_descriptor_limit();
    let mut sockets = Sockets::new(runtime_dir.clone());
    let api = sockets.listen_for_owner(API_SOCKET)?;
    let admin = Admin::new(sockets.listen_for_owner(crate::admin::SOCKET)?)?;
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
        counters: make_file("lasthop-counters", port::counters::SIZE)?,
        marks: make_file("lasthop-marks", MARKS)?,
        deposits: Deposits::default(),
        guests: Guests::default(),
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
            let bound = sockets.listen(&port.socket);
            bound.map_err(|error| {
                let expected = "a path where a socket can be made";
                let found = error.to_string();
                control::config::port_error(config, at, "socket", expected, &found)
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
    let blame = |e: io::Error| {
        let text = format!("the runtime directory {}: {e}", dir.display());
        io::Error::new(e.kind(), text)
    };
    std::fs::create_dir_all(dir).map_err(blame)?;
    dir.canonicalize().map_err(blame)
}

fn make_file(name: &str, size: u64) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, size)?;
    Ok(fd)
}
