//! Checks of a desired state from a file or from the API.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use api::v1::{
    CoalescingSpec, ConnectionsSpec, DEFAULT_SEGMENT, DesiredState, PollLimit, PortSpec,
    SegmentSpec, Workers,
};
use ipc::sockets::{RESERVED, climbs, socket_path};
use policy::MAX_SEGMENTS;
use port::counters::MAX_PORTS;

use super::at::{At, count, name, not_a_station, number, quoted};
use super::device::{device, place_of_interface};
use super::invalid::{Invalid, Place, expect};
use super::keys::Keys;
use super::metrics::{MetricsSocket, is_own};
use super::port_security;
use super::segments::{exists, one_of_segments};
use super::{fdb, limits, mirrors, owner, pipes, process, qos, user};

/// Tags of IEEE 802.1Q without the reserved 0 and 4095.
const VLANS: RangeInclusive<u16> = 1..=4094;
/// Workers of the switch.
const WORKERS: RangeInclusive<u16> = 1..=64;
/// Longest looks in microseconds.
const POLL_LIMITS: RangeInclusive<u16> = 0..=1000;
/// Coalescing intervals in microseconds; longer ones would be noticeable.
const PERIODS: RangeInclusive<u16> = 1..=10_000;
const KICK_WINDOWS: RangeInclusive<u16> = 0..=1000;
/// Numbers of filled buffers that cause a notification; a queue usually has 1024.
const COALESCED_FRAMES: RangeInclusive<u16> = 1..=1024;
const CONNECTIONS: RangeInclusive<u64> = 1024..=1 << 22;
const RECOVERIES: RangeInclusive<u32> = 0..=3600;
/// Seconds: ages are differences of a clock of 32 bits in milliseconds.
const TIMEOUTS: RangeInclusive<u32> = 1..=i32::MAX as u32 / 1000;
/// Maximum number of directories for sockets.
const SOCKET_DIRS_MAX: usize = 64;
/// Maximum number of addresses for forwards.
const FORWARD_ADDRESSES_MAX: usize = 64;
/// `sun_path` has 108 bytes (unix(7)), one of them for the NUL.
const PATH_MAX: usize = 107;

/// Checks a desired state by itself. The default segment need not be listed. Sockets and interfaces
/// are not tried.
///
/// # Errors
/// The first error, in the order switch, segments, ports, pipes, user ports, scheduled ports,
/// mirrors, static entries.
pub fn check(state: &DesiredState, runtime_dir: &Path) -> Result<(), Invalid> {
    name(At(Place::Switch, "name"), &state.switch.name)?;
    if let Workers::Count(count) = state.switch.workers {
        let at = At(Place::Switch, "workers");
        number(at, count, &WORKERS, expect::WORKERS)?;
    }
    if let PollLimit::Micros(micros) = state.switch.poll_us {
        let at = At(Place::Switch, "poll_us");
        number(at, micros, &POLL_LIMITS, expect::POLL_LIMIT)?;
    }
    coalescing(&state.switch.coalescing)?;
    connections(&state.switch.connections)?;
    socket_dirs(&state.switch.socket_dirs)?;
    forward_addresses(&state.switch.forward_addresses)?;
    segments(&state.segments)?;
    metrics(state, runtime_dir)?;
    ports(state, runtime_dir)?;
    user::check(state)?;
    qos::check(state)?;
    mirrors::check(state)?;
    fdb::check(state)
}

fn coalescing(spec: &CoalescingSpec) -> Result<(), Invalid> {
    let at = |key| At(Place::Coalescing, key);
    number(at("period_us"), spec.period_us, &PERIODS, expect::PERIOD)?;
    let words = expect::COALESCED_FRAMES;
    number(at("frames"), spec.frames, &COALESCED_FRAMES, words)?;
    number(
        at("kick_us"),
        spec.kick_us,
        &KICK_WINDOWS,
        expect::KICK_WINDOW,
    )
}

fn connections(spec: &ConnectionsSpec) -> Result<(), Invalid> {
    let at = |key| At(Place::Connections, key);
    number(at("max"), spec.max, &CONNECTIONS, expect::CONNECTIONS)?;
    number(at("recovery"), spec.recovery, &RECOVERIES, expect::RECOVERY)?;
    for (name, timeout) in spec.timeouts.all() {
        if let Some(timeout) = timeout {
            number(
                At(Place::Timeouts, name),
                timeout,
                &TIMEOUTS,
                expect::TIMEOUT,
            )?;
        }
    }
    Ok(())
}

