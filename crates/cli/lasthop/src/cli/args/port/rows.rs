//! The options of `port add` and `port set`: a row for each key of a port.

use api::v1::{
    AllowedAddresses, AllowedWord, ForwardSpec, Iommu, PrefilterMode, Role, Secret, UplinkDriver,
};
use serde_json::{Value, json};

use super::super::super::{limits, qos};
use super::super::{Values, mac};
use super::{Row, ValueFormat, row};

const HOST: &str = "Interfaces of the host";
const PROGRAMS: &str = "Programs: netmap and memif";
const USER: &str = "User ports";
const GUESTS: &str = "Guests over vhost-user";
const RATES: &str = "Rates and scheduling";
const OWNER: &str = "Owner of the socket";
const SECURITY: &str = "Port security";

/// The options, in the order of the help.
pub(super) const ROWS: &[Row] = &[
    row(
        "description",
        "TEXT",
        ValueFormat::Text,
        "Free text for operators: at most 255 bytes",
    )
    .set("Free text for operators: at most 255 bytes; an empty one removes it"),
    row(
        "socket",
        "PATH",
        ValueFormat::Text,
        "Socket of a vhost-user, netmap or memif port; relative to the runtime directory \
         [default of the latter two: NAME.netmap, NAME.memif]",
    )
    .set("New socket; the guest loses the connection")
    .needed_by("vhost-user"),
    row(
        "interface",
        "NAME",
        ValueFormat::Text,
        "Host interface of an uplink or TAP port",
    )
    .under(HOST)
    .set("New host interface of an uplink or TAP port; its driver starts anew")
    .needed_by("uplink"),
    row(
        "driver",
        "DRIVER",
        ValueFormat::Word(DRIVERS),
        "Driver of an uplink or TAP port",
    )
    .under(HOST)
    .set("New driver of an uplink or TAP port"),
    row(
        "driver_process",
        "BOOL",
        ValueFormat::Flag,
        "Process of its own for an uplink or TAP port, in place of the switch [default: false]",
    )
    .under(HOST)
    .set("Process of its own for an uplink or TAP port: whether it moves frames for the switch"),
    row(
        "prefilter",
        "MODE",
        ValueFormat::Word(PREFILTERS),
        "Whether denied frames from the wire may end before the switch",
    )
    .under(HOST)
    .set("Whether denied frames from the wire may end before the switch"),
    row(
        "prefilter_entries",
        "NUMBER",
        ValueFormat::Within(16, 4096),
        "Maximum number of flows that an uplink's prefilter ends [default: 1024]",
    )
    .under(HOST)
    .set("Maximum number of flows that an uplink's prefilter ends")
    .none("Let an uplink's prefilter end up to 1024 flows"),
    row(
        "address",
        "ADDRESS",
        ValueFormat::Text,
        "IP address of a TAP port's interface, like 10.0.0.1/24",
    )
    .under(HOST)
    .set("New IP address of a TAP port's interface, like 10.0.0.1/24; the interface is made anew")
    .none("Give the interface of a TAP port no address"),
    row(
        "netns",
        "NETNS",
        ValueFormat::Text,
        "Network namespace of the interface, or of a user port's sockets: name or path",
    )
    .under(HOST)
    .set(
        "New network namespace of the interface, or of a user port's sockets: name or path; its \
         driver starts anew",
    )
    .none("Use Lasthop's own network namespace"),
    row(
        "segment",
        "SEGMENT",
        ValueFormat::Text,
        "Segment of an access port [default: default]",
    )
    .set("Make it an access port of this segment")
    .without("trunk"),
    row(
        "trunk",
        "SEGMENTS",
        ValueFormat::Commas,
        "Segments of a trunk port",
    ),
    row(
        "queues",
        "N",
        ValueFormat::Number,
        "Maximum number of queue pairs",
    )
    .set("Maximum number of queue pairs; the guest loses the connection")
    .usually("1"),
    row(
        "slots",
        "N",
        ValueFormat::Within(64, 4096),
        "Slots of each ring of a netmap port: a power of two from 64 to 4096 [default: 1024]",
    )
    .under(PROGRAMS)
    .set("Slots of each ring of a netmap port; its client loses the connection"),
    row(
        "pipes",
        "BOOL",
        ValueFormat::Flag,
        "Pipes of a netmap port: clients that open NAME{ID and NAME}ID share memory",
    )
    .under(PROGRAMS)
    .set("Pipes of a netmap port: whether clients that open NAME{ID and NAME}ID share memory"),
    row(
        "id",
        "ID",
        ValueFormat::Within(0, u32::MAX as u64),
        "Interface id of a memif port [default: 0]",
    )
    .under(PROGRAMS)
    .set("Interface id of a memif port; its client loses the connection"),
    row(
        "secret",
        "FILE",
        ValueFormat::By(secret),
        "File with the secret of a memif port: 1 to 24 bytes, and perhaps the end of a line",
    )
    .by("secret-file")
    .under(PROGRAMS)
    .set("File with the secret of a memif port; its client loses the connection")
    .none_by(
        "no-secret",
        "Remove the secret of a memif port; its client loses the connection",
    ),
    row(
        "network",
        "NETWORK",
        ValueFormat::Text,
        "IPv4 network of a user port [default: 10.0.2.0/24]",
    )
    .under(USER)
    .set("IPv4 network of a user port, whose flows end"),
    row(
        "network6",
        "NETWORK",
        ValueFormat::Text,
        "IPv6 network of a user port, of 64 bits, auto or off [default: auto]",
    )
    .under(USER)
    .set("IPv6 network of a user port, auto or off; its flows end"),
    row(
        "dns",
        "RESOLVERS",
        ValueFormat::Text,
        "Resolvers of a user port: auto for the host's, off, or addresses like 192.0.2.53 and \
         127.0.0.1:5353 with blanks between them",
    )
    .under(USER),
    row(
        "search",
        "DOMAINS",
        ValueFormat::Text,
        "Domains in which guests of a user port look for names, with blanks between them, or off \
         [default: internal]",
    )
    .under(USER)
    .set("Domains in which guests of a user port look for names, with blanks between them, or off"),
    row(
        "buffers_mib",
        "MIB",
        ValueFormat::Number,
        "Memory of the host in the buffers of a user port's sockets, in MiB [default: 1024]",
    )
    .under(USER)
    .set("Memory of the host in the buffers of a user port's sockets, in MiB"),
    row(
        "guest_buffers_mib",
        "MIB",
        ValueFormat::Number,
        "The same for each guest [default: 256]",
    )
    .under(USER)
    .set("The same for each guest"),
    row(
        "times",
        "TIME",
        ValueFormat::Each(text),
        "How long flows of a user port may be silent, as a state and seconds like \"half-closed \
         300\"; may be repeated",
    )
    .by("time")
    .under(USER)
    .set(
        "How long flows of a user port may be silent, as a state and seconds, in place of those \
         before; may be repeated",
    )
    .none("Flows of a user port may be silent as long as usual"),
    row(
        "host",
        "SERVICE",
        ValueFormat::Each(text),
        "Service of the host that guests of a user port reach at the gateway, like \"tcp 5432\"; \
         may be repeated",
    )
    .under(USER)
    .set(
        "Service of the host that guests of a user port reach at the gateway, in place of those \
         before; may be repeated",
    )
    .none("Guests of a user port reach no service of the host"),
    row(
        "deny",
        "RULE",
        ValueFormat::Each(text),
        "Network that guests of a user port do not reach, like \"10.0.0.0/8 tcp 1-1023\"; may be \
         repeated",
    )
    .under(USER)
    .set(
        "Network that guests of a user port do not reach, in place of those before; may be \
         repeated",
    )
    .none("Deny guests of a user port no network"),
    row(
        "allow",
        "RULE",
        ValueFormat::Each(text),
        "Network that guests of a user port reach; may be repeated [default: all]",
    )
    .under(USER)
    .set("Network that guests of a user port reach, in place of those before; may be repeated")
    .none_by(
        "allow-all",
        "Guests of a user port reach all networks that are not denied",
    ),
    row(
        "forward",
        "FORWARD",
        ValueFormat::Each(forward),
        "Port of the host that leads to a guest, like \"tcp 127.0.0.1:2222 vm1:22\"; may be \
         repeated",
    )
    .under(USER)
    .set("Port of the host that leads to a guest, in place of those before; may be repeated")
    .none("Remove all forwards of a user port"),
    row(
        "role",
        "ROLE",
        ValueFormat::Word(ROLES),
        "Role of Lasthop at the socket",
    )
    .under(GUESTS)
    .set("Role of Lasthop at the socket; the guest loses the connection")
    .usually("server"),
    row(
        "mac",
        "MAC",
        ValueFormat::By(address),
        "MAC address of the guest, which is also the default of --macs, of a TAP port's \
         interface, or of a user port's gateway",
    )
    .none("Remove the MAC address"),
    row(
        "mtu",
        "BYTES",
        ValueFormat::Number,
        "MTU offered to the guest, of a TAP port's interface, or of a user port's guests, in \
         bytes",
    )
    .none("Offer no MTU"),
    row(
        "vcpu_threads",
        "PATTERN",
        ValueFormat::Text,
        "Pattern for the names of the VMM's vCPU threads, with `*` as wildcard",
    )
    .under(GUESTS)
    .none("Remove that pattern"),
    row(
        "weight",
        "N",
        ValueFormat::Number,
        "Share of worker time under load, relative to other ports",
    )
    .under(RATES)
    .usually("100"),
    row(
        "cpu_weight",
        "N",
        ValueFormat::Number,
        "CPU weight of the driver process of an uplink, TAP or user port [default: 100]",
    )
    .under(RATES)
    .set(
        "CPU weight of the driver process of an uplink, TAP or user port, relative to others and \
         the switch",
    )
    .none("Remove the CPU weight: the system's default is 100"),
    row(
        "iommu",
        "IOMMU",
        ValueFormat::Word(IOMMUS),
        "Offer of an IOMMU to a guest (VIRTIO_F_ACCESS_PLATFORM)",
    )
    .under(GUESTS)
    .set("Offer of an IOMMU to a guest, from its next connection")
    .usually("offered"),
    row(
        "limits",
        "LIMIT",
        ValueFormat::Part(limits::limit),
        "Rate limit, like from-guest:packets=100k,bits=1G or broadcast:packets=100; may be \
         repeated",
    )
    .by("limit")
    .under(RATES)
    .set("Rate limit, like from-guest:packets=100k,bits=1G or to-guest:none; may be repeated"),
    row(
        "qos",
        "SETTINGS",
        ValueFormat::Part(qos::qos),
        "Its part of scheduled ports, like min=500M,group=tenant1 or storage:min=200M; may be \
         repeated",
    )
    .under(RATES)
    .set(
        "Its part of scheduled ports, like min=500M,max=none, storage:min=200M or none; may be \
         repeated",
    ),
    row(
        "egress",
        "SETTINGS",
        ValueFormat::Part(qos::egress),
        "Schedule what goes out by the port, like rate=10G,overhead=24",
    )
    .under(RATES)
    .set("Schedule what goes out by the port, like rate=10G,overhead=24, or none"),
    row(
        "user",
        "USER",
        ValueFormat::TextOr("usual"),
        "Owner of the socket, name or number; \"usual\": the user of Lasthop",
    )
    .under(OWNER),
    row(
        "group",
        "GROUP",
        ValueFormat::TextOr("usual"),
        "Group of the socket, name or number; \"usual\": the group of Lasthop",
    )
    .under(OWNER),
    row(
        "mode",
        "MODE",
        ValueFormat::TextOr("usual"),
        "Mode of the socket, like 0660; connecting needs write access; \"usual\": set by the \
         umask",
    )
    .under(OWNER),
    row(
        "peer_user",
        "USER",
        ValueFormat::TextOr("any"),
        "User whose processes may connect, name or number; \"any\": no restriction beyond the \
         mode",
    )
    .under(OWNER),
    row(
        "port_security.macs",
        "MACS",
        ValueFormat::By(allowed),
        "Allowed source MAC addresses: a list, \"any\", \"sticky\", or \"usual\" for the default",
    )
    .under(SECURITY),
    row(
        "port_security.addresses",
        "ADDRESSES",
        ValueFormat::By(allowed),
        "Allowed source IP addresses and networks: a list, \"any\", \"sticky\", or \"usual\" for \
         the default",
    )
    .under(SECURITY),
    row(
        "port_security.dhcp_server",
        "BOOL",
        ValueFormat::Bool,
        "Allow the guest to be a DHCP server",
    )
    .under(SECURITY),
    row(
        "port_security.router",
        "BOOL",
        ValueFormat::Bool,
        "Allow the guest to be a router (router advertisements, redirects)",
    )
    .under(SECURITY),
];

