//! The switches that are measured. Each is started with two vhost-user ports, and with one
//! forwarding thread on the switch's core; but the Linux bridge has TAP ports, and forwards in its
//! client's threads.

pub(crate) mod bridge;
pub(crate) mod forwarder;
pub(crate) mod lasthop;
pub(crate) mod ovs;
pub(crate) mod router;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use tempfile::TempDir;
use testkit::FakeGuest;

use crate::plan::{Layout, Plan, Traffic};
use crate::process::{self, Process, installed};
use crate::procfs;
use crate::rules::RuleSet;

/// DPDK's test program: a client, and a peer without any switching.
pub(crate) const PROGRAM_DPDK: &str = "dpdk-testpmd";
/// How long a peer may take to come up.
const START: Duration = Duration::from_secs(20);

/// A switch, as rows of tables name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lasthop,
    Ovs,
    Forwarder,
    Bridge,
    /// Forwards packets, where all others forward frames.
    Router,
}

impl Kind {
    /// All switches, ours first.
    pub(crate) const ALL: [Self; 4] = [Self::Lasthop, Self::Ovs, Self::Forwarder, Self::Bridge];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lasthop => "Lasthop",
            Self::Ovs => "OVS-DPDK",
            Self::Forwarder => "DPDK forwarder",
            Self::Bridge => "Linux bridge",
            Self::Router => "Linux, routed",
        }
    }

    /// Huge pages of 2 MiB that it wants.
    pub(crate) fn huge_pages(self) -> u64 {
        match self {
            Self::Lasthop | Self::Bridge | Self::Router => 0,
            // 300 MB at start, and 262144 buffers for the ports. Of less it leaves nothing to
            // others.
            Self::Ovs => 640,
            Self::Forwarder => 224,
        }
    }

    /// Returns whether it can be measured with this traffic. TAP devices have no queues of virtio.
    pub(crate) fn takes(self, layout: Layout, traffic: Traffic) -> bool {
        self != Self::Bridge || (layout == Layout::Split && traffic == Traffic::Bounce)
    }

    /// Why it cannot be measured here at all.
    fn lacks(self, plan: &Plan) -> Option<String> {
        let (program, package) = match self {
            Self::Lasthop => (
                plan.bin.join("lasthop").display().to_string(),
                "run 'make build'",
            ),
            Self::Ovs => (ovs::SWITCH.to_owned(), "install openvswitch-switch-dpdk"),
            Self::Forwarder => (PROGRAM_DPDK.to_owned(), "install dpdk and dpdk-dev"),
            Self::Bridge | Self::Router if !Path::new(bridge::DEVICE).exists() => {
                (bridge::DEVICE.to_owned(), "the kernel lacks TAP devices")
            }
            Self::Bridge => ("ip".to_owned(), "install iproute2"),
            Self::Router => ("nft".to_owned(), "install nftables"),
        };
        (!installed(&program)).then(|| format!("there is no {program}: {package}"))
    }
}

/// Connections of a switch that tracks them.
pub(crate) const MOST_CONNECTIONS: u32 = 1 << 22;

/// Timeouts of a switch that tracks connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tracking {
    /// Its own.
    Usual,
    /// A second for connections that are over, and for those of UDP.
    Short,
}

/// Attachment of a client to a switch.
enum Ports {
    /// vhost-user sockets, two for each pair of ports.
    Sockets {
        paths: Vec<PathBuf>,
        /// The switch dials.
        client_listens: bool,
    },
    Taps(Vec<File>),
}

/// A running switch.
pub(crate) struct Peer {
    kind: Kind,
    lasthop: Option<lasthop::Lasthop>,
    /// Of the others.
    processes: Vec<Process>,
    ports: Ports,
    /// On other ports than the client's, and silent.
    _guests: Vec<FakeGuest>,
    /// Dropped last: what runs has files in it.
    folder: Option<TempDir>,
}

impl Peer {
    /// Starts a switch; it is thawed and ready for clients.
    pub(crate) fn start(kind: Kind, plan: &Plan) -> Result<Self> {
        if let Some(reason) = kind.lacks(plan) {
            bail!("{reason}");
        }
        match kind {
            Kind::Lasthop => lasthop::start(plan),
            Kind::Ovs => ovs::start(plan),
            Kind::Forwarder => forwarder::start(plan),
            Kind::Bridge => bridge::start(2),
            Kind::Router => router::start(false),
        }
    }

    /// Starts a switch whose ports take the IOTLB messages of guests with an IOMMU.
    ///
    /// # Errors
    /// For a peer that takes none, too.
    pub(crate) fn with_iommu(kind: Kind, plan: &Plan) -> Result<Self> {
        if let Some(reason) = kind.lacks(plan) {
            bail!("{reason}");
        }
        match kind {
            Kind::Lasthop => lasthop::start(plan),
            Kind::Ovs => ovs::with_iommu(plan),
            Kind::Forwarder => forwarder::with_iommu(plan),
            Kind::Bridge | Kind::Router => bail!("{} has no virtqueues", kind.name()),
        }
    }

