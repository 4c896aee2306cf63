//! What the operator asks for: ports, segments, and changes to them.

mod copying;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::copying::CopyEngine;
use super::offload::Offload;

/// The segment of ports that name none. It always exists.
pub const DEFAULT_SEGMENT: &str = "default";

/// The most characters that a name of a switch, a segment or a port may have.
pub const NAME_MAX: usize = 32;

/// Says whether `name` may name a switch, a segment or a port: 1 to [`NAME_MAX`] characters out of
/// `A-Z a-z 0-9 _ . -`, at least one of them not a dot (`.` and `..` vanish from a URL's path).
///
/// ```
/// assert!(api::v1::valid_name("vm-1.lan"));
/// assert!(!api::v1::valid_name("vm 1"));
/// assert!(!api::v1::valid_name(".."));
/// ```
pub fn valid_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(known)
        && name.bytes().any(|b| b != b'.')
}

/// Reads a MAC address written as six pairs of hexadecimal digits with colons between them.
///
/// Returns `None` for any other spelling. Group addresses are read like all others: whether one is
/// acceptable is the caller's question.
///
/// ```
/// assert_eq!(api::v1::parse_mac("52:54:00:00:00:0A"), Some([0x52, 0x54, 0, 0, 0, 10]));
/// assert_eq!(api::v1::parse_mac("52-54-00-00-00-0A"), None);
/// ```
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut pairs = text.split(':');
    for byte in &mut mac {
        let pair = pairs.next()?;
        if pair.len() != 2 || !pair.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    pairs.next().is_none().then_some(mac)
}

/// Everything that the operator asked for, in one value. Lists keep the operator's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedState {
    /// The switch itself.
    #[serde(default)]
    pub switch: SwitchSpec,
    /// The L2 broadcast domains.
    #[serde(default)]
    pub segments: Vec<SegmentSpec>,
    /// The attachment points.
    #[serde(default)]
    pub ports: Vec<PortSpec>,
}

impl WantedState {
    /// The port called `name`.
    pub fn port(&self, name: &str) -> Option<&PortSpec> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The segment called `name`.
    pub fn segment(&self, name: &str) -> Option<&SegmentSpec> {
        self.segments.iter().find(|segment| segment.name == name)
    }
}

/// The switch as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchSpec {
    /// How the switch calls itself towards people; see [`valid_name`].
    pub name: String,
    /// Whether its workers may sleep.
    #[serde(default)]
    pub poll: Poll,
    /// How many workers forward.
    #[serde(default)]
    pub workers: Workers,
    /// How often guests are notified.
    #[serde(default)]
    pub batching: BatchingSpec,
    /// By what it knows what the processors of guests do.
    #[serde(default, skip_serializing_if = "GuestStates::is_auto")]
    pub guest_state: GuestStates,
    /// What copies long frames.
    #[serde(default, skip_serializing_if = "CopyEngine::is_cpu")]
    pub copy_engine: CopyEngine,
    /// Whether idle cores help them.
    #[serde(default, skip_serializing_if = "Offload::is_default")]
    pub offload: Offload,
}

impl Default for SwitchSpec {
    fn default() -> Self {
        Self {
            name: "lasthop".to_owned(),
            poll: Poll::default(),
            workers: Workers::default(),
            batching: BatchingSpec::default(),
            guest_state: GuestStates::default(),
            copy_engine: CopyEngine::default(),
            offload: Offload::default(),
        }
    }
}

/// How often a guest is notified of frames while it runs. One that sleeps is woken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchingSpec {
    /// Without it, whenever the guest wishes to be.
    pub enabled: bool,
    /// Once in so many microseconds, 1 to 10000, unless
    pub period_us: u16,
    /// so many buffers were filled meanwhile, 1 to 1024.
    pub threshold: u16,
}

impl Default for BatchingSpec {
    fn default() -> Self {
        Self {
            enabled: true,
            period_us: 125,
            threshold: 64,
        }
    }
}

/// By what the switch knows whether the processors of guests run, wait for a core or sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestStates {
    /// By the kernel, or by `/proc` where the kernel refuses.
    #[default]
    Auto,
    /// A program in the kernel notes every change; needs the right to load it (`CAP_BPF` and `CAP_PERFMON`).
    Bpf,
    /// The supervisor looks at `/proc` some times a second.
    Proc,
    /// By what guests say of their own accord, in their queues.
    Off,
}

impl GuestStates {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bpf => "bpf",
            Self::Proc => "proc",
            Self::Off => "off",
        }
    }

    /// Whether it is what holds when nothing is said.
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// What a worker of the switch does when there are no frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// It sleeps, unless the next frame is likely to come sooner than a sleep is worth.
    #[default]
    Adaptive,
    /// It looks for them on and on while a queue runs, and takes a core for that.
    Always,
}

impl Poll {
    /// The word as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Always => "always",
        }
    }
}

/// How many threads forward frames: a number from 1 to 64, or `"auto"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "WorkersText", into = "WorkersText")]
pub enum Workers {
    /// One for each core that the switch may use, at most eight.
    Auto,
    /// So many.
    Count(u16),
}

impl Default for Workers {
    /// One: a core forwards more than most hosts have to forward.
    fn default() -> Self {
        Self::Count(1)
    }
}

/// [`Workers`] as it is spelt in documents.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WorkersText {
    Count(u16),
    Word(Auto),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Auto {
    Auto,
}

impl From<WorkersText> for Workers {
    fn from(text: WorkersText) -> Self {
        match text {
            WorkersText::Count(count) => Self::Count(count),
            WorkersText::Word(Auto::Auto) => Self::Auto,
        }
    }
}

