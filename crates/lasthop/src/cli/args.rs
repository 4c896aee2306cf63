//! The arguments. Help, completions and the man page come from here too.

mod acl;
mod capture;
mod events;
mod fdb;
mod guard;
mod mirror;
mod owner;
mod segment;
mod trace;

use std::path::PathBuf;

use api::v1::{AdminState, PortKind, PortPatch, PortSpec, Role, UplinkDriver};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::limits::{self, LimitArg, limit};
pub(super) use acl::Acl;
pub(super) use capture::Capture;
pub(super) use events::Events;
pub(super) use fdb::Fdb;
pub(super) use mirror::Mirror;
pub(super) use segment::Segment;
pub(super) use trace::{Expected, Flows, FlowsArgs, TraceArgs};

/// The last-hop switch of a virtual machine host.
#[derive(Debug, Parser)]
#[command(name = "lasthop", version)]
pub(super) struct Cli {
    /// Directory of the sockets, one for each running Lasthop [default: that of the variable LASTHOP_RUNTIME_DIR, or /run/lasthop]
    // Of an option that is given by `env`, clap's usage would say that it must be given.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value_os_t = usual_dir(),
        hide_default_value = true
    )]
    pub(super) runtime_dir: PathBuf,

    #[command(subcommand)]
    pub(super) command: Command,
}

