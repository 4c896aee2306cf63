//! The desired state of a port.

use std::collections::HashMap;
use std::sync::LazyLock;

use model::{Iommu, PortState, Secret, objects};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::v1::words::words;

use super::{
    DEFAULT_SEGMENT, EgressSpec, ForwardSpec, LimitsSpec, Patch, PatchTarget, PortQosSpec,
    PortSecuritySpec, UserSpec, is_false,
};

objects!(PortSpec);

/// The other end of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEnd {
    /// A guest's VMM, over a socket with the vhost-user protocol.
    Guest,
    /// A program with packet rings, over a socket.
    Program,
    /// An interface of the host, by the switch itself or a driver process.
    Interface,
    /// Sockets of the host, by a driver process.
    Sockets,
}

/// Defines the kinds of ports, one row each: its word, its other end, its line of help, and which
/// of the keys it has that not all kinds have.
macro_rules! kinds {
    ($(
        $(#[$meta:meta])*
        $kind:ident = $word:tt {
            end: $end:ident,
            help: $help:literal,
            keys: [$($key:ident),* $(,)?],
        }
    )*) => {
        words! {
            /// Kinds of ports.
            pub enum PortKind {
                $($(#[$meta])* $kind = $word,)*
            }
        }

        impl PortKind {
            /// Returns what is at the other end of such a port.
            #[must_use]
            pub const fn end(self) -> PortEnd {
                match self {
                    $(Self::$kind => PortEnd::$end,)*
                }
            }

            /// Returns a line for the help of a command.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$kind => $help,)*
                }
            }

            /// Returns the keys that such a port has and not every other one.
            #[must_use]
            pub const fn own_keys(self) -> &'static [&'static str] {
                match self {
                    $(Self::$kind => &[$(stringify!($key)),*],)*
                }
            }
        }

        /// Every key of a row is one of a port.
        const _: fn(&PortSpec) = |port| {
            $($(_ = &port.$key;)*)*
        };
    };
}

kinds! {
    /// A guest's virtio-net device, over the vhost-user protocol.
    VhostUser = "vhost-user" {
        end: Guest,
        help: "Guest's virtio-net device over vhost-user",
        keys: [socket, user, group, mode, peer_user, mac, role, vcpu_threads, iommu],
    }
    /// An interface of the host that leads to other networks; see [`UplinkDriver`].
    Uplink = "uplink" {
        end: Interface,
        help: "Existing interface of the host",
        keys: [
            driver, driver_process, interface, netns, cpu_weight, prefilter, prefilter_entries,
        ],
    }
    /// An interface of the host that is created for the port, so that the host or a container
    /// is part of a segment.
    Tap = "tap" {
        end: Interface,
        help: "New TAP interface of the host",
        keys: [driver, driver_process, interface, address, netns, mac, cpu_weight],
    }
    /// A process on this host with the netmap API (`lasthop netmap`).
    Netmap = "netmap" {
        end: Program,
        help: "Process with the netmap API, see lasthop netmap",
        keys: [socket, user, group, mode, peer_user, mac, slots, pipes],
    }
    /// A process on this host that connects as a memif client: DPDK, VPP, libmemif.
    Memif = "memif" {
        end: Program,
        help: "memif client: DPDK, VPP, libmemif",
        keys: [socket, user, group, mode, peer_user, mac, id, secret],
    }
    /// The outside for guests of a segment, by sockets of the host: a network with a gateway,
    /// DHCP and DNS that needs no interface and no right.
    User = "user" {
        end: Sockets,
        help: "Outside for guests by sockets of the host, without an interface",
        keys: [
            netns, mac, cpu_weight, network, network6, buffers_mib, guest_buffers_mib, times, dns,
            search, host, deny, allow, forward,
        ],
    }
}

impl PortKind {
    /// Returns whether the port is an interface of the host.
    pub const fn has_interface(self) -> bool {
        matches!(self.end(), PortEnd::Interface)
    }

    /// Returns whether the port has a driver in place of a client of a socket.
    pub const fn has_driver(self) -> bool {
        matches!(self.end(), PortEnd::Interface | PortEnd::Sockets)
    }

    /// Returns whether the port is for a process with packet rings: netmap or memif.
    pub const fn is_for_process(self) -> bool {
        matches!(self.end(), PortEnd::Program)
    }

    /// Returns whether ports of this kind may have a key: one of their own, or one of all kinds.
    pub fn may_have(self, key: &str) -> bool {
        /// The kinds that have a key, for each key that not all have.
        static OWNERS: LazyLock<HashMap<&str, Vec<PortKind>>> = LazyLock::new(|| {
            let mut owners: HashMap<&str, Vec<PortKind>> = HashMap::new();
            for kind in PortKind::ALL {
                for key in kind.own_keys() {
                    owners.entry(key).or_default().push(*kind);
                }
            }
            owners
        });
        OWNERS.get(key).is_none_or(|kinds| kinds.contains(&self))
    }
}

