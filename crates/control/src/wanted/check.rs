//! What must hold for a wanted state, whether it came from a file or over the API.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use api::v1::{
    BatchingSpec, CopyEngine, DEFAULT_SEGMENT, Enabled, Offload, PortKind, PortSpec, SegmentSpec,
    SwitchSpec, WantedState, Workers, parse_mac, valid_name,
};
use policy::MAX_SEGMENTS;
use port::counters::MAX_PORTS;

use super::device::{device, place_of_interface};
use super::guard;
use super::invalid::{Invalid, Place, Why, expect};
use super::metrics::{MetricsSocket, is_own};
use super::{RESERVED, fdb, limits, mirrors, owner, socket_path};

/// Tags of IEEE 802.1Q without the reserved 0 and 4095.
const VLANS: RangeInclusive<u16> = 1..=4094;
/// Threads of the switch.
const WORKERS: RangeInclusive<u16> = 1..=64;
/// Between two notifications, microseconds; beyond that people notice.
const PERIODS: RangeInclusive<u16> = 1..=10_000;
/// Buffers that do not wait; a queue has 1024 as a rule.
const THRESHOLDS: RangeInclusive<u16> = 1..=1024;
/// Frames of a batch, and bytes of it in frames.
const MARKS: RangeInclusive<u16> = 1..=1024;
/// Microseconds.
const HYSTERESES: RangeInclusive<u16> = 1..=1000;
/// Numbers of cores.
const CORES: RangeInclusive<u16> = 0..=4095;
/// Queue pairs of one port.
const QUEUES: RangeInclusive<u16> = 1..=64;
/// Of one port.
const WEIGHTS: RangeInclusive<u16> = 1..=1000;
/// From IPv4's smallest (RFC 791) to the jumbo frames that Lasthop carries, in bytes.
const MTUS: RangeInclusive<u16> = 68..=9216;
/// Directories for sockets.
const SOCKET_DIRS_MAX: usize = 64;
/// Characters of a pattern of names: a thread's has 15 at most.
const PATTERN_MAX: usize = 64;
/// `sun_path` has 108 bytes (unix(7)), one of them for the NUL.
const PATH_MAX: usize = 107;

/// A text of the operator's inside a message of ours: control characters are escaped.
pub(crate) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// Checks everything that can be wrong with a wanted state by itself. The default segment need not be
/// listed. Whether a socket can be bound is for the one who binds it.
///
/// # Errors
/// The first thing that is wrong, in the order switch, segments, ports, mirrors, static entries.
pub fn check(state: &WantedState, runtime_dir: &Path) -> Result<(), Invalid> {
    name(At(Place::Switch, "name"), &state.switch.name)?;
    if let Workers::Count(count) = state.switch.workers {
        let at = At(Place::Switch, "workers");
        number(at, count, &WORKERS, expect::WORKERS)?;
    }
    batching(&state.switch.batching)?;
    copy_engine(state.switch.copy_engine)?;
    offload(&state.switch.offload)?;
    one_helps(&state.switch)?;
    socket_dirs(&state.switch.socket_dirs)?;
    segments(&state.segments)?;
    metrics(state, runtime_dir)?;
    ports(state, runtime_dir)?;
    mirrors::check(state)?;
    fdb::check(state)
}

/// A work queue of DSA copies in the address space of the process that opened it, and of no other (Linux,
/// `drivers/dma/idxd/cdev.c`), but the switch opens no paths: so there is none that it could use.
fn copy_engine(engine: CopyEngine) -> Result<(), Invalid> {
    match engine {
        CopyEngine::Dsa => {
            let expected = "\"cpu\", \"thread\" or \"auto\"";
            let found = "\"dsa\", whose work queues serve only the process that opens them, which the switch may not";
            Err(At(Place::Switch, "copy_engine").wrong(expected, found))
        }
        CopyEngine::Cpu | CopyEngine::Thread | CopyEngine::Auto => Ok(()),
    }
}

fn batching(spec: &BatchingSpec) -> Result<(), Invalid> {
    let at = |key| At(Place::Batching, key);
    number(at("period_us"), spec.period_us, &PERIODS, expect::PERIOD)?;
    number(
        at("threshold"),
        spec.threshold,
        &THRESHOLDS,
        expect::THRESHOLD,
    )
}

