//! The desired state of a port.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::v1::objects::objects;
use crate::v1::words::words;

use super::{
    DEFAULT_SEGMENT, EgressSpec, ForwardSpec, LimitsSpec, PortQosSpec, PortSecurityPatch,
    PortSecuritySpec, Secret, UserSpec, is_false, present,
};

objects!(PortSpec, PortPatch);

words! {
    /// Kinds of ports.
    pub enum PortKind {
        /// A guest's virtio-net device, over the vhost-user protocol.
        VhostUser = "vhost-user",
        /// An interface of the host that leads to other networks; see [`UplinkDriver`].
        Uplink = "uplink",
        /// An interface of the host that is created for the port, so that the host or a container
        /// is part of a segment.
        Tap = "tap",
        /// A process on this host with the netmap API (`lasthop netmap`).
        Netmap = "netmap",
        /// A process on this host that connects as a memif client: DPDK, VPP, libmemif.
        Memif = "memif",
        /// The outside for guests of a segment, by sockets of the host: a network with a gateway,
        /// DHCP and DNS that needs no interface and no right.
        User = "user",
    }
}

impl PortKind {
    /// Returns whether the port is an interface of the host.
    pub const fn has_interface(self) -> bool {
        matches!(self, Self::Uplink | Self::Tap)
    }

    /// Returns whether the port has a driver process in place of a client of a socket.
    pub const fn has_driver(self) -> bool {
        self.has_interface() || matches!(self, Self::User)
    }

    /// Returns whether the port is for a process with packet rings: netmap or memif.
    pub const fn is_for_process(self) -> bool {
        matches!(self, Self::Netmap | Self::Memif)
    }
}

words! {
    /// Drivers of uplinks and TAP ports; the latter have `auto`, `tap` or `vhost-net`.
    #[derive(Default)]
    pub enum UplinkDriver {
        /// Chosen by the interface: for a TAP device `vhost-net` if the host has it, else `tap`;
        /// `xdp` if it is zero-copy and the host has no address on the interface, else `packet`.
        #[default]
        Auto = "auto",
        /// A TAP device, which is created if it does not exist.
        Tap = "tap",
        /// `AF_PACKET` sockets on any interface.
        Packet = "packet",
        /// `AF_XDP` sockets, which take the interface from the host. If they are not available,
        /// `packet` is used, with a warning.
        Xdp = "xdp",
        /// A TAP device, as with `tap`, whose frames the kernel moves (`/dev/vhost-net`).
        VhostNet = "vhost-net",
    }
}

words! {
    /// Roles on a vhost-user socket.
    #[derive(Default)]
    pub enum Role {
        /// Lasthop listens, the VMM connects.
        #[default]
        Server = "server",
        /// The VMM listens, Lasthop connects and retries without limit.
        Client = "client",
    }
}

words! {
    /// Administrative states of a port.
    #[derive(Default)]
    pub enum AdminState {
        /// The port forwards frames.
        #[default]
        Up = "up",
        /// The port forwards no frames in either direction. Its connection stays open.
        Down = "down",
    }
}

impl AdminState {
    /// Returns whether it is the default.
    fn is_up(&self) -> bool {
        *self == Self::Up
    }
}

words! {
    /// Offer of an IOMMU to a guest: `VIRTIO_F_ACCESS_PLATFORM` (virtio 1.3, 6).
    #[derive(Default)]
    pub enum Iommu {
        /// The feature is not offered.
        Off = "off",
        /// The feature is offered. A guest takes it if its device is behind an IOMMU.
        #[default]
        Offered = "offered",
        /// Queues of a guest that does not take the feature do not start.
        Required = "required",
    }
}

impl Iommu {
    /// Returns whether it is the default.
    fn is_offered(&self) -> bool {
        *self == Self::Offered
    }
}

