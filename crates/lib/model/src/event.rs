//! Events, as they happen.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::words;

/// An event: the `data` of each server-sent event of `GET /v1/events`. It also has the fields of an
/// `EventKind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
    #[cfg_attr(feature = "schema", schema(ignore))]
    pub what: EventKind,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

words! {
    /// Bounds of the connections of a port.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[derive(Default)]
    pub enum ConnectionLimit {
        /// The port's own `connections`.
        Limit = "limit",
        /// Its share of the table.
        Share = "share",
        /// Its share of the table for connections that were not answered.
        Unreplied = "unreplied",
        /// A bound of a newer server that this client does not know.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}

words! {
    /// The side that has opened connections of a port.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[derive(Default)]
    pub enum ConnectionOpener {
        /// The port.
        Opened = "opened",
        /// Ports without guests have opened them to the port.
        OpenedTo = "opened_to",
        /// A side of a newer server that this client does not know.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}

words! {
    /// Severities of events, as in the log.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Requester {
    /// Its user id.
    pub uid: u32,
    /// Its process id, if it is visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// Progress of a long operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProcessChange {
    /// It has ended.
    Ended,
    /// It was restarted.
    Restarted,
}

/// Kinds of events, with their fields.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
    /// A MAC address is in use at two ports in turn: by an impostor, by a bond, or through a loop.
    /// It stays at one of them. Frames of both are forwarded.
    MacFlapping {
        /// The segment.
        segment: String,
        /// The MAC address.
        mac: String,
        /// The port to which it does not move.
        port: String,
        /// The port that has it.
        holder: String,
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
    /// Connections were removed on request.
    ConnectionsFlushed {
        /// The requester.
        by: Option<Requester>,
        /// The segment, if the request was limited to one.
        segment: Option<String>,
        /// The port, if the request was limited to one.
        port: Option<String>,
        /// The filter; absent for all connections.
        filter: Option<String>,
        /// Number of removed connections; absent if they were not counted, as those of a whole
        /// segment, which go at once.
        count: Option<u64>,
        /// The reason why others may be left.
        reason: Option<String>,
    },
    /// The connections of a port have reached a bound. There is no other such event before they
    /// were below seven eighths of it.
    ConnectionsFull {
        /// The port.
        port: String,
        /// The side that has opened them.
        opener: ConnectionOpener,
        /// The bound.
        bound: ConnectionLimit,
        /// Its value, in connections.
        limit: u32,
    },
    /// Frames of an uplink that the policy denies have begun to end before the switch, or none do
    /// any more.
    Prefilter {
        /// The port.
        port: String,
        /// `began` or `ended`.
        state: PrefilterChange,
        /// The rules that deny the frames, each as its list and its name. Without a rule it is the
        /// default of the segment.
        rules: Vec<String>,
        /// Number of frames that have ended, of all rules.
        frames: Option<u64>,
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
    pub const NAMES: [&str; 15] = [
        "port",
        "pipe",
        "mac_moved",
        "mac_flapping",
        "address_bound",
        "change",
        "fdb_flushed",
        "flows_purged",
        "connections_flushed",
        "connections_full",
        "prefilter",
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
            Self::MacFlapping { .. } => "mac_flapping",
            Self::AddressBound { .. } => "address_bound",
            Self::Change { .. } => "change",
            Self::FdbFlushed { .. } => "fdb_flushed",
            Self::FlowsPurged { .. } => "flows_purged",
            Self::ConnectionsFlushed { .. } => "connections_flushed",
            Self::ConnectionsFull { .. } => "connections_full",
            Self::Prefilter { .. } => "prefilter",
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
            | Self::AddressBound { port, .. }
            | Self::ConnectionsFull { port, .. }
            | Self::Prefilter { port, .. }
            | Self::Capture { port, .. } => vec![port],
            Self::Pipe { pipe, .. } => vec![pipe],
            Self::MacMoved { from, to, .. } => vec![from, to],
            Self::MacFlapping { port, holder, .. } => vec![port, holder],
            Self::FdbFlushed { port, .. }
            | Self::FlowsPurged { port, .. }
            | Self::ConnectionsFlushed { port, .. } => port.iter().map(String::as_str).collect(),
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
            | Self::ConnectionsFlushed { by, .. }
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
            | Self::Prefilter {
                state: PrefilterChange::Began,
                ..
            }
            | Self::MacFlapping { .. }
            | Self::ConnectionsFull { .. }
            | Self::Missed { .. } => EventLevel::Warn,
            _ => EventLevel::Info,
        }
    }
}

/// Actions of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", schema(as = ChangeAction))]
pub enum Action {
    /// The object is added.
    Add,
    /// The object is removed.
    Remove,
    /// Fields of the object change.
    Change,
}

words! {
    /// Kinds of objects that a step changes.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[cfg_attr(feature = "schema", schema(as = ChangeSubject))]
    pub enum Subject {
        /// The switch.
        Switch = "switch",
        /// The socket for metrics.
        Metrics = "metrics",
        /// A segment.
        Segment = "segment",
        /// A traffic class.
        QosClass = "qos_class",
        /// A group of senders at scheduled ports.
        QosGroup = "qos_group",
        /// A port.
        Port = "port",
        /// A set of addresses.
        AddressSet = "address_set",
        /// A group of ports.
        Group = "group",
        /// A segment's defaults for frames that no rule matches.
        AclDefault = "acl_default",
        /// An access list, or the order of all lists.
        Acl = "acl",
        /// A rule of an access list.
        Rule = "rule",
        /// A mirror.
        Mirror = "mirror",
        /// A pipe.
        Pipe = "pipe",
        /// A static entry of the forwarding database.
        Fdb = "fdb",
    }
}

/// A field before and after the change; `null` where it is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FieldChange {
    /// The field's name, with dots between names of nested tables.
    pub field: String,
    /// The value before.
    #[cfg_attr(feature = "schema", schema(value_type = Value))]
    pub from: Value,
    /// The value after.
    #[cfg_attr(feature = "schema", schema(value_type = Value))]
    pub to: Value,
}

words! {
    /// Changes of a connection of a pipe's end.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub enum PipeChange {
        /// It has connected.
        Connected = "connected",
        /// Its connection has ended.
        Disconnected = "disconnected",
    }
}

words! {
    /// Changes of an uplink's prefilter.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub enum PrefilterChange {
        /// Its table has entries.
        Began = "began",
        /// It has none any more.
        Ended = "ended",
    }
}

words! {
    /// States of a port.
    ///
    /// ```text
    ///            listens            VMM dials            first queue pair
    ///  starting ---------> waiting ----------> connected ---------------> up
    ///      \     dials                          ^   |                      | malformed chain
    ///       `------------> dialing -------------'   | VMM goes             v
    ///                         ^  (server: waiting)  |                   faulted
    ///                         `---------------------'<---------------------'
    /// ```
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[derive(Default)]
    pub enum PortState {
        /// The switch has not added the port yet.
        Starting = "starting",
        /// Lasthop listens and no VMM is connected.
        Waiting = "waiting",
        /// Lasthop tries to connect and no VMM is connected.
        Dialing = "dialing",
        /// A VMM is connected; the guest's driver does not run yet.
        Connected = "connected",
        /// At least one queue pair carries frames.
        Up = "up",
        /// At least one queue was stopped because of an error of the guest; see `reason`.
        Faulted = "faulted",
        /// The switch does not answer, or it is a state of a newer server that this client does not
        /// know.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}
