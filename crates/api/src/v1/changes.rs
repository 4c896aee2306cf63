//! What a change of what is wanted alters, thing by thing.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::WantedState;

/// Query of all changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeOptions {
    /// Only say whether the change is a right one, and what would be wanted then. Whether sockets and interfaces can be had
    /// is not known before they are tried.
    pub dry_run: bool,
    /// Answer with 200 and a `ChangesDocument`: what the change alters. A port, a segment, an access list or a part of one that is only
    /// looked at (`dry_run`) has no other answer.
    pub changes: bool,
}

/// What a change alters, or would alter. Answer of every change with `changes=true`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangesDocument {
    /// Everything that is wanted then.
    pub wanted: WantedState,
    /// What it takes to get there.
    pub changes: Vec<Step>,
}

/// What a step does to its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ChangeAction)]
pub enum Action {
    /// It comes.
    Add,
    /// It goes.
    Remove,
    /// It stays, and is another.
    Change,
}

/// What a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ChangeSubject)]
pub enum Subject {
    /// The switch.
    Switch,
    /// Where metrics are served.
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
    /// An access list, or the order of all.
    Acl,
    /// A rule of an access list.
    Rule,
    /// Copies of frames to a port.
    Mirror,
    /// A static entry of the forwarding database.
    Fdb,
}

impl Subject {
    /// The word for it.
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

/// A field before and after; `null` where there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FieldChange {
    /// Its name, with dots for tables within tables.
    pub field: String,
    /// Before.
    #[schema(value_type = Value)]
    pub from: Value,
    /// After.
    #[schema(value_type = Value)]
    pub to: Value,
}

/// One thing that comes, goes or changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ObjectChange)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// To what.
    pub subject: Subject,
    /// Its name, unless there is but one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The fields that differ.
    pub fields: Vec<FieldChange>,
    /// Whether the connection of the port's guest or driver ends for it.
    pub disconnects: bool,
}
