//! Events, as they happen.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

use super::{Action, FieldChange, PipeChange, PortState, Problem, ProblemKind, Subject, old_names};
use crate::v1::words::words;

/// Maximum number of kept events, and of past events in an answer.
pub const EVENTS_KEPT: u16 = 4096;

/// Query of `GET /v1/events`: selects events.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventsFilter {
    /// Only events that concern this port.
    pub port: Option<String>,
    /// Only events of these kinds, separated by commas: `port,change`. Events of kind `missed` are
    /// always sent.
    pub kind: Option<String>,
    /// Number of past events to start with, at most 4096. A client that resumes with
    /// `Last-Event-ID` gets the events after that one instead.
    pub last: Option<u16>,
    /// Whether the stream continues with new events; if not, it ends after the past ones.
    #[param(default = true)]
    pub follow: Option<bool>,
}

impl EventsFilter {
    /// Checks the values.
    ///
    /// # Errors
    /// 422 for an unknown kind, or for too many events.
    pub fn check(&self) -> Result<(), Problem> {
        let invalid = |field, detail| {
            let problem = Problem::new(ProblemKind::Invalid, detail);
            Err(problem.with_field(field))
        };
        if let Some(last) = self.last.filter(|last| *last > EVENTS_KEPT) {
            let detail = format!("expected 0 to {EVENTS_KEPT}, found {last}");
            return invalid("last", detail);
        }
        let unknown = self.kinds().find(|kind| !EventKind::NAMES.contains(kind));
        let Some(kind) = unknown else {
            return Ok(());
        };
        let detail = old_names::old_event_kind(kind).map_or_else(
            || {
                let kinds = EventKind::NAMES.join(", ");
                format!("expected some of {kinds}; found `{kind}`")
            },
            ToString::to_string,
        );
        invalid("kind", detail)
    }

    /// Returns whether the stream continues with new events.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follow.unwrap_or(true)
    }

    /// Returns whether the filter selects an event.
    #[must_use]
    pub fn accepts(&self, event: &Event) -> bool {
        let is_its = |port: &String| event.what.ports().contains(&port.as_str());
        let kind = event.what.name();
        matches!(event.what, EventKind::Missed { .. })
            || self.port.as_ref().is_none_or(is_its)
                && (self.kind.is_none() || self.kinds().any(|one| one == kind))
    }

    fn kinds(&self) -> impl Iterator<Item = &str> {
        self.kind.iter().flat_map(|kinds| kinds.split(','))
    }
}

/// An event: the `data` of each server-sent event of `GET /v1/events`. It also has the fields of an
/// `EventKind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its position in the stream, for `Last-Event-ID`. The first part is new after each start of
    /// control, the second grows by one with each event.
    #[serde(default)]
    pub id: String,
    /// The time in UTC, as in RFC 3339, with milliseconds.
    pub time: String,
    /// The severity.
    #[serde(default)]
    pub level: EventLevel,
    /// Number of similar events about the same port that were suppressed before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suppressed: u64,
    /// The kind of event, and its fields.
    #[serde(flatten)]
    #[schema(ignore)]
    pub what: EventKind,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

words! {
    /// Severities of events, as in the log.
    #[derive(Default)]
    pub enum EventLevel {
        /// Normal operation.
        #[default]
        Info = "info",
        /// An abnormal condition that Lasthop handles.
        Warn = "warn",
        /// A request that was not carried out.
        Error = "error",
    }
}

/// The process that has requested something, as identified by the kernel (`SO_PEERCRED`, or the
/// sender of a signal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Requester {
    /// Its user id.
    pub uid: u32,
    /// Its process id, if it is visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// Progress of a long operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// It has started.
    #[default]
    Started,
    /// It has ended successfully.
    Done,
    /// It was refused, and nothing was changed.
    Refused,
    /// It failed, and was rolled back.
    RolledBack,
}

/// State changes of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessChange {
    /// It has ended.
    Ended,
    /// It was restarted.
    Restarted,
}

