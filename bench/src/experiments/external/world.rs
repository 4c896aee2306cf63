//! Three network namespaces without names, and a switch between them.
//!
//! ```text
//!   near          host                                 far
//!   near0  <TAP>  the switch  <TAP>                    far0
//!                             up0     <veth pair>      far0
//! ```

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::thread::LinkNameSpaceType;
use serde::Serialize;
use tempfile::TempDir;

use super::one_thread;
use crate::peers::lasthop::{Lasthop, port_shown, start_with};
use crate::peers::ovs;
use crate::plan::{BEFORE, Plan};
use crate::process::{self, Process, run, words};
use crate::{folders, procfs, stop};

/// The addresses of the two namespaces that talk.
pub(crate) const NEAR: &str = "10.1.0.1";
pub(crate) const FAR: &str = "10.1.0.9";
const START: Duration = Duration::from_secs(20);

/// A switch, and how it leads out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Way {
    LasthopTap,
    /// As [`Way::LasthopTap`], with a process for each interface.
    ProcessTap,
    /// As [`Way::LasthopTap`], with the programs of another build.
    BeforeTap,
    /// A thread that decides nothing.
    OneThread,
    /// TAP devices whose frames the kernel's vhost-net moves.
    LasthopVhostNet,
    OvsTap,
    LasthopPacket,
    /// As [`Way::LasthopPacket`], like [`Way::ProcessTap`].
    ProcessPacket,
    /// As [`Way::LasthopPacket`], like [`Way::BeforeTap`].
    BeforePacket,
    LasthopXdp,
    OvsVeth,
    /// Open vSwitch with DPDK, with a thread that polls.
    OvsDpdk,
    BridgeVeth,
    /// The namespaces themselves, with a veth pair.
    Native,
}

/// The kernel's back end of virtio-net.
const VHOST_NET: &str = "/dev/vhost-net";

impl Way {
    /// Neighbours in this order are compared.
    pub(super) const ALL: [Self; 13] = [
        Self::ProcessTap,
        Self::BeforeTap,
        Self::LasthopTap,
        Self::OneThread,
        Self::LasthopVhostNet,
        Self::OvsTap,
        Self::ProcessPacket,
        Self::BeforePacket,
        Self::LasthopPacket,
        Self::OvsVeth,
        Self::LasthopXdp,
        Self::OvsDpdk,
        Self::BridgeVeth,
    ];

    /// Those that figures of the papers ask for.
    pub(crate) const OF_FIGURES: [Self; 4] = [
        Self::LasthopPacket,
        Self::OvsVeth,
        Self::OvsDpdk,
        Self::BridgeVeth,
    ];

    /// TAP devices of a build, by its name in [`Plan::builds`].
    pub(crate) fn of_build(name: &str) -> Self {
        if name == BEFORE {
            Self::BeforeTap
        } else {
            Self::LasthopTap
        }
    }

    /// Why it cannot be measured here, if it cannot.
    pub(super) fn missing(self, plan: &Plan) -> Option<String> {
        match self {
            Self::LasthopVhostNet if !Path::new(VHOST_NET).exists() => {
                Some(format!("not here: no {VHOST_NET}"))
            }
            _ if self.is_before() && plan.before.is_none() => Some("no --before".to_owned()),
            _ => None,
        }
    }

    /// Returns whether another build has it.
    fn is_before(self) -> bool {
        matches!(self, Self::BeforeTap | Self::BeforePacket)
    }

    /// The plan, with the folder of the programs for this way.
    pub(super) fn plan(self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        if let (true, Some(before)) = (self.is_before(), &plan.before) {
            plan.bin = before.clone();
        }
        plan
    }