/// Checks that segments have unique names and unique tags.
fn segments(segments: &[SegmentSpec]) -> Result<(), Invalid> {
    let named = segments.iter().any(|s| s.name == DEFAULT_SEGMENT);
    let all = segments.len() + usize::from(!named);
    let last = Place::Segment(segments.len().saturating_sub(1));
    count(At(last, "name"), all, MAX_SEGMENTS, "segments")?;
    let mut names = HashMap::new();
    let mut vlans = HashMap::new();
    for (i, segment) in segments.iter().enumerate() {
        let at = At(Place::Segment(i), "name");
        name(at, &segment.name)?;
        if names.insert(&segment.name, i).is_some() {
            let found = format!("{} a second time", quoted(&segment.name));
            return Err(at.taken("a name that no other segment has", found));
        }
        let Some(vlan) = segment.vlan else { continue };
        let at = At(Place::Segment(i), "vlan");
        number(at, vlan, &VLANS, expect::VLAN)?;
        if let Some(first) = vlans.insert(vlan, &segment.name) {
            let found = format!("{vlan}, the tag of segment {}", quoted(first));
            return Err(at.taken("a tag that no other segment has", found));
        }
    }
    Ok(())
}

/// Checks that metrics are served to this host only.
fn metrics(state: &DesiredState, runtime_dir: &Path) -> Result<(), Invalid> {
    let Some(listen) = &state.metrics.listen else {
        return Ok(());
    };
    let at = At(Place::Metrics, "listen");
    match MetricsSocket::of(listen) {
        Some(MetricsSocket::Unix(path)) => socket(at, path, runtime_dir).map(drop),
        Some(MetricsSocket::Tcp(address)) if is_own(&address) => Ok(()),
        _ => Err(at.wrong(expect::LISTEN, quoted(listen))),
    }
}

/// Checks each port and each pipe, and that names and sockets are unique.
fn ports(state: &DesiredState, runtime_dir: &Path) -> Result<(), Invalid> {
    let last = Place::Port(state.ports.len().saturating_sub(1));
    count(At(last, "name"), state.ports.len(), MAX_PORTS, "ports")?;
    let mut names = HashMap::new();
    let mut sockets = Sockets {
        runtime_dir,
        taken: HashMap::new(),
    };
    let listen = state.metrics.listen.as_deref();
    if let Some(MetricsSocket::Unix(path)) = listen.and_then(MetricsSocket::of) {
        let path = socket_path(runtime_dir, path);
        sockets.taken.insert(path, "the metrics".to_owned());
    }
    let mut interfaces = HashMap::new();
    for (i, port) in state.ports.iter().enumerate() {
        let place = Place::Port(i);
        let at = At(place, "name");
        name(at, &port.name)?;
        if names.insert(&port.name, i).is_some() {
            let found = format!("{} a second time", quoted(&port.name));
            return Err(at.taken("a name that no other port has", found));
        }
        let keys = Keys::of(port);
        keys.check_kind(place, port)?;
        device(place, port)?;
        owner::check(place, port)?;
        process::check(place, port)?;
        if !port.kind.has_driver() {
            let at = At(place, "socket");
            let path = process::socket_of(port);
            // A document without the key has an empty socket here.
            if path.is_empty() {
                return Err(at.wrong(expect::SOCKET, "no such key"));
            }
            let owner = format!("port {}", quoted(&port.name));
            sockets.add(at, &path, owner)?;
        }
        if let Some(path) = pipes::socket_of_port(port) {
            let owner = format!("the pipes of port {}", quoted(&port.name));
            sockets.add(At(place, "pipes"), &path, owner)?;
        }
        if let Some(interface) = place_of_interface(port)
            && let Some(first) = interfaces.insert(interface, &port.name)
        {
            let (own, first) = (quoted(interface.0), quoted(first));
            let found = format!("{own}, the interface of port {first}");
            let at = At(place, "interface");
            return Err(at.taken("an interface that no other port has", found));
        }
        keys.check_bounds(place)?;
        limits::check(i, &port.limits)?;
        membership(place, port, state)?;
        mac(At(place, "mac"), port.mac.as_deref())?;
        port_security::check(i, &port.port_security)?;
    }
    pipes::check(state)?;
    for (i, pipe) in state.pipes.iter().enumerate() {
        let owner = format!("pipe {}", quoted(&pipe.name));
        let at = At(Place::Pipe(i), "socket");
        sockets.add(at, &pipes::socket_of(pipe), owner)?;
    }
    Ok(())
}

/// The sockets of a state, with their owners in words.
struct Sockets<'a> {
    runtime_dir: &'a Path,
    taken: HashMap<PathBuf, String>,
}

impl Sockets<'_> {
    /// Checks a socket, and that it has no other owner.
    fn add(&mut self, at: At, path: &str, owner: String) -> Result<(), Invalid> {
        let full = socket(at, path, self.runtime_dir)?;
        match self.taken.insert(full, owner) {
            Some(first) => {
                let found = format!("{}, the socket of {first}", quoted(path));
                Err(at.taken("a socket that no other port has", found))
            }
            None => Ok(()),
        }
    }
}

