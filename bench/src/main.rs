//! `lasthop-bench`: Lasthop and its peers in turn, on the same machine, with the same client.
//!
//! ```text
//!   experiments   frames, flows, lean, load, bulk, ports, …: what is run, in which order
//!   sample        one measurement: placement before and after, other load, verdict
//!   peers         switches that are measured: Lasthop, OVS-DPDK, a DPDK forwarder, the Linux bridge
//!   clients       send frames through them
//!   captures      show frames of a port to the operator of a peer
//!   rules         access rules, as Lasthop and as Open vSwitch take them
//!   plan          choices and durations of a run, queues and traffic of clients
//!   placement, hugepages, folders, process     the machine
//!   busy          others on it, who compute all the time
//!   report, plot                  results of the samples
//!   paper         figures of the papers, beside what was published
//! ```
//!
//! A figure means something only beside another one that was taken in the same minute with the same
//! path between the two cores. So peers take turns, every sample is labelled `near` or `far` by the
//! time that a cache line needs between the cores, and samples in which the label flipped or
//! another process used the machine are dropped and counted.

mod busy;
mod captures;
mod clients;
mod experiments;
mod folders;
mod hugepages;
mod paper;
mod peers;
mod placement;
mod plan;
mod plot;
mod process;
mod relay;
mod report;
mod rules;
mod sample;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use e2e::{machine, namespace, statistics, stop};
use testkit::procfs;

use crate::experiments::external::one_thread::OneThreadArguments;
use crate::experiments::sockets::ends::EndArguments;
use crate::paper::PaperArguments;
use crate::plan::Plan;
use crate::report::Report;