/// The desired state of a port: body of `POST /v1/ports`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct PortSpec {
    /// The port's name, unique: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only dots.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
    pub name: String,
    /// The kind of port.
    pub kind: PortKind,
    /// Free text for operators: at most 255 bytes without control characters. Default: empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 255)]
    pub description: String,
    /// The administrative state. Default: `up`.
    #[serde(default, skip_serializing_if = "AdminState::is_up")]
    pub admin_state: AdminState,
    /// Path of the unix socket; a relative one starts at the runtime directory. Empty for a port
    /// without one. Default for a netmap or memif port: the port's name with `.netmap` or `.memif`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub socket: String,
    /// Whether Lasthop listens or connects. Default: `server`, it listens.
    #[serde(default)]
    pub role: Role,
    /// The owner of a socket on which Lasthop listens, by name or number. Default: the user of
    /// Lasthop.
    pub user: Option<String>,
    /// The group of the socket, by name or number. Default: the group of Lasthop.
    pub group: Option<String>,
    /// The socket's mode, an octal number like `0660`. Users with the right to write may connect.
    /// Default: given by the umask.
    #[schema(pattern = "^[0-7]{3}$|^0[0-7]{3}$")]
    pub mode: Option<String>,
    /// The only user whose processes may connect, by name or number. Connections of others are
    /// closed, whatever the mode permits.
    pub peer_user: Option<String>,
    /// The driver of an uplink or a TAP port. Default: `auto`.
    pub driver: Option<UplinkDriver>,
    /// The host's interface of an uplink or a TAP port. Default for a TAP port: the port's name.
    pub interface: Option<String>,
    /// Address and prefix length of a TAP port's interface, like `10.0.0.1/24`.
    pub address: Option<String>,
    /// The network namespace of the interface, or of the sockets of a user port, by name or path.
    /// Default: the namespace of Lasthop.
    pub netns: Option<String>,
    /// The IPv4 network of a user port, of 8 to 29 bits: gateway `.2`, DNS server `.3`, leases from
    /// `.15`. Default: `10.0.2.0/24`.
    pub network: Option<String>,
    /// The IPv6 network of a user port: a prefix of 64 bits; `auto` for a unique local one that
    /// is made of the names of switch and port; or `off`. Default: `auto`.
    pub network6: Option<String>,
    /// Memory of the host in the buffers of a user port's sockets, in MiB: 16 to 1048576. Beyond
    /// half of it buffers do not grow, and at its end there are no more flows. Default: 1024.
    pub buffers_mib: Option<u32>,
    /// The same for each guest of a user port. Default: 256.
    pub guest_buffers_mib: Option<u32>,
    /// The resolvers that answer questions of a user port's guests: `auto` for the host's, `off`,
    /// or addresses with blanks between them. Default: `auto`.
    pub dns: Option<String>,
    /// Services of the host that guests of a user port reach at the gateway, like `tcp 5432`.
    /// Default: none.
    pub host: Option<Vec<String>>,
    /// Networks that guests of a user port do not reach, like `10.0.0.0/8 tcp 1-1023`. The most
    /// specific network decides. Default: none.
    pub deny: Option<Vec<String>>,
    /// Networks that guests of a user port reach. Default: all.
    pub allow: Option<Vec<String>>,
    /// Ports of the host that lead to guests of a user port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<ForwardSpec>,
    /// Maximum number of queue pairs offered to the guest, 1 to 64; ring pairs of a netmap port, 1
    /// to 16, or of a memif port. Default: 1.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 64)]
    pub queues: u16,
    /// Slots of each ring of a netmap port: a power of two from 64 to 4096. Default: 1024.
    #[schema(minimum = 64, maximum = 4096)]
    pub slots: Option<u16>,
    /// Whether a netmap port has pipes: clients that open `NAME{ID` and `NAME}ID` share memory.
    /// Default: false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pipes: bool,
    /// The interface id of a memif port, which its client has to name. Default: 0.
    pub id: Option<u32>,
    /// The secret of a memif port, which its client has to know: 1 to 24 bytes. It is shown in the
    /// desired state only.
    pub secret: Option<Secret>,
    /// The segment of an access port. Default: `default`, without `trunk`.
    pub segment: Option<String>,
    /// The segments of a trunk port, instead of `segment`; VLAN tags distinguish them.
    pub trunk: Option<Vec<String>>,
    /// The guest's MAC address. The guest may use no other, unless `port_security` allows it. The
    /// interface of a TAP port and the gateway of a user port get it.
    pub mac: Option<String>,
    /// The MTU in bytes (68 to 9216) that the guest is offered through `VIRTIO_NET_F_MTU`
    /// (virtio 1.3, 5.1.3); not offered without it. A TAP port's interface gets it. A user port has
    /// 1280 at least, and advertises it to guests.
    #[schema(minimum = 68, maximum = 9216)]
    pub mtu: Option<u16>,
    /// The port's share of the switch's time under contention, 1 to 1000, relative to other ports.
    /// Default: 100.
    #[serde(default = "weight", skip_serializing_if = "is_usual")]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: u16,
    /// The CPU weight of the driver process of an uplink, TAP or user port (cgroup v2,
    /// `cpu.weight`), 1 to 10000, relative to other drivers and to the switch, which have 100.
    /// Default: 100.
    #[schema(minimum = 1, maximum = 10000)]
    pub cpu_weight: Option<u16>,
    /// A pattern for the names of the VMM's vCPU threads: `*` matches any characters, `?` one.
    /// Known VMMs need none.
    pub vcpu_threads: Option<String>,
    /// Offer of an IOMMU to the guest. Default: `offered`.
    #[serde(default, skip_serializing_if = "Iommu::is_offered")]
    pub iommu: Iommu,
    /// Port security: addresses and services that the guest may use.
    #[serde(default, skip_serializing_if = "PortSecuritySpec::is_default")]
    pub port_security: PortSecuritySpec,
    /// Rate limits.
    #[serde(default, skip_serializing_if = "LimitsSpec::is_nothing")]
    pub limits: LimitsSpec,
    /// Scheduling of the frames that go out by this port. Default: they are not scheduled.
    pub egress: Option<EgressSpec>,
    /// The share of its frames at scheduled ports.
    #[serde(default, skip_serializing_if = "PortQosSpec::is_nothing")]
    pub qos: PortQosSpec,
}