words! {
    /// Modes of an uplink's prefilter.
    #[derive(Default)]
    pub enum PrefilterMode {
        /// Where it is possible.
        #[default]
        Auto = "auto",
        /// Never.
        Off = "off",
        /// By a program of packet sockets.
        Socket = "socket",
        /// By an XDP program, before the kernel makes a packet of a frame.
        Xdp = "xdp",
    }
}

words! {
    /// Drivers of uplinks and TAP ports; the latter have `auto`, `tap` or `vhost-net`.
    #[derive(Default)]
    pub enum UplinkDriver {
        /// Chosen by the interface: `tap` for a TAP device; `xdp` if it is zero-copy and the host
        /// has no address on the interface, else `packet`.
        #[default]
        Auto = "auto",
        /// A TAP device, which is created if it does not exist.
        Tap = "tap",
        /// `AF_PACKET` sockets on any interface.
        Packet = "packet",
        /// `AF_XDP` sockets, which take the interface from the host. If they are not available,
        /// `packet` is used, with a warning.
        Xdp = "xdp",
        /// A TAP device, as with `tap`, with frames that the kernel moves (`/dev/vhost-net`).
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

impl Role {
    /// Returns whether it is the default.
    fn is_server(&self) -> bool {
        *self == Self::Server
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
    /// Returns the word for a port in this state, as every list of ports shows it.
    #[must_use]
    pub fn shown(self, state: PortState) -> &'static str {
        match self {
            Self::Up => state.as_str(),
            Self::Down => "admin-down",
        }
    }

    /// Returns whether it is the default.
    fn is_up(&self) -> bool {
        *self == Self::Up
    }
}

/// A key of a port with what holds for its value whatever the kind.
#[derive(Clone, Copy, Debug)]
pub struct PortKey {
    /// The key.
    pub name: &'static str,
    /// The least and the greatest number, of a key with numbers.
    pub range: Option<(u64, u64)>,
    /// The least and the greatest number of bytes, of a key with text without control characters.
    pub length: Option<(usize, usize)>,
    /// The expected value in words.
    pub expected: Option<&'static str>,
}

/// A value, or none.
macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// Defines the keys of a port, one declaration each: documentation, key, bounds, type, and default.
/// Bounds are `in LEAST to MOST` of a number, or `length LEAST to MOST as WORDS` of a text.
macro_rules! keys {
    ($(
        $(#[$meta:meta])*
        ($key:ident: $($of:tt)*)
            $(in $least:tt to $most:tt)? $(length $shortest:tt to $longest:tt as $words:tt)?
            = $default:expr;
    )*) => {
        /// The desired state of a port: body of `POST /v1/ports`.
        #[skip_serializing_none]
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(remote = "Self", deny_unknown_fields)]
        pub struct PortSpec {
            /// The port's name, unique: 1 to 32 characters out of `A-Z a-z 0-9 _ . -`, not only
            /// dots.
            #[schema(pattern = "^[A-Za-z0-9_.-]{1,32}$")]
            pub name: String,
            /// The kind of port.
            pub kind: PortKind,
            $(
                $(#[$meta])*
                $(#[schema(minimum = $least, maximum = $most)])?
                $(#[schema(min_length = $shortest, max_length = $longest)])?
                pub $key: $($of)*,
            )*
        }

        impl PortSpec {
            /// The keys beside `name` and `kind`, in their order.
            pub const KEYS: &[PortKey] = &[$(PortKey {
                name: stringify!($key),
                range: optional!($(($least, $most))?),
                length: optional!($(($shortest, $longest))?),
                expected: optional!(
                    $(concat!("an integer from ", $least, " to ", $most))?
                    $($words)?
                ),
            }),*];

            /// Returns a port with all other fields at their defaults.
            pub fn new(name: impl Into<String>, kind: PortKind) -> Self {
                Self {
                    name: name.into(),
                    kind,
                    $($key: $default,)*
                }
            }
        }
    };
}

keys! {
    /// Free text for operators: at most 255 bytes without control characters. Default: empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    (description: String)
        length 0 to 255 as "at most 255 bytes of text without control characters" = String::new();
    /// The administrative state. Default: `up`.
    #[serde(default, skip_serializing_if = "AdminState::is_up")]
    (admin_state: AdminState) = AdminState::default();
    /// Path of the unix socket; a relative one starts at the runtime directory. Empty for a port
    /// without one. Default for a netmap or memif port: the port's name with `.netmap` or `.memif`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    (socket: String) = String::new();
    /// Whether Lasthop listens or connects. Default: `server`, it listens.
    #[serde(default, skip_serializing_if = "Role::is_server")]
    (role: Role) = Role::default();
    /// The owner of a socket on which Lasthop listens, by name or number. Default: the user of
    /// Lasthop.
    (user: Option<String>) = None;
    /// The group of the socket, by name or number. Default: the group of Lasthop.
    (group: Option<String>) = None;
    /// The socket's mode, an octal number like `0660`. Users with the right to write may connect.
    /// Default: given by the umask.
    #[schema(pattern = "^[0-7]{3}$|^0[0-7]{3}$")]
    (mode: Option<String>) = None;
    /// The only user whose processes may connect, by name or number. Connections of others are
    /// closed, whatever the mode permits.
    (peer_user: Option<String>) = None;
    /// The driver of an uplink or a TAP port. Default: `auto`.
    (driver: Option<UplinkDriver>) = None;
    /// Whether an uplink or a TAP port with the driver `auto`, `tap` or `packet` has a process of
    /// its own that moves its frames, in place of the switch. Default: false.
    (driver_process: Option<bool>) = None;
    /// The host's interface of an uplink or a TAP port. Default for a TAP port: the port's name.
    (interface: Option<String>) = None;
    /// Address and prefix length of a TAP port's interface, like `10.0.0.1/24`.
    (address: Option<String>) = None;
    /// The network namespace of the interface, or of the sockets of a user port, by name or path.
    /// Default: the namespace of Lasthop.
    (netns: Option<String>) = None;
    /// The IPv4 network of a user port, of 8 to 29 bits: gateway `.2`, DNS server `.3`, leases from
    /// `.15`. Default: `10.0.2.0/24`.
    (network: Option<String>) = None;
    /// The IPv6 network of a user port: a prefix of 64 bits; `auto` for a unique local one that
    /// is made of the names of switch and port; or `off`. Default: `auto`.
    (network6: Option<String>) = None;
    /// Memory of the host in the buffers of a user port's sockets, in MiB: 16 to 1048576. Beyond
    /// half of it buffers do not grow, and at its end there are no more flows. Default: 1024.
    (buffers_mib: Option<u32>) in 16 to 1048576 = None;
    /// The same for each guest of a user port. Default: 256.
    (guest_buffers_mib: Option<u32>) in 16 to 1048576 = None;
    /// How long flows of a user port may be silent, as state and seconds like `half-closed 300`:
    /// `half-open`, `established`, `half-closed`, `closing`, `udp`, `dns` or `ping`, and 10 to
    /// 604800. Default: 240, 7200, 120, 240, 120, 10 and 60.
    (times: Option<Vec<String>>) = None;
    /// The resolvers that answer questions of a user port's guests: `auto` for the host's, `off`,
    /// or addresses, with a port or without one, like `192.0.2.53 127.0.0.1:5353`. Default: `auto`.
    (dns: Option<String>) = None;
    /// The domains in which a user port's guests look for names without a dot, which they are
    /// offered by DHCP, DHCPv6 and router advertisements: 1 to 6 with blanks between them, or
    /// `off`. Default: `internal`, the domain of the names of ports; `off` with `dns` off.
    (search: Option<String>) = None;
    /// Services of the host that guests of a user port reach at the gateway, like `tcp 5432`.
    /// Default: none.
    (host: Option<Vec<String>>) = None;
    /// Networks that guests of a user port do not reach, like `10.0.0.0/8 tcp 1-1023`. The most
    /// specific network decides. Default: none.
    (deny: Option<Vec<String>>) = None;
    /// Networks that guests of a user port reach. Default: all.
    (allow: Option<Vec<String>>) = None;
    /// Ports of the host that lead to guests of a user port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    (forward: Vec<ForwardSpec>) = Vec::new();
    /// Maximum number of queue pairs offered to the guest, 1 to 64; ring pairs of a netmap port, 1
    /// to 16, or of a memif port. Default: 1.
    #[serde(default = "one")]
    (queues: u16) in 1 to 64 = one();
    /// Slots of each ring of a netmap port: a power of two from 64 to 4096. Default: 1024.
    #[schema(minimum = 64, maximum = 4096)]
    (slots: Option<u16>) = None;
    /// Whether a netmap port has pipes: clients that open `NAME{ID` and `NAME}ID` share memory.
    /// Default: false.
    #[serde(default, skip_serializing_if = "is_false")]
    (pipes: bool) = false;
    /// The interface id of a memif port, which its client has to name. Default: 0.
    (id: Option<u32>) = None;
    /// The secret of a memif port, which its client has to know: 1 to 24 bytes. It is shown in the
    /// desired state only.
    (secret: Option<Secret>) = None;
    /// The segment of an access port. Default: `default`, without `trunk`.
    (segment: Option<String>) = None;
    /// The segments of a trunk port, instead of `segment`; VLAN tags distinguish them.
    (trunk: Option<Vec<String>>) = None;
    /// The guest's MAC address. The guest may use no other, unless `port_security` allows it. The
    /// interface of a TAP port and the gateway of a user port get it.
    (mac: Option<String>) = None;
    /// The MTU in bytes (68 to 9216) that the guest is offered through `VIRTIO_NET_F_MTU`
    /// (virtio 1.3, 5.1.3); not offered without it. A TAP port's interface gets it. A user port has
    /// 1280 at least, and advertises it to guests.
    (mtu: Option<u16>) in 68 to 9216 = None;
    /// The port's share of the switch's time under contention, 1 to 1000, relative to other ports.
    /// Default: 100.
    #[serde(default = "weight", skip_serializing_if = "is_usual")]
    (weight: u16) in 1 to 1000 = weight();
    /// The CPU weight of the driver process of an uplink, TAP or user port (cgroup v2,
    /// `cpu.weight`), 1 to 10000, relative to other drivers and to the switch, which have 100. A
    /// port with the driver `auto`, `tap` or `packet` needs `driver_process`. Default: 100.
    (cpu_weight: Option<u16>) in 1 to 10000 = None;
    /// Whether frames from the wire that the access lists deny may end before the switch, in
    /// the kernel. Default: `auto`.
    (prefilter: Option<PrefilterMode>) = None;
    /// Maximum number of flows that an uplink's prefilter ends, 16 to 4096. Default: 1024.
    (prefilter_entries: Option<u16>) in 16 to 4096 = None;
    /// A pattern for the names of the VMM's vCPU threads: `*` matches any characters, `?` one.
    /// Known VMMs need none.
    (vcpu_threads: Option<String>)
        length 1 to 64 as "a pattern of 1 to 64 characters like \"CPU */KVM\"" = None;
    /// Offer of an IOMMU to the guest. Default: `offered`.
    #[serde(default, skip_serializing_if = "Iommu::is_offered")]
    (iommu: Iommu) = Iommu::default();
    /// Port security: addresses and services that the guest may use.
    #[serde(default, skip_serializing_if = "PortSecuritySpec::is_default")]
    (port_security: PortSecuritySpec) = PortSecuritySpec::default();
    /// Rate limits.
    #[serde(default, skip_serializing_if = "LimitsSpec::is_nothing")]
    (limits: LimitsSpec) = LimitsSpec::default();
    /// Scheduling of the frames that go out by this port. Default: they are not scheduled.
    (egress: Option<EgressSpec>) = None;
    /// The share of its frames at scheduled ports.
    #[serde(default, skip_serializing_if = "PortQosSpec::is_nothing")]
    (qos: PortQosSpec) = PortQosSpec::default();
}

/// A merge patch of a port.
pub type PortPatch = Patch<PortSpec>;

impl PatchTarget for PortSpec {
    const PATCH: &str = "PortPatch";
    const MEANING: &str = "A change to a port: body of `PATCH /v1/ports/{name}`, a JSON merge patch (RFC 7396).\n\n\
         An absent field is unchanged; `null` resets one to its default. Name and kind do not \
         change. `segment` and `trunk` replace each other. `limits`, `qos`, `egress` and \
         `port_security` are merge patches themselves; arrays are replaced as a whole.\n\n\
         The port's connection is closed by a new `socket`, `role`, `queues`, `slots`, `id` or \
         `secret`. An uplink, TAP or user port has an interruption, and a TAP port gets another \
         interface, by a new `interface`, `driver`, `driver_process`, `address` or `netns`. Flows \
         of a user port end with a new `network` or `network6`. `iommu` counts from the next \
         connection. All others change while connections and flows stay.";
    const FIXED: &[&str] = &["name", "kind"];
}

impl PortSpec {
    /// Returns a vhost-user port with all other fields at their defaults.
    pub fn vhost_user(name: impl Into<String>, socket: impl Into<String>) -> Self {
        Self {
            socket: socket.into(),
            ..Self::new(name, PortKind::VhostUser)
        }
    }

    /// Returns the keys of a user port; `None` for a port of another kind.
    pub fn user_network(&self) -> Option<UserSpec> {
        (self.kind == PortKind::User).then(|| UserSpec {
            network: self.network.clone(),
            network6: self.network6.clone(),
            buffers_mib: self.buffers_mib,
            guest_buffers_mib: self.guest_buffers_mib,
            times: self.times.clone(),
            dns: self.dns.clone(),
            search: self.search.clone(),
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
