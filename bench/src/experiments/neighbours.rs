//! How long frames of one pair of guests are on their way, alone and beside a pair that floods. All
//! guests are one thread, and the switch has one; so alone and beside differ in what the switch
//! does, and a little in how often the thread looks.

use anyhow::Result;

use super::throughput::Run;
use crate::clients::Client as _;
use crate::clients::neighbours::{FLOODS, NeighbourClient};
use crate::peers::{Kind, Peer};
use crate::plan::{Plan, progress};
use crate::report::{Latencies, Report};
use crate::sample::Cell;
use crate::stop;

/// Frames a second of the victim, in the mean: so few that its kicks are waited for, and so many
/// that they are not.
const RATES: [u32; 2] = [500, 20_000];
/// Bytes of its frames.
const SIZE: u32 = 64;
const PEERS: [Kind; 2] = [Kind::Lasthop, Kind::Ovs];
const LONG: &str = "OVS-DPDK drops frames of 60000 bytes, which do not fit its buffers: its row \
    with them is one \
    without a flood that arrives";

/// A victim's latency, by what its neighbour does.
pub(crate) fn neighbours(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "neighbours", &PEERS);
    run.note(LONG);
    let mut pairs = Vec::new();
    for kind in PEERS {
        progress(&format!("neighbours: {} starts", kind.name()));
        match start(plan, kind) {
            Ok(pair) => pairs.push(pair),
            Err(error) => {
                stop::check()?;
                run.leave_out(format!("{}: {error:#}", kind.name()));
            }
        }
    }
    for round in 1..=plan.rounds {
        for rate in RATES {
            let floods = std::iter::once(None).chain((0..FLOODS.len()).map(Some));
            for flood in floods {
                for (peer, client) in &mut pairs {
                    client.set(rate, flood);
                    run.sample(peer, client, &cell(rate, flood), round)?;
                }
            }
        }
    }
    let title = "Latency of one pair beside another that floods, 64-byte frames";
    Ok(run.report(title, |samples| Latencies { samples }))
}

/// A peer with its client connected; both are still while others are measured.
fn start(plan: &Plan, kind: Kind) -> Result<(Peer, NeighbourClient)> {
    let ports = 2 + 2 * FLOODS.len() as u32;
    let peer = Peer::learning(kind, plan, ports)?;
    let mut client = NeighbourClient::new(plan, &peer);
    client.set_size(SIZE)?;
    peer.freeze();
    Ok((peer, client))
}

fn cell(rate: u32, flood: Option<usize>) -> Cell {
    let beside = match flood {
        None => "alone".to_owned(),
        Some(flood) => format!("beside {} B", FLOODS[flood].size),
    };
    Cell {
        name: format!("{rate} a second {beside}"),
        series: beside,
        x: f64::from(rate),
    }
}
