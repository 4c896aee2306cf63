//! Two guests that exchange frames through interfaces of the host: frames of each leave the switch
//! by one interface and come back by the other.
//!
//! ```text
//!   guest 0 -- segment a -- up0 ~~~ veth pair, or two TAP interfaces and a bridge ~~~ up1 -- segment b -- guest 1
//! ```

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use load::lean::{Lean, LeanConfig, Until};
use tempfile::TempDir;

use super::world::{Namespace, Switch, Used, Way, pids_when_up};
use crate::peers::lasthop::{socket, start_with};
use crate::peers::ovs;
use crate::plan::Plan;
use crate::process::{run, words};
use crate::{folders, stop};
use e2e::lasthop::port_table;

/// How long frames may take to arrive at first, and how long each look for them is.
const ARRIVE: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_millis(50);
/// How long the last frames of a measurement are waited for.
const TIMEOUT: Duration = Duration::from_millis(2);
const INTERFACES: [&str; 2] = ["up0", "up1"];

/// See the module.
pub(super) struct Guests {
    lean: Lean,
    switch: Switch,
    _host: Namespace,
    _folder: TempDir,
}

impl Guests {
    /// Returns whether there are guests at such a switch.
    pub(super) fn suit(way: Way) -> bool {
        !matches!(way, Way::BridgeVeth | Way::OvsDpdk | Way::OneThread)
    }

    pub(super) fn start(plan: &Plan, way: Way) -> Result<Self> {
        let folder = folders::new("guests")?;
        let host = Namespace::new("host", folder.path())?;
        let taps = way.has_taps();
        if !taps {
            host.run("ip link add up0 type veth peer name up1")?;
            host.run("ip link set up0 up")?;
            host.run("ip link set up1 up")?;
        }
        let (switch, sockets, listen) = match way {
            Way::OvsTap | Way::OvsVeth => ovs(plan, folder.path(), &host, taps)?,
            _ => lasthop(plan, &host, way)?,
        };
        if taps {
            host.run("ip link add br9 type bridge stp_state 0 mcast_snooping 0")?;
            for name in INTERFACES {
                host.run(&format!("ip link set {name} master br9 up"))?;
            }
            host.run("ip link set br9 up")?;
        }
        let config = LeanConfig {
            sockets,
            listen,
            cpu: Some(plan.cores[1]),
            // Most frames are lost, because nothing holds the guests back.
            patience: TIMEOUT,
            ..LeanConfig::default()
        };
        let mut guests = Self {
            lean: Lean::connect(config)?,
            switch,
            _host: host,
            _folder: folder,
        };
        // A switch that learns sees where both are.
        stop::try_wait("frames arrive", ARRIVE, || {
            guests.lean.run(Until::Sent(1))?;
            let report = guests.lean.run(Until::Elapsed(PROBE))?;
            Ok((report.ports.iter().all(|port| port.received > 0)).then_some(()))
        })?;
        Ok(guests)
    }

    /// Frames that arrive in this time, in both directions.
    pub(super) fn exchange(&mut self, time: Duration) -> Result<u64> {
        stop::check()?;
        Ok(self.lean.run(Until::Elapsed(time))?.received)
    }

    pub(super) fn cpu_seconds(&self) -> Used {
        self.switch.cpu_seconds()
    }
}

type Started = (Switch, Vec<std::path::PathBuf>, bool);

fn lasthop(plan: &Plan, host: &Namespace, way: Way) -> Result<Started> {
    let mut text = "[[segment]]\nname = \"a\"\n[[segment]]\nname = \"b\"\n".to_owned();
    for ((guest, name), segment) in [("p0", "up0"), ("p1", "up1")].into_iter().zip(["a", "b"]) {
        text += &port_table(guest, segment);
        let kind = match way.driver() {
            None => format!("kind = \"tap\"\nmtu = 1500\n{}", way.tap_driver()),
            Some(driver) => format!(
                "kind = \"uplink\"\ndriver = \"{driver}\"\n{}",
                way.own_process()
            ),
        };
        let netns = host.path();
        text += &format!(
            "[[port]]\nname = \"{name}\"\ninterface = \"{name}\"\nsegment = \"{segment}\"\n\
             netns = \"{netns}\"\n{kind}\n"
        );
    }
    let lasthop = start_with(&way.plan(plan), plan.shared_cores(), &text)?;
    let drivers = pids_when_up(&lasthop, &INTERFACES, way)?;
    let sockets = [0, 1].map(|port| socket(&lasthop, port)).to_vec();
    let lasthop = Box::new(lasthop);
    Ok((Switch::Lasthop { lasthop, drivers }, sockets, false))
}

fn ovs(plan: &Plan, folder: &Path, host: &Namespace, taps: bool) -> Result<Started> {
    let database = ovs::start_database(folder)?;
    let vsctl = |command: &str| ovs::vsctl(folder, &words(command)).map(drop);
    // The thread that serves other ports than those of DPDK may run anywhere.
    ovs::configure(folder, plan, "")?;
    let switch = ovs::start_switch(folder, &host.command(ovs::SWITCH))?;
    let mut sockets = Vec::new();
    for (number, name) in INTERFACES.iter().enumerate() {
        let (bridge, guest) = (format!("br{number}"), format!("v{number}"));
        let socket = folder.join(format!("{guest}.sock"));
        vsctl(&format!(
            "add-br {bridge} -- set bridge {bridge} datapath_type=netdev"
        ))?;
        vsctl(&format!(
            "add-port {bridge} {guest} -- set Interface {guest} type=dpdkvhostuserclient \
             options:vhost-server-path={} ofport_request=1",
            socket.display()
        ))?;
        let kind = if taps { "type=internal " } else { "" };
        vsctl(&format!(
            "add-port {bridge} {name} -- set Interface {name} {kind}ofport_request=2"
        ))?;
        let at = folder.join(format!("{bridge}.mgmt"));
        for flow in ["in_port=1,actions=output:2", "in_port=2,actions=output:1"] {
            let command = format!("ovs-ofctl add-flow {} {flow}", at.display());
            run(&words(&command), &ovs::environment(folder))?;
        }
        sockets.push(socket);
    }
    Ok((Switch::Peer(vec![switch, database]), sockets, true))
}
