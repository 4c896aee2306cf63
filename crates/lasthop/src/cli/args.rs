//! The arguments, and the source of help, completions, man pages and the reference.

mod acl;
mod capture;
mod events;
mod fdb;
mod libvirt_hook;
mod mirror;
mod net;
mod netmap;
mod owner;
mod port_security;
mod qos;
mod rings;
mod segment;
mod trace;
mod user;

use std::path::PathBuf;

use api::v1::{AdminState, Iommu, PortKind, PortPatch, PortSpec, Role, UplinkDriver};
use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) use self::net::{Net, NetRun};
use super::limits::{self, LimitArg, limit};
use super::qos as scheduling;
pub(super) use acl::Acl;
pub(super) use capture::Capture;
pub(super) use events::Events;
pub(super) use fdb::Fdb;
pub(super) use libvirt_hook::LibvirtHook;
pub(super) use mirror::Mirror;
pub(super) use netmap::Netmap;
pub(super) use qos::{Egress, QosClass, QosGroup};
pub(super) use segment::Segment;
pub(super) use trace::{Expected, Flows, FlowsArgs, TraceArgs};
pub(super) use user::{Forward, UserPort};

/// Exit statuses of all commands.
pub(super) const EXIT_STATUSES: [(u8, &str); 5] = [
    (0, "done"),
    (
        1,
        "failed: unreachable, conflict, limit or broken connection; may be retried",
    ),
    (
        2,
        "wrong request, nothing changed: usage, invalid file, unknown or used name",
    ),
    (3, "dry run would change something"),
    (
        4,
        "trace --expect differs: at least one frame has another result",
    ),
];

/// User-space virtual switch for virtual machines over vhost-user.
#[derive(Debug, Parser)]
#[command(name = "lasthop", version, after_help = exit_statuses())]
pub(super) struct Cli {
    /// Runtime directory with the sockets of one Lasthop [default: $LASTHOP_RUNTIME_DIR, or
    /// /run/lasthop]
    // With `env`, clap's usage would show the option as required.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value_os_t = default_dir(),
        hide_default_value = true
    )]
    pub(super) runtime_dir: PathBuf,

    #[command(subcommand)]
    pub(super) command: Command,
}

/// Formats the exit statuses for `--help`.
fn exit_statuses() -> String {
    let lines = EXIT_STATUSES.map(|(status, meaning)| format!("  {status}  {meaning}"));
    format!("Exit status:\n{}", lines.join("\n"))
}

