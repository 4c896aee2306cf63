//! What is wanted of a port.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{DEFAULT_SEGMENT, GuardPatch, GuardSpec, LimitsSpec, present};

/// What kind of attachment a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
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

/// Whether a port takes part, as the operator wants it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AdminState {
    /// It does.
    #[default]
    Up,
    /// Nothing goes through it in either direction. Who is connected stays so.
    Down,
}

impl AdminState {
    /// The state as it is spelt in documents and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// Whether it is what holds when nothing is said.
    fn is_up(&self) -> bool {
        *self == Self::Up
    }
}

/// A port as the operator wants it: body of `POST /v1/ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// The port's name, unique: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// What kind of attachment it is.
    pub kind: PortKind,
    /// Whether it takes part; `up` when nothing is said.
    #[serde(default, skip_serializing_if = "AdminState::is_up")]
    pub admin_state: AdminState,
    /// Path of the unix socket; a relative one starts at the runtime directory. Empty for a port without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub socket: String,
    /// Who opens the connection; Lasthop listens when nothing is said.
    #[serde(default)]
    pub role: Role,
    /// The user whose the socket is, by name or number, where Lasthop listens; its own when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The group whose the socket is, by name or number; Lasthop's own when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The socket's mode, an octal number like `0660`: who may write may connect. What the umask leaves when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-7]{3}$|^0[0-7]{3}$")]
    pub mode: Option<String>,
    /// The only user whose processes may connect, by name or number: others are turned away, whatever the mode lets by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_user: Option<String>,
    /// Queue pairs offered to the guest at most, 1 to 64; 1 when nothing is said.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 64)]
    pub queues: u16,
    /// The one segment of an access port; `default` when neither this nor `trunk` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// The segments of a trunk port, instead of `segment`: told apart by their VLAN tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<Vec<String>>,
    /// The guest's MAC address: a guest may use no other, unless `guard` says so; a TAP port's interface gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The MTU in bytes (68 to 9216) that the guest is offered through `VIRTIO_NET_F_MTU`
    /// (virtio 1.3, 5.1.3); not offered without it. A TAP port's interface gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 68, maximum = 9216)]
    pub mtu: Option<u16>,
    /// The port's part of the switch's time (1 to 1000), compared with other ports that want more than there is; 100
    /// when nothing is said.
    #[serde(default = "weight", skip_serializing_if = "is_usual")]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u16,
    /// How the frames of an uplink are moved; `auto` when nothing is said.
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
    /// What the guest may send.
    #[serde(default, skip_serializing_if = "GuardSpec::is_default")]
    pub guard: GuardSpec,
    /// What it may send and be sent.
    #[serde(default, skip_serializing_if = "LimitsSpec::is_nothing")]
    pub limits: LimitsSpec,
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
            admin_state: AdminState::default(),
            socket: String::new(),
            role: Role::default(),
            user: None,
            group: None,
            mode: None,
            peer_user: None,
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
            guard: GuardSpec::default(),
            limits: LimitsSpec::default(),
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
/// A field that is absent stays as it is; `null` takes away what need not be there, like `mac`, `mtu` or `user`. Name and kind do not change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PortPatch {
    /// Whether it takes part from now on; who is connected stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_state: Option<AdminState>,
    /// The new socket path; the port's connection is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The new role; the port's connection is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The user whose the socket is from now on, or Lasthop's own; who is connected stays so.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>)]
    pub user: Option<Option<String>>,
    /// The group whose the socket is, or Lasthop's own.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>)]
    pub group: Option<Option<String>>,
    /// The socket's mode, or what the umask leaves.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>)]
    pub mode: Option<Option<String>>,
    /// The only user whose processes may connect from now on, or none.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>)]
    pub peer_user: Option<Option<String>>,
    /// The new number of queue pairs; the port's connection is closed.
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
    #[schema(value_type = Option<String>)]
    pub mac: Option<Option<String>>,
    /// The new MTU, or none.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u16>)]
    pub mtu: Option<Option<u16>>,
    /// The new weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// What else the guest may send; `null` takes away all that was said of it.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<GuardPatch>)]
    pub guard: Option<Option<GuardPatch>>,
    /// What changes of the limits, itself a merge patch; `null`: none any more.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<LimitsSpec>)]
    pub limits: Option<serde_json::Value>,
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
