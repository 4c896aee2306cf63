//! DPDK's testpmd with two `net_vhost` ports: what the same virtqueues cost without any switching.

use std::time::Duration;

use anyhow::Result;

use super::{Kind, PROGRAM_DPDK, Peer, Ports, START};
use crate::folders;
use crate::plan::Plan;
use crate::process::{self, words};
use crate::stop;

/// It says nothing when its sockets are there.
const SETTLE: Duration = Duration::from_millis(100);

pub(super) fn start(plan: &Plan) -> Result<Peer> {
    with_devices(plan, "")
}

/// Its ports take the IOTLB messages of guests with an IOMMU.
pub(super) fn with_iommu(plan: &Plan) -> Result<Peer> {
    with_devices(plan, ",iommu-support=1")
}

fn with_devices(plan: &Plan, options: &str) -> Result<Peer> {
    let folder = folders::new("fwd")?;
    let [switch, client] = plan.cores;
    let sockets = ["s0.sock", "s1.sock"].map(|name| folder.path().join(name));
    let [first, second] = [&sockets[0], &sockets[1]].map(|socket| socket.display());
    let command = format!(
        "stdbuf -oL {PROGRAM_DPDK} --no-pci --in-memory -m 400 -l {client},{switch} \
         --main-lcore={client} \
         --no-telemetry --file-prefix=lasthop-bench-fwd \
         --vdev=net_vhost0,iface={first},queues=1{options} \
         --vdev=net_vhost1,iface={second},queues=1{options} \
         -- -i --nb-cores=1 --txd=1024 --rxd=1024 \
         --total-num-mbufs=32768"
    );
    let log = folder.path().join("log");
    let mut process = process::start("DPDK forwarder", &[], &words(&command), &log)?;
    process.wait_output("its ports come up", START, |output| {
        output.contains("Checking link statuses").then_some(())
    })?;
    process.tell("set fwd io")?;
    process.tell("start")?;
    stop::sleep(SETTLE)?;
    Ok(Peer {
        kind: Kind::Forwarder,
        lasthop: None,
        processes: vec![process],
        ports: Ports::Sockets {
            paths: sockets.to_vec(),
            client_listens: false,
        },
        _guests: Vec::new(),
        folder: Some(folder),
    })
}