/// Helpers copy by themselves: what is open at another engine when one loses its core would wait with it.
fn one_helps(switch: &SwitchSpec) -> Result<(), Invalid> {
    let both = switch.copy_engine == CopyEngine::Thread && switch.offload.enabled == Enabled::Yes;
    match both {
        true => Err(At(Place::Offload, "enabled").wrong(
            "false or \"auto\" where copy_engine is \"thread\"",
            "true".to_owned(),
        )),
        false => Ok(()),
    }
}

fn offload(offload: &Offload) -> Result<(), Invalid> {
    let at = |key| At(Place::Offload, key);
    number(at("mark"), offload.mark, &MARKS, expect::MARK)?;
    let hysteresis = at("hysteresis_us");
    number(
        hysteresis,
        offload.hysteresis_us,
        &HYSTERESES,
        expect::HYSTERESIS,
    )?;
    let mut cores = offload.cores.iter();
    match cores.find(|core| !CORES.contains(core)) {
        Some(core) => Err(at("cores").wrong(expect::CORES, core.to_string())),
        None => Ok(()),
    }
}

/// A key at a place, to blame.
#[derive(Clone, Copy)]
pub(super) struct At(pub(super) Place, pub(super) &'static str);

impl At {
    /// Blames this key.
    pub(super) fn wrong(self, expected: impl Into<String>, found: impl Into<String>) -> Invalid {
        Invalid {
            place: self.0,
            key: self.1,
            item: None,
            expected: expected.into(),
            found: found.into(),
            why: Why::Wrong,
        }
    }

    /// Blames this key for taking what is another's.
    pub(super) fn taken(self, expected: &str, found: String) -> Invalid {
        Invalid {
            why: Why::Taken,
            ..self.wrong(expected, found)
        }
    }

    /// Blames one element of this key's list.
    pub(super) fn item(self, item: usize, expected: impl Into<String>, found: String) -> Invalid {
        Invalid {
            item: Some(item),
            ..self.wrong(expected, found)
        }
    }
}

/// A name must be well formed.
pub(super) fn name(at: At, name: &str) -> Result<(), Invalid> {
    match valid_name(name) {
        true => Ok(()),
        false => Err(at.wrong(expect::NAME, quoted(name))),
    }
}

/// A number must lie in its range.
fn number(at: At, value: u16, range: &RangeInclusive<u16>, words: &str) -> Result<(), Invalid> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(at.wrong(words, value.to_string())),
    }
}

/// There are no more of them than there are numbers for.
pub(super) fn count(at: At, count: usize, most: usize, what: &str) -> Result<(), Invalid> {
    match count <= most {
        true => Ok(()),
        false => Err(at.wrong(format!("at most {most} {what}"), count.to_string())),
    }
}

/// Segments have unique names and unique tags.
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

