//! Namespaces around a switch with an uplink: a client and a flood behind the wire, a guest that
//! the client asks, and a victim that the flood is for.
//!
//! ```text
//!   near     near0   <TAP or veth>  host: the switch  up0 <veth> far0   far
//!   victim   victim0 <TAP or veth>
//! ```

use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

use super::super::external::{FAR, NEAR, Namespace};
use super::honest::with_time_outs;
use super::policy;
use super::sender::{Flood, Frames, Target};
use crate::peers::lasthop::{Lasthop, port_shown, start_with};
use crate::peers::ovs;
use crate::plan::Plan;
use crate::process::{Process, words};
use crate::{folders, procfs, stop};

/// The guest that the flood is for.
pub(super) const VICTIM: Target = Target {
    mac: [2, 0, 0, 0, 0, 2],
    address: [10, 1, 0, 2],
};
/// The guest that is asked.
pub(super) const ASKED: Target = Target {
    mac: [2, 0, 0, 0, 0, 1],
    address: [10, 1, 0, 1],
};
/// Port of the client and of its server.
const PORT: u16 = 4711;
/// Port by which guests say that they are there.
const HELLO_PORT: u16 = 4710;
/// In the reason of a prefilter that waits for another driver process.
const NEXT_DRIVER: &str = "next driver process";
/// Columns of packets in a `/proc/net/dev`.
const RECEIVED: usize = 1;
const SENT: usize = 9;
const START: Duration = Duration::from_secs(20);
/// Queues of each end of a veth pair: DPDK's `AF_XDP` driver takes one.
const ONE_QUEUE: &str = "numtxqueues 1 numrxqueues 1";

/// A switch, and the place at which it ends denied frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Way {
    PacketOff,
    PacketAuto,
    XdpOff,
    XdpAuto,
    OvsDpdk,
    Nftables,
    Flower,
}

impl Way {
    /// In this order they take turns.
    pub(super) const ALL: [Self; 7] = [
        Self::PacketOff,
        Self::PacketAuto,
        Self::XdpOff,
        Self::XdpAuto,
        Self::OvsDpdk,
        Self::Nftables,
        Self::Flower,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PacketOff => "Lasthop, packet, off",
            Self::PacketAuto => "Lasthop, packet, socket",
            Self::XdpOff => "Lasthop, xdp, off",
            Self::XdpAuto => "Lasthop, xdp, xdp",
            Self::OvsDpdk => "OVS-DPDK, net_af_xdp",
            Self::Nftables => "bridge, nftables netdev ingress",
            Self::Flower => "bridge, tc ingress flower",
        }
    }

    /// Driver and prefilter of Lasthop's uplink.
    fn uplink(self) -> Option<[&'static str; 2]> {
        match self {
            Self::PacketOff => Some(["packet", "off"]),
            Self::PacketAuto => Some(["packet", "auto"]),
            Self::XdpOff => Some(["xdp", "off"]),
            Self::XdpAuto => Some(["xdp", "auto"]),
            _ => None,
        }
    }

    /// The prefilter, as a port shows it.
    pub(super) fn back_end(self) -> Option<&'static str> {
        match self {
            Self::PacketAuto => Some("socket"),
            Self::XdpAuto => Some("xdp"),
            _ => None,
        }
    }
}

/// State of a prefilter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ended {
    pub(super) frames: u64,
    pub(super) entries: u64,
}

/// The switch; it ends before its namespaces.
enum Switch {
    Lasthop(Box<Lasthop>),
    Peer(Vec<Process>),
}

/// See the module.
pub(super) struct FloodWorld {
    switch: Switch,
    pub(super) far: Namespace,
    near: Namespace,
    pub(super) victim: Namespace,
    host: Namespace,
    folder: TempDir,
}

impl FloodWorld {
    /// A switch with the documented example of access lists.
    pub(super) fn start(plan: &Plan, way: Way) -> Result<Self> {
        Self::with_lists(plan, way, policy::EXAMPLE, plan.shared_cores())
    }

