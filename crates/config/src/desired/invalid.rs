//! Errors of a desired state, with their places.

use std::fmt;

use api::v1::{Problem, ProblemKind};

/// The expected value of each key, the same for a wrong type and a wrong value.
pub(crate) mod expect {
    pub(crate) const NAME: &str = "a name of 1 to 32 characters out of A-Z a-z 0-9 _ . -";
    pub(crate) const POLL: &str = "\"adaptive\" or \"always\"";
    pub(crate) const WORKERS: &str = "an integer from 1 to 64 or \"auto\"";
    pub(crate) const SWITCH_ON: &str = "true or false";
    pub(crate) const PERIOD: &str = "an integer from 1 to 10000";
    pub(crate) const KICK_WINDOW: &str = "an integer from 0 to 1000";
    pub(crate) const COALESCED_FRAMES: &str = "an integer from 1 to 1024";
    pub(crate) const GUEST_STATE: &str = "\"auto\", \"bpf\" or \"off\"";
    pub(crate) const VCPU_THREADS: &str = "a pattern of 1 to 64 characters like \"CPU */KVM\"";
    pub(crate) const BACKLOG: &str = "an integer from 1 to 1024";
    pub(crate) const HYSTERESIS: &str = "an integer from 1 to 1000";
    pub(crate) const CORES: &str = "an array of numbers of cores, each from 0 to 4095";
    pub(crate) const SOCKET_DIRS: &str =
        "an array of at most 64 absolute paths of directories, without \"..\"";
    pub(crate) const FORWARD_ADDRESSES: &str = "an array of at most 64 IP addresses";
    pub(crate) const LISTEN: &str = "an address of this host itself with a port like \
                                     \"127.0.0.1:9464\", or \"unix:\" and the path of a socket";
    pub(crate) const VLAN: &str = "an integer from 1 to 4094";
    pub(crate) const KIND: &str =
        "\"vhost-user\", \"uplink\", \"tap\", \"netmap\", \"memif\" or \"user\"";
    pub(crate) const DRIVER: &str = "\"tap\", \"packet\", \"xdp\", \"vhost-net\" or \"auto\"";
    pub(crate) const TAP_DRIVER: &str = "\"tap\", \"vhost-net\" or \"auto\" with kind \"tap\"";
    pub(crate) const INTERFACE: &str =
        "the name of an interface: 1 to 15 characters without blanks, \"/\", \":\" and \"%\"";
    pub(crate) const ADDRESS: &str = "an address with its prefix length like \"10.0.0.1/24\"";
    pub(crate) const NETNS: &str = "the name or the path of a network namespace";
    pub(crate) const SOCKET: &str = "the path of a socket";
    pub(crate) const ROLE: &str = "\"server\" or \"client\"";
    pub(crate) const IOMMU: &str = "\"off\", \"offered\" or \"required\"";
    pub(crate) const USER: &str = "the name or the number of a user, as a text";
    pub(crate) const GROUP: &str = "the name or the number of a group, as a text";
    pub(crate) const MODE: &str = "an octal number up to 0777, as a text like \"0660\"";
    pub(crate) const QUEUES: &str = "an integer from 1 to 64";
    pub(crate) const RING_PAIRS: &str = "an integer from 1 to 16";
    pub(crate) const SLOTS: &str = "a power of two from 64 to 4096";
    pub(crate) const SECRET: &str = "a text of 1 to 24 bytes";
    pub(crate) const SEGMENT: &str = "the name of a segment";
    pub(crate) const TRUNK: &str = "an array of names of segments";
    pub(crate) const MAC: &str = "a unicast MAC address like \"52:54:00:00:00:01\"";
    pub(crate) const ALLOWED_MACS: &str = "\"any\", \"sticky\", or an array of 1 to 64 unicast \
                                           MAC addresses like \"52:54:00:00:00:01\"";
    pub(crate) const ALLOWED_ADDRESSES: &str =
        "\"any\", \"sticky\", or an array of 1 to 64 IP addresses or networks like \"10.0.0.0/24\"";
    pub(crate) const ADMIN_STATE: &str = "\"up\" or \"down\"";
    pub(crate) const WEIGHT: &str = "an integer from 1 to 1000";
    pub(crate) const BUFFERS_MIB: &str = "an integer from 16 to 1048576";
    pub(crate) const CPU_WEIGHT: &str = "an integer from 1 to 10000";
    pub(crate) const RATE: &str =
        "a table with packets_per_second, bits_per_second or both, and their bursts";
    pub(crate) const FLOOD: &str = "a table with packets_per_second, and packets_burst";
    pub(crate) const PACKETS: &str = "an integer from 1 to 1000000000, or a text like \"100k\"";
    pub(crate) const PACKETS_BURST: &str = "an integer from 64, which a frame of 64 KiB may \
                                            become, to 1000000000, or a text like \"1k\"";
    pub(crate) const BITS: &str = "an integer from 1 to 1000000000000, or a text like \"1G\"";
    pub(crate) const BITS_BURST: &str = "an integer from 524424, the bits of a frame of 64 KiB, \
                                         to 1000000000000, or a text like \"10M\"";
    pub(crate) const FLOOD_BURST: &str = "an integer from 1 to 1000000000, or a text like \"1k\"";
    pub(crate) const PRIORITY: &str = "an integer from 0 to 7";
    pub(crate) const PCP: &str = "a priority code point from 0 to 7";
    pub(crate) const DSCP: &str = "a DSCP from 0 to 63";
    pub(crate) const OVERHEAD: &str = "an integer from 0 to 256";
    pub(crate) const ROOM: &str = "an integer from 65553, the bytes of the longest frame, to \
                                   1000000000, or a text like \"256k\"";
    pub(crate) const FULL: &str = "\"hold\" or \"drop\"";
    pub(crate) const CLASS: &str = "the name of a class";
    pub(crate) const QOS_GROUP: &str = "the name of a group of [[qos_group]]";
    pub(crate) const MTU: &str = "an integer from 68 to 9216";
}

/// Places in a desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At the top of the document.
    Top,
    /// The switch.
    Switch,
    /// The switch's interrupt coalescing.
    Coalescing,
    /// The switch's helpers.
    Helpers,
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
    Bound(usize, Bound),
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
pub enum Bound {
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

impl Bound {
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
            Self::Helpers => ("switch.helpers", "switch.helpers"),
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
            Self::Top | Self::Switch | Self::Coalescing | Self::Helpers | Self::Metrics => {
                Vec::new()
            }
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

/// Returns the text of an error.
pub fn message(expected: &str, found: &str) -> String {
    match expected {
        "" => found.to_owned(),
        _ => format!("expected {expected}, found {found}"),
    }
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
                Place::Helpers,
                "switch.helpers.name[3]",
                "switch.helpers.name",
            ),
            (Place::Port(7), "ports[7].name[3]", "port.name"),
            (
                Place::Rule(1, 2),
                "access.lists[1].rules[2].name[3]",
                "acl.rule.name",
            ),
            (
                Place::Bound(7, Bound::ToGuest),
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
