//! Changes of a desired state. Each makes a new one, or is refused as a whole.

use std::path::Path;
use std::sync::Arc;

use api::v1::{DEFAULT_SEGMENT, DesiredState, PortSpec, Problem, ProblemKind, SegmentSpec};
use serde_json::Value;

use super::access::AccessChange;
use super::check::check;
use super::fdb::FdbChange;
use super::invalid::{Invalid, Place};
use super::mirrors::MirrorChange;
use super::normalise::normalise;
use super::patch::{patched, patched_object};
use super::ports::{add_port, remove_port, set_port};
use super::qos::QosChange;
use super::{live, references};

/// A change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Replaces the desired state.
    State(Box<DesiredState>),
    /// Updates the desired state with a merge patch (RFC 7396).
    PatchState(Value),
    /// Updates the switch with a merge patch.
    PatchSwitch(Value),
    /// Updates the access lists with a merge patch.
    PatchAccess(Value),
    /// Changes a part of the access lists.
    Access(AccessChange),
    /// Adds, replaces or removes a mirror.
    Mirror(MirrorChange),
    /// Adds, replaces or removes a static entry.
    Fdb(FdbChange),
    /// Adds, updates or removes a class or a group of senders.
    Qos(QosChange),
    /// Adds a segment.
    AddSegment(SegmentSpec),
    /// Updates the segment of this name with a merge patch.
    SetSegment(String, Value),
    /// Removes a segment.
    RemoveSegment(String),
    /// Adds a port; see [`add_port`].
    AddPort(Box<PortSpec>),
    /// Updates the port of this name with a merge patch; see [`set_port`].
    SetPort(String, Value),
    /// Removes a port.
    RemovePort(String),
}

impl Change {
    /// Returns the port that the change adds or updates, if it is exactly one.
    #[must_use]
    pub fn port(&self) -> Option<&str> {
        match self {
            Self::AddPort(spec) => Some(&spec.name),
            Self::SetPort(name, _) => Some(name),
            _ => None,
        }
    }
}

/// Returns the state after a change, checked and normalised, except for access lists: see
/// [`check_access`](super::access::check_access).
///
/// # Errors
/// The first error of the change or of the new state: 404, 409 or 422, usually with the field.
pub fn changed(
    state: &DesiredState,
    change: &Change,
    runtime_dir: &Path,
) -> Result<DesiredState, Problem> {
    let whole = |new| whole(state, new, None, runtime_dir);
    match change {
        Change::State(new) => whole((**new).clone()),
        Change::PatchState(patch) => whole(patched(state, patch)?),
        Change::PatchSwitch(patch) => {
            let mut new = state.clone();
            new.switch = patched(&new.switch, patch)?;
            self::whole(state, new, Some("switch"), runtime_dir)
        }
        Change::PatchAccess(patch) => Ok(DesiredState {
            access: Arc::new(patched(&*state.access, patch)?),
            ..state.clone()
        }),
        Change::Access(change) => Ok(DesiredState {
            access: Arc::new(change.apply(&state.access)?),
            ..state.clone()
        }),
        Change::Mirror(change) => change.apply(state),
        Change::Fdb(change) => change.apply(state),
        Change::Qos(change) => with_qos(change.apply(state)?, change, runtime_dir),
        Change::AddSegment(spec) => {
            let mut new = state.clone();
            new.segments.push(spec.clone());
            with_segments(new, runtime_dir)
        }
        Change::SetSegment(name, patch) => {
            let mut new = state.clone();
            let segment = segment(&mut new, name)?;
            *segment = patched_object(segment, patch)?;
            with_segments(new, runtime_dir)
        }
        Change::RemoveSegment(name) => without_segment(state, name),
        Change::AddPort(spec) => add_port(state, (**spec).clone(), runtime_dir),
        Change::SetPort(name, patch) => set_port(state, name, patch, runtime_dir),
        Change::RemovePort(name) => remove_port(state, name),
    }
}

/// Replaces the whole state; errors have paths relative to the part called `of`.
fn whole(
    old: &DesiredState,
    mut new: DesiredState,
    of: Option<&str>,
    runtime_dir: &Path,
) -> Result<DesiredState, Problem> {
    let problem = |invalid: Invalid| invalid.to_problem_in(of);
    check(&new, runtime_dir).map_err(problem)?;
    live::check(&old.switch, &new.switch).map_err(problem)?;
    normalise(&mut new);
    Ok(new)
}

/// Checks a state with changed segments. Errors are about a segment, or about a port that conflicts
/// with them.
fn with_segments(mut new: DesiredState, runtime_dir: &Path) -> Result<DesiredState, Problem> {
    check(&new, runtime_dir).map_err(|invalid| match invalid.place {
        Place::Segment(_) => invalid.to_problem(),
        Place::Port(at) => {
            let port = new.ports.get(at).map_or("?", |port| &port.name);
            let detail = format!("port `{port}` needs it otherwise: {invalid}");
            Problem::conflict("vlan", detail)
        }
        _ => invalid.to_problem_in(None),
    })?;
    normalise(&mut new);
    Ok(new)
}

/// Checks a state with a changed class or group. Errors are about that object, or about another one
/// that conflicts with it.
fn with_qos(
    mut new: DesiredState,
    change: &QosChange,
    runtime_dir: &Path,
) -> Result<DesiredState, Problem> {
    check(&new, runtime_dir).map_err(|invalid| match invalid.place {
        place if change.is_about(&new, place) => invalid.to_problem(),
        _ => Problem::new(ProblemKind::Invalid, invalid.to_string()),
    })?;
    normalise(&mut new);
    Ok(new)
}

fn without_segment(state: &DesiredState, name: &str) -> Result<DesiredState, Problem> {
    let mut new = state.clone();
    segment(&mut new, name)?;
    if name == DEFAULT_SEGMENT {
        let detail = format!("there always is a segment `{name}`");
        return Err(Problem::new(ProblemKind::Fixed, detail).with_field("name"));
    }
    references::segment(state, name)?;
    new.segments.retain(|segment| segment.name != name);
    Ok(new)
}

fn segment<'a>(state: &'a mut DesiredState, name: &str) -> Result<&'a mut SegmentSpec, Problem> {
    let found = state.segments.iter_mut().find(|s| s.name == name);
    found.ok_or_else(|| Problem::no_such("segment", name))
}