/// Where Lasthop runs if nothing is said.
fn usual_dir() -> PathBuf {
    let named = std::env::var_os("LASTHOP_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    named.map_or_else(|| PathBuf::from("/run/lasthop"), PathBuf::from)
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the switch in the foreground until SIGTERM or SIGINT
    Run(Run),
    /// Show what everything is doing: processes, switch, ports
    Status {
        #[command(flatten)]
        output: Output,
    },
    /// Show, add, change and remove ports
    #[command(subcommand)]
    Port(Port),
    /// Show, add, change and remove segments
    #[command(subcommand)]
    Segment(Segment),
    /// Show, add and remove mirrors: copies of frames for another port
    #[command(subcommand)]
    Mirror(Mirror),
    /// Show access lists, their rules, and how often each was used
    #[command(subcommand)]
    Acl(Acl),
    /// Have what a configuration file says, and show what that changes
    Apply {
        /// The file, as `lasthop run` reads it; - reads standard input
        file: PathBuf,
        /// Say everything as lines of the log: `lasthop run` has it so
        #[arg(long = LOG, hide = true)]
        log: bool,
        #[command(flatten)]
        how: How,
    },
    /// Apply the file with which Lasthop was started, as SIGHUP does
    Reload {
        #[command(flatten)]
        how: How,
    },
    /// Print what is wanted as a configuration file, which `apply` takes without a difference
    Export,
    /// Show traffic and drops of each port
    Stats(Stats),
    /// Show the busiest ports and the worst drops, once a second; q quits
    Top,
    /// Show what would become of a frame, and why; nothing is sent or learned
    Trace(TraceArgs),
    /// Show the busiest of the decisions that the switch has cached, and forget them
    Flows(FlowsArgs),
    /// Write the frames of a port to a pcapng file, until it is interrupted
    Capture(Capture),
    /// Show which MAC address was learned behind which port, and forget it
    #[command(subcommand)]
    Fdb(Fdb),
    /// Show what happens as it happens, and who has asked for it, until it is interrupted
    Events(Events),
    /// Replace every process by one of another version, while guests keep their network
    Upgrade(Upgrade),
    /// Say which version this is, and what it understands of others: a running Lasthop asks before an upgrade
    #[command(name = SELF_CHECK, hide = true)]
    SelfCheck {
        /// Standard input is the record of a supervisor
        #[arg(long)]
        record: bool,
    },
    /// Print a script that completes these commands in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man page
    Man {
        /// Write one page for each command into this directory instead
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(super) struct Run {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    pub(super) config: PathBuf,
    /// Only say whether the configuration is right
    #[arg(long)]
    pub(super) check: bool,
}

/// The option by which `lasthop apply` writes into the log of a supervisor.
pub(crate) const LOG: &str = "log";

/// The command by which `lasthop` is asked whether it could take over.
pub(crate) const SELF_CHECK: &str = "self-check";

#[derive(Debug, Args)]
pub(super) struct Upgrade {
    /// Where the new binaries are, all four of them [default: where the running ones were]
    #[arg(long, value_name = "DIR")]
    pub(super) to: Option<PathBuf>,
    /// Print the report as a JSON document
    #[arg(long)]
    pub(super) json: bool,
}

/// How to apply a file.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct How {
    /// Only show what would change: exit status 3 if anything would
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

/// How to print.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Output {
    /// Print the API's document instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Port {
    /// Show all ports
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show everything about one port
    Show {
        /// The port
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
    /// Remove a port; its guest loses the connection
    Remove {
        /// The port
        #[arg(value_parser = name)]
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(super) struct Add {
    /// The new port's name
    #[arg(value_parser = name)]
    pub(super) name: String,
    /// What kind of attachment it is
    #[arg(long, value_enum)]
    kind: Kind,
    /// Forward nothing through it, until `port set --up`
    #[arg(long)]
    down: bool,
    /// The socket of a vhost-user port; a relative path starts at the runtime directory
    #[arg(long, value_name = "PATH", required_if_eq("kind", "vhost-user"))]
    socket: Option<String>,
    /// The host's interface behind an uplink or a TAP port
    #[arg(long, value_name = "NAME", required_if_eq("kind", "uplink"))]
    interface: Option<String>,
    /// How the frames of an uplink are moved
    #[arg(long, value_enum)]
    driver: Option<DriverArg>,
    /// Address of a TAP port's interface, like 10.0.0.1/24
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Network namespace of the interface, a name or a path
    #[arg(long, value_name = "NETNS")]
    netns: Option<String>,
    /// Make it an access port of this segment, which else is "default"
    #[arg(long, value_name = "SEGMENT", conflicts_with = "trunk")]
    segment: Option<String>,
    /// Make it a trunk port of these segments
    #[arg(long, value_name = "SEGMENTS", value_delimiter = ',')]
    trunk: Option<Vec<String>>,
    /// Queue pairs offered at most
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = queues())]
    queues: u16,
    /// Who opens the connection: Lasthop is the server or the client
    #[arg(long, value_enum, default_value = "server")]
    role: RoleArg,
    /// The guest's MAC address, and the one that it may use if --macs does not say otherwise; that of a TAP port's interface
    #[arg(long, value_name = "MAC", value_parser = mac)]
    mac: Option<String>,
    /// The MTU that the guest is offered, and that of a TAP port's interface, in bytes
    #[arg(long, value_name = "BYTES", value_parser = mtu())]
    mtu: Option<u16>,
    /// Names of the VMM's threads that are the guest's processors, where they are not known: `*` stands for any characters
    #[arg(long, value_name = "PATTERN")]
    vcpu_threads: Option<String>,
    /// Its part of the switch's time, compared with other ports that want more than there is
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = weight())]
    weight: u16,
    /// What it may send or be sent, like from-guest:packets=100k,bits=1G or broadcast:packets=100; once for each
    #[arg(long = "limit", value_name = "LIMIT", value_parser = limit)]
    limits: Vec<LimitArg>,
    #[command(flatten)]
    owner: owner::Owner,
    #[command(flatten)]
    guard: guard::Guard,
    #[command(flatten)]
    pub(super) output: Output,
}

impl Add {
    /// What to ask the API for.
    pub(super) fn spec(&self) -> PortSpec {
        let kind = self.kind.into();
        let port = self.owner.tell(PortSpec::new(&self.name, kind));
        PortSpec {
            admin_state: match self.down {
                true => AdminState::Down,
                false => AdminState::Up,
            },
            socket: self.socket.clone().unwrap_or_default(),
            role: self.role.into(),
            queues: self.queues,
            segment: self.segment.clone(),
            trunk: self.trunk.clone(),
            mac: self.mac.clone(),
            mtu: self.mtu,
            weight: self.weight,
            driver: self.driver.map(UplinkDriver::from),
            interface: self.interface.clone(),
            address: self.address.clone(),
            netns: self.netns.clone(),
            vcpu_threads: self.vcpu_threads.clone(),
            guard: self.guard.spec(),
            limits: limits::spec(&self.limits),
            ..port
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Set {
    /// The port
    #[arg(value_parser = name)]
    pub(super) name: String,
    #[command(flatten)]
    pub(super) changes: Changes,
    #[command(flatten)]
    pub(super) how: How,
}

#[derive(Debug, Args)]
// Those of the guard are another struct's, and would not be among them by themselves.
#[group(required = true, multiple = true, args = [
    "up", "down", "socket", "segment", "trunk", "queues", "role", "mac", "no_mac", "mtu", "no_mtu", "weight", "limits", "macs", "addresses",
    "dhcp_server", "router",
    "user", "group", "mode", "peer_user",
])]
pub(super) struct Changes {
    /// Forward again
    #[arg(long)]
    up: bool,
    /// Forward nothing in either direction; its guest stays connected
    #[arg(long, conflicts_with = "up")]
    down: bool,
    /// The new socket; the guest loses the connection
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
    /// Make it an access port of this segment
    #[arg(long, value_name = "SEGMENT", conflicts_with = "trunk")]
    segment: Option<String>,
    /// Make it a trunk port of these segments
    #[arg(long, value_name = "SEGMENTS", value_delimiter = ',')]
    trunk: Option<Vec<String>>,
    /// Queue pairs offered at most; the guest loses the connection
    #[arg(long, value_name = "N", value_parser = queues())]
    queues: Option<u16>,
    /// Who opens the connection; the guest loses the one that it has
    #[arg(long, value_enum)]
    role: Option<RoleArg>,
    /// The guest's MAC address, and the one that it may use if --macs does not say otherwise
    #[arg(long, value_name = "MAC", value_parser = mac)]
    mac: Option<String>,
    /// Forget the MAC address
    #[arg(long, conflicts_with = "mac")]
    no_mac: bool,
    /// The MTU that the guest is offered, in bytes
    #[arg(long, value_name = "BYTES", value_parser = mtu())]
    mtu: Option<u16>,
    /// Offer no MTU
    #[arg(long, conflicts_with = "mtu")]
    no_mtu: bool,
    /// Its part of the switch's time, compared with other ports that want more than there is
    #[arg(long, value_name = "N", value_parser = weight())]
    weight: Option<u16>,
    #[command(flatten)]
    owner: owner::Owner,
    #[command(flatten)]
    guard: guard::Guard,
    /// What it may send or be sent, like from-guest:packets=100k,bits=1G or to-guest:none; once for each
    #[arg(long = "limit", value_name = "LIMIT", value_parser = limit)]
    limits: Vec<LimitArg>,
}

impl Changes {
    /// What to ask the API for.
    pub(super) fn patch(&self) -> PortPatch {
        let admin_state = match (self.up, self.down) {
            (true, _) => Some(AdminState::Up),
            (_, true) => Some(AdminState::Down),
            (false, false) => None,
        };
        PortPatch {
            admin_state,
            socket: self.socket.clone(),
            role: self.role.map(Role::from),
            queues: self.queues,
            segment: self.segment.clone(),
            trunk: self.trunk.clone(),
            mac: change(self.mac.clone(), self.no_mac),
            mtu: change(self.mtu, self.no_mtu),
            weight: self.weight,
            guard: self.guard.patch(),
            limits: limits::patch(&self.limits),
            ..self.owner.patch(PortPatch::default())
        }
    }
}

/// A field that can be given or taken away.
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
    /// Say what each name of a drop means, and ask nobody
    #[arg(long, conflicts_with_all = ["watch", "name"])]
    pub(super) explain: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// A guest's virtio-net device over the vhost-user protocol
    VhostUser,
    /// An interface of the host that leads elsewhere
    Uplink,
    /// An interface of the host that is made for the port
    Tap,
}