/// Run Lasthop and its peers in turn, and print what is faster.
#[derive(Debug, Parser)]
#[command(name = "lasthop-bench", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Experiments to run; all by default
    experiments: Vec<Experiment>,
    /// Fewer and shorter samples: a first look, with three of 0.3 seconds in a row instead of nine
    /// of two seconds
    #[arg(long)]
    quick: bool,
    /// Samples in a row, in place of three or nine
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// The core of the switch
    #[arg(long, global = true, default_value_t = 0, value_name = "CORE")]
    switch_core: usize,
    /// More cores of the switch, each with a forwarding thread of its own: of Lasthop and OVS-DPDK
    #[arg(long, global = true, value_delimiter = ',', value_name = "CORE")]
    more_switch_cores: Vec<usize>,
    /// The core of the client
    #[arg(long, global = true, default_value_t = 1, value_name = "CORE")]
    client_core: usize,
    /// Directory with the binaries `lasthop`, `lasthop-control`, `lasthop-switch` and
    /// `lasthop-driver`; default: where lasthop-bench lies
    #[arg(long, global = true, value_name = "DIR", env = "LASTHOP_BIN")]
    bin: Option<PathBuf>,
    /// Directory with the binaries of another build, which takes part in the experiments
    /// `external`, `stack`, `beside`, `busy`, `kvm`, `kvm-tap` and `dense`
    #[arg(long, value_name = "DIR")]
    before: Option<PathBuf>,
    /// Numbers of idle guests of the experiment `dense`
    #[arg(long, value_delimiter = ',', value_name = "NUMBER")]
    guests: Vec<usize>,
    /// Directory of JSON and plots
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "bench/results"
    )]
    out: PathBuf,
    /// A round trip of a cache line below this is `near`, in nanoseconds
    #[arg(long, global = true, value_name = "NS", default_value_t = placement::NEAR_BELOW_NS)]
    near_below: f64,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Ask the figures of the papers, and write a page with what was published beside them
    Paper(PaperArguments),
    /// One end of the experiment "sockets"
    #[command(hide = true)]
    SocketEnd(EndArguments),
    /// A way of the experiment "external"
    #[command(hide = true)]
    OneThread(OneThreadArguments),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Experiment {
    /// Throughput by frame size, split and packed, beside the peers
    Frames,
    /// Throughput by number of flows, beside the peers
    Flows,
    /// Throughput with a client that leaves the limit to the switch, beside the peers
    Lean,
    /// Latency and CPU use by offered load, beside the peers
    Load,
    /// Latency of one pair beside another one that floods, beside OVS-DPDK
    Neighbours,
    /// TCP super-frames of 64 KiB, beside the peers and beside memcpy
    Bulk,
    /// TCP and small packets between namespaces, by TAP, packet sockets and AF_XDP, beside the
    /// peers
    External,
    /// A guest with a network stack and a namespace, by TAP and by packet socket: requests, TCP
    /// each way
    Stack,
    /// Guests beside TCP between two namespaces by TAP, through the same switch: frames,
    /// super-frames, requests
    Beside,
    /// Requests of guests, namespaces, programs on ports and user ports, without other load and
    /// beside a busy thread on each core, which loses time to them
    Busy,
    /// Live migration of a guest in QEMU from port to port under traffic, beside OVS-DPDK
    Migration,
    /// Throughput with 971 rules that never match and without, by frame size and flows, beside
    /// OVS-DPDK
    Rules,
    /// New flows a second with 10 000 rules, beside OVS-DPDK
    Setups,
    /// Latency of frames that no cached flow is for, with 10 000 rules, beside OVS-DPDK
    First,
    /// A rule of many changes under traffic: how long it takes, and is anything lost?
    Changes,
    /// Throughput by number of established connections, with connection tracking and without,
    /// beside OVS-DPDK
    Connections,
    /// New connections a second, with connection tracking and without, beside OVS-DPDK
    Connects,
    /// Throughput with captures of a port beside it, and the rate at which one misses nothing,
    /// beside OVS-DPDK
    Capture,
    /// Throughput of one pair, by number of idle ports beside it
    Ports,
    /// Throughput of two pairs, by number of forwarding threads
    Workers,
    /// Guests that compute and sleep: requests, streams and offered load, by what the switch does
    /// about notifications
    Scheduling,
    /// Pairs of guests that talk at the same time: round trips and streams by their number, beside
    /// OVS-DPDK and the bridge
    Vifs,
    /// Signals, latency and cost of a frame by number of silent guests beside it, beside OVS-DPDK
    Signals,
    /// One sender above a limit: the part that arrives, and the loss, beside the policers of
    /// OVS-DPDK and tc htb
    Shaping,
    /// Senders that share an output: equal, by weight, with a guarantee, beside the same
    Sharing,
    /// Latency of a sender with a priority beside floods to the same output, beside the same
    Priority,
    /// Frames for a neighbour beside held ones of the same guest, with one queue pair and two
    Holding,
    /// Processes on ports and pipes: by batch, slots, bridges, load; round trips; testpmd on memif
    Netmap,
    /// Guests with an IOMMU: sending, receiving and guest to guest by the time for which a page is
    /// mapped; messages; beside DPDK's forwarder
    Grants,
    /// Denied floods by an uplink beside honest requests: prefilters, OVS-DPDK, nftables and tc
    Flood,
    /// Throughput and requests with a prefilter that no frame of them meets
    FloodIdle,
    /// From the first denied frame until the flood ends at the wire, and from a change to the first
    /// allowed frame
    FloodReaction,
    /// One sender by frame size, without rules and with 971 that never match, and what a frame
    /// costs, beside OVS-DPDK and the bridge with nftables: the figures of sNICh
    Snich,
    /// CPU time of a received packet by who spends it, beside native Linux and the bridge
    Breakdown,
    /// Copies by the offset of both ends in their cache lines
    Alignment,
    /// CPU time of a frame by the frames of a notification
    Coalescing,
    /// Guests by frames published at once and by entries of a queue
    Rings,
    /// Guests that forward, one behind the other
    Chain,
    /// Round trips between guests that sleep and that poll, beside OVS-DPDK
    Pingpong,
    /// Guests whose connections become sockets of the host, beside passt, pasta, slirp4netns and
    /// libslirp
    User,
    /// Checked streams of such guests while processes are killed and all is upgraded, beside passt
    UserGaps,
    /// Two processes with sockets over ports, beside the kernel's over TAP ports and a veth pair
    Sockets,
    /// Guests of real KVM: latency by how long KVM polls, interrupts and work of a busy guest, the
    /// price of the BPF programs
    Kvm,
    /// A guest of real KVM that asks a network namespace over a TAP port, beside Open vSwitch with
    /// a relay thread
    KvmTap,
    /// CPU use without traffic, by number of attached ports
    Idle,
    /// Memory and start-up time by number of ports
    Growth,
    /// A host full of idle guests: deaths of the switch and upgrades by their number, beside the
    /// build of --before
    Dense,
    /// Connections, changes, queries and rest by number of idle guests, beside the build of
    /// --before
    Fleet,
}