/// Checks that directories for sockets are absolute and have no `..`.
fn socket_dirs(dirs: &[String]) -> Result<(), Invalid> {
    let at = At(Place::Switch, "socket_dirs");
    let wrong = |dir: &String| {
        let path = Path::new(dir);
        !path.is_absolute() || climbs(path) || dir.contains('\0') || dir.len() > PATH_MAX
    };
    if dirs.len() > SOCKET_DIRS_MAX {
        return Err(at.wrong(expect::SOCKET_DIRS, dirs.len().to_string()));
    }
    match dirs.iter().position(wrong) {
        Some(i) => Err(at.item(i, expect::SOCKET_DIRS, quoted(&dirs[i]))),
        None => Ok(()),
    }
}

/// Checks the addresses for forwards.
fn forward_addresses(addresses: &[String]) -> Result<(), Invalid> {
    let at = At(Place::Switch, "forward_addresses");
    if addresses.len() > FORWARD_ADDRESSES_MAX {
        return Err(at.wrong(expect::FORWARD_ADDRESSES, addresses.len().to_string()));
    }
    let wrong = |address: &String| address.parse::<IpAddr>().is_err();
    match addresses.iter().position(wrong) {
        Some(i) => Err(at.item(i, expect::FORWARD_ADDRESSES, quoted(&addresses[i]))),
        None => Ok(()),
    }
}

/// Checks a socket's path: it names a file, is printable, fits into a socket address, and is not
/// reserved.
fn socket(at: At, socket: &str, runtime_dir: &Path) -> Result<PathBuf, Invalid> {
    let path = socket_path(runtime_dir, socket);
    let is_dir = socket.is_empty() || socket.ends_with('/') || path == runtime_dir;
    let unfit = socket.contains(char::is_control) || path.file_name().is_none();
    if is_dir || unfit {
        return Err(at.wrong(expect::SOCKET, quoted(socket)));
    }
    if climbs(&path) {
        return Err(at.wrong("a path without \"..\"", quoted(socket)));
    }
    let length = path.as_os_str().len();
    if length > PATH_MAX {
        let expected = format!("a path of at most {PATH_MAX} bytes with the runtime directory");
        let found = format!("{length} bytes: {}", quoted(&path.to_string_lossy()));
        return Err(at.wrong(expected, found));
    }
    let is_own = |name: &Path| RESERVED.iter().any(|own| name == Path::new(own));
    if path.strip_prefix(runtime_dir).is_ok_and(is_own) {
        let found = format!("{}, which Lasthop has for itself", quoted(socket));
        return Err(at.taken("a path of its own", found));
    }
    Ok(path)
}

/// Checks that a port has either a segment or a trunk, of existing segments.
fn membership(place: Place, port: &PortSpec, state: &DesiredState) -> Result<(), Invalid> {
    match (&port.segment, &port.trunk) {
        (Some(_), Some(_)) => {
            let found = "both".to_owned();
            Err(At(place, "trunk").wrong("either a segment or a trunk", found))
        }
        (Some(segment), None) => {
            if exists(state, segment) {
                Ok(())
            } else {
                Err(At(place, "segment").wrong(one_of_segments(state), quoted(segment)))
            }
        }
        (None, Some(names)) => trunk(At(place, "trunk"), names, state),
        (None, None) => Ok(()),
    }
}

/// Checks that the segments of a trunk exist, are unique, and differ in their tags.
fn trunk(at: At, names: &[String], state: &DesiredState) -> Result<(), Invalid> {
    if names.is_empty() {
        return Err(at.wrong("at least one segment", "an empty array"));
    }
    let mut untagged: Option<&String> = None;
    for (i, segment) in names.iter().enumerate() {
        if !exists(state, segment) {
            return Err(at.item(i, one_of_segments(state), quoted(segment)));
        }
        if names[..i].contains(segment) {
            let found = format!("{} a second time", quoted(segment));
            return Err(at.item(i, "each segment once", found));
        }
        if tag(state, segment).is_some() {
            continue;
        }
        if let Some(first) = untagged.replace(segment) {
            let found = format!("two: {} and {}", quoted(first), quoted(segment));
            return Err(at.item(i, "at most one segment without a vlan", found));
        }
    }
    Ok(())
}

/// Returns the tag of a segment.
fn tag(state: &DesiredState, segment: &str) -> Option<u16> {
    state.segment(segment).and_then(|segment| segment.vlan)
}

/// Checks that a MAC address is a valid unicast address.
fn mac(at: At, mac: Option<&str>) -> Result<(), Invalid> {
    match mac.and_then(not_a_station) {
        Some(found) => Err(at.wrong(expect::MAC, found)),
        None => Ok(()),
    }
}