/// Kinds of events, with their fields.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// A port has changed its state: its guest has connected or disconnected, or a queue was
    /// stopped.
    Port {
        /// The port.
        port: String,
        /// Its state.
        state: PortState,
        /// The reason.
        reason: Option<String>,
    },
    /// An end of a pipe has connected, or its connection has ended.
    Pipe {
        /// The pipe, or the port with pipes.
        pipe: String,
        /// The pipe's number.
        id: u16,
        /// `master` or `slave`.
        end: String,
        /// `connected` or `disconnected`.
        state: PipeChange,
        /// The name of the program, as it says itself.
        program: String,
        /// Its process id; 0 if it is not visible.
        pid: u32,
    },
    /// A MAC address has moved to another port.
    MacMoved {
        /// The segment.
        segment: String,
        /// The MAC address.
        mac: String,
        /// The old port.
        from: String,
        /// The new port.
        to: String,
    },
    /// A port's guest has used a MAC address that another port still uses. The address does not
    /// move.
    MacSpoofed {
        /// The segment.
        segment: String,
        /// The MAC address.
        mac: String,
        /// The port that has used it.
        port: String,
    },
    /// Sticky port security has bound addresses to a port.
    AddressBound {
        /// The port.
        port: String,
        /// The bound MAC address.
        mac: Option<String>,
        /// The bound IP addresses.
        addresses: Vec<String>,
    },
    /// The desired state was changed. Each added, removed or changed object is an event.
    Change {
        /// The requester.
        by: Option<Requester>,
        /// The action.
        action: Action,
        /// The kind of object.
        subject: Subject,
        /// The object's name, unless there is only one of its kind.
        name: Option<String>,
        /// The fields that differ, unless they are too long for an event.
        fields: Vec<FieldChange>,
        /// Number of further fields that differ.
        #[serde(default, skip_serializing_if = "is_zero")]
        more_fields: u64,
        /// Number of further rules and address sets that may have changed, without an event for
        /// each.
        #[serde(default, skip_serializing_if = "is_zero")]
        more_rules: u64,
        /// Whether the change closes the connection of the port's guest or driver.
        disconnects: bool,
    },
    /// Learned addresses were removed on request.
    FdbFlushed {
        /// The requester.
        by: Option<Requester>,
        /// The segment, if the request was limited to one.
        segment: Option<String>,
        /// The port, if the request was limited to one.
        port: Option<String>,
        /// Number of removed addresses.
        count: u64,
    },
    /// Cached flows were removed on request.
    FlowsPurged {
        /// The requester.
        by: Option<Requester>,
        /// The port, if the request was limited to flows from and to one.
        port: Option<String>,
    },
    /// A capture of a port's frames has started or ended.
    Capture {
        /// The requester.
        by: Option<Requester>,
        /// The port.
        port: String,
        /// The capture's number.
        number: u32,
        /// The filter; empty for all frames.
        filter: String,
        /// `started` or `done`.
        progress: Progress,
    },
    /// A process has ended or was restarted.
    Process {
        /// `control`, `switch`, or `driver` and the name of its port.
        process: String,
        /// Its new state.
        state: ProcessChange,
        /// The process id of the new process.
        pid: Option<u32>,
        /// Number of restarts so far.
        #[serde(default)]
        restarts: u64,
        /// The reason of its end.
        reason: Option<String>,
    },
    /// The configuration file is reloaded after SIGHUP. The changes are events of their own,
    /// requested by the process that reads the file.
    Reload {
        /// The sender of the signal.
        by: Option<Requester>,
        /// The file.
        file: String,
        /// `started`, `done` or `refused`.
        progress: Progress,
        /// The reason of a refusal.
        reason: Option<String>,
    },
    /// An upgrade: all processes are replaced by another version.
    Upgrade {
        /// The requester.
        by: Option<Requester>,
        /// Its state.
        progress: Progress,
        /// The new version, after the upgrade.
        version: Option<String>,
        /// The directory of the new binaries, at the start.
        dir: Option<String>,
        /// Microseconds during which no switch served guests, after the upgrade.
        gap_us: Option<u64>,
        /// Number of connections that were kept.
        connections: Option<u32>,
        /// The reason of a refusal or a failure.
        reason: Option<String>,
    },
    /// The client was too slow or was disconnected: events before the next one are lost, including
    /// those that its filter does not select.
    Missed {
        /// Number of lost events; `null` if it is not known, because control was restarted.
        #[serialize_always]
        count: Option<u64>,
    },
    /// A kind that this client does not know.
    #[serde(other)]
    Unknown,
}

impl EventKind {
    /// All kinds that a filter may name.
    pub const NAMES: [&str; 12] = [
        "port",
        "pipe",
        "mac_moved",
        "mac_spoofed",
        "address_bound",
        "change",
        "fdb_flushed",
        "flows_purged",
        "capture",
        "process",
        "reload",
        "upgrade",
    ];

