//! Differences that a change of the desired state makes, object by object.

use serde::{Deserialize, Serialize};
use serde_json::Value;
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

/// Actions of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ChangeAction)]
pub enum Action {
    /// The object is added.
    Add,
    /// The object is removed.
    Remove,
    /// Fields of the object change.
    Change,
}

/// Kinds of objects that a step changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ChangeSubject)]
pub enum Subject {
    /// The switch.
    Switch,
    /// The socket for metrics.
    Metrics,
    /// A segment.
    Segment,
    /// A port.
    Port,
    /// A set of addresses.
    #[serde(rename = "address_set")]
    AddressSet,
    /// A group of ports.
    Group,
    /// A segment's defaults for frames that no rule matches.
    #[serde(rename = "acl_default")]
    AclDefault,
    /// An access list, or the order of all lists.
    Acl,
    /// A rule of an access list.
    Rule,
    /// A mirror.
    Mirror,
    /// A static entry of the forwarding database.
    Fdb,
}

impl Subject {
    /// Returns the word in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Metrics => "metrics",
            Self::Segment => "segment",
            Self::Port => "port",
            Self::AddressSet => "address_set",
            Self::Group => "group",
            Self::AclDefault => "acl_default",
            Self::Acl => "acl",
            Self::Rule => "rule",
            Self::Mirror => "mirror",
            Self::Fdb => "fdb",
        }
    }
}

/// A field before and after the change; `null` where it is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FieldChange {
    /// The field's name, with dots between names of nested tables.
    pub field: String,
    /// The value before.
    #[schema(value_type = Value)]
    pub from: Value,
    /// The value after.
    #[schema(value_type = Value)]
    pub to: Value,
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
}
