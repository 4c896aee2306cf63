//! Lasthop, with any number of ports, all in one segment.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Once;

use anyhow::{Context as _, Result, bail};
use e2e::lasthop::port_table;
use serde::Deserialize;
use testkit::guest_ram::RegionSpec;
use testkit::lasthop::Place;
use testkit::{FakeGuest, GuestConfig};

use super::{Kind, MOST_CONNECTIONS, Peer, Ports, Tracking};
use crate::folders;
use crate::plan::{Layout, Plan, progress};
use crate::rules::RuleSet;
use crate::stop;

pub(crate) use e2e::lasthop::Lasthop;

/// Memory of a guest that never sends.
const GUEST_BYTES: u64 = 32 << 20;

pub(super) fn start(plan: &Plan) -> Result<Peer> {
    with_idle(plan, 0)
}

/// The list of [`tracking`].
const TRACKED: &str = r#"
[[acl]]
name = "tracked"
direction = "to-guest"
segments = ["default"]

[[acl.rule]]
name = "all"
action = "allow-stateful"
"#;
/// A second where connections are over, and for UDP.
const SHORT: &str = "tcp_fin_wait = 1, tcp_close_wait = 1, tcp_last_ack = 1, tcp_time_wait = 1, \
    tcp_close = 1, udp = 1, udp_stream = 1";

/// Name of the file beside the runtime directory into which it logs.
pub(crate) const LOG: &str = "log";

/// Two ports for clients with queues of this layout.
pub(crate) fn with_layout(plan: &Plan, layout: Layout) -> Result<Peer> {
    if layout != Layout::Slots {
        return start(plan);
    }
    let mut text = "[switch]\nname = \"bench\"\n".to_owned();
    for port in 0..2 {
        let table = port_table(&format!("p{port}"), "default");
        text += &table.replace("vhost-user", "netmap");
    }
    let running = start_with(plan, &plan.cores[..1], &text)?;
    Ok(into_peer(running, 2, Vec::new()))
}

/// So many ports, all for clients.
pub(crate) fn with_ports(plan: &Plan, ports: u32) -> Result<Peer> {
    Ok(into_peer(start_ports(plan, ports)?, ports, Vec::new()))
}

/// With these access lists, on these cores.
pub(super) fn with_rules(
    plan: &Plan,
    cores: &[usize],
    rules: &RuleSet,
    ports: u32,
) -> Result<Peer> {
    let text = configuration("", ports) + &rules.configuration();
    let running = start_with(plan, cores, &text)?;
    Ok(into_peer(running, ports, Vec::new()))
}

/// With a list that has connections tracked, and no other rule.
pub(super) fn tracking(plan: &Plan, tracking: Tracking) -> Result<Peer> {
    let mut keys = format!("[switch.connections]\nmax = {MOST_CONNECTIONS}\n");
    if tracking == Tracking::Short {
        keys += &format!("timeouts = {{ {SHORT} }}\n");
    }
    let text = configuration(&keys, 2) + TRACKED;
    let running = start_with(plan, &plan.cores[..1], &text)?;
    Ok(into_peer(running, 2, Vec::new()))
}

/// How many connections it tracks.
pub(super) fn connections(lasthop: &Lasthop) -> Result<u64> {
    let count = lasthop.ask(&["connections", "count", "--json"])?;
    let count: serde_json::Value = serde_json::from_str(&count)?;
    let count = count["count"].as_u64();
    count.context("'lasthop connections count --json' is not what it was")
}

/// Two pairs of ports, and access lists to come.
pub(crate) fn with_four_ports(plan: &Plan) -> Result<Lasthop> {
    start_ports(plan, 4)
}

/// Ports for clients, each with these lines behind its table; on the switch's core.
pub(crate) fn with_tables(plan: &Plan, tables: &[String]) -> Result<Peer> {
    let mut text = "[switch]\nname = \"bench\"\n".to_owned();
    for (port, table) in tables.iter().enumerate() {
        text += &port_table(&format!("p{port}"), "default");
        text += table;
    }
    let running = start_with(plan, &plan.cores[..1], &text)?;
    Ok(into_peer(running, u32::try_from(tables.len())?, Vec::new()))
}