    /// The same, where Lasthop has these access lists, on these cores.
    pub(super) fn with_lists(plan: &Plan, way: Way, lists: &str, cores: &[usize]) -> Result<Self> {
        let folder = folders::new("flood")?;
        let namespace = |name| Namespace::new(name, folder.path());
        let mut world = Self {
            far: namespace("far")?,
            near: namespace("near")?,
            victim: namespace("victim")?,
            host: namespace("host")?,
            switch: Switch::Peer(Vec::new()),
            folder,
        };
        world.wire()?;
        match way {
            Way::OvsDpdk => world.ovs(plan)?,
            Way::Nftables => world.bridge(|world| world.nftables())?,
            Way::Flower => world.bridge(|world| world.flower())?,
            _ => world.lasthop(plan, way, lists, cores)?,
        }
        world.introduce(&world.victim, VICTIM)?;
        world.introduce(&world.near, ASKED)?;
        Ok(world)
    }

    /// Has the switch learn the station of a guest, which sends something to the far namespace:
    /// frames to a station that is not known are flooded.
    fn introduce(&self, guest: &Namespace, target: Target) -> Result<()> {
        let own = std::net::Ipv4Addr::from(target.address);
        let socket = guest.inside(|| Ok(UdpSocket::bind((own, HELLO_PORT))?))?;
        let far = self
            .far
            .inside(|| Ok(UdpSocket::bind(format!("{FAR}:{HELLO_PORT}"))?))?;
        far.set_read_timeout(Some(Duration::from_millis(100)))?;
        stop::try_wait("a frame of a guest", START, || {
            let _ = socket.send_to(&[0], (FAR, HELLO_PORT));
            Ok(far.recv(&mut [0]).ok().map(drop))
        })
    }

    /// The veth pair to the far namespace.
    fn wire(&self) -> Result<()> {
        let far = self.far.pid();
        self.host.run(&format!(
            "ip link add up0 {ONE_QUEUE} type veth peer name far0 {ONE_QUEUE} netns {far}"
        ))?;
        self.host.run("ip link set up0 up")?;
        self.far.address("far0", FAR)?;
        // DPDK's sockets know nothing of checksums that the sender has left out.
        self.far.run("ethtool -K far0 tx off").map(drop)
    }

    /// The configuration of Lasthop with these access lists.
    fn configuration(&self, [driver, prefilter]: [&str; 2], lists: &str) -> String {
        let tap = |name: &str, namespace: &Namespace, target: Target| {
            let (mac, address) = (mac(target), address(target));
            let netns = namespace.path();
            format!(
                "[[port]]\nname = \"{name}\"\nkind = \"tap\"\nmtu = 1500\nnetns = \"{netns}\"\n\
                 mac = \"{mac}\"\naddress = \"{address}/24\"\n"
            )
        };
        let netns = self.host.path();
        let uplink = format!(
            "[[port]]\nname = \"up0\"\nkind = \"uplink\"\ninterface = \"up0\"\n\
             driver = \"{driver}\"\nprefilter = \"{prefilter}\"\nnetns = \"{netns}\"\n"
        );
        let taps = tap("near0", &self.near, ASKED) + &tap("victim0", &self.victim, VICTIM);
        taps + &uplink + lists
    }

    fn lasthop(&mut self, plan: &Plan, way: Way, lists: &str, cores: &[usize]) -> Result<()> {
        let keys = way.uplink().context("a way of Lasthop")?;
        let text = self.configuration(keys, lists);
        let lasthop = start_with(plan, cores, &text)?;
        stop::try_wait("the ports are up", START, || {
            for name in ["near0", "victim0", "up0"] {
                if port_shown(&lasthop, name)?["state"] != "up" {
                    return Ok(None);
                }
            }
            is_ready(&port_shown(&lasthop, "up0")?, keys[0], way.back_end())
        })?;
        self.switch = Switch::Lasthop(Box::new(lasthop));
        Ok(())
    }

    /// Changes the access lists of Lasthop; its answer has come when this returns.
    pub(super) fn apply(&self, way: Way, lists: &str) -> Result<()> {
        let keys = way.uplink().context("a way of Lasthop")?;
        let file = self.folder.path().join("next.toml");
        std::fs::write(&file, self.configuration(keys, lists))?;
        let file = file.display().to_string();
        self.running()?.ask(&["apply", &file])?;
        Ok(())
    }

    /// Switches the prefilter of the uplink on or off, and waits until it is.
    pub(super) fn set_prefilter(&self, way: Way, on: bool, limit: Duration) -> Result<()> {
        let [driver, _] = way.uplink().context("a way of Lasthop")?;
        let lasthop = self.running()?;
        let to = if on { "auto" } else { "off" };
        lasthop.ask(&["port", "set", "up0", "--prefilter", to])?;
        let back_end = way.back_end().filter(|_| on);
        stop::try_wait("the uplink is up", limit, || {
            let port = port_shown(lasthop, "up0")?;
            if port["state"] != "up" {
                return Ok(None);
            }
            is_ready(&port, driver, back_end)
        })
    }