    /// Returns the driver between Lasthop and an interface that is not its own.
    pub(super) fn driver(self) -> Option<&'static str> {
        match self {
            Self::LasthopPacket | Self::ProcessPacket | Self::BeforePacket => Some("packet"),
            Self::LasthopXdp => Some("xdp"),
            _ => None,
        }
    }

    /// Returns whether both interfaces are TAP devices of the switch.
    pub(super) fn has_taps(self) -> bool {
        matches!(
            self,
            Self::LasthopTap
                | Self::ProcessTap
                | Self::BeforeTap
                | Self::LasthopVhostNet
                | Self::OvsTap
        )
    }

    /// The key of a port of the host that gives its interface a process, as a line.
    pub(super) fn own_process(self) -> &'static str {
        match self {
            Self::ProcessTap | Self::ProcessPacket => "driver_process = true\n",
            _ => "",
        }
    }

    /// The key of a TAP port that chooses what moves its frames, as a line.
    pub(super) fn tap_driver(self) -> &'static str {
        match self {
            Self::LasthopVhostNet => "driver = \"vhost-net\"\n",
            _ => self.own_process(),
        }
    }

    /// The back end between Lasthop and its second interface, as a port shows it.
    fn back_end(self) -> &'static str {
        match self {
            Self::LasthopVhostNet => "vhost-net",
            _ => self.driver().unwrap_or("tap"),
        }
    }

    /// The switch, as rows of tables name it.
    pub(crate) fn switch(self) -> &'static str {
        match self {
            Self::OvsTap | Self::OvsVeth => "OVS",
            Self::OvsDpdk => "OVS-DPDK",
            Self::OneThread => "one thread",
            Self::BeforeTap | Self::BeforePacket => "Lasthop, other build",
            Self::BridgeVeth => "bridge",
            Self::Native => "none",
            Self::ProcessTap | Self::ProcessPacket => "Lasthop, driver processes",
            _ => "Lasthop",
        }
    }

    /// Over which interface it leads, of Lasthop's.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::LasthopTap | Self::ProcessTap | Self::OvsTap => "TAP to TAP",
            Self::OneThread => "TAP to TAP, one thread",
            Self::BeforeTap => "TAP to TAP, other build",
            Self::LasthopVhostNet => "TAP to TAP, vhost-net",
            Self::LasthopPacket | Self::ProcessPacket => "TAP to veth, packet",
            Self::BeforePacket => "TAP to veth, packet, other build",
            Self::LasthopXdp => "TAP to veth, xdp (copy)",
            Self::OvsVeth => "TAP to veth",
            Self::OvsDpdk => "veth to veth, DPDK's packet sockets",
            Self::BridgeVeth => "veth to veth",
            Self::Native => "veth",
        }
    }
}

/// A network namespace, held by a process that sleeps.
pub(crate) struct Namespace(Process);

impl Namespace {
    pub(crate) fn new(name: &str, folder: &Path) -> Result<Self> {
        Self::by("unshare --net", name, folder)
    }

    /// One that these words make, in front of a program that is in it.
    pub(crate) fn by(prefix: &str, name: &str, folder: &Path) -> Result<Self> {
        let words = words(&format!("{prefix} sleep infinity"));
        let holder = process::start(name, &[], &words, &folder.join(name))?;
        let namespace = Self(holder);
        let own = std::fs::read_link("/proc/self/ns/net")?;
        stop::try_wait("a network namespace (which needs root)", START, || {
            let link = std::fs::read_link(namespace.path());
            // Before it is one of its own, the process is another program, too.
            Ok(link.ok().filter(|link| *link != own))
        })?;
        // Frames of IPv6's own would disturb.
        let off =
            "sysctl -qw net.ipv6.conf.default.disable_ipv6=1 net.ipv6.conf.all.disable_ipv6=1";
        let _ = namespace.run(off);
        namespace.run("ip link set lo up")?;
        Ok(namespace)
    }

    /// The process that holds it.
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.pid())
    }

    /// Words of a command line that runs in it.
    pub(crate) fn command(&self, command: &str) -> String {
        format!("nsenter --net={} {command}", self.path())
    }

    pub(crate) fn run(&self, command: &str) -> Result<String> {
        let none: [(&str, &Path); 0] = [];
        run(&words(&self.command(command)), &none)
    }

    /// Gives an interface its address, and switches it on.
    pub(crate) fn address(&self, interface: &str, address: &str) -> Result<()> {
        self.run(&format!("ip address add {address}/24 dev {interface}"))?;
        self.run(&format!("ip link set {interface} up")).map(drop)
    }

    /// Does something in it; sockets that are made there stay there.
    pub(crate) fn inside<T: Send>(&self, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = std::fs::File::open(self.path())?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(file.as_fd(), kind)?;
                what()
            });
            thread.join().ok().context("a thread panicked")?
        })
    }
}

/// Seconds of CPU time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Used {
    pub(super) switch: f64,
    pub(super) driver: Option<f64>,
}

/// The processes of a switch; ended when dropped, before the namespaces.
pub(super) enum Switch {
    Lasthop {
        lasthop: Box<Lasthop>,
        /// Processes between it and interfaces of the host.
        drivers: Vec<u32>,
    },
    Peer(Vec<Process>),
    Kernel,
}

/// See the module.
pub(crate) struct World {
    switch: Switch,
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
    host: Namespace,
    folder: TempDir,
}

impl World {
    /// A switch between the namespaces, with a way through it.
    pub(crate) fn start(plan: &Plan, way: Way) -> Result<Self> {
        Self::with_ports(plan, way, "")
    }