impl From<Workers> for WorkersText {
    fn from(workers: Workers) -> Self {
        match workers {
            Workers::Count(count) => Self::Count(count),
            Workers::Auto => Self::Word(Auto::Auto),
        }
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => count.fmt(f),
        }
    }
}

/// An L2 broadcast domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentSpec {
    /// The segment's name, unique; see [`valid_name`].
    pub name: String,
    /// The VLAN tag (1 to 4094, IEEE 802.1Q) on trunk ports and uplinks; without one the segment is untagged there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

/// What kind of attachment a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// A guest's virtio-net device over the vhost-user protocol.
    VhostUser,
    /// An interface of the host that leads elsewhere; see [`UplinkDriver`].
    Uplink,
    /// An interface of the host that is made for the port, so that the host or a container takes part.
    Tap,
}

impl PortKind {
    /// The kind as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::VhostUser => "vhost-user",
            Self::Uplink => "uplink",
            Self::Tap => "tap",
        }
    }
}

/// How the frames of an uplink are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UplinkDriver {
    /// What suits the interface: `tap` for a TAP device, `xdp` where that is zero-copy and the host has no address there,
    /// else `packet`.
    #[default]
    Auto,
    /// A TAP device; it is made where there is none.
    Tap,
    /// `AF_PACKET` sockets on any interface.
    Packet,
    /// `AF_XDP` sockets, which take the interface from the host; `packet` where they cannot be had, with a warning.
    Xdp,
}

impl UplinkDriver {
    /// The driver as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tap => "tap",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
        }
    }
}

/// Who opens the connection of a vhost-user socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Lasthop listens, the VMM dials.
    #[default]
    Server,
    /// Lasthop dials, and redials for ever; the VMM listens.
    Client,
}

impl Role {
    /// The role as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// A port as the operator wants it: body of `POST /v1/ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// The port's name, unique; see [`valid_name`].
    pub name: String,
    /// What kind of attachment it is.
    pub kind: PortKind,
    /// Path of the unix socket; a relative one starts at the runtime directory. Empty for a port without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub socket: String,
    /// Who opens the connection; Lasthop listens when nothing is said.
    #[serde(default)]
    pub role: Role,
    /// Queue pairs offered to the guest at most, 1 to 64; 1 when nothing is said.
    #[serde(default = "one")]
    pub queues: u16,
    /// The one segment of an access port; [`DEFAULT_SEGMENT`] when neither this nor `trunk` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// The segments of a trunk port, instead of `segment`: told apart by their VLAN tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<Vec<String>>,
    /// The guest's MAC address, informational; a TAP port's interface gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The MTU in bytes (68 to 9216) that the guest is offered through `VIRTIO_NET_F_MTU`
    /// (virtio 1.3, 5.1.3); not offered without it. A TAP port's interface gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// The port's part of the switch's time (1 to 1000), compared with other ports that want more than there is; 100
    /// when nothing is said.
    #[serde(default = "weight", skip_serializing_if = "is_usual")]
    pub weight: u16,
    /// How the frames of an uplink are moved; [`UplinkDriver::Auto`] when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<UplinkDriver>,
    /// The host's interface behind an uplink or a TAP port; a TAP port's has the port's name when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Address and prefix length of a TAP port's interface, like `10.0.0.1/24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The network namespace of the interface, by name or path; the one of Lasthop when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The names of the VMM's threads that are the guest's processors: `*` stands for any characters, `?` for one. Known VMMs
    /// need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu_threads: Option<String>,
}

impl PortSpec {
    /// A vhost-user port with every other field at its default.
    pub fn vhost_user(name: impl Into<String>, socket: impl Into<String>) -> Self {
        Self {
            socket: socket.into(),
            ..Self::new(name, PortKind::VhostUser)
        }
    }

    /// A port with every other field at its default.
    pub fn new(name: impl Into<String>, kind: PortKind) -> Self {
        Self {
            name: name.into(),
            kind,
            socket: String::new(),
            role: Role::default(),
            queues: one(),
            segment: None,
            trunk: None,
            mac: None,
            mtu: None,
            weight: weight(),
            driver: None,
            interface: None,
            address: None,
            netns: None,
            vcpu_threads: None,
        }
    }

    /// Names of the segments that this port is a member of: one for an access port.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        let access = match (&self.segment, &self.trunk) {
            (Some(segment), _) => Some(segment.as_str()),
            (None, Some(_)) => None,
            (None, None) => Some(DEFAULT_SEGMENT),
        };
        let trunk = self.trunk.as_deref().unwrap_or_default();
        access.into_iter().chain(trunk.iter().map(String::as_str))
    }
}

/// A change to a port: body of `PATCH /v1/ports/{name}`, a JSON merge patch (RFC 7396).
///
/// A field that is absent stays as it is; `null` takes `mac` or `mtu` away. Name and kind do not change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortPatch {
    /// The new socket path; the port's connection is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The new role; the port's connection is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The new number of queue pairs; a guest sees it when it connects next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// Makes the port an access port of this segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// Makes the port a trunk port of these segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<Vec<String>>,
    /// The new MAC address, or none.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub mac: Option<Option<String>>,
    /// The new MTU, or none.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub mtu: Option<Option<u16>>,
    /// The new weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

/// The weight of a port that says nothing.
const fn weight() -> u16 {
    100
}

/// Whether a weight need not be written.
const fn is_usual(value: &u16) -> bool {
    *value == weight()
}

/// What a port without `queues` offers.
const fn one() -> u16 {
    1
}

/// Tells a field that is `null` from one that is absent: only present fields are deserialised.
fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}
