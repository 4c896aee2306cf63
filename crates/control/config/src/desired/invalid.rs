//! Errors of a desired state, with their places.

use std::fmt;

use api::v1::{Problem, ProblemKind};

pub(super) use crate::expect;
use crate::words::message;

/// Places in a desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At the top of the document.
    Top,
    /// The switch.
    Switch,
    /// The switch's interrupt coalescing.
    Coalescing,
    /// The switch's connection tracking.
    Connections,
    /// Timeouts of connections.
    Timeouts,
    /// The metrics.
    Metrics,
    /// The segment with this index.
    Segment(usize),
    /// The port with this index.
    Port(usize),
    /// The set of addresses with this index.
    AddressSet(usize),
    /// The group of ports with this index.
    Group(usize),
    /// The defaults of a segment with this index.
    AclDefault(usize),
    /// The access list with this index.
    Acl(usize),
    /// The rule with the second index in the access list with the first.
    Rule(usize, usize),
    /// The mirror with this index.
    Mirror(usize),
    /// The pipe with this index.
    Pipe(usize),
    /// The static entry with this index.
    Fdb(usize),
    /// Port security of the port with this index.
    PortSecurity(usize),
    /// The limits of the port with this index.
    Limits(usize),
    /// One limit of the port with this index.
    Bound(usize, LimitKind),
    /// The traffic class with this index.
    QosClass(usize),
    /// The group of senders with this index.
    QosGroup(usize),
    /// The output of the port with this index.
    Egress(usize),
    /// Settings of the port with this index as a sender.
    Qos(usize),
    /// The forward with the second index of the user port with the first.
    Forward(usize, usize),
}

/// One of a port's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// Traffic from its guest.
    FromGuest,
    /// Traffic to its guest.
    ToGuest,
    /// Broadcast frames from its guest.
    Broadcast,
    /// Multicast frames from its guest.
    Multicast,
    /// Frames from its guest for unknown unicast addresses.
    UnknownUnicast,
}

impl LimitKind {
    /// Returns the name in the configuration and in the API.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::FromGuest => "from_guest",
            Self::ToGuest => "to_guest",
            Self::Broadcast => "broadcast",
            Self::Multicast => "multicast",
            Self::UnknownUnicast => "unknown_unicast",
        }
    }
}

impl Place {
    /// Returns the table in the API's documents, with brackets for indices, and the one in the
    /// file.
    fn table(self) -> (&'static str, &'static str) {
        match self {
            Self::Top => ("", ""),
            Self::Switch => ("switch", "switch"),
            Self::Coalescing => ("switch.coalescing", "switch.coalescing"),
            Self::Connections => ("switch.connections", "switch.connections"),
            Self::Timeouts => ("switch.connections.timeouts", "switch.connections.timeouts"),
            Self::Metrics => ("metrics", "metrics"),
            Self::Segment(_) => ("segments[]", "segment"),
            Self::Port(_) => ("ports[]", "port"),
            Self::AddressSet(_) => ("access.address_sets[]", "address_set"),
            Self::Group(_) => ("access.groups[]", "group"),
            Self::AclDefault(_) => ("access.defaults[]", "acl_default"),
            Self::Acl(_) => ("access.lists[]", "acl"),
            Self::Rule(..) => ("access.lists[].rules[]", "acl.rule"),
            Self::Mirror(_) => ("mirrors[]", "mirror"),
            Self::Pipe(_) => ("pipes[]", "pipe"),
            Self::Fdb(_) => ("fdb[]", "fdb"),
            Self::PortSecurity(_) => ("ports[].port_security", "port.port_security"),
            Self::Limits(_) | Self::Bound(..) => ("ports[].limits", "port.limits"),
            Self::QosClass(_) => ("qos_classes[]", "qos_class"),
            Self::QosGroup(_) => ("qos_groups[]", "qos_group"),
            Self::Egress(_) => ("ports[].egress", "port.egress"),
            Self::Qos(_) => ("ports[].qos", "port.qos"),
            Self::Forward(..) => ("ports[].forward[]", "port.forward"),
        }
    }