    /// The same; Lasthop has these tables of other ports, too.
    pub(super) fn with_ports(plan: &Plan, way: Way, ports: &str) -> Result<Self> {
        let folder = folders::new("external")?;
        let namespace = |name| Namespace::new(name, folder.path());
        let mut world = Self {
            near: namespace("near")?,
            far: namespace("far")?,
            host: namespace("host")?,
            switch: Switch::Kernel,
            folder,
        };
        match way {
            Way::OvsTap => world.ovs(false)?,
            Way::OvsVeth => world.ovs(true)?,
            Way::OvsDpdk => world.ovs_dpdk(plan)?,
            Way::OneThread => world.one_thread()?,
            Way::BridgeVeth => world.bridge()?,
            Way::Native => world.native()?,
            _ => world.lasthop(plan, way, ports)?,
        }
        Ok(world)
    }

    /// The veth pair to the far namespace.
    fn wire(&self) -> Result<()> {
        let far = self.far.pid();
        let pair = format!("ip link add up0 type veth peer name far0 netns {far}");
        self.host.run(&pair)?;
        self.host.run("ip link set up0 up")?;
        self.far.address("far0", FAR)
    }

    fn lasthop(&mut self, plan: &Plan, way: Way, ports: &str) -> Result<()> {
        let tap = |name: &str, namespace: &Namespace, address: &str| {
            let netns = namespace.path();
            format!(
                "[[port]]\nname = \"{name}\"\nkind = \"tap\"\nmtu = 1500\nnetns = \"{netns}\"\n\
                 address = \"{address}/24\"\n{}",
                way.tap_driver()
            )
        };
        let far = match way.driver() {
            None => tap("far0", &self.far, FAR),
            Some(driver) => {
                self.wire()?;
                let netns = self.host.path();
                format!(
                    "[[port]]\nname = \"far0\"\nkind = \"uplink\"\ninterface = \"up0\"\n\
                     driver = \"{driver}\"\nnetns = \"{netns}\"\n{}",
                    way.own_process()
                )
            }
        };
        let text = tap("near0", &self.near, NEAR) + &far + ports;
        let lasthop = start_with(&way.plan(plan), plan.shared_cores(), &text)?;
        let near = match way {
            Way::BeforePacket => Way::BeforeTap,
            _ if way.has_taps() => way,
            _ => Way::LasthopTap,
        };
        pids_when_up(&lasthop, &["near0"], near)?;
        let drivers = pids_when_up(&lasthop, &["far0"], way)?;
        let lasthop = Box::new(lasthop);
        self.switch = Switch::Lasthop { lasthop, drivers };
        Ok(())
    }

    fn one_thread(&mut self) -> Result<()> {
        let program = std::env::current_exe()?;
        let ends = [(&self.near, NEAR), (&self.far, FAR)];
        let mut words = vec![
            program.display().to_string(),
            one_thread::COMMAND.to_owned(),
        ];
        words.extend(ends.map(|(namespace, _)| namespace.path()));
        let log = self.folder.path().join(one_thread::COMMAND);
        let process = process::start(one_thread::COMMAND, &[], &words, &log)?;
        for ((namespace, address), name) in ends.into_iter().zip(one_thread::DEVICES) {
            stop::try_wait("a TAP device", START, || {
                Ok(namespace.run(&format!("ip link show {name}")).ok())
            })?;
            namespace.address(name, address)?;
        }
        self.switch = Switch::Peer(vec![process]);
        Ok(())
    }

    /// Open vSwitch's userspace datapath; its TAP interfaces are moved to where they are needed.
    fn ovs(&mut self, veth: bool) -> Result<()> {
        let folder = self.folder.path();
        let database = ovs::start_database(folder)?;
        let vsctl = |command: &str| ovs::vsctl(folder, &words(command)).map(drop);
        vsctl("--no-wait init")?;
        vsctl("--no-wait set Open_vSwitch . other_config:userspace-tso-enable=true")?;
        let switch = ovs::start_switch(folder, &self.host.command(ovs::PLAIN))?;
        vsctl("add-br br0 -- set bridge br0 datapath_type=netdev")?;
        let mut taps = vec![("near0", &self.near, NEAR)];
        if veth {
            self.wire()?;
            vsctl("add-port br0 up0")?;
        } else {
            taps.push(("far0", &self.far, FAR));
        }
        for (name, namespace, address) in taps {
            vsctl(&format!(
                "add-port br0 {name} -- set Interface {name} type=internal"
            ))?;
            let pid = namespace.pid();
            self.host.run(&format!("ip link set {name} netns {pid}"))?;
            namespace.address(name, address)?;
        }
        self.switch = Switch::Peer(vec![switch, database]);
        Ok(())
    }