// Each word of the API has its line.
const _: () = assert!(PREFILTERS.len() == PrefilterMode::ALL.len());
const _: () = assert!(DRIVERS.len() == UplinkDriver::ALL.len());
const _: () = assert!(ROLES.len() == Role::ALL.len());
const _: () = assert!(IOMMUS.len() == Iommu::ALL.len());

const PREFILTERS: &Values = &[
    (
        PrefilterMode::Auto.as_str(),
        "Where it is possible [default]",
    ),
    (PrefilterMode::Off.as_str(), "Never"),
    (
        PrefilterMode::Socket.as_str(),
        "With packet sockets, by a program of theirs",
    ),
    (
        PrefilterMode::Xdp.as_str(),
        "By an XDP program, before the kernel makes a packet of a frame",
    ),
];

const DRIVERS: &Values = &[
    (
        UplinkDriver::Auto.as_str(),
        "tap for a TAP device, xdp if zero-copy works and the host has no address on \
         it, else packet",
    ),
    (UplinkDriver::Tap.as_str(), "TAP device"),
    (
        UplinkDriver::Packet.as_str(),
        "AF_PACKET sockets, on any interface",
    ),
    (
        UplinkDriver::Xdp.as_str(),
        "AF_XDP sockets, which take the interface from the host (packet if unsupported)",
    ),
    (
        UplinkDriver::VhostNet.as_str(),
        "TAP device whose frames the kernel moves (/dev/vhost-net)",
    ),
];
const ROLES: &Values = &[
    (Role::Server.as_str(), "Lasthop listens, the VMM connects"),
    (Role::Client.as_str(), "Lasthop connects and reconnects"),
];
const IOMMUS: &Values = &[
    (Iommu::Off.as_str(), "The feature is not offered"),
    (Iommu::Offered.as_str(), "The guest may take the feature"),
    (
        Iommu::Required.as_str(),
        "Queues of a guest that does not take the feature do not start",
    ),
];

