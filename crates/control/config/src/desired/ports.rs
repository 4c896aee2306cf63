//! Changes of single ports.

use std::path::Path;

use api::v1::{DesiredState, PortSpec, Problem, ProblemKind};
use serde_json::Value;

use super::at::quoted;
use super::check::check;
use super::invalid::{Place, expect};
use super::normalise::normalise;
use super::{patch, references};
use crate::words::message;

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
    patch: &Value,
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
fn patched(mut port: PortSpec, patch: &Value) -> Result<PortSpec, Problem> {
    let invalid = |key: &str, detail: String| {
        Err(Problem::new(ProblemKind::Invalid, detail).with_field(key.to_owned()))
    };
    let has = |key: &str| patch.get(key).is_some_and(|value| !value.is_null());
    if has("segment") && has("trunk") {
        let detail = "expected either a segment or a trunk, found both";
        return invalid("trunk", detail.to_owned());
    }
    if patch.get("socket").is_some_and(|socket| socket == "") {
        return invalid("socket", message(expect::SOCKET, &quoted("")));
    }
    if has("segment") || has("trunk") {
        (port.segment, port.trunk) = (None, None);
    }
    patch::patched_object(&port, patch)
}
