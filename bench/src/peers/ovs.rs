//! Open vSwitch with DPDK: its own database in a temporary folder, one polling thread, ports in the
//! client role. Between two ports it has explicit unicast flows, because a learning bridge would
//! flood testpmd's addresses.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::{Kind, MOST_CONNECTIONS, Peer, Ports, START, Tracking};
use crate::folders;
use crate::plan::Plan;
use crate::process::{self, Process, run, words};
use crate::rules::RuleSet;
use crate::stop;

/// Debian's build with DPDK.
pub(crate) const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// Path of the daemon without DPDK.
pub(crate) const PLAIN: &str = "/usr/lib/openvswitch-switch/ovs-vswitchd";
/// A setting with a blank in it.
const EXTRA: &str = "other_config:dpdk-extra=\"--no-pci --in-memory\"";
/// The device that [`add_tap`] adds.
pub(crate) const TAP: &str = "lasthop-mirror";
/// Flows of [`pass_across`], behind rules.
const ACROSS_IN_TABLE_1: &str =
    "table=1,in_port=1,actions=output:2\ntable=1,in_port=2,actions=output:1\n";
/// The same for more ports than two.
const LEARNING_IN_TABLE_1: &str = "table=1,actions=NORMAL\n";
/// Flows of [`tracking`], before those of [`pass_across`].
const TRACKING: [&str; 5] = [
    "table=0,priority=40000,ip,ct_state=-trk,actions=ct(table=1)",
    "table=1,in_port=1,ip,ct_state=+trk+new,actions=ct(commit),output:2",
    "table=1,in_port=2,ip,ct_state=+trk+new,actions=ct(commit),output:1",
    "table=1,in_port=1,ip,ct_state=+trk+est,actions=output:2",
    "table=1,in_port=2,ip,ct_state=+trk+est,actions=output:1",
];
/// A row for the timeouts of the datapath.
const DATAPATH: &str = "-- --id=@d create Datapath datapath_version=0 \
    -- set Open_vSwitch . datapaths:netdev=@d";
/// A second where connections are over, and for UDP.
const SHORT: &str = "add-zone-tp netdev zone=0 tcp_fin_wait=1 tcp_close_wait=1 tcp_last_ack=1 \
    tcp_time_wait=1 tcp_close=1 udp_first=1 udp_single=1 udp_multiple=1";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

pub(super) fn start(plan: &Plan) -> Result<Peer> {
    let mask = mask(plan);
    let keys = format!("other_config:dpdk-lcore-mask=0x{mask:x}");
    with(plan, &keys, 2, pass_across)
}

/// As [`start`], for guests with an IOMMU, and with super-frames. Threads other than the polling
/// one run anywhere, so that messages are not served on that one's core.
pub(super) fn with_iommu(plan: &Plan) -> Result<Peer> {
    let plan = Plan {
        super_frames: true,
        ..plan.clone()
    };
    let keys = "other_config:vhost-iommu-support=true";
    with(&plan, keys, 2, pass_across)
}

/// With these rules before the explicit flows, of two ports, and room for a million cached flows.
pub(super) fn with_rules(plan: &Plan, rules: &RuleSet, ports: u32) -> Result<Peer> {
    let mask = mask(plan);
    let keys = format!("other_config:dpdk-lcore-mask=0x{mask:x} other_config:flow-limit=1000000");
    let across = match ports {
        2 => ACROSS_IN_TABLE_1,
        _ => LEARNING_IN_TABLE_1,
    };
    with(plan, &keys, ports, |folder| {
        let file = folder.join("rules.txt");
        std::fs::write(&file, rules.openflow() + across)?;
        ofctl(folder, "del-flows", "")?;
        ofctl(folder, "add-flows", &file.display().to_string())
    })
}

/// With its own connection tracking before the explicit flows: what opens a connection is let in,
/// and what is of none is dropped.
pub(super) fn tracking(plan: &Plan, tracking: Tracking) -> Result<Peer> {
    let mask = mask(plan);
    let keys = format!("other_config:dpdk-lcore-mask=0x{mask:x}");
    with(plan, &keys, 2, |folder| {
        pass_across(folder)?;
        for flow in TRACKING {
            ofctl(folder, "add-flow", flow)?;
        }
        let most = format!("dpctl/ct-set-maxconns {MOST_CONNECTIONS}");
        appctl(folder, &most)?;
        if tracking == Tracking::Short {
            vsctl(folder, &words(DATAPATH))?;
            vsctl(folder, &words(SHORT))?;
        }
        Ok(())
    })
}