/// With this configuration on these cores; its first ports are for clients.
pub(crate) fn with_text(plan: &Plan, cores: &[usize], text: &str, ports: usize) -> Result<Peer> {
    let running = start_with(plan, cores, text)?;
    Ok(into_peer(running, u32::try_from(ports)?, Vec::new()))
}

/// How many frames control has decided about.
pub(super) fn misses(lasthop: &Lasthop) -> Result<u64> {
    let status = lasthop.ask(&["status", "--json"])?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let upcalls = status["switch"]["upcalls"].as_u64();
    upcalls.context("'lasthop status --json' is not what it was")
}

/// How long INVALIDATE has waited for workers, since the port was added.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct InvalidateWaits {
    /// Microseconds on average.
    pub(crate) mean_wait_us: u64,
    /// A bound of 99 of 100 waits in microseconds; none above a second, or without waits.
    pub(crate) p99_wait_us: Option<u64>,
}

/// The waits of the first port, whose guest has an IOMMU.
pub(crate) fn invalidate_waits(peer: &Peer) -> Result<InvalidateWaits> {
    #[derive(Deserialize)]
    struct Shown {
        translation: Option<InvalidateWaits>,
    }
    let lasthop = peer.lasthop.as_ref().context("a peer that is Lasthop")?;
    let shown: Shown = serde_json::from_value(port_shown(lasthop, "p0")?)?;
    shown.translation.context("a guest with an IOMMU")
}

/// One pair of ports for a client, and more with a silent guest each.
pub(crate) fn with_idle(plan: &Plan, idle: u32) -> Result<Peer> {
    let running = start_ports(plan, 2 + idle)?;
    let guests = attach(&running, 2..2 + idle)?;
    Ok(into_peer(running, 2, guests))
}

/// So many pairs of ports, and forwarding threads that may use these cores.
pub(crate) fn with_workers(
    plan: &Plan,
    (workers, cores): (u32, &[usize]),
    pairs: u32,
) -> Result<Peer> {
    let text = configuration(&format!("workers = {workers}\n"), 2 * pairs);
    let running = start_with(plan, cores, &text)?;
    Ok(into_peer(running, 2 * pairs, Vec::new()))
}

/// So many ports for a group of guests whose processors are threads of this process, with `keys` in
/// the tables of the switch; on these cores, or wherever the kernel likes if none is named.
pub(crate) fn with_guests(
    plan: &Plan,
    cores: &[usize],
    (group, ports): (usize, usize),
    keys: &str,
) -> Result<Peer> {
    let mut text = format!("[switch]\nname = \"bench\"\n{keys}");
    for number in 1..=ports {
        text += &port_table(&format!("p{}", number - 1), "default");
        text += &format!("vcpu_threads = \"{}\"\n", thread_name(group, number));
    }
    let running = start_with(plan, cores, &text)?;
    Ok(into_peer(running, u32::try_from(ports)?, Vec::new()))
}

/// Returns whether it knows the thread of each guest of [`with_guests`], or is to know none.
///
/// # Errors
/// There are no vCPU states although the setting has them: its rows would be those without rules.
pub(crate) fn follows(peer: &Peer, with_states: bool) -> Result<Option<()>> {
    if !with_states {
        return Ok(Some(()));
    }
    let lasthop = peer.lasthop.as_ref().context("a peer that is Lasthop")?;
    #[derive(Deserialize)]
    struct Port {
        vcpus: u32,
    }
    #[derive(Deserialize)]
    struct Ports {
        ports: Vec<Port>,
    }
    let ports: Ports = serde_json::from_str(&lasthop.ask(&["port", "list", "--json"])?)?;
    let states: serde_json::Value = serde_json::from_str(&lasthop.ask(&["status", "--json"])?)?;
    let state = &states["switch"]["guest_state"];
    if state["by"] == "off" {
        bail!("there are no vCPU states: {}", state["reason"]);
    }
    let all = ports.ports.iter().all(|port| port.vcpus > 0);
    Ok(all.then_some(()))
}

