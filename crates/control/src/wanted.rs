//! The wanted state: what the operator asked for, and changes to it.
//!
//! A wanted state is a value. A change makes a new one, which is checked as a whole before anything is
//! done; then [`diff`] says what has to happen. Nothing in this module does I/O.

mod check;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use api::v1::{
    DEFAULT_SEGMENT, PortPatch, PortSpec, Problem, ProblemKind, SegmentSpec, SwitchSpec,
    WantedState,
};

pub use check::{Invalid, Place, check};
pub(crate) use check::{expect, quoted};

/// File name of the API's socket inside the runtime directory.
pub const API_SOCKET: &str = "api.sock";

/// The path of a port's socket: a relative one starts at the runtime directory.
pub fn socket_path(runtime_dir: &Path, socket: &str) -> PathBuf {
    runtime_dir.join(socket)
}

/// Brings a checked wanted state into the one spelling that everything else works with: the default
/// segment is listed, every port names its segment or its trunk, MAC addresses are lower-case.
pub fn normalise(state: &mut WantedState) {
    if state.segment(DEFAULT_SEGMENT).is_none() {
        let default = SegmentSpec {
            name: DEFAULT_SEGMENT.to_owned(),
            vlan: None,
        };
        state.segments.insert(0, default);
    }
    for port in &mut state.ports {
        if port.segment.is_none() && port.trunk.is_none() {
            port.segment = Some(DEFAULT_SEGMENT.to_owned());
        }
        if let Some(mac) = &mut port.mac {
            mac.make_ascii_lowercase();
        }
    }
}

/// The state with one more port.
///
/// # Errors
/// 409 when the name or the socket is another port's, 422 when anything else is wrong with it.
pub fn add_port(
    state: &WantedState,
    port: PortSpec,
    runtime_dir: &Path,
) -> Result<WantedState, Problem> {
    let mut new = state.clone();
    new.ports.push(port);
    accept(new, runtime_dir)
}

/// The state with one port changed; the port keeps its place in the list.
///
/// # Errors
/// 404 without such a port, else as [`add_port`].
pub fn set_port(
    state: &WantedState,
    name: &str,
    patch: &PortPatch,
    runtime_dir: &Path,
) -> Result<WantedState, Problem> {
    let at = position(state, name)?;
    let mut new = state.clone();
    let port = patched(new.ports.remove(at), patch)?;
    // It is checked as if it came last, so that a clash is blamed on the change.
    new.ports.push(port);
    let mut new = accept(new, runtime_dir)?;
    new.ports[at..].rotate_right(1);
    Ok(new)
}

/// The state without one port.
///
/// # Errors
/// 404 without such a port.
pub fn remove_port(state: &WantedState, name: &str) -> Result<WantedState, Problem> {
    let at = position(state, name)?;
    let mut new = state.clone();
    new.ports.remove(at);
    Ok(new)
}

/// Checks a changed state and brings it into shape.
fn accept(mut state: WantedState, runtime_dir: &Path) -> Result<WantedState, Problem> {
    check(&state, runtime_dir).map_err(|invalid| invalid.to_problem())?;
    normalise(&mut state);
    Ok(state)
}

/// Index of the port called `name`.
fn position(state: &WantedState, name: &str) -> Result<usize, Problem> {
    let at = state.ports.iter().position(|port| port.name == name);
    at.ok_or_else(|| Problem::no_such_port(name))
}

/// A port with a patch applied (RFC 7396); segment and trunk replace each other.
fn patched(mut port: PortSpec, patch: &PortPatch) -> Result<PortSpec, Problem> {
    if patch.segment.is_some() && patch.trunk.is_some() {
        let detail = "expected either a segment or a trunk, found both";
        return Err(Problem::new(ProblemKind::Invalid, detail).with_field("trunk"));
    }
    if patch.segment.is_some() || patch.trunk.is_some() {
        port.segment.clone_from(&patch.segment);
        port.trunk.clone_from(&patch.trunk);
    }
    if let Some(socket) = &patch.socket {
        port.socket.clone_from(socket);
    }
    if let Some(mac) = &patch.mac {
        port.mac.clone_from(mac);
    }
    port.role = patch.role.unwrap_or(port.role);
    port.queues = patch.queues.unwrap_or(port.queues);
    port.mtu = patch.mtu.unwrap_or(port.mtu);
    Ok(port)
}