/// How many connections it tracks.
pub(super) fn connections(folder: &Path) -> Result<u64> {
    let text = appctl(folder, "dpctl/ct-get-nconns")?;
    let count = text.trim().parse();
    count.context("Open vSwitch does not report its connections")
}

/// How many frames were decided anew, because no cached flow was theirs.
pub(super) fn misses(folder: &Path) -> Result<u64> {
    let text = appctl(folder, "dpif-netdev/pmd-stats-show")?;
    let lines = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("miss with success upcall:"));
    let counts: Option<Vec<u64>> = lines.map(|count| count.trim().parse().ok()).collect();
    let counts = counts.filter(|counts| !counts.is_empty());
    Ok(counts
        .context("Open vSwitch does not report its misses")?
        .iter()
        .sum())
}

/// With so many ports, and as it is without rules: a bridge that learns. Its threads other than the
/// polling one run anywhere: on that one's core they would take seconds to notice that a port has
/// changed.
pub(super) fn learning(plan: &Plan, ports: u32) -> Result<Peer> {
    with(plan, "", ports, |_| Ok(()))
}

/// As [`learning`], with these commands of `ovs-vsctl` and these OpenFlow rules. Ports are called
/// `v0`, `v1`, …, and have the numbers 1, 2, ….
pub(crate) fn with_commands(
    plan: &Plan,
    ports: u32,
    commands: &[String],
    flows: &[String],
) -> Result<Peer> {
    with(plan, "", ports, |folder| {
        for command in commands {
            vsctl(folder, &words(command))?;
        }
        flows
            .iter()
            .try_for_each(|flow| ofctl(folder, "add-flow", flow))
    })
}

/// In a network namespace of its own: its TAP devices are persistent, so that they would outlive
/// it, and a second one beside it would have the same names.
fn with(
    plan: &Plan,
    keys: &str,
    ports: u32,
    rules: impl FnOnce(&Path) -> Result<()>,
) -> Result<Peer> {
    let folder = folders::new("ovs")?;
    let path = folder.path();
    let database = start_database(path)?;
    configure(path, plan, keys)?;
    let switch = start_switch(path, &format!("unshare --net {SWITCH}"))?;
    let paths = add_bridge(path, ports).and_then(|paths| rules(path).map(|()| paths));
    let paths = paths.with_context(|| end_of(&switch.output()))?;
    Ok(Peer {
        kind: Kind::Ovs,
        lasthop: None,
        processes: vec![switch, database],
        ports: Ports::Sockets {
            paths,
            client_listens: true,
        },
        _guests: Vec::new(),
        folder: Some(folder),
    })
}

