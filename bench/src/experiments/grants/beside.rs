//! Guests with an IOMMU at other switches.

use anyhow::{Result, ensure};

use super::{HUGE_PAGES, Method, NO_IOMMU, ON_DEMAND, REUSE, SMALL_PAGES, STRICT, Way};
use crate::clients::grants::{Behind, GrantsClient, Mapped};
use crate::experiments::parts::{Part, Run};
use crate::peers::Peer;
use crate::plan::Layout;

static PAGES: Part = Part {
    name: "pages",
    axes: [AXIS, "Mpps, frames of 64 bytes"],
    published: "no figure",
};
static MISSES: Part = Part {
    name: "pages-misses",
    axes: [AXIS, "MISS messages for 1000 frames that arrived"],
    published: "no figure",
};

const AXIS: &str = "pages of 4 KiB of a guest in use";
/// Entries of a queue, each with a buffer on a page of its own.
const QUEUES: [u16; 3] = [128, 512, 2048];
/// Frames and ways that Open vSwitch is measured with.
const OF_OVS: [Method; 6] = [NO_IOMMU, HUGE_PAGES, SMALL_PAGES, REUSE, STRICT, ON_DEMAND];

/// Open vSwitch with these frames. What it cannot do is a note.
pub(super) fn open_vswitch(
    run: &mut Run<'_>,
    ovs: &Peer,
    way: &'static Way,
    size: u32,
) -> Result<()> {
    for method in OF_OVS {
        let what = format!("{}, {size} bytes, {}", way.ovs.name, method.0);
        ovs.thaw();
        let taken = run.attempt(&what, |run| {
            let measured = (way, size, Layout::Split);
            super::sampled(run, ovs, measured, method, |run, name, measure| {
                run.take(&way.ovs, name, size.into(), || {
                    let rate = measure()?.rate;
                    ensure!(rate > 0.0, "no frame arrives");
                    Ok(rate)
                })
            })
        });
        ovs.freeze();
        taken?;
    }
    Ok(())
}

/// By pages in use, beside DPDK's forwarder, whose cache has room for 2048.
pub(super) fn pages(run: &mut Run<'_>, lasthop: &Peer, forwarder: Option<&Peer>) -> Result<()> {
    for queue in QUEUES {
        for peer in [Some(lasthop), forwarder].into_iter().flatten() {
            for method in [NO_IOMMU, SMALL_PAGES] {
                let way = format!("{}, {}", peer.kind().name(), method.0);
                peer.thaw();
                let taken = run.attempt(&format!("{way}, queues of {queue}"), |run| {
                    with_queue(run, peer, (&way, queue), method)
                });
                peer.freeze();
                taken?;
            }
        }
    }
    Ok(())
}

fn with_queue(
    run: &mut Run<'_>,
    peer: &Peer,
    (way, queue): (&str, u16),
    (_, mode, batch): Method,
) -> Result<()> {
    let plan = run.plan;
    let mapped = Mapped {
        behind: Behind::Both,
        mode,
        batch,
        to_all: false,
    };
    let mut client = GrantsClient::connect(plan, peer, (64, queue, Layout::Split), mapped)?;
    client.run(plan.settle)?;
    run.take_all([&PAGES, &MISSES], way, 2.0 * f64::from(queue), || {
        let (rate, report) = client.run(plan.window)?;
        let misses: u64 = report.ports.iter().map(|port| port.misses).sum();
        Ok([
            rate / 1e3,
            1e3 * misses as f64 / report.received.max(1) as f64,
        ])
    })
}
