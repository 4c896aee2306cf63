//! Differences that a change of the desired state makes, object by object.

use model::{Action, FieldChange, Subject};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::DesiredState;

/// Query parameters of all changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeOptions {
    /// Check the change and answer with the resulting desired state, but do not apply it. Sockets
    /// and interfaces are not tried.
    pub dry_run: bool,
    /// Answer with 200 and a `ChangesDocument`. A `dry_run` of a change to a port, a segment, an
    /// access list or a part of one always does.
    pub changes: bool,
}

/// Differences that a change makes, or would make. Answer of every change with `changes=true`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangesDocument {
    /// The desired state after the change.
    pub desired: DesiredState,
    /// The steps from the old state to the new one.
    pub changes: Vec<Step>,
}

/// One object that is added, removed or changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ObjectChange)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// The kind of object.
    pub subject: Subject,
    /// The object's name, unless there is only one of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The fields that differ.
    pub fields: Vec<FieldChange>,
    /// Whether the change closes the connection of the port's guest or driver.
    pub disconnects: bool,
    /// Fields of the port whose new values hold from the guest's next connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next_connection: Vec<String>,
}
