//! The arguments, and the source of help, completions, man pages and the reference.

mod acl;
mod capture;
mod connections;
mod events;
mod fdb;
mod libvirt_hook;
mod mirror;
mod net;
mod netmap;
mod port;
mod prefilter;
mod qos;
mod segment;
mod trace;
mod user;

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use client::Failure;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub(super) use self::net::{Net, NetRun};
pub(super) use acl::Acl;
pub(super) use capture::Capture;
pub(super) use connections::Connections;
pub(super) use events::Events;
pub(super) use fdb::Fdb;
pub(super) use libvirt_hook::LibvirtHook;
pub(super) use mirror::Mirror;
pub(super) use netmap::Netmap;
pub(super) use port::{Add, Set};
pub(super) use prefilter::Prefilter;
pub(super) use qos::{Egress, QosClass, QosGroup};
pub(super) use segment::Segment;
pub(super) use trace::{ExpectedResult, Flows, FlowsArgs, TraceArgs};
pub(super) use user::{Forward, UserPort};

/// Exit statuses of all commands.
pub(super) const EXIT_STATUSES: [(u8, &str); 5] = [
    (0, "done"),
    (
        1,
        "failed at run time: unreachable, outdated, busy, full or broken off; may be retried",
    ),
    (
        2,
        "wrong request, file or environment (a missing right, a used socket); nothing changed",
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
    /// Start a program of the netmap API, whose ports are those of Lasthop; it keeps the host's
    /// network
    Netmap(Netmap),
    /// Programs with sockets of a port
    #[command(subcommand)]
    Net(Net),
    /// Show flows and DHCP leases of user ports
    #[command(subcommand)]
    User(UserPort),
    /// Show denied frames that end at the wire, before the switch
    #[command(subcommand)]
    Prefilter(Prefilter),
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
        how: ApplyHow,
    },
    /// Apply the configuration file of the start again, as SIGHUP does
    Reload(ApplyHow),
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
    /// Show, count and flush connections that stateful rules have let in
    #[command(subcommand)]
    Connections(Connections),
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

impl Command {
    /// Returns the end of a command whose reader is gone: that of standard output. `None`: the
    /// command continues without one. All commands end that only print something, a stream or not.
    pub(super) fn without_reader(&self) -> Option<Failure> {
        match self {
            Self::Port(Port::List(_) | Port::Show { .. } | Port::Forward(Forward::List { .. }))
            | Self::Segment(Segment::List(_))
            | Self::QosClass(QosClass::List(_))
            | Self::QosGroup(QosGroup::List(_))
            | Self::Mirror(Mirror::List(_))
            | Self::Fdb(Fdb::List(_)) => Some(Failure::OutputClosed),
            // A change is made as a whole, whether or not its result is read.
            Self::Port(_)
            | Self::Segment(_)
            | Self::QosClass(_)
            | Self::QosGroup(_)
            | Self::Mirror(_)
            | Self::Fdb(_)
            | Self::Connections(Connections::Flush(_))
            | Self::Flows(FlowsArgs {
                command: Some(Flows::Purge { .. }),
                ..
            })
            | Self::Apply { .. }
            | Self::Reload(_)
            | Self::Upgrade(_) => None,
            // These are or become something else.
            Self::Run(_) | Self::Netmap(_) | Self::Net(_) | Self::LibvirtHook(_) => None,
            // It watches the file that it writes, which may be standard output.
            Self::Capture(_) => None,
            Self::Trace(args) => args.without_reader(),
            _ => Some(Failure::OutputClosed),
        }
    }
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

/// Options of commands that apply a whole file.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ApplyHow {
    /// Accept a file without ports: all ports are removed
    #[arg(long)]
    pub(super) allow_empty: bool,
    #[command(flatten)]
    pub(super) how: How,
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

/// Returns a merge patch of the keys that change; `null` without a change.
fn patch<const N: usize>(changes: [(&str, Option<Value>); N]) -> Value {
    let changes = changes.into_iter();
    let changes = changes.filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let changes: Map<String, Value> = changes.collect();
    match changes.is_empty() {
        true => Value::Null,
        false => Value::Object(changes),
    }
}

/// Returns the change of a key that has a new value, or is removed.
fn change<T: Into<Value>>(value: Option<T>, none: bool) -> Option<Value> {
    value.map(Into::into).or(none.then_some(Value::Null))
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