impl Experiment {
    /// Its name on the command line.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the plan that the arguments ask for.
fn plan(arguments: &Arguments, quick: bool) -> anyhow::Result<Plan> {
    let [switch, client] = [arguments.switch_core, arguments.client_core];
    let machine = machine::Machine::here();
    let more = arguments.more_switch_cores.clone();
    let is_twice = |core: &usize| more.iter().filter(|other| *other == core).count() > 1;
    if switch == client
        || more
            .iter()
            .any(|core| [switch, client].contains(core) || is_twice(core))
    {
        bail!("threads of the switch and the client need a core each");
    }
    let bin = match &arguments.bin {
        Some(folder) => folder.clone(),
        None => std::env::current_exe()?
            .parent()
            .context("a program lies in a folder")?
            .to_owned(),
    };
    let pick = |short: u64, full: u64| Duration::from_millis(if quick { short } else { full });
    Ok(Plan {
        cores: [switch, client],
        more,
        bin,
        before: arguments.before.clone(),
        out: arguments.out.clone(),
        near_below: arguments.near_below,
        machine,
        quick,
        super_frames: false,
        rounds: arguments.rounds.unwrap_or(if quick { 3 } else { 9 }),
        exact: arguments.rounds.is_some(),
        settle: pick(100, 500),
        window: pick(300, 2000),
        patience: pick(20_000, 600_000),
        idle: pick(2000, 20_000),
        guests: match &arguments.guests[..] {
            [] => experiments::dense::guests(quick),
            named => named.to_vec(),
        },
        parts: Vec::new(),
    })
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(Command::SocketEnd(end)) = &arguments.command {
        return experiments::sockets::ends::run(end);
    }
    if let Some(Command::OneThread(arguments)) = &arguments.command {
        return experiments::external::one_thread::run(arguments);
    }
    stop::on_signals()?;
    machine::raise_open_files();
    folders::clean();
    if let Some(Command::Paper(paper)) = &arguments.command {
        return ask_figures(&arguments, paper);
    }
    let plan = plan(&arguments, arguments.quick)?;
    std::fs::create_dir_all(&plan.out)?;
    let mut desired = arguments.experiments.clone();
    if desired.is_empty() {
        desired = Experiment::value_variants().to_vec();
    }
    desired.sort();
    desired.dedup();
    plan.machine.print_heading(plan.cores);
    for experiment in desired {
        let report = measure(&plan, experiment)?;
        report.save(&plan.out)?;
        println!("{}", report.markdown());
    }
    Ok(())
}

/// `lasthop-bench paper`.
fn ask_figures(arguments: &Arguments, paper: &PaperArguments) -> anyhow::Result<()> {
    let figures = paper.figures().unwrap_or_else(|reason| {
        let mut command = Arguments::command();
        command.error(ErrorKind::InvalidValue, reason).exit()
    });
    let mut plan = plan(arguments, !paper.full)?;
    if paper.lists() {
        return paper::list(&figures, plan.machine.cores, paper.full);
    }
    if paper.full {
        let (rounds, settle, window) = paper::FULL;
        plan.rounds = arguments.rounds.unwrap_or(rounds);
        (plan.settle, plan.window) = (settle, window);
    }
    if let Some(folder) = &paper.resume {
        plan.out.clone_from(folder);
    }
    std::fs::create_dir_all(&plan.out)?;
    paper::run(&plan, &figures, paper.resume.is_some(), measure)
}

fn measure(plan: &Plan, experiment: Experiment) -> anyhow::Result<Report> {
    match experiment {
        Experiment::Frames => experiments::throughput::frames(plan),
        Experiment::Flows => experiments::throughput::flows(plan),
        Experiment::Lean => experiments::throughput::lean(plan),
        Experiment::Load => experiments::load::load(plan),
        Experiment::Neighbours => experiments::neighbours::neighbours(plan),
        Experiment::Bulk => experiments::bulk::bulk(plan),
        Experiment::External => experiments::external::external(plan),
        Experiment::Stack => experiments::user::stack::stack(plan),
        Experiment::Beside => experiments::external::beside::beside(plan),
        Experiment::Busy => experiments::busy::busy(plan),
        Experiment::Migration => experiments::migration::migration(plan),
        Experiment::Rules => experiments::policy::rules(plan),
        Experiment::Setups => experiments::policy::set_ups(plan),
        Experiment::First => experiments::policy::first_packets(plan),
        Experiment::Changes => experiments::policy::changes(plan),
        Experiment::Connections => experiments::connections::connections(plan),
        Experiment::Connects => experiments::connections::connects(plan),
        Experiment::Capture => experiments::capture::capture(plan),
        Experiment::Ports => experiments::scaling::ports(plan),
        Experiment::Workers => experiments::scaling::workers(plan),
        Experiment::Scheduling => experiments::scheduling::scheduling(plan),
        Experiment::Vifs => experiments::vifs::vifs(plan),
        Experiment::Signals => experiments::signals::signals(plan),
        Experiment::Shaping => experiments::shaping::shaping(plan),
        Experiment::Sharing => experiments::sharing::sharing(plan),
        Experiment::Priority => experiments::priority::priority(plan),
        Experiment::Holding => experiments::holding::holding(plan),
        Experiment::Netmap => experiments::netmap::netmap(plan),
        Experiment::Grants => experiments::grants::grants(plan),
        Experiment::Flood => experiments::flood::flood(plan),
        Experiment::FloodIdle => experiments::flood::idle(plan),
        Experiment::FloodReaction => experiments::flood::reaction(plan),
        Experiment::Snich => experiments::snich::snich(plan),
        Experiment::Breakdown => experiments::external::breakdown::breakdown(plan),
        Experiment::Alignment => experiments::alignment::alignment(plan),
        Experiment::Coalescing => experiments::coalescing::coalescing(plan),
        Experiment::Kvm => experiments::kvm::kvm(plan),
        Experiment::KvmTap => experiments::kvm::tap::tap(plan),
        Experiment::Rings => experiments::rings::rings(plan),
        Experiment::Chain => experiments::chain::chain(plan),
        Experiment::Pingpong => experiments::pingpong::ping_pong(plan),
        Experiment::User => experiments::user::user(plan),
        Experiment::UserGaps => experiments::user::gaps::gaps(plan),
        Experiment::Sockets => experiments::sockets::sockets(plan),
        Experiment::Idle => experiments::ports::idle(plan),
        Experiment::Growth => experiments::ports::growth(plan),
        Experiment::Dense => experiments::dense::dense(plan),
        Experiment::Fleet => experiments::fleet::fleet(plan),
    }
}
