//! The desired state, and changes to it.
//!
//! A desired state is a value. A change makes a new one, which is checked as a whole before
//! anything is done. Control's engine then applies it to the switch. This module does no I/O.

mod access;
mod change;
mod check;
mod device;
mod difference;
mod fdb;
mod invalid;
mod limits;
pub mod live;
mod metrics;
mod mirrors;
mod owner;
pub(crate) mod pipes;
mod port_security;
pub(crate) mod process;
pub mod qos;
mod reach;
mod references;
mod settings;
#[cfg(test)]
mod tests;
pub(crate) mod user;
mod version;
mod warnings;

use std::path::Path;

use api::v1::{
    DEFAULT_SEGMENT, DesiredState, PortKind, PortPatch, PortSpec, Problem, ProblemKind,
    SegmentSpec, SegmentStatus, UplinkDriver,
};

pub use access::placed;
pub use access::{AccessChange, AccessDoubts, check_access};
pub use change::{Change, changed};
pub use check::check;
pub(crate) use check::quoted;
pub(crate) use device::may_have;
pub use device::{dials, driver_of, listens};
pub use difference::{Action, Difference, FieldChange, Step, Subject};
pub use fdb::FdbChange;
pub(crate) use invalid::expect;
pub use invalid::{Bound, Invalid, Place, Why, message};
pub use limits::limits_of;
pub use metrics::metrics_socket;
pub use mirrors::{MirrorChange, mirrors};
pub use owner::{check_owners, owner_of, owner_of_pipe};
pub use pipes::{PipeSocket, pipe_sockets};
pub use port_security::{has_neighbour_suppression, port_security_of, port_security_status};
pub use process::{clients_of, iommu_of, socket_type_of};
pub use reach::{check_reach, reach_of};
pub use settings::switch_settings;
pub use user::user_networks;
pub use version::version;
pub use warnings::shared_macs;
pub use warnings::warnings;

/// Brings a checked desired state into its normal form: the default segment is listed, every port
/// has its segment or its trunk, an uplink its driver, a TAP port its interface, and MAC addresses
/// are lower-case.
pub fn normalise(state: &mut DesiredState) {
    if state.segment(DEFAULT_SEGMENT).is_none() {
        let default = SegmentSpec {
            name: DEFAULT_SEGMENT.to_owned(),
            vlan: None,
            neighbour_suppression: false,
        };
        state.segments.insert(0, default);
    }
    fdb::normalise(&mut state.fdb);
    state.pipes.iter_mut().for_each(pipes::normalise);
    qos::normalise(state);
    for port in &mut state.ports {
        if port.segment.is_none() && port.trunk.is_none() {
            port.segment = Some(DEFAULT_SEGMENT.to_owned());
        }
        if let Some(mac) = &mut port.mac {
            mac.make_ascii_lowercase();
        }
        port_security::normalise(&mut port.port_security);
        match port.kind {
            PortKind::VhostUser | PortKind::User => {}
            PortKind::Netmap | PortKind::Memif => process::normalise(port),
            PortKind::Uplink => port.driver = port.driver.or(Some(UplinkDriver::default())),
            PortKind::Tap => {
                port.interface.get_or_insert_with(|| port.name.clone());
                // As it was before this kind had the key: builds from then read the state.
                port.driver = port.driver.filter(|driver| *driver != UplinkDriver::Auto);
            }
        }
    }
}

/// Returns the segments with their members.
#[must_use]
pub fn segments(state: &DesiredState) -> Vec<SegmentStatus> {
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

/// Returns the state with one more port.
///
/// # Errors
/// 409 if the name or the socket is taken, 422 for other errors.
pub fn add_port(
    state: &DesiredState,
    port: PortSpec,
    runtime_dir: &Path,
) -> Result<DesiredState, Problem> {
    let mut new = state.clone();
    new.ports.push(port);
    accept(new, runtime_dir)
}

/// Returns the state with one port changed; the port keeps its position in the list.
///
/// # Errors
/// 404 for an unknown port, else as [`add_port`].
pub fn set_port(
    state: &DesiredState,
    name: &str,
    patch: &PortPatch,
    runtime_dir: &Path,
) -> Result<DesiredState, Problem> {
    let at = position(state, name)?;
    let mut new = state.clone();
    let port = patched(new.ports.remove(at), patch)?;
    // The port is checked as the last one, so that a conflict is reported for the changed port.
    new.ports.push(port);
    let mut new = accept(new, runtime_dir)?;
    new.ports[at..].rotate_right(1);
    Ok(new)
}

/// Returns the state without one port.
///
/// # Errors
/// 404 for an unknown port, 409 if another object refers to it.
pub fn remove_port(state: &DesiredState, name: &str) -> Result<DesiredState, Problem> {
    let at = position(state, name)?;
    references::port(state, name)?;
    let mut new = state.clone();
    new.ports.remove(at);
    Ok(new)
}

/// Checks and normalises a changed state.
fn accept(mut state: DesiredState, runtime_dir: &Path) -> Result<DesiredState, Problem> {
    check(&state, runtime_dir).map_err(|invalid| match invalid.place {
        Place::Fdb(at) => {
            let mac = state.fdb.get(at).map_or("?", |entry| &entry.mac);
            let detail = format!("the static entry `{mac}` needs it otherwise: {invalid}");
            Problem::conflict("segment", detail)
        }
        Place::QosGroup(_) => Problem::new(ProblemKind::Invalid, invalid.to_string()),
        _ => invalid.to_problem(),
    })?;
    normalise(&mut state);
    Ok(state)
}

/// Returns the index of the port called `name`.
fn position(state: &DesiredState, name: &str) -> Result<usize, Problem> {
    let at = state.ports.iter().position(|port| port.name == name);
    at.ok_or_else(|| Problem::no_such("port", name))
}

/// Returns a port with a patch applied (RFC 7396). Segment and trunk replace each other.
fn patched(mut port: PortSpec, patch: &PortPatch) -> Result<PortSpec, Problem> {
    if patch.segment.is_some() && patch.trunk.is_some() {
        let detail = "expected either a segment or a trunk, found both";
        return Err(Problem::new(ProblemKind::Invalid, detail).with_field("trunk"));
    }
    if patch.socket.as_deref() == Some("") {
        let detail = message(expect::SOCKET, &quoted(""));
        return Err(Problem::new(ProblemKind::Invalid, detail).with_field("socket"));
    }
    if patch.segment.is_some() || patch.trunk.is_some() {
        (port.segment, port.trunk) = (None, None);
    }
    change::patched(&port, patch)
}