/// The folder's variables: everything that Open vSwitch writes goes there.
pub(crate) fn environment(folder: &Path) -> [(&'static str, &Path); 3] {
    ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"].map(|name| (name, folder))
}

/// A program with the folder's variables set, as words for [`Process::start`].
fn with_environment(folder: &Path, command: &str) -> Vec<String> {
    let mut all = vec!["env".to_owned()];
    all.extend(environment(folder).map(|(name, value)| format!("{name}={}", value.display())));
    all.extend(words(command));
    all
}

/// Starts a database in a folder.
pub(crate) fn start_database(folder: &Path) -> Result<Process> {
    let at = folder.display();
    run(
        &words(&format!("ovsdb-tool create {at}/conf.db {SCHEMA}")),
        &environment(folder),
    )?;
    let command = format!(
        "ovsdb-server {at}/conf.db --remote=punix:{at}/db.sock --pidfile={at}/ovsdb.pid \
         --unixctl={at}/ovsdb.ctl"
    );
    let log = folder.join("ovsdb.log");
    let database = process::start(
        "ovsdb-server",
        &[],
        &with_environment(folder, &command),
        &log,
    )?;
    let socket = folder.join("db.sock");
    stop::try_wait("ovsdb-server listens", START, || {
        Ok(socket.exists().then_some(()))
    })?;
    Ok(database)
}

/// Runs a command on the database of a folder.
pub(crate) fn vsctl(folder: &Path, arguments: &[String]) -> Result<String> {
    let database = folder.join("db.sock");
    let mut command = words(&format!(
        "ovs-vsctl --timeout=20 --db=unix:{}",
        database.display()
    ));
    command.extend_from_slice(arguments);
    run(&command, &environment(folder))
}

/// The switch's cores.
fn mask(plan: &Plan) -> u64 {
    let cores = plan.switch_cores();
    cores.into_iter().fold(0, |mask, core| mask | 1 << core)
}

/// Settings of DPDK, with a thread that polls on each of the switch's cores; more settings are in
/// `keys`.
pub(crate) fn configure(folder: &Path, plan: &Plan, keys: &str) -> Result<()> {
    vsctl(folder, &words("--no-wait init"))?;
    let mask = mask(plan);
    let mut settings = words(&format!(
        "--no-wait set Open_vSwitch . other_config:dpdk-init=true other_config:dpdk-socket-mem=300 \
         other_config:pmd-cpu-mask=0x{mask:x} {keys}"
    ));
    settings.push(EXTRA.to_owned());
    if plan.super_frames {
        settings.push("other_config:userspace-tso-enable=true".to_owned());
    }
    vsctl(folder, &settings).map(drop)
}

/// Starts the switch with the database of a folder; `program` are the first words of the command.
pub(crate) fn start_switch(folder: &Path, program: &str) -> Result<Process> {
    let at = folder.display();
    let command =
        format!("{program} unix:{at}/db.sock --pidfile={at}/vs.pid --unixctl={at}/vs.ctl");
    let log = folder.join("vswitchd.log");
    process::start(
        "ovs-vswitchd",
        &[],
        &with_environment(folder, &command),
        &log,
    )
}

/// A bridge with so many ports, numbered from 1; their sockets.
fn add_bridge(folder: &Path, ports: u32) -> Result<Vec<PathBuf>> {
    vsctl(
        folder,
        &words("add-br br0 -- set bridge br0 datapath_type=netdev"),
    )?;
    let mut sockets = Vec::new();
    for index in 0..ports {
        let socket = folder.join(format!("v{index}.sock"));
        vsctl(
            folder,
            &words(&format!(
                "add-port br0 v{index} -- set Interface v{index} type=dpdkvhostuserclient \
                 options:vhost-server-path={} ofport_request={}",
                socket.display(),
                index + 1
            )),
        )?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Forwards frames of each of two ports to the other.
fn pass_across(folder: &Path) -> Result<()> {
    ofctl(folder, "del-flows", "")?;
    ofctl(folder, "add-flow", "in_port=1,actions=output:2")?;
    ofctl(folder, "add-flow", "in_port=2,actions=output:1")
}

/// A command in the network namespace of the switch with this process id.
pub(crate) fn inside(switch: u32, command: &str) -> String {
    format!("nsenter --net=/proc/{switch}/ns/net {command}")
}

/// Adds a TAP device to which a port can be mirrored, in the network namespace of the switch.
pub(crate) fn add_tap(folder: &Path, switch: u32) -> Result<()> {
    let command = format!("add-port br0 {TAP} -- set Interface {TAP} type=internal");
    vsctl(folder, &words(&command))?;
    let up = inside(switch, &format!("ip link set {TAP} up"));
    run(&words(&up), &[]).map(drop)
}

/// Mirrors the first port there, both ways.
pub(crate) fn begin_mirror(folder: &Path) -> Result<()> {
    let command = format!(
        "-- --id=@v get Port v0 -- --id=@t get Port {TAP} -- --id=@m create Mirror name=m \
         select-dst-port=@v \
         select-src-port=@v output-port=@t -- set Bridge br0 mirrors=@m"
    );
    vsctl(folder, &words(&command))?;
    decide_anew(folder)
}

/// Ends that.
pub(crate) fn end_mirror(folder: &Path) -> Result<()> {
    vsctl(folder, &words("clear Bridge br0 mirrors"))?;
    decide_anew(folder)
}

/// Cached flows are forgotten at once: by itself it takes up to seconds until all of them know a
/// change.
fn decide_anew(folder: &Path) -> Result<()> {
    appctl(folder, "revalidator/purge").map(drop)
}

/// Asks the running switch.
fn appctl(folder: &Path, command: &str) -> Result<String> {
    let target = folder.join("vs.ctl");
    let command = format!("ovs-appctl -t {} {command}", target.display());
    run(&words(&command), &environment(folder))
}

pub(crate) fn ofctl(folder: &Path, what: &str, argument: &str) -> Result<()> {
    let bridge = folder.join("br0.mgmt");
    let command = format!("ovs-ofctl {what} {} {argument}", bridge.display());
    run(&words(&command), &environment(folder)).map(drop)
}

/// The end of a log, for an error.
fn end_of(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}