    /// Returns the indices of the tables around a key.
    pub(crate) fn indices(self) -> Vec<usize> {
        match self {
            Self::Top
            | Self::Switch
            | Self::Coalescing
            | Self::Connections
            | Self::Timeouts
            | Self::Metrics => Vec::new(),
            Self::Rule(outer, at) | Self::Forward(outer, at) => vec![outer, at],
            Self::Segment(at)
            | Self::Port(at)
            | Self::AddressSet(at)
            | Self::Group(at)
            | Self::AclDefault(at)
            | Self::Acl(at)
            | Self::Mirror(at)
            | Self::Pipe(at)
            | Self::Fdb(at)
            | Self::PortSecurity(at)
            | Self::Limits(at)
            | Self::QosClass(at)
            | Self::QosGroup(at)
            | Self::Egress(at)
            | Self::Qos(at)
            | Self::Bound(at, _) => vec![at],
        }
    }

    /// Returns a key with its table; those that are empty are left out.
    fn within(self, table: &str, key: &str) -> String {
        let bound = match self {
            Self::Bound(_, bound) => bound.as_str(),
            _ => "",
        };
        let parts = [table, bound, key]
            .into_iter()
            .filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join(".")
    }

    /// Returns the path in the API's documents, like `ports[2].queues`.
    pub(crate) fn path(self, key: &str, item: Option<usize>) -> String {
        let mut path = self.within(self.table().0, key);
        for index in self.indices() {
            path = path.replacen("[]", &format!("[{index}]"), 1);
        }
        let item = item.map(|item| format!("[{item}]")).unwrap_or_default();
        path + &item
    }

    /// Returns the whole key in the configuration, like `port.queues`.
    pub(crate) fn key(self, key: &str) -> String {
        self.within(self.table().1, key)
    }
}

/// The first error of a desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The place.
    pub place: Place,
    /// The key at this place, as in the configuration and in the API.
    pub key: &'static str,
    /// The element, where the key's value is a list.
    pub item: Option<usize>,
    /// The expected value; empty if `found` is the whole message.
    pub expected: String,
    /// The value found.
    pub found: String,
    /// The kind of error.
    pub why: Why,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It never is right.
    Wrong,
    /// It would be right if something else had not taken it.
    Taken,
    /// It would be right if Lasthop had been started with it.
    Fixed,
}

impl Invalid {
    /// Returns the problem for a request about the one object that is wrong.
    pub fn to_problem(&self) -> Problem {
        let field = match self.place {
            Place::Limits(_)
            | Place::Bound(..)
            | Place::Egress(_)
            | Place::Qos(_)
            | Place::Forward(..) => {
                let key = self.place.key(self.key);
                key.trim_start_matches("port.").to_owned()
            }
            _ => self.key.to_owned(),
        };
        self.problem().with_field(field)
    }

    /// Returns the problem for a request with a document of the part `of` of the desired state, or
    /// of all of it.
    pub fn to_problem_in(&self, of: Option<&str>) -> Problem {
        let path = self.place.path(self.key, self.item);
        let inner = of.and_then(|of| path.strip_prefix(of)?.strip_prefix('.'));
        let field = inner.unwrap_or(&path).to_owned();
        self.problem().with_field(field)
    }

    fn problem(&self) -> Problem {
        let kind = match self.why {
            Why::Wrong => ProblemKind::Invalid,
            Why::Taken => ProblemKind::Conflict,
            Why::Fixed => ProblemKind::Fixed,
        };
        Problem::new(kind, message(&self.expected, &self.found))
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.place.key(self.key);
        write!(f, "{key}: {}", message(&self.expected, &self.found))
    }
}

impl std::error::Error for Invalid {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_a_path_in_documents_and_a_key_in_files() {
        for (place, path, key) in [
            (Place::Top, "name[3]", "name"),
            (
                Place::Coalescing,
                "switch.coalescing.name[3]",
                "switch.coalescing.name",
            ),
            (Place::Port(7), "ports[7].name[3]", "port.name"),
            (
                Place::Rule(1, 2),
                "access.lists[1].rules[2].name[3]",
                "acl.rule.name",
            ),
            (
                Place::Bound(7, LimitKind::ToGuest),
                "ports[7].limits.to_guest.name[3]",
                "port.limits.to_guest.name",
            ),
        ] {
            assert_eq!(place.path("name", Some(3)), path);
            assert_eq!(place.key("name"), key);
        }
        assert_eq!(Place::Rule(1, 2).indices(), [1, 2]);
        assert_eq!(Place::Port(7).key(""), "port");
    }
}
