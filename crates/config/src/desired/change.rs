//! Changes of a desired state. Each makes a new one, or is refused as a whole.

use std::path::Path;
use std::sync::Arc;

use api::v1::{
    DEFAULT_SEGMENT, DesiredState, PortPatch, PortSpec, Problem, ProblemKind, SegmentPatch,
    SegmentSpec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::access::AccessChange;
use super::fdb::FdbChange;
use super::mirrors::MirrorChange;
use super::qos::QosChange;
use super::{Invalid, add_port, check, live, normalise, references, remove_port, set_port};
use crate::json;

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
    /// Updates the segment of this name.
    SetSegment(String, SegmentPatch),
    /// Removes a segment.
    RemoveSegment(String),
    /// Adds a port; see [`add_port`].
    AddPort(Box<PortSpec>),
    /// Updates the port of this name; see [`set_port`].
    SetPort(String, Box<PortPatch>),
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
/// [`check_access`](super::check_access).
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
            *segment = patched(segment, patch)?;
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
        super::Place::Segment(_) => invalid.to_problem(),
        super::Place::Port(at) => {
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

/// Returns a document with a merge patch applied, which may be the type of one.
pub(super) fn patched<T: Serialize + DeserializeOwned>(
    document: &T,
    patch: &impl Serialize,
) -> Result<T, Problem> {
    let internal = |error: serde_json::Error| Problem::internal(error.to_string());
    let mut value = serde_json::to_value(document).map_err(internal)?;
    merge(&mut value, &serde_json::to_value(patch).map_err(internal)?);
    json::read(value).map_err(|error| json::problem(&error))
}

/// Applies a merge patch (RFC 7396, 2). The parser has limited the depth of the patch.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.remove(key);
            }
            _ => merge(target.entry(key.clone()).or_insert(Value::Null), value),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// RFC 7396, appendix A.
    #[test]
    fn merge_patches_are_those_of_the_rfc() {
        for (original, patch, result) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (
                json!({"a":"b","b":"c"}),
                json!({"a":null}),
                json!({"b":"c"}),
            ),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (
                json!({"a":{"b":"c"}}),
                json!({"a":{"b":"d","c":null}}),
                json!({"a":{"b":"d"}}),
            ),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"a":"foo"}), json!("bar"), json!("bar")),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (
                json!({}),
                json!({"a":{"bb":{"ccc":null}}}),
                json!({"a":{"bb":{}}}),
            ),
        ] {
            let mut target = original.clone();
            merge(&mut target, &patch);
            assert_eq!(target, result, "{original} and {patch}");
        }
    }
}