impl From<Kind> for PortKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::VhostUser => Self::VhostUser,
            Kind::Uplink => Self::Uplink,
            Kind::Tap => Self::Tap,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DriverArg {
    /// tap for a TAP device, xdp where it is zero-copy and the host has no address, else packet
    Auto,
    /// A TAP device
    Tap,
    /// AF_PACKET sockets, on any interface
    Packet,
    /// AF_XDP sockets, which take the interface from the host; packet where they cannot be had
    Xdp,
}

impl From<DriverArg> for UplinkDriver {
    fn from(driver: DriverArg) -> Self {
        match driver {
            DriverArg::Auto => Self::Auto,
            DriverArg::Tap => Self::Tap,
            DriverArg::Packet => Self::Packet,
            DriverArg::Xdp => Self::Xdp,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    /// Lasthop listens, the VMM dials
    Server,
    /// Lasthop dials, and redials for ever
    Client,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Server => Self::Server,
            RoleArg::Client => Self::Client,
        }
    }
}

/// A name of a port, a segment or a mirror.
fn name(text: &str) -> Result<String, String> {
    match api::v1::valid_name(text) {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 32 characters out of A-Z a-z 0-9 _ . -".to_owned()),
    }
}

/// A MAC address; whether it is a guest's is for Lasthop to say.
fn mac(text: &str) -> Result<String, String> {
    match api::v1::parse_mac(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected a MAC address like 52:54:00:00:00:01".to_owned()),
    }
}

/// Queue pairs of one port.
fn queues() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=64)
}

/// A port's weight.
fn weight() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// An MTU in bytes.
fn mtu() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(68..=9216)
}