/// Metrics are served to this host alone.
fn metrics(state: &WantedState, runtime_dir: &Path) -> Result<(), Invalid> {
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

/// Ports have unique names and unique sockets, and each is right by itself.
fn ports(state: &WantedState, runtime_dir: &Path) -> Result<(), Invalid> {
    let last = Place::Port(state.ports.len().saturating_sub(1));
    count(At(last, "name"), state.ports.len(), MAX_PORTS, "ports")?;
    let mut names = HashMap::new();
    let mut sockets = HashMap::new();
    let listen = state.metrics.listen.as_deref();
    if let Some(MetricsSocket::Unix(path)) = listen.and_then(MetricsSocket::of) {
        sockets.insert(socket_path(runtime_dir, path), None);
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
        device(place, port)?;
        owner::check(place, port)?;
        if port.kind == PortKind::VhostUser {
            let at = At(place, "socket");
            // So it is in a document that says nothing of it.
            if port.socket.is_empty() {
                return Err(at.wrong(expect::SOCKET, "no such key"));
            }
            let path = socket(at, &port.socket, runtime_dir)?;
            if let Some(first) = sockets.insert(path, Some(&port.name)) {
                let own = quoted(&port.socket);
                let found = match first {
                    Some(first) => format!("{own}, the socket of port {}", quoted(first)),
                    None => format!("{own}, the socket of the metrics"),
                };
                return Err(at.taken("a socket that no other port has", found));
            }
        }
        if let Some(interface) = place_of_interface(port)
            && let Some(first) = interfaces.insert(interface, &port.name)
        {
            let (own, first) = (quoted(interface.0), quoted(first));
            let found = format!("{own}, the interface of port {first}");
            let at = At(place, "interface");
            return Err(at.taken("an interface that no other port has", found));
        }
        numbers(place, port)?;
        limits::check(i, &port.limits)?;
        threads(At(place, "vcpu_threads"), port.vcpu_threads.as_deref())?;
        membership(place, port, state)?;
        mac(At(place, "mac"), port.mac.as_deref())?;
        guard::check(i, &port.guard)?;
    }
    Ok(())
}

/// Directories for sockets are named from the root, and mean one place.
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

/// Whether a path goes up somewhere: where that leads, its name does not tell.
pub(super) fn climbs(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

/// A socket's path must name a file, be fit to be shown, fit into a socket address, and not be one of Lasthop's own.
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
    if RESERVED.iter().any(|own| path == runtime_dir.join(own)) {
        let found = format!("{}, which Lasthop has for itself", quoted(socket));
        return Err(at.taken("a path of its own", found));
    }
    Ok(path)
}

/// Queue pairs, weight and MTU.
fn numbers(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    let weight = At(place, "weight");
    number(weight, port.weight, &WEIGHTS, expect::WEIGHT)?;
    number(At(place, "queues"), port.queues, &QUEUES, expect::QUEUES)?;
    match port.mtu {
        Some(mtu) => number(At(place, "mtu"), mtu, &MTUS, expect::MTU),
        None => Ok(()),
    }
}

/// A pattern of threads' names.
fn threads(at: At, pattern: Option<&str>) -> Result<(), Invalid> {
    match pattern {
        Some(text)
            if !(1..=PATTERN_MAX).contains(&text.len()) || text.contains(char::is_control) =>
        {
            Err(at.wrong(expect::VCPU_THREADS, quoted(text)))
        }
        _ => Ok(()),
    }
}

/// A port is in one segment or has a trunk, and all of them exist.
fn membership(place: Place, port: &PortSpec, state: &WantedState) -> Result<(), Invalid> {
    match (&port.segment, &port.trunk) {
        (Some(_), Some(_)) => {
            let found = "both".to_owned();
            Err(At(place, "trunk").wrong("either a segment or a trunk", found))
        }
        (Some(segment), None) => match exists(state, segment) {
            true => Ok(()),
            false => Err(At(place, "segment").wrong(one_of_segments(state), quoted(segment))),
        },
        (None, Some(names)) => trunk(At(place, "trunk"), names, state),
        (None, None) => Ok(()),
    }
}

/// The segments of a trunk exist, differ, and can be told apart by their tags.
fn trunk(at: At, names: &[String], state: &WantedState) -> Result<(), Invalid> {
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

/// The tag of a segment.
fn tag(state: &WantedState, segment: &str) -> Option<u16> {
    state.segment(segment).and_then(|segment| segment.vlan)
}

/// Says whether there is such a segment.
pub(super) fn exists(state: &WantedState, segment: &str) -> bool {
    segment == DEFAULT_SEGMENT || state.segment(segment).is_some()
}

/// The segments that there are, in words; of many, the first few.
pub(super) fn one_of_segments(state: &WantedState) -> String {
    let mut names: Vec<&str> = state.segments.iter().map(|s| s.name.as_str()).collect();
    if !names.contains(&DEFAULT_SEGMENT) {
        names.insert(0, DEFAULT_SEGMENT);
    }
    let more = if names.len() > 8 { ", …" } else { "" };
    names.truncate(8);
    format!("{} ({}{more})", expect::SEGMENT, names.join(", "))
}

/// A MAC address must be one that a guest can have.
fn mac(at: At, mac: Option<&str>) -> Result<(), Invalid> {
    match mac.and_then(not_a_station) {
        Some(found) => Err(at.wrong(expect::MAC, found)),
        None => Ok(()),
    }
}

/// What a text is, if not the address of a station.
pub(super) fn not_a_station(text: &str) -> Option<String> {
    match parse_mac(text) {
        Some([0, 0, 0, 0, 0, 0]) => Some("the zero address".to_owned()),
        Some(mac) if mac[0] & 1 == 1 => Some(format!("the group address {}", quoted(text))),
        Some(_) => None,
        None => Some(quoted(text)),
    }
}