impl PortSpec {
    /// Returns a vhost-user port with all other fields at their defaults.
    pub fn vhost_user(name: impl Into<String>, socket: impl Into<String>) -> Self {
        Self {
            socket: socket.into(),
            ..Self::new(name, PortKind::VhostUser)
        }
    }

    /// Returns a port with all other fields at their defaults.
    pub fn new(name: impl Into<String>, kind: PortKind) -> Self {
        Self {
            name: name.into(),
            kind,
            description: String::new(),
            admin_state: AdminState::default(),
            socket: String::new(),
            role: Role::default(),
            user: None,
            group: None,
            mode: None,
            peer_user: None,
            queues: one(),
            slots: None,
            pipes: false,
            id: None,
            secret: None,
            segment: None,
            trunk: None,
            mac: None,
            mtu: None,
            weight: weight(),
            cpu_weight: None,
            driver: None,
            interface: None,
            address: None,
            netns: None,
            network: None,
            network6: None,
            buffers_mib: None,
            guest_buffers_mib: None,
            dns: None,
            host: None,
            deny: None,
            allow: None,
            forward: Vec::new(),
            vcpu_threads: None,
            iommu: Iommu::default(),
            port_security: PortSecuritySpec::default(),
            limits: LimitsSpec::default(),
            egress: None,
            qos: PortQosSpec::default(),
        }
    }

    /// Returns the keys of a user port; `None` for a port of another kind.
    pub fn user_network(&self) -> Option<UserSpec> {
        (self.kind == PortKind::User).then(|| UserSpec {
            network: self.network.clone(),
            network6: self.network6.clone(),
            buffers_mib: self.buffers_mib,
            guest_buffers_mib: self.guest_buffers_mib,
            dns: self.dns.clone(),
            host: self.host.clone(),
            deny: self.deny.clone(),
            allow: self.allow.clone(),
            forward: self.forward.clone(),
        })
    }