/// One difference between two wanted states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The switch itself is to be different.
    Switch(SwitchSpec),
    /// A segment is new.
    SegmentAdded(SegmentSpec),
    /// A segment is different: its tag.
    SegmentChanged(SegmentSpec),
    /// The segment of this name is gone.
    SegmentRemoved(String),
    /// A port is new.
    PortAdded(PortSpec),
    /// A port is different.
    PortChanged {
        /// The port as it was.
        from: Box<PortSpec>,
        /// The port as it is to be, of the same name.
        to: Box<PortSpec>,
    },
    /// The port of this name is gone.
    PortRemoved(String),
}

/// What has to be done to get from `old` to `new`, in the order in which to do it: what is gone frees its
/// name and socket first, and a segment is there before its ports and goes after them.
///
/// The order of ports and of segments is not a difference.
pub fn diff(old: &WantedState, new: &WantedState) -> Vec<Change> {
    let mut changes = Vec::new();
    if old.switch != new.switch {
        changes.push(Change::Switch(new.switch.clone()));
    }
    changes.extend(new.segments.iter().filter_map(|s| segment_change(old, s)));
    let gone = |port: &&PortSpec| new.port(&port.name).is_none();
    let removed = old.ports.iter().filter(gone);
    changes.extend(removed.map(|port| Change::PortRemoved(port.name.clone())));
    let (changed, added): (Vec<_>, Vec<_>) = new
        .ports
        .iter()
        .filter_map(|port| port_change(old, port))
        .partition(|change| matches!(change, Change::PortChanged { .. }));
    changes.extend(changed.into_iter().chain(added));
    let gone = |segment: &&SegmentSpec| new.segment(&segment.name).is_none();
    let removed = old.segments.iter().filter(gone);
    changes.extend(removed.map(|segment| Change::SegmentRemoved(segment.name.clone())));
    changes
}

/// What has to be done for one wanted segment.
fn segment_change(old: &WantedState, segment: &SegmentSpec) -> Option<Change> {
    match old.segment(&segment.name) {
        None => Some(Change::SegmentAdded(segment.clone())),
        Some(was) if was != segment => Some(Change::SegmentChanged(segment.clone())),
        Some(_) => None,
    }
}

/// What has to be done for one wanted port.
fn port_change(old: &WantedState, port: &PortSpec) -> Option<Change> {
    match old.port(&port.name) {
        None => Some(Change::PortAdded(port.clone())),
        Some(was) if was != port => Some(Change::PortChanged {
            from: Box::new(was.clone()),
            to: Box::new(port.clone()),
        }),
        Some(_) => None,
    }
}

/// Does one change to a state. What is added comes last; what is already gone stays gone.
pub fn apply(state: &mut WantedState, change: &Change) {
    match change {
        Change::Switch(switch) => state.switch.clone_from(switch),
        Change::SegmentAdded(segment) | Change::SegmentChanged(segment) => {
            put(&mut state.segments, segment, |s| &s.name);
        }
        Change::SegmentRemoved(name) => state.segments.retain(|s| s.name != *name),
        Change::PortAdded(port) => put(&mut state.ports, port, |p| &p.name),
        Change::PortChanged { to, .. } => put(&mut state.ports, to, |p| &p.name),
        Change::PortRemoved(name) => state.ports.retain(|p| p.name != *name),
    }
}

/// Replaces the element of the same name, or appends.
fn put<T: Clone>(list: &mut Vec<T>, item: &T, name: impl Fn(&T) -> &String) {
    match list.iter_mut().find(|old| name(old) == name(item)) {
        Some(old) => old.clone_from(item),
        None => list.push(item.clone()),
    }
}
