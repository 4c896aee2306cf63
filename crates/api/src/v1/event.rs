//! Events: what has happened, told as it happens.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Action, FieldChange, PortState, Problem, ProblemKind, Subject};

/// Events that are kept at most, and that a client may ask for.
pub const EVENTS_KEPT: u16 = 4096;

/// Query of `GET /v1/events`: which events are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventsFilter {
    /// Only events that concern this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Only events of these kinds, with commas between them: `port,change`. Those of kind `missed` come in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Begin with so many of the last events, at most 4096. A client that goes on (`Last-Event-ID`) gets what it has not had instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u16>,
    /// Whether to go on with what happens from then on; if not, the stream ends where it would wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(default = true)]
    pub follow: Option<bool>,
}

impl EventsFilter {
    /// Whether it can be meant.
    ///
    /// # Errors
    /// 422 for a kind that there is not, or for too many events.
    pub fn check(&self) -> Result<(), Problem> {
        let invalid = |field, detail| {
            let problem = Problem::new(ProblemKind::Invalid, detail);
            Err(problem.with_field(field))
        };
        if let Some(last) = self.last.filter(|last| *last > EVENTS_KEPT) {
            let detail = format!("expected 0 to {EVENTS_KEPT}, found {last}");
            return invalid("last", detail);
        }
        match self.kinds().find(|kind| !EventKind::NAMES.contains(kind)) {
            Some(kind) => {
                let kinds = EventKind::NAMES.join(", ");
                invalid("kind", format!("expected some of {kinds}; found `{kind}`"))
            }
            None => Ok(()),
        }
    }

    /// Whether it wants what happens from now on.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follow.unwrap_or(true)
    }

    /// Whether it means an event.
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

/// Something that has happened: the `data` of each event of `GET /v1/events`, which is a stream of server-sent events. It has the fields of an
/// `EventKind`, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Where it is in the stream: what `Last-Event-ID` takes. The first part is another one after each start of control, the second grows
    /// by one with each event.
    #[serde(default)]
    pub id: String,
    /// When it happened: UTC, as in RFC 3339, with milliseconds.
    pub time: String,
    /// How bad it is.
    #[serde(default)]
    pub level: EventLevel,
    /// How many like it were left out before, because there were many about the same port.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// What has happened.
    #[serde(flatten)]
    #[schema(ignore)]
    pub what: EventKind,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How bad an event is, as in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventLevel {
    /// As it should be.
    #[default]
    Info,
    /// Something that should not be, and is dealt with.
    Warn,
    /// Something that was asked for and was not done.
    Error,
}