    pub(super) fn running(&self) -> Result<&Lasthop> {
        match &self.switch {
            Switch::Lasthop(lasthop) => Ok(lasthop),
            Switch::Peer(_) => anyhow::bail!("a switch that is Lasthop"),
        }
    }

    /// A veth pair to a guest, where the switch makes no TAP device.
    fn guest_wire(&self, name: &str, guest: &Namespace, target: Target) -> Result<()> {
        let pid = guest.pid();
        self.host.run(&format!(
            "ip link add d{name} {ONE_QUEUE} type veth peer name {name} {ONE_QUEUE} netns {pid}"
        ))?;
        self.host.run(&format!("ip link set d{name} up"))?;
        guest.run(&format!("ip link set {name} address {}", mac(target)))?;
        guest.run(&format!("ethtool -K {name} tx off"))?;
        guest.address(name, &address(target))
    }

    fn guest_wires(&self) -> Result<()> {
        self.guest_wire("near0", &self.near, ASKED)?;
        self.guest_wire("victim0", &self.victim, VICTIM)
    }

    /// Open vSwitch with DPDK: `AF_XDP` at the uplink, packet sockets to the guests.
    fn ovs(&mut self, plan: &Plan) -> Result<()> {
        self.guest_wires()?;
        let folder = self.folder.path();
        let database = ovs::start_database(folder)?;
        ovs::configure(folder, plan, "")?;
        let switch = ovs::start_switch(folder, &self.host.command(ovs::SWITCH))?;
        let vsctl = |command: &str| ovs::vsctl(folder, &words(command));
        vsctl("add-br br0 -- set bridge br0 datapath_type=netdev")?;
        let devices = [
            ("pup0", "net_af_xdp0", "up0"),
            ("pnear0", "net_af_packet1", "dnear0"),
            ("pvictim0", "net_af_packet2", "dvictim0"),
        ];
        for (port, device, interface) in devices {
            vsctl(&format!(
                "add-port br0 {port} -- set Interface {port} type=dpdk \
                 options:dpdk-devargs={device},iface={interface}"
            ))?;
            let error = vsctl(&format!("get Interface {port} error"))?;
            ensure!(error.trim() == "[]", "{device}: {}", error.trim());
        }
        let file = folder.join("rules.txt");
        std::fs::write(&file, policy::openflow(&mac(VICTIM)))?;
        ovs::ofctl(folder, "add-flows", &file.display().to_string())?;
        self.switch = Switch::Peer(vec![switch, database]);
        Ok(())
    }

    /// The kernel's bridge, with rules where frames come in.
    fn bridge(&self, rules: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        self.guest_wires()?;
        for command in [
            "ip link add br0 type bridge stp_state 0 mcast_snooping 0",
            "ip link set up0 master br0",
            "ip link set dnear0 master br0",
            "ip link set dvictim0 master br0",
            "ip link set br0 up",
        ] {
            self.host.run(command)?;
        }
        rules(self)
    }

    fn nftables(&self) -> Result<()> {
        let file = self.folder.path().join("rules.nft");
        std::fs::write(&file, policy::nftables("up0", &mac(VICTIM)))?;
        let load = format!("nft -f {}", file.display());
        self.host.run(&load).map(drop)
    }

    fn flower(&self) -> Result<()> {
        for command in policy::flower("up0", &mac(VICTIM)) {
            self.host.run(&format!("tc {command}"))?;
        }
        Ok(())
    }

    /// Starts a flood to this guest, as fast as a core sends or at a rate, on the client's core.
    pub(super) fn flood(
        &self,
        plan: &Plan,
        target: Target,
        frames: Frames,
        rate: Option<u32>,
    ) -> Result<Flood> {
        let from = (&self.far, "far0");
        Flood::start(from, target, frames, rate, plan.cores[1])
    }

    /// Sockets of the client and of its server.
    pub(super) fn sockets(&self) -> Result<[UdpSocket; 2]> {
        let bind = |namespace: &Namespace, address: &str| {
            namespace.inside(|| Ok(UdpSocket::bind(format!("{address}:{PORT}"))?))
        };
        let (client, server) = (bind(&self.far, FAR)?, bind(&self.near, NEAR)?);
        client.connect(format!("{NEAR}:{PORT}"))?;
        server.connect(format!("{FAR}:{PORT}"))?;
        with_time_outs([client, server])
    }