/// Starts Lasthop on the switch's cores with `ports` listening ports and waits until it is ready.
/// With super-frames it polls as its peers do: a wake-up a burst would be measured as copying.
pub(crate) fn start_ports(plan: &Plan, ports: u32) -> Result<Lasthop> {
    let mut keys = String::new();
    if plan.super_frames {
        keys += "poll = \"always\"\n";
    }
    let cores = plan.switch_cores();
    if cores.len() > 1 {
        keys += &format!("workers = {}\n", cores.len());
    }
    start_with(plan, &cores, &configuration(&keys, ports))
}

/// Starts it on these cores, with this configuration.
pub(crate) fn start_with(plan: &Plan, cores: &[usize], configuration: &str) -> Result<Lasthop> {
    let folder = folders::new("lasthop")?;
    let log = folder.path().join(LOG);
    let place = Place::within(plan.bin.join("lasthop"), folder, cores);
    let running = Lasthop::start_in(place, configuration)?;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| progress(&prefetch_line(&fs::read_to_string(log).unwrap_or_default())));
    Ok(running)
}

/// Returns the line of a switch's log about the prefetch of receive buffers.
fn prefetch_line(log: &str) -> String {
    let line = log.lines().find(|line| line.contains("prefetch of"));
    line.unwrap_or("nothing is known of prefetches").to_owned()
}

/// The socket of a port, counted from 0.
pub(crate) fn socket(lasthop: &Lasthop, port: u32) -> PathBuf {
    lasthop.socket_of(&format!("p{port}"))
}

/// A port as it is shown.
pub(crate) fn port_shown(lasthop: &Lasthop, name: &str) -> Result<serde_json::Value> {
    let text = lasthop.ask(&["port", "show", name, "--json"])?;
    serde_json::from_str(&text).context("'lasthop port show --json' is not what it was")
}

/// The name of the thread of guest `number`, counted from 1, in group `group`. Guests of all groups
/// are threads of one process.
pub(crate) fn thread_name(group: usize, number: usize) -> String {
    format!("vcpu-{group}-{number}")
}

/// One silent guest on each of these ports, with its link up.
pub(crate) fn attach(lasthop: &Lasthop, ports: Range<u32>) -> Result<Vec<FakeGuest>> {
    let one = |port: u32| {
        stop::check()?;
        let config = GuestConfig {
            regions: Some(vec![RegionSpec::at(0, GUEST_BYTES)]),
            ..GuestConfig::default()
        };
        let number = u8::try_from(port % 250).unwrap_or_default() + 1;
        let mut guest = FakeGuest::connect(&socket(lasthop, port), config.guest(number))
            .with_context(|| format!("guest {port} is not attached"))?;
        guest
            .wait_link()
            .with_context(|| format!("guest {port} has no link"))?;
        Ok(guest)
    };
    ports.map(one).collect()
}

/// A peer whose first `ports` ports are for the client.
fn into_peer(lasthop: Lasthop, ports: u32, guests: Vec<FakeGuest>) -> Peer {
    Peer {
        kind: Kind::Lasthop,
        ports: Ports::Sockets {
            paths: (0..ports).map(|port| socket(&lasthop, port)).collect(),
            client_listens: false,
        },
        processes: Vec::new(),
        lasthop: Some(lasthop),
        _guests: guests,
        folder: None,
    }
}

/// With `keys` in the table of the switch.
fn configuration(keys: &str, ports: u32) -> String {
    let mut text = format!("[switch]\nname = \"bench\"\n{keys}");
    for port in 0..ports {
        text += &port_table(&format!("p{port}"), "default");
    }
    text
}
