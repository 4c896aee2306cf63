//! The wanted state: what the operator asked for, and changes to it.
//!
//! A wanted state is a value. A change makes a new one, which is checked as a whole before anything is
//! done; [`engine`](crate::engine) then makes the switch have it. Nothing in this module does I/O.

mod access;
mod change;
mod check;
mod device;
mod difference;
mod fdb;
mod guard;
mod invalid;
mod limits;
pub mod live;
mod metrics;
mod mirrors;
mod needs;
mod owner;
mod reach;
#[cfg(test)]
mod tests;
mod version;
mod warnings;

use std::path::{Path, PathBuf};

use api::v1::{
    DEFAULT_SEGMENT, GuardPatch, PortKind, PortPatch, PortSpec, Problem, ProblemKind, SegmentSpec,
    SegmentStatus, UplinkDriver, WantedState,
};

pub(crate) use access::placed;
pub use access::{AccessChange, AccessDoubts, check_access};
pub use change::{Change, changed};
pub use check::check;
pub(crate) use check::quoted;
pub use device::{dials, driver_of, listens};
pub use difference::{Action, Difference, FieldChange, Step, Subject};
pub use fdb::FdbChange;
pub use guard::{answers_for, guard_of, guard_status};
pub use invalid::{Bound, Invalid, Place, Why};
pub(crate) use invalid::{expect, said};
pub use limits::limits_of;
pub use metrics::metrics_socket;
pub use mirrors::{MirrorChange, mirrors};
pub use owner::owner_of;
pub use reach::Reach;
pub use version::version;
pub(crate) use warnings::shared_macs;
pub use warnings::warnings;

/// File name of the API's socket inside the runtime directory.
pub const API_SOCKET: &str = "api.sock";
/// That of the socket on which the supervisor hears administrators.
pub const ADMIN_SOCKET: &str = "supervisor.sock";
/// That of the lock that keeps a second Lasthop out of the directory.
pub const LOCK_FILE: &str = "lasthop.lock";
/// Names in the runtime directory that are Lasthop's own.
pub const RESERVED: [&str; 3] = [API_SOCKET, ADMIN_SOCKET, LOCK_FILE];

/// The path of a port's socket: a relative one starts at the runtime directory.
pub fn socket_path(runtime_dir: &Path, socket: &str) -> PathBuf {
    runtime_dir.join(socket)
}

/// Brings a checked wanted state into the one spelling that everything else works with: the default
/// segment is listed, every port names its segment or its trunk, an uplink its driver, a TAP port its interface,
/// MAC addresses are lower-case.
pub fn normalise(state: &mut WantedState) {
    if state.segment(DEFAULT_SEGMENT).is_none() {
        let default = SegmentSpec {
            name: DEFAULT_SEGMENT.to_owned(),
            vlan: None,
            neighbour_suppression: false,
        };
        state.segments.insert(0, default);
    }
    fdb::normalise(&mut state.fdb);
    for port in &mut state.ports {
        if port.segment.is_none() && port.trunk.is_none() {
            port.segment = Some(DEFAULT_SEGMENT.to_owned());
        }
        if let Some(mac) = &mut port.mac {
            mac.make_ascii_lowercase();
        }
        guard::normalise(&mut port.guard);
        match port.kind {
            PortKind::VhostUser => {}
            PortKind::Uplink => port.driver = port.driver.or(Some(UplinkDriver::default())),
            PortKind::Tap => {
                port.interface.get_or_insert_with(|| port.name.clone());
            }
        }
    }
}

/// The segments with their members.
#[must_use]
pub fn segments(state: &WantedState) -> Vec<SegmentStatus> {
    let members = |name: &str| {
        let ports = state.ports.iter();
        let inside = ports.filter(|port| port.segments().any(|s| s == name));
        inside.map(|port| port.name.clone()).collect()
    };
    let status = |segment: &SegmentSpec| SegmentStatus {
        name: segment.name.clone(),
        vlan: segment.vlan,
        neighbour_suppression: segment.neighbour_suppression,
        ports: members(&segment.name),
    };
    state.segments.iter().map(status).collect()
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
/// 404 without such a port, 409 where something else names it.
pub fn remove_port(state: &WantedState, name: &str) -> Result<WantedState, Problem> {
    let at = position(state, name)?;
    needs::port(state, name)?;
    let mut new = state.clone();
    new.ports.remove(at);
    Ok(new)
}

/// Checks a changed state and brings it into shape.
fn accept(mut state: WantedState, runtime_dir: &Path) -> Result<WantedState, Problem> {
    check(&state, runtime_dir).map_err(|invalid| match invalid.place {
        Place::Fdb(at) => {
            let mac = state.fdb.get(at).map_or("?", |entry| &entry.mac);
            let detail = format!("the static entry `{mac}` needs it otherwise: {invalid}");
            Problem::conflict("segment", detail)
        }
        _ => invalid.to_problem(),
    })?;
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
        if socket.is_empty() {
            let detail = said(expect::SOCKET, &quoted(socket));
            return Err(Problem::new(ProblemKind::Invalid, detail).with_field("socket"));
        }
        port.socket.clone_from(socket);
    }
    if let Some(mac) = &patch.mac {
        port.mac.clone_from(mac);
    }
    port.admin_state = patch.admin_state.unwrap_or(port.admin_state);
    port.role = patch.role.unwrap_or(port.role);
    for (field, change) in [
        (&mut port.user, &patch.user),
        (&mut port.group, &patch.group),
        (&mut port.mode, &patch.mode),
        (&mut port.peer_user, &patch.peer_user),
    ] {
        if let Some(change) = change {
            field.clone_from(change);
        }
    }
    port.queues = patch.queues.unwrap_or(port.queues);
    port.mtu = patch.mtu.unwrap_or(port.mtu);
    port.weight = patch.weight.unwrap_or(port.weight);
    if let Some(guard) = &patch.guard {
        port.guard = GuardPatch::applied(guard.as_ref(), &port.guard);
    }
    if let Some(limits) = &patch.limits {
        port.limits = change::patched_in(&port.limits, limits, "limits")?;
    }
    Ok(port)
}