    /// Open vSwitch with DPDK, whose packet sockets a thread polls on the switch's core.
    fn ovs_dpdk(&mut self, plan: &Plan) -> Result<()> {
        self.wire()?;
        self.near_wire()?;
        // Those sockets know nothing of checksums that the sender has left out.
        self.near.run("ethtool -K near0 tx off")?;
        self.far.run("ethtool -K far0 tx off")?;
        let folder = self.folder.path();
        let database = ovs::start_database(folder)?;
        ovs::configure(folder, plan, "")?;
        let switch = ovs::start_switch(folder, &self.host.command(ovs::SWITCH))?;
        let vsctl = |command: &str| ovs::vsctl(folder, &words(command)).map(drop);
        vsctl("add-br br0 -- set bridge br0 datapath_type=netdev")?;
        for (number, name) in ["down0", "up0"].into_iter().enumerate() {
            vsctl(&format!(
                "add-port br0 d{name} -- set Interface d{name} type=dpdk \
                 options:dpdk-devargs=net_af_packet{number},iface={name}"
            ))?;
        }
        self.switch = Switch::Peer(vec![switch, database]);
        Ok(())
    }

    /// The veth pair to the near namespace, where the switch makes no TAP device.
    fn near_wire(&self) -> Result<()> {
        let near = self.near.pid();
        let pair = format!("ip link add down0 type veth peer name near0 netns {near}");
        self.host.run(&pair)?;
        self.host.run("ip link set down0 up")?;
        self.near.address("near0", NEAR)
    }

    fn native(&self) -> Result<()> {
        let far = self.far.pid();
        let pair = format!("ip link add near0 type veth peer name far0 netns {far}");
        self.near.run(&pair)?;
        self.near.address("near0", NEAR)?;
        self.far.address("far0", FAR)
    }

    fn bridge(&self) -> Result<()> {
        self.wire()?;
        self.near_wire()?;
        for command in [
            "ip link add br0 type bridge stp_state 0 mcast_snooping 0",
            "ip link set up0 master br0",
            "ip link set down0 master br0",
            "ip link set br0 up",
        ] {
            self.host.run(command)?;
        }
        Ok(())
    }

    pub(super) fn cpu_seconds(&self) -> Used {
        self.switch.cpu_seconds()
    }

    /// The socket of another port, of Lasthop.
    pub(super) fn socket(&self, port: &str) -> Result<PathBuf> {
        match &self.switch {
            Switch::Lasthop { lasthop, .. } => Ok(lasthop.socket_of(port)),
            _ => bail!("a switch that is Lasthop"),
        }
    }
}

impl Switch {
    pub(super) fn cpu_seconds(&self) -> Used {
        let family = |process: &Process| procfs::family_seconds(process.pid());
        match self {
            Self::Lasthop { lasthop, drivers } => Used {
                switch: procfs::family_seconds(lasthop.supervisor()),
                driver: (!drivers.is_empty())
                    .then(|| drivers.iter().map(|pid| procfs::cpu_seconds(*pid)).sum()),
            },
            Self::Peer(processes) => Used {
                switch: processes.iter().map(family).sum(),
                driver: None,
            },
            Self::Kernel => Used {
                switch: 0.0,
                driver: None,
            },
        }
    }
}

/// The driver processes of ports, once these are up and have the drivers that this way is about; an
/// interface in the switch has none.
pub(super) fn pids_when_up(lasthop: &Lasthop, ports: &[&str], way: Way) -> Result<Vec<u32>> {
    let one = |name: &&str| {
        let port = port_shown(lasthop, name)?;
        let driver = &port["driver_status"];
        let kind = driver["back_end"].as_str().unwrap_or_default();
        let desired = way.back_end();
        anyhow::ensure!(
            kind.is_empty() || kind.starts_with(desired),
            "no {desired}, but {kind}"
        );
        let pid = driver["pid"]
            .as_u64()
            .and_then(|pid| u32::try_from(pid).ok());
        // The other build may have other names for it.
        let is_served = pid.is_some() || driver["in_switch"] == true || way.is_before();
        Ok((is_served && port["state"] == "up").then_some(pid))
    };
    let pids = stop::try_wait("the ports are up", START, || {
        ports.iter().map(one).collect::<Result<Option<Vec<_>>>>()
    })?;
    Ok(pids.into_iter().flatten().collect())
}