    /// Starts a switch that learns where its stations are, with so many ports.
    ///
    /// # Errors
    /// For a peer that has two ports and no more, too.
    pub(crate) fn learning(kind: Kind, plan: &Plan, ports: u32) -> Result<Self> {
        if let Some(reason) = kind.lacks(plan) {
            bail!("{reason}");
        }
        match kind {
            Kind::Lasthop => lasthop::with_ports(plan, ports),
            Kind::Ovs => ovs::learning(plan, ports),
            Kind::Bridge => bridge::start(ports),
            Kind::Forwarder | Kind::Router => bail!("{} has two ports", kind.name()),
        }
    }

    /// Starts a switch whose ports are captured: Lasthop with a third port, without traffic.
    pub(crate) fn to_be_captured(kind: Kind, plan: &Plan) -> Result<Self> {
        match kind {
            Kind::Lasthop if kind.lacks(plan).is_none() => lasthop::with_idle(plan, 1),
            _ => Self::learning(kind, plan, 2),
        }
    }

    /// Starts a switch with two ports and with these rules.
    ///
    /// # Errors
    /// For a peer that knows none, too.
    pub(crate) fn with_rules(
        kind: Kind,
        plan: &Plan,
        cores: &[usize],
        rules: &RuleSet,
    ) -> Result<Self> {
        Self::filtering(kind, plan, cores, rules, 2)
    }

    /// The same with so many ports.
    pub(crate) fn filtering(
        kind: Kind,
        plan: &Plan,
        cores: &[usize],
        rules: &RuleSet,
        ports: u32,
    ) -> Result<Self> {
        if let Some(reason) = kind.lacks(plan) {
            bail!("{reason}");
        }
        match kind {
            Kind::Lasthop => lasthop::with_rules(plan, cores, rules, ports),
            Kind::Ovs => ovs::with_rules(plan, rules, ports),
            Kind::Bridge => bridge::with_rules(ports, rules),
            Kind::Forwarder | Kind::Router => {
                bail!("{} has no rules", kind.name())
            }
        }
    }

    /// Starts a switch with two ports that tracks connections.
    ///
    /// # Errors
    /// For a peer that does not, too.
    pub(crate) fn tracking(kind: Kind, plan: &Plan, tracking: Tracking) -> Result<Self> {
        if let Some(reason) = kind.lacks(plan) {
            bail!("{reason}");
        }
        match kind {
            Kind::Lasthop => lasthop::tracking(plan, tracking),
            Kind::Ovs => ovs::tracking(plan, tracking),
            Kind::Router => router::start(true),
            Kind::Forwarder | Kind::Bridge => bail!("{} tracks no connections", kind.name()),
        }
    }

    /// How many connections it tracks.
    pub(crate) fn connections(&self) -> Result<u64> {
        match (&self.lasthop, &self.folder) {
            (Some(lasthop), _) => lasthop::connections(lasthop),
            (None, Some(folder)) if self.kind == Kind::Ovs => ovs::connections(folder.path()),
            _ => bail!("{} does not report it", self.kind.name()),
        }
    }

    /// How many frames it has decided about, because it had no cached decision.
    pub(crate) fn misses(&self) -> Result<u64> {
        match (&self.lasthop, &self.folder) {
            (Some(lasthop), _) => lasthop::misses(lasthop),
            (None, Some(folder)) if self.kind == Kind::Ovs => ovs::misses(folder.path()),
            _ => bail!("{} does not report it", self.kind.name()),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The Lasthop that it is, if it is one.
    pub(crate) fn lasthop(&self) -> Option<&lasthop::Lasthop> {
        self.lasthop.as_ref()
    }

    /// The sockets of its ports for the client.
    pub(crate) fn sockets(&self) -> &[PathBuf] {
        match &self.ports {
            Ports::Sockets { paths, .. } => paths,
            Ports::Taps(_) => &[],
        }
    }

    /// Returns whether the switch dials, so that the client has to listen.
    pub(crate) fn client_listens(&self) -> bool {
        matches!(self.ports, Ports::Sockets { client_listens, .. } if client_listens)
    }

    /// Its TAP devices, if it has no sockets.
    pub(crate) fn taps(&self) -> Option<&[File]> {
        match &self.ports {
            Ports::Sockets { .. } => None,
            Ports::Taps(taps) => Some(taps),
        }
    }

    /// Takes a switch that polls off its core. One that sleeps without traffic is left alone: its
    /// supervisor would take the pause for a fault.
    pub(crate) fn freeze(&self) {
        if self.kind != Kind::Lasthop {
            self.processes.iter().for_each(process::freeze);
        }
    }

    /// Resumes the switch.
    pub(crate) fn thaw(&self) {
        self.processes.iter().for_each(process::thaw);
    }

    /// The processes that it was started by.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let lasthop = self.lasthop.iter().map(|lasthop| lasthop.supervisor());
        lasthop
            .chain(self.processes.iter().map(Process::pid))
            .collect()
    }

    /// CPU time of all its processes.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.pids().into_iter().map(procfs::family_seconds).sum()
    }
}