    /// Returns the names of the port's segments: one for an access port.
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
/// An absent field is unchanged; `null` resets an optional one, like `mac`, `mtu` or `user`, to its
/// default. Name and kind do not change.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct PortPatch {
    /// The new description.
    pub description: Option<String>,
    /// The new administrative state; the port's connection stays open.
    pub admin_state: Option<AdminState>,
    /// The new socket path; the port's connection is closed.
    pub socket: Option<String>,
    /// The new role; the port's connection is closed.
    pub role: Option<Role>,
    /// The new owner of the socket; the port's connection stays open.
    #[serde(default, with = "present")]
    pub user: Option<Option<String>>,
    /// The new group of the socket.
    #[serde(default, with = "present")]
    pub group: Option<Option<String>>,
    /// The new mode of the socket.
    #[serde(default, with = "present")]
    pub mode: Option<Option<String>>,
    /// The only user whose processes may connect; `null` for any.
    #[serde(default, with = "present")]
    pub peer_user: Option<Option<String>>,
    /// The new interface of an uplink or a TAP port, which gets another driver process. `null` for
    /// that of a TAP port's name.
    #[serde(default, with = "present")]
    pub interface: Option<Option<String>>,
    /// The new driver of an uplink or a TAP port, which gets another driver process. `null` for
    /// `auto`.
    #[serde(default, with = "present")]
    pub driver: Option<Option<UplinkDriver>>,
    /// The new address and prefix length of a TAP port's interface, or none; the interface is made
    /// anew.
    #[serde(default, with = "present")]
    pub address: Option<Option<String>>,
    /// The network namespace of the interface: an uplink's is opened there, a TAP port's made
    /// there, the sockets of a user port opened there. `null` for the namespace of Lasthop.
    #[serde(default, with = "present")]
    pub netns: Option<Option<String>>,
    /// The new IPv4 network of a user port, whose flows end; `null` for the default.
    #[serde(default, with = "present")]
    pub network: Option<Option<String>>,
    /// The new IPv6 network of a user port, whose flows end; `null` for `auto`.
    #[serde(default, with = "present")]
    pub network6: Option<Option<String>>,
    /// The new memory in the buffers of a user port's sockets, in MiB; flows stay.
    #[serde(default, with = "present")]
    pub buffers_mib: Option<Option<u32>>,
    /// The same for each guest.
    #[serde(default, with = "present")]
    pub guest_buffers_mib: Option<Option<u32>>,
    /// The new resolvers of a user port.
    #[serde(default, with = "present")]
    pub dns: Option<Option<String>>,
    /// The new services of the host that guests of a user port reach; flows stay.
    #[serde(default, with = "present")]
    pub host: Option<Option<Vec<String>>>,
    /// The new networks that guests of a user port do not reach; flows stay.
    #[serde(default, with = "present")]
    pub deny: Option<Option<Vec<String>>>,
    /// The new networks that guests of a user port reach; flows stay.
    #[serde(default, with = "present")]
    pub allow: Option<Option<Vec<String>>>,
    /// The new forwards of a user port, all of them; flows stay.
    pub forward: Option<Vec<ForwardSpec>>,
    /// The new number of queue pairs; the port's connection is closed.
    pub queues: Option<u16>,
    /// The new number of slots of each ring of a netmap port; the port's connection is closed.
    pub slots: Option<u16>,
    /// Whether the netmap port has pipes; its connection stays open.
    pub pipes: Option<bool>,
    /// The new interface id of a memif port; the port's connection is closed.
    pub id: Option<u32>,
    /// The new secret of a memif port, or none; the port's connection is closed.
    #[serde(default, with = "present")]
    #[schema(value_type = Option<String>)]
    pub secret: Option<Option<Secret>>,
    /// Makes the port an access port of this segment.
    pub segment: Option<String>,
    /// Makes the port a trunk port of these segments.
    pub trunk: Option<Vec<String>>,
    /// The new MAC address, or none.
    #[serde(default, with = "present")]
    pub mac: Option<Option<String>>,
    /// The new MTU, or none.
    #[serde(default, with = "present")]
    pub mtu: Option<Option<u16>>,
    /// The new weight.
    pub weight: Option<u16>,
    /// The new CPU weight of the driver process, or the default.
    #[serde(default, with = "present")]
    #[schema(minimum = 1, maximum = 10000)]
    pub cpu_weight: Option<Option<u16>>,
    /// The new pattern for the names of the VMM's vCPU threads, or none.
    #[serde(default, with = "present")]
    pub vcpu_threads: Option<Option<String>>,
    /// Offer of an IOMMU to the guest, from its next connection.
    pub iommu: Option<Iommu>,
    /// Changes of port security, itself a merge patch; `null` resets all of it.
    #[serde(default, with = "present")]
    pub port_security: Option<Option<PortSecurityPatch>>,
    /// Changes of the limits, itself a merge patch; `null` removes all.
    #[serde(default, with = "present")]
    #[schema(value_type = Option<LimitsSpec>)]
    pub limits: Option<serde_json::Value>,
    /// Changes of the scheduling of this port, itself a merge patch; `null` ends it.
    #[serde(default, with = "present")]
    #[schema(value_type = Option<EgressSpec>)]
    pub egress: Option<serde_json::Value>,
    /// Changes of what its frames have at scheduled ports, itself a merge patch; `null` resets all
    /// of it.
    #[serde(default, with = "present")]
    #[schema(value_type = Option<PortQosSpec>)]
    pub qos: Option<serde_json::Value>,
}

/// The default weight.
const fn weight() -> u16 {
    100
}

/// Returns whether it is the default weight.
const fn is_usual(value: &u16) -> bool {
    *value == weight()
}

/// The default number of queue pairs.
const fn one() -> u16 {
    1
}
