//! The keys of a user port: a network whose outside are sockets of the host.

use model::objects;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

objects!(ForwardSpec);

/// The IPv4 network of a user port without `network`, as guests of QEMU know it.
pub const USER_NETWORK: &str = "10.0.2.0/24";

/// The domain that guests of a user port without `search` are offered: that of the names of ports.
pub const USER_SEARCH: &str = "internal";

/// Memory of the host in the buffers of a user port's sockets without `buffers_mib`, in MiB.
pub const USER_BUFFERS_MIB: u32 = 1024;
/// The same for a guest, without `guest_buffers_mib`.
pub const USER_GUEST_BUFFERS_MIB: u32 = 256;

/// The network of a user port, as it is configured.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserSpec {
    /// The IPv4 network. Default: `10.0.2.0/24`.
    pub network: Option<String>,
    /// The IPv6 network, `auto` or `off`. Default: `auto`.
    pub network6: Option<String>,
    /// The resolvers. Default: `auto`, those of the host.
    pub dns: Option<String>,
    /// The domains that guests are offered. Default: `internal`.
    pub search: Option<String>,
    /// Services of the host that guests reach at the gateway.
    pub host: Option<Vec<String>>,
    /// Networks that guests do not reach.
    pub deny: Option<Vec<String>>,
    /// Networks that guests reach. Default: all.
    pub allow: Option<Vec<String>>,
    /// Memory of the host in the buffers of all sockets, in MiB. Default: 1024.
    pub buffers_mib: Option<u32>,
    /// The same for each guest. Default: 256.
    pub guest_buffers_mib: Option<u32>,
    /// How long flows may be silent, where it is not as usual.
    pub times: Option<Vec<String>>,
    /// Ports of the host that lead to guests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<ForwardSpec>,
}

/// A port of the host, or a range of ports, that leads to a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ForwardSpec {
    /// Protocol (`tcp` or `udp`), address and port on which the host listens, like
    /// `tcp 127.0.0.1:2222` or `udp 127.0.0.1:5000-5009`.
    pub listen: String,
    /// A port of the switch by name, or an address of the network, and the first of the guest's
    /// ports, like `vm1:22`.
    pub to: String,
}