fn text(text: &str) -> Result<Value, String> {
    Ok(json!(text))
}

/// Reads a MAC address; the server checks that it is a unicast address.
fn address(text: &str) -> Result<Value, String> {
    mac(text).map(Value::from)
}

/// Reads a secret from a file: other users see the arguments of a process.
fn secret(file: &str) -> Result<Value, String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| "expected UTF-8 text, found a byte that is not")?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(json!(Secret::from(line.to_owned())))
}

/// Reads a forward: where the host listens, a blank, and where it leads.
fn forward(text: &str) -> Result<Value, String> {
    let (listen, to) = text
        .rsplit_once(' ')
        .ok_or("like \"tcp 127.0.0.1:2222 vm1:22\"")?;
    let (listen, to) = (listen.to_owned(), to.to_owned());
    Ok(json!(ForwardSpec { listen, to }))
}

/// Reads allowed addresses.
fn allowed(text: &str) -> Result<Value, String> {
    let allowed = match text {
        "" => return Err("expected at least one address".to_owned()),
        "usual" => return Ok(Value::Null),
        "any" => AllowedAddresses::Word(AllowedWord::Any),
        "sticky" => AllowedAddresses::Word(AllowedWord::Sticky),
        list => AllowedAddresses::List(list.split(',').map(str::to_owned).collect()),
    };
    Ok(json!(allowed))
}