    /// Returns the word in documents.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Port { .. } => "port",
            Self::Pipe { .. } => "pipe",
            Self::MacMoved { .. } => "mac_moved",
            Self::MacSpoofed { .. } => "mac_spoofed",
            Self::AddressBound { .. } => "address_bound",
            Self::Change { .. } => "change",
            Self::FdbFlushed { .. } => "fdb_flushed",
            Self::FlowsPurged { .. } => "flows_purged",
            Self::Capture { .. } => "capture",
            Self::Process { .. } => "process",
            Self::Reload { .. } => "reload",
            Self::Upgrade { .. } => "upgrade",
            Self::Missed { .. } => "missed",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the ports concerned.
    #[must_use]
    pub fn ports(&self) -> Vec<&str> {
        match self {
            Self::Port { port, .. }
            | Self::MacSpoofed { port, .. }
            | Self::AddressBound { port, .. }
            | Self::Capture { port, .. } => vec![port],
            Self::Pipe { pipe, .. } => vec![pipe],
            Self::MacMoved { from, to, .. } => vec![from, to],
            Self::FdbFlushed { port, .. } | Self::FlowsPurged { port, .. } => {
                port.iter().map(String::as_str).collect()
            }
            Self::Change { subject, name, .. } if *subject == Subject::Port => {
                name.iter().map(String::as_str).collect()
            }
            Self::Process { process, .. } => process.strip_prefix("driver ").into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the requester, if there is one and it is known.
    #[must_use]
    pub const fn by(&self) -> Option<Requester> {
        match self {
            Self::Change { by, .. }
            | Self::FdbFlushed { by, .. }
            | Self::FlowsPurged { by, .. }
            | Self::Capture { by, .. }
            | Self::Reload { by, .. }
            | Self::Upgrade { by, .. } => *by,
            _ => None,
        }
    }

    /// The severity.
    #[must_use]
    pub const fn level(&self) -> EventLevel {
        match self {
            Self::Upgrade {
                progress: Progress::RolledBack,
                ..
            }
            | Self::Reload {
                progress: Progress::Refused,
                ..
            } => EventLevel::Error,
            Self::Port {
                state: PortState::Faulted,
                ..
            }
            | Self::Process {
                state: ProcessChange::Ended,
                ..
            }
            | Self::Upgrade {
                progress: Progress::Refused,
                ..
            }
            | Self::MacSpoofed { .. }
            | Self::Missed { .. } => EventLevel::Warn,
            _ => EventLevel::Info,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(what: EventKind) -> Event {
        Event {
            id: "1-2".to_owned(),
            time: "2026-01-02T03:04:05.006Z".to_owned(),
            level: what.level(),
            suppressed: 0,
            what,
        }
    }

    fn moved() -> Event {
        event(EventKind::MacMoved {
            segment: "blue".to_owned(),
            mac: "52:54:00:00:00:01".to_owned(),
            from: "vm1".to_owned(),
            to: "vm2".to_owned(),
        })
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let document = json!({
            "id": "1-2", "time": "2026-01-02T03:04:05.006Z", "level": "info", "kind": "mac_moved",
            "segment": "blue", "mac": "52:54:00:00:00:01", "from": "vm1", "to": "vm2",
        });
        assert_eq!(serde_json::to_value(moved()).unwrap(), document);
        assert_eq!(serde_json::from_value::<Event>(document).unwrap(), moved());
    }

    #[test]
    fn an_older_client_understands_that_there_is_more() {
        let newer = json!({"id": "1-2", "time": "t", "kind": "eclipse", "moon": 1});
        let event: Event = serde_json::from_value(newer).unwrap();
        assert_eq!(event.what, EventKind::Unknown);
    }

    #[test]
    fn a_filter_means_kinds_and_ports_and_never_hides_what_was_missed() {
        let filter = |port: &str, kind: &str| EventsFilter {
            port: Some(port.to_owned()).filter(|port| !port.is_empty()),
            kind: Some(kind.to_owned()).filter(|kind| !kind.is_empty()),
            ..EventsFilter::default()
        };
        for (port, kind, accepted) in [
            ("", "", true),
            ("vm1", "", true),
            ("vm2", "port,mac_moved", true),
            ("vm3", "", false),
            ("vm1", "port", false),
        ] {
            assert_eq!(
                filter(port, kind).accepts(&moved()),
                accepted,
                "{port} {kind}"
            );
        }
        let missed = event(EventKind::Missed { count: None });
        assert!(filter("vm3", "port").accepts(&missed));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let filter = |kind: &str, last| EventsFilter {
            kind: Some(kind.to_owned()),
            last,
            ..EventsFilter::default()
        };
        assert_eq!(filter("port,upgrade", Some(EVENTS_KEPT)).check(), Ok(()));
        let problem = filter("port,ports", None).check().unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (422, Some("kind"))
        );
        assert!(problem.detail.ends_with("found `ports`"), "{problem}");
        let problem = filter("port,moved", None).check().unwrap_err();
        let renamed =
            "kind: \"moved\" was renamed to \"mac_moved\" (see docs/user/changed-names.md)";
        assert_eq!(problem.to_string(), renamed);
        let problem = filter("port", Some(EVENTS_KEPT + 1)).check().unwrap_err();
        assert_eq!(problem.field.as_deref(), Some("last"));
    }
}
