//! Errors in an access model, with their place.

use std::fmt;

use thiserror::Error;

/// Place in a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A set of addresses.
    Set(String),
    /// A group of ports.
    Group(String),
    /// The defaults of a segment.
    Default(String),
    /// A list.
    List(String),
    /// A rule of a list.
    Rule(RuleName),
}

/// The names of a list and of a rule in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RuleName {
    /// The list's.
    pub list: String,
    /// The rule's.
    pub rule: String,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "acl {:?}, rule {:?}", self.list, self.rule)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(name) => write!(f, "address_set {name:?}"),
            Self::Group(name) => write!(f, "group {name:?}"),
            Self::Default(segment) => write!(f, "acl_default {segment:?}"),
            Self::List(name) => write!(f, "acl {name:?}"),
            Self::Rule(name) => name.fmt(f),
        }
    }
}

/// The first error in a model; then nothing of it is used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{place}: {field}: {reason}")]
pub struct AccessError {
    /// The place of the error.
    pub place: Place,
    /// The key there, as the configuration and the API spell it.
    pub field: &'static str,
    /// The reason.
    pub reason: Box<Reason>,
}

/// Reason of a model's refusal.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Reason {
    /// Names are printed, and become keys of statistics.
    #[error("expected a name of 1 to 64 characters out of A-Z a-z 0-9 _ . -, found {0:?}")]
    Name(String),
    /// Two objects of a kind have the same name.
    #[error("{0:?} is there twice")]
    Repeated(String),
    /// There is no object of this name.
    #[error("there is no {kind} {name:?}")]
    Unknown {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Malformed address.
    #[error(
        "expected an address or a prefix like \"10.0.0.0/8\" or \"2001:db8::/32\", found {0:?}"
    )]
    Address(String),
    /// Prefix longer than the address.
    #[error("{text:?}: the prefix has at most {most} bits")]
    PrefixLength {
        /// The text.
        text: String,
        /// Bits of an address.
        most: u8,
    },
    /// Bits after the prefix length: the intended network is ambiguous.
    #[error("{text:?} has bits behind the prefix; the network is {network:?}")]
    HostBits {
        /// The text.
        text: String,
        /// Without these bits.
        network: String,
    },
    /// Malformed Ethernet address.
    #[error(
        "expected an address like \"52:54:00:00:00:01\", or with a mask behind a \"/\", found {0:?}"
    )]
    Mac(String),
    /// Bits set outside the mask.
    #[error("{0:?} has bits that its mask leaves out")]
    MacBits(String),
    /// Malformed EtherType.
    #[error("expected \"ipv4\", \"ipv6\", \"arp\" or a number from 0x0600 to 0xffff, found {0:?}")]
    EtherType(String),
    /// Invalid VLAN.
    #[error("expected a VLAN from 1 to 4094, or 0 for none, found {0}")]
    Vlan(i64),
    /// Invalid port number.
    #[error("expected a port from 0 to 65535 or a range like \"8000-8010\", found {0:?}")]
    Port(String),
    /// A range that ends before it begins.
    #[error("the range {0:?} is empty")]
    EmptyRange(String),
    /// Only TCP and UDP have ports.
    #[error("ports need the protocol \"tcp\" or \"udp\"")]
    PortsWithoutProtocol,
    /// Unknown protocol.
    #[error(
        "expected \"tcp\", \"udp\", \"icmp\", \"icmpv6\" or a number from 0 to 255, found {0:?}"
    )]
    Protocol(String),
    /// Malformed flags.
    #[error(
        "expected flags like \"syn/syn,ack\" out of fin syn rst psh ack urg ece cwr, found {0:?}"
    )]
    Flags(String),
    /// A flag that must be set and is not in the mask.
    #[error("{0:?} sets a flag that it does not look at")]
    FlagsOutside(String),
    /// Only TCP has flags.
    #[error("flags need the protocol \"tcp\"")]
    FlagsWithoutTcp,
    /// Only ICMP has types.
    #[error("a type or code needs the protocol \"icmp\" or \"icmpv6\"")]
    TypeWithoutIcmp,
    /// Codes depend on the type.
    #[error("a code needs a type")]
    CodeWithoutType,
    /// A rule for later fragments with such a field would match nothing, or a drop would match more
    /// than its fields.
    #[error("later fragments have no transport header")]
    LaterFragmentsHaveNone,
    /// The conditions of the rule exclude each other.
    #[error("the rule can match nothing: its fields are of different types of frames")]
    Families,
    /// The receiver of a frame is not known on ingress.
    #[error(
        "the receiver is not known yet; use a list with direction = \"to-guest\" \
             on the receivers' side, where peers are senders"
    )]
    PeersFromGuest,
    /// There is no table of connections, which stateful rules need.
    #[error("\"allow-stateful\" needs the table of connections, which there cannot be: {0}")]
    NoTable(String),
    /// A log limit of zero; a rule without `log` is not logged.
    #[error("expected a limit of at least one line a second, found 0")]
    ZeroLimit,
    /// Two rules with different actions match the same frames.
    #[error("{0} matches the same with the same priority and does something else")]
    Contradiction(RuleName),
    /// Groups are not ordered.
    #[error(
        "port {port:?} is in another group, too, and {other} has the same priority \
             and does something else: give them different priorities"
    )]
    Ambiguous {
        /// A port in both groups.
        port: String,
        /// The other group's rule.
        other: RuleName,
    },
    /// A limit is exceeded.
    #[error("expected at most {most} {of}")]
    TooMany {
        /// The limit.
        most: usize,
        /// The counted objects.
        of: &'static str,
    },
}

/// A rule that never decides, because an earlier one in its list matches all its frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShadowedRule {
    /// The rule.
    pub rule: RuleName,
    /// The earlier rule.
    pub by: RuleName,
}

impl fmt::Display for ShadowedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is never reached: {:?} comes first",
            self.rule, self.by.rule
        )
    }
}