impl EventLevel {
    /// The level as it is spelt in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// The process that has asked for something, by what the kernel says of it (`SO_PEERCRED`, or the sender of a signal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Asker {
    /// Its user.
    pub uid: u32,
    /// Its number, where it can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// How far something is that takes a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// It has begun.
    #[default]
    Begun,
    /// It was done, or has ended.
    Done,
    /// It was not done, and nothing was changed.
    Refused,
    /// It failed, and everything is as it was before.
    RolledBack,
}

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessChange {
    /// It has ended.
    Ended,
    /// It was started again.
    Restarted,
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// A port is in another state: its guest has connected, gone, or was stopped.
    Port {
        /// The port.
        port: String,
        /// How far it is.
        state: PortState,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A station was heard at another port than before.
    Moved {
        /// Its segment.
        segment: String,
        /// Its address.
        mac: String,
        /// The port where it was.
        from: String,
        /// The port where it is.
        to: String,
    },
    /// A port's guest claims an address that another port still uses. It does not get it.
    Claimed {
        /// The segment.
        segment: String,
        /// The address.
        mac: String,
        /// The port that claims it.
        port: String,
    },
    /// Addresses were bound to a port, whose guard lets its guest have those that it uses first.
    Bound {
        /// The port.
        port: String,
        /// The MAC address that is bound there now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mac: Option<String>,
        /// The IP addresses that are.
        addresses: Vec<String>,
    },
    /// Somebody has asked for something else, and it was done. Each thing that comes, goes or changes is an event.
    Change {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Asker>,
        /// What was done.
        action: Action,
        /// To what.
        subject: Subject,
        /// Its name, unless there is but one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The fields that differ, unless they are too long to be told.
        fields: Vec<FieldChange>,
        /// So many more fields differ.
        #[serde(default, skip_serializing_if = "is_zero")]
        more_fields: u64,
        /// So many more rules and address sets may have changed, which are too many to be told one by one.
        #[serde(default, skip_serializing_if = "is_zero")]
        more_rules: u64,
        /// Whether the port's guest or driver loses its connection for it.
        disconnects: bool,
    },
    /// Learned addresses were forgotten because somebody has asked for that.
    Flushed {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Asker>,
        /// Only those of this segment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        segment: Option<String>,
        /// Only those behind this port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        /// How many.
        count: u64,
    },
    /// Cached flows were forgotten because somebody has asked for that.
    Purged {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Asker>,
        /// Only those from and to this port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Somebody captures a port's frames, or does not any more.
    Capture {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Asker>,
        /// The port.
        port: String,
        /// The capture's number.
        number: u32,
        /// Which frames; empty: all.
        filter: String,
        /// `begun` or `done`.
        progress: Progress,
    },
    /// A process has ended, or was started again.
    Process {
        /// `control`, `switch`, or `driver` and the name of its port.
        process: String,
        /// What became of it.
        state: ProcessChange,
        /// The number of the one that was started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// How often it was started again so far.
        #[serde(default)]
        restarts: u64,
        /// How it ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The configuration file is read again, because of SIGHUP. What that changes are events of their own, asked for by the process that
    /// reads it.
    Reload {
        /// Who sent the signal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Asker>,
        /// The file.
        file: String,
        /// `begun`, `done` or `refused`.
        progress: Progress,
        /// Why it was refused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Every process is replaced by one of another version.
    Upgrade {
        /// Who asked for that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Asker>,
        /// How far it is.
        progress: Progress,
        /// The version now, once it is done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
        /// The directory of the new binaries, when it begins.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dir: Option<String>,
        /// For how many microseconds no switch served guests, once it is done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gap_us: Option<u64>,
        /// Connections that went on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<u32>,
        /// Why it was not done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The client was too slow, or was away: events before the next one are lost to it, whether it would have wanted them or not.
    Missed {
        /// How many; null where that is not known, because control has been started again.
        count: Option<u64>,
    },
    /// Something of which an older client does not know.
    #[serde(other)]
    Unknown,
}

impl EventKind {
    /// All kinds that can be asked for, as they are spelt in documents.
    pub const NAMES: [&str; 11] = [
        "port", "moved", "claimed", "bound", "change", "flushed", "purged", "capture", "process",
        "reload", "upgrade",
    ];

    /// The kind as it is spelt in documents.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Port { .. } => "port",
            Self::Moved { .. } => "moved",
            Self::Claimed { .. } => "claimed",
            Self::Bound { .. } => "bound",
            Self::Change { .. } => "change",
            Self::Flushed { .. } => "flushed",
            Self::Purged { .. } => "purged",
            Self::Capture { .. } => "capture",
            Self::Process { .. } => "process",
            Self::Reload { .. } => "reload",
            Self::Upgrade { .. } => "upgrade",
            Self::Missed { .. } => "missed",
            Self::Unknown => "unknown",
        }
    }

    /// The ports that it concerns.
    #[must_use]
    pub fn ports(&self) -> Vec<&str> {
        match self {
            Self::Port { port, .. }
            | Self::Claimed { port, .. }
            | Self::Bound { port, .. }
            | Self::Capture { port, .. } => vec![port],
            Self::Moved { from, to, .. } => vec![from, to],
            Self::Flushed { port, .. } | Self::Purged { port, .. } => {
                port.iter().map(String::as_str).collect()
            }
            Self::Change { subject, name, .. } if *subject == Subject::Port => {
                name.iter().map(String::as_str).collect()
            }
            Self::Process { process, .. } => process.strip_prefix("driver ").into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Who has asked for it, where somebody has and is known.
    #[must_use]
    pub const fn by(&self) -> Option<Asker> {
        match self {
            Self::Change { by, .. }
            | Self::Flushed { by, .. }
            | Self::Purged { by, .. }
            | Self::Capture { by, .. }
            | Self::Reload { by, .. }
            | Self::Upgrade { by, .. } => *by,
            _ => None,
        }
    }

    /// How bad it is.
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
            | Self::Claimed { .. }
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
            left_out: 0,
            what,
        }
    }

    fn moved() -> Event {
        event(EventKind::Moved {
            segment: "blue".to_owned(),
            mac: "52:54:00:00:00:01".to_owned(),
            from: "vm1".to_owned(),
            to: "vm2".to_owned(),
        })
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let document = json!({
            "id": "1-2", "time": "2026-01-02T03:04:05.006Z", "level": "info", "kind": "moved",
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
            ("vm2", "port,moved", true),
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
        let problem = filter("port", Some(EVENTS_KEPT + 1)).check().unwrap_err();
        assert_eq!(problem.field.as_deref(), Some("last"));
    }
}