/// Returns the default runtime directory.
fn default_dir() -> PathBuf {
    let dir = std::env::var_os("LASTHOP_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    dir.map_or_else(|| PathBuf::from("/run/lasthop"), PathBuf::from)
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the switch in the foreground until SIGTERM or SIGINT
    Run(Run),
    /// Show the state of processes, switch and ports
    Status(Output),
    /// Show, add, change and remove ports
    #[command(subcommand)]
    Port(Port),
    /// Show, add, change and remove segments
    #[command(subcommand)]
    Segment(Segment),
    /// Show, add, change and remove traffic classes
    #[command(subcommand)]
    QosClass(QosClass),
    /// Show, add, change and remove groups of senders at scheduled ports
    #[command(subcommand)]
    QosGroup(QosGroup),
    /// Show the use of scheduled ports
    #[command(subcommand)]
    Egress(Egress),
    /// Show, add and remove mirrors: copies of frames for another port
    #[command(subcommand)]
    Mirror(Mirror),
    /// Show pipes: memory that two programs of the netmap API share
    #[command(subcommand)]
    Pipe(Pipe),
    /// Start a program of the netmap API, whose ports are those of Lasthop
    Netmap(Netmap),
    /// Programs with sockets of a port
    #[command(subcommand)]
    Net(Net),
    /// Show flows and DHCP leases of user ports
    #[command(subcommand)]
    User(UserPort),
    /// Show access lists, their rules and hit counters
    #[command(subcommand)]
    Acl(Acl),
    /// Apply a configuration file (atomic); prints the changes
    Apply {
        /// Configuration file; - reads standard input
        file: PathBuf,
        /// Log instead of printing; used by `lasthop run`
        #[arg(long, hide = true)]
        log: bool,
        #[command(flatten)]
        how: How,
    },
    /// Apply the configuration file of the start again, as SIGHUP does
    Reload(How),
    /// Print the desired state as a configuration file
    Export,
    /// Show traffic and drops by port
    Stats(Stats),
    /// Show the busiest ports, flows and rules, and the most drops, once a second; q quits
    Top,
    /// Show how a frame would be forwarded, and why; sends and learns nothing
    Trace(TraceArgs),
    /// Show or purge cached flows
    Flows(FlowsArgs),
    /// Capture frames of a port to a pcapng file, until interrupted
    Capture(Capture),
    /// Show, add, remove and flush entries of the forwarding database
    #[command(subcommand)]
    Fdb(Fdb),
    /// Follow events, with their requesters, until interrupted
    Events(Events),
    /// Upgrade all processes to another version; guests stay connected
    Upgrade(Upgrade),
    /// Give ports the bandwidth of libvirt's domains, as a hook of libvirt; always exits with 0
    LibvirtHook(LibvirtHook),
    /// Print a completion script
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Print the man page
    Man {
        /// Write one page per command into this directory
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(super) struct Run {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(super) config: PathBuf,
    /// Check the configuration and exit
    #[arg(long)]
    pub(super) check: bool,
}

#[derive(Debug, Args)]
pub(super) struct Upgrade {
    /// Directory of the new binaries [default: that of the running ones]
    #[arg(long, value_name = "DIR")]
    pub(super) to: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Options of commands that apply changes.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct How {
    /// Only show the changes; exit status 3 if there are any
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Options for the output.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Output {
    /// Print the API's JSON document
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Pipe {
    /// Show all pipes with their connected ends
    List(Output),
}

#[derive(Debug, Subcommand)]
pub(super) enum Port {
    /// Show all ports
    List(Output),
    /// Show one port in detail
    Show {
        /// Port
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Add a port
    Add(Box<Add>),
    /// Change a port
    #[command(override_usage = "lasthop port set [--dry-run] <NAME> <CHANGES>...")]
    Set(Box<Set>),
    /// Show, add and remove forwards of a user port
    #[command(subcommand)]
    Forward(Forward),
    /// Remove a port; its guest loses the connection
    Remove {
        /// Port
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(super) struct Add {
    /// Name of the new port
    #[arg(value_parser = name)]
    pub(super) name: String,
    /// Kind of port
    #[arg(long, value_parser = one_of::<PortKind>(KINDS))]
    kind: PortKind,
    /// Free text for operators: at most 255 bytes
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    description: String,
    /// Add it administratively down
    #[arg(long)]
    down: bool,
    /// Socket of a vhost-user, netmap or memif port; relative to the runtime directory [default of
    /// the latter two: NAME.netmap, NAME.memif]
    #[arg(long, value_name = "PATH", required_if_eq("kind", "vhost-user"))]
    socket: Option<String>,
    /// Host interface of an uplink or TAP port
    #[arg(long, value_name = "NAME", required_if_eq("kind", "uplink"))]
    interface: Option<String>,
    /// Driver of an uplink or TAP port
    #[arg(long, value_parser = one_of::<UplinkDriver>(DRIVERS))]
    driver: Option<UplinkDriver>,
    /// IP address of a TAP port's interface, like 10.0.0.1/24
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Network namespace of the interface, or of a user port's sockets: name or path
    #[arg(long, value_name = "NETNS")]
    netns: Option<String>,
    /// Segment of an access port [default: default]
    #[arg(long, value_name = "SEGMENT", conflicts_with = "trunk")]
    segment: Option<String>,
    /// Segments of a trunk port
    #[arg(long, value_name = "SEGMENTS", value_delimiter = ',')]
    trunk: Option<Vec<String>>,
    /// Maximum number of queue pairs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = queues())]
    queues: u16,
    #[command(flatten)]
    rings: rings::Rings,
    #[command(flatten)]
    user: user::User,
    /// Role of Lasthop at the socket
    #[arg(long, value_parser = one_of::<Role>(ROLES), default_value = "server")]
    role: Role,
    /// MAC address of the guest, which is also the default of --macs, of a TAP port's interface, or
    /// of a user port's gateway
    #[arg(long, value_name = "MAC", value_parser = mac)]
    mac: Option<String>,
    /// MTU offered to the guest, of a TAP port's interface, or of a user port's guests, in bytes
    #[arg(long, value_name = "BYTES", value_parser = mtu())]
    mtu: Option<u16>,
    /// Pattern for the names of the VMM's vCPU threads, with `*` as wildcard
    #[arg(long, value_name = "PATTERN")]
    vcpu_threads: Option<String>,
    /// Share of worker time under load, relative to other ports
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = weight())]
    weight: u16,
    /// CPU weight of the driver process of an uplink, TAP or user port [default: 100]
    #[arg(long, value_name = "N", value_parser = cpu_weight())]
    cpu_weight: Option<u16>,
    /// Offer of an IOMMU to a guest (VIRTIO_F_ACCESS_PLATFORM)
    #[arg(long, value_parser = one_of::<Iommu>(IOMMUS), default_value = "offered")]
    iommu: Iommu,
    /// Rate limit, like from-guest:packets=100k,bits=1G or broadcast:packets=100; may be repeated
    #[arg(long = "limit", value_name = "LIMIT", value_parser = limit)]
    limits: Vec<LimitArg>,
    /// Its part of scheduled ports, like min=500M,group=tenant1 or storage:min=200M; may be
    /// repeated
    #[arg(long, value_name = "SETTINGS", value_parser = scheduling::qos)]
    qos: Vec<Value>,
    /// Schedule what goes out by the port, like rate=10G,overhead=24
    #[arg(long, value_name = "SETTINGS", value_parser = scheduling::egress)]
    egress: Vec<Value>,
    #[command(flatten)]
    owner: owner::Owner,
    #[command(flatten)]
    port_security: port_security::PortSecurity,
    #[command(flatten)]
    pub(super) output: Output,
}

impl Add {
    /// Returns the API's object.
    pub(super) fn spec(&self) -> PortSpec {
        let port = self.owner.spec(PortSpec::new(&self.name, self.kind));
        let port = self.user.spec(self.rings.spec(port));
        PortSpec {
            description: self.description.clone(),
            admin_state: if self.down {
                AdminState::Down
            } else {
                AdminState::Up
            },
            socket: self.socket.clone().unwrap_or_default(),
            role: self.role,
            queues: self.queues,
            segment: self.segment.clone(),
            trunk: self.trunk.clone(),
            mac: self.mac.clone(),
            mtu: self.mtu,
            weight: self.weight,
            cpu_weight: self.cpu_weight,
            iommu: self.iommu,
            driver: self.driver,
            interface: self.interface.clone(),
            address: self.address.clone(),
            netns: self.netns.clone(),
            vcpu_threads: self.vcpu_threads.clone(),
            port_security: self.port_security.spec(),
            limits: limits::spec(&self.limits),
            qos: scheduling::qos_spec(&self.qos),
            egress: scheduling::egress_spec(&self.egress),
            ..port
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Set {
    /// Port
    #[arg(value_parser = name)]
    pub(super) name: String,
    #[command(flatten)]
    pub(super) changes: Changes,
    #[command(flatten)]
    pub(super) how: How,
}

#[derive(Debug, Args)]
// The options of port security and owner are in other structs and are not in the group by default.
#[group(required = true, multiple = true, args = [
    "up", "down", "socket", "interface", "driver", "address", "no_address", "netns", "no_netns",
    "segment", "trunk", "queues", "role", "mac", "no_mac",
    "mtu", "no_mtu", "weight", "cpu_weight", "no_cpu_weight", "vcpu_threads", "no_vcpu_threads",
    "limits", "macs", "addresses", "dhcp_server", "router", "user", "group", "mode", "peer_user",
    "description", "slots", "pipes",
    "id", "secret_file", "no_secret",
    "qos", "egress", "iommu", "network", "network6", "buffers_mib",
    "guest_buffers_mib", "dns", "host", "no_host", "deny", "no_deny",
    "allow", "allow_all", "forwards", "no_forward",
])]
pub(super) struct Changes {
    /// Free text for operators: at most 255 bytes; an empty one removes it
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Set the port administratively up
    #[arg(long)]
    up: bool,
    /// Set the port administratively down; the guest stays connected
    #[arg(long, conflicts_with = "up")]
    down: bool,
    /// New socket; the guest loses the connection
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
    /// New host interface of an uplink or TAP port; its driver starts anew
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// New driver of an uplink or TAP port
    #[arg(long, value_parser = one_of::<UplinkDriver>(DRIVERS))]
    driver: Option<UplinkDriver>,
    /// New IP address of a TAP port's interface, like 10.0.0.1/24; the interface is made anew
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Give the interface of a TAP port no address
    #[arg(long, conflicts_with = "address")]
    no_address: bool,
    /// New network namespace of the interface, or of a user port's sockets: name or path; its
    /// driver starts anew
    #[arg(long, value_name = "NETNS")]
    netns: Option<String>,
    /// Interface or sockets are in the network namespace of Lasthop
    #[arg(long, conflicts_with = "netns")]
    no_netns: bool,
    /// Make it an access port of this segment
    #[arg(long, value_name = "SEGMENT", conflicts_with = "trunk")]
    segment: Option<String>,
    /// Segments of a trunk port
    #[arg(long, value_name = "SEGMENTS", value_delimiter = ',')]
    trunk: Option<Vec<String>>,
    /// Maximum number of queue pairs; the guest loses the connection
    #[arg(long, value_name = "N", value_parser = queues())]
    queues: Option<u16>,
    #[command(flatten)]
    rings: rings::RingChanges,
    #[command(flatten)]
    user: user::UserChanges,
    /// Role of Lasthop at the socket; the guest loses the connection
    #[arg(long, value_parser = one_of::<Role>(ROLES))]
    role: Option<Role>,
    /// MAC address of the guest, which is also the default of --macs, of a TAP port's interface, or
    /// of a user port's gateway
    #[arg(long, value_name = "MAC", value_parser = mac)]
    mac: Option<String>,
    /// Remove the MAC address
    #[arg(long, conflicts_with = "mac")]
    no_mac: bool,
    /// MTU offered to the guest, of a TAP port's interface, or of a user port's guests, in bytes
    #[arg(long, value_name = "BYTES", value_parser = mtu())]
    mtu: Option<u16>,
    /// Offer no MTU
    #[arg(long, conflicts_with = "mtu")]
    no_mtu: bool,
    /// Share of worker time under load, relative to other ports
    #[arg(long, value_name = "N", value_parser = weight())]
    weight: Option<u16>,
    /// CPU weight of the driver process of an uplink, TAP or user port, relative to others and the
    /// switch
    #[arg(long, value_name = "N", value_parser = cpu_weight())]
    cpu_weight: Option<u16>,
    /// Remove the CPU weight: the system's default is 100
    #[arg(long, conflicts_with = "cpu_weight")]
    no_cpu_weight: bool,
    /// Pattern for the names of the VMM's vCPU threads, with `*` as wildcard
    #[arg(long, value_name = "PATTERN")]
    vcpu_threads: Option<String>,
    /// Remove that pattern
    #[arg(long, conflicts_with = "vcpu_threads")]
    no_vcpu_threads: bool,
    /// Offer of an IOMMU to a guest, from its next connection
    #[arg(long, value_parser = one_of::<Iommu>(IOMMUS))]
    iommu: Option<Iommu>,
    #[command(flatten)]
    owner: owner::Owner,
    #[command(flatten)]
    port_security: port_security::PortSecurity,
    /// Rate limit, like from-guest:packets=100k,bits=1G or to-guest:none; may be repeated
    #[arg(long = "limit", value_name = "LIMIT", value_parser = limit)]
    limits: Vec<LimitArg>,
    /// Its part of scheduled ports, like min=500M,max=none, storage:min=200M or none; may be
    /// repeated
    #[arg(long, value_name = "SETTINGS", value_parser = scheduling::qos)]
    qos: Vec<Value>,
    /// Schedule what goes out by the port, like rate=10G,overhead=24, or none
    #[arg(long, value_name = "SETTINGS", value_parser = scheduling::egress)]
    egress: Vec<Value>,
}

impl Changes {
    /// Returns the merge patch for the API.
    pub(super) fn patch(&self) -> PortPatch {
        let admin_state = match (self.up, self.down) {
            (true, _) => Some(AdminState::Up),
            (_, true) => Some(AdminState::Down),
            (false, false) => None,
        };
        PortPatch {
            description: self.description.clone(),
            admin_state,
            socket: self.socket.clone(),
            role: self.role,
            interface: self.interface.clone().map(Some),
            driver: self.driver.map(Some),
            address: change(self.address.clone(), self.no_address),
            netns: change(self.netns.clone(), self.no_netns),
            queues: self.queues,
            segment: self.segment.clone(),
            trunk: self.trunk.clone(),
            mac: change(self.mac.clone(), self.no_mac),
            mtu: change(self.mtu, self.no_mtu),
            weight: self.weight,
            cpu_weight: change(self.cpu_weight, self.no_cpu_weight),
            vcpu_threads: change(self.vcpu_threads.clone(), self.no_vcpu_threads),
            iommu: self.iommu,
            port_security: self.port_security.patch(),
            limits: limits::patch(&self.limits),
            qos: scheduling::patch(&self.qos),
            egress: scheduling::patch(&self.egress),
            ..self
                .user
                .patch(self.rings.patch(self.owner.patch(PortPatch::default())))
        }
    }
}

/// Returns the patch of a field that can be set or removed.
fn change<T>(value: Option<T>, none: bool) -> Option<Option<T>> {
    match value {
        Some(value) => Some(Some(value)),
        None => none.then_some(None),
    }
}

#[derive(Debug, Args)]
pub(super) struct Stats {
    /// Only this port
    #[arg(value_parser = name)]
    pub(super) name: Option<String>,
    /// Show rates, once a second, until interrupted
    #[arg(long)]
    pub(super) watch: bool,
    /// Print the meaning of each drop reason; needs no running Lasthop
    #[arg(long, conflicts_with_all = ["watch", "name"])]
    pub(super) explain: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Values of an argument with their help, by the names in the API.
type Values = [(&'static str, &'static str)];

const KINDS: &Values = &[
    ("vhost-user", "Guest's virtio-net device over vhost-user"),
    ("uplink", "Existing interface of the host"),
    ("tap", "New TAP interface of the host"),
    ("netmap", "Process with the netmap API, see lasthop netmap"),
    ("memif", "memif client: DPDK, VPP, libmemif"),
    (
        "user",
        "Outside for guests by sockets of the host, without an interface",
    ),
];
const DRIVERS: &Values = &[
    (
        "auto",
        "vhost-net or tap for a TAP device, xdp if zero-copy works and the host has no address on \
         it, else packet",
    ),
    ("tap", "TAP device"),
    ("packet", "AF_PACKET sockets, on any interface"),
    (
        "xdp",
        "AF_XDP sockets, which take the interface from the host (packet if unsupported)",
    ),
    (
        "vhost-net",
        "TAP device whose frames the kernel moves (/dev/vhost-net)",
    ),
];
const ROLES: &Values = &[
    ("server", "Lasthop listens, the VMM connects"),
    ("client", "Lasthop connects and reconnects"),
];
const IOMMUS: &Values = &[
    ("off", "The feature is not offered"),
    ("offered", "The guest may take the feature"),
    (
        "required",
        "Queues of a guest that does not take the feature do not start",
    ),
];
const DIRECTIONS: &Values = &[
    ("in", "From the port into the switch"),
    ("out", "From the switch to the port"),
    ("both", "Both directions"),
];

/// Returns the parser of a type of the API.
fn one_of<T>(values: &'static Values) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    let values = values.iter();
    let values = values.map(|(name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(values).try_map(|name| serde_json::from_value(name.into()))
}

/// Parses the name of a port, segment, mirror or access list.
fn name(text: &str) -> Result<String, String> {
    if api::v1::valid_name(text) {
        Ok(text.to_owned())
    } else {
        Err("expected 1 to 32 characters out of A-Z a-z 0-9 _ . -".to_owned())
    }
}

/// Parses a MAC address; the server checks that it is a unicast address.
fn mac(text: &str) -> Result<String, String> {
    match api::v1::parse_mac(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected a MAC address like 52:54:00:00:00:01".to_owned()),
    }
}

/// Returns the parser of a number of queue pairs.
fn queues() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=64)
}

/// Returns the parser of a weight.
fn weight() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// Returns the parser of a CPU weight.
fn cpu_weight() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=10_000)
}

/// Returns the parser of an MTU.
fn mtu() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(68..=9216)
}