    /// CPU time of all processes of the switch, in seconds.
    pub(super) fn cpu_seconds(&self) -> f64 {
        match &self.switch {
            Switch::Lasthop(lasthop) => procfs::family_seconds(lasthop.supervisor()),
            Switch::Peer(all) => {
                let pids = all.iter().map(Process::pid);
                pids.map(procfs::family_seconds).sum()
            }
        }
    }

    /// Frames that the interface of the uplink got from the far one: those that found no room are
    /// none of them.
    pub(super) fn arrived(&self) -> Result<u64> {
        let path = format!("/proc/{}/net/dev", self.far.pid());
        let text = std::fs::read_to_string(&path).context(path)?;
        counter(&text, "far0", SENT).context("far0 has no counters")
    }

    /// Frames that the interface of the guest that is asked got.
    pub(super) fn received(&self) -> Result<u64> {
        let path = format!("/proc/{}/net/dev", self.near.pid());
        let text = std::fs::read_to_string(&path).context(path)?;
        counter(&text, "near0", RECEIVED).context("near0 has no counters")
    }

    /// The prefilter of the uplink.
    pub(super) fn ended(&self) -> Result<Ended> {
        let shown = get(&self.running()?.socket("api.sock"), "/v1/ports/up0")?;
        let prefilter = &shown["prefilter"];
        let number = |key: &str| {
            let number = prefilter[key].as_u64();
            number.with_context(|| format!("prefilter.{key} of GET /v1/ports/up0: {shown}"))
        };
        Ok(Ended {
            frames: number("frames")?,
            entries: number("entries")?,
        })
    }

    /// Matches of the prefilter's entries, in words.
    pub(super) fn entries(&self) -> Result<Vec<String>> {
        let path = "/v1/ports/up0/prefilter";
        let shown = get(&self.running()?.socket("api.sock"), path)?;
        let entries = shown["entries"].as_array().context("entries")?.iter();
        let matches = entries.filter_map(|entry| entry["match"].as_str());
        Ok(matches.map(str::to_owned).collect())
    }
}

/// Returns whether the uplink has its driver and its prefilter.
///
/// # Errors
/// It has another driver, or a reason why it has no prefilter.
fn is_ready(port: &Value, driver: &str, back_end: Option<&str>) -> Result<Option<()>> {
    let now = port["driver_status"]["back_end"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        now.is_empty() || now.starts_with(driver),
        "no {driver}, but {now}"
    );
    let Some(back_end) = back_end else {
        return Ok((!now.is_empty()).then_some(()));
    };
    let prefilter = &port["prefilter"];
    if let Some(reason) = prefilter["reason"].as_str() {
        // It has one as soon as its driver has restarted.
        ensure!(reason.contains(NEXT_DRIVER), "no prefilter: {reason}");
        return Ok(None);
    }
    Ok((!now.is_empty() && prefilter["back_end"] == back_end).then_some(()))
}

pub(super) fn mac(target: Target) -> String {
    target.mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn address(target: Target) -> String {
    std::net::Ipv4Addr::from(target.address).to_string()
}

/// A counter of an interface, in this column of a `/proc/net/dev`.
fn counter(text: &str, interface: &str, column: usize) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.trim().split_once(':'));
    let (_, counters) = lines.find(|(name, _)| *name == interface)?;
    counters.split_whitespace().nth(column)?.parse().ok()
}

/// The document at a path of the API.
fn get(socket: &Path, path: &str) -> Result<Value> {
    let ask = format!("GET {path} HTTP/1.1\r\nhost: lasthop\r\nconnection: close\r\n\r\n");
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(ask.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    ensure!(head.starts_with("HTTP/1.1 200 "), "GET {path}: {head}");
    Ok(serde_json::from_str(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_column() {
        let text = "Inter-|   Receive\n face |bytes\n  far0: 1 2 3 4 5 6 7 8 90 100 0 3\n";
        assert_eq!(counter(text, "far0", SENT), Some(100));
        assert_eq!(counter(text, "up0", RECEIVED), None);
        assert_eq!(mac(VICTIM), "02:00:00:00:00:02");
        assert_eq!(address(VICTIM), "10.1.0.2");
    }
}
