//! Virtual interfaces by the number: figures 3 and 5 of Raj and Schwan, "High Performance and
//! Scalable I/O Virtualization via Self-Virtualized Devices" (HPDC 2007), with pairs of guests that
//! all talk at the same time. Guests are threads that compute, are interrupted and sleep
//! (`load::vcpu`), on all cores but those of the switch.

use std::time::Duration;

use anyhow::{Context as _, Result};
use load::vcpu::{MIN_PAYLOAD, Task};

use super::parts::{Part, Run};
use crate::clients::guests::Guests;
use crate::clients::{Client as _, Exchange};
use crate::peers::{Kind, Peer};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static MEDIAN: Part = Part {
    name: "round-trips",
    axes: ["pairs of guests", "microseconds, median"],
    published: "figure 3: 76 us for one interface of the SV-NIC, 53 % less than a driver domain; \
                39 % less at 8; about half up to 16; more than the driver domain at 32, whose \
                doorbell bits four interfaces share",
};
static SPREAD: Part = Part {
    name: "spread",
    axes: ["pairs of guests", "microseconds between the quartiles"],
    published: "figure 3 has them as bars",
};
static SEGMENTS: Part = Part {
    name: "streams",
    axes: ["pairs of guests", "Gbit/s of all, frames of 1514 bytes"],
    published: "figure 5: 620 Mbit/s for one interface of the SV-NIC on 1 Gbit/s Ethernet, 77 % \
                more than a driver domain; 103 % more at 8; about twice for all numbers to 32",
};
static SUPER_FRAMES: Part = Part {
    name: "super-frames",
    axes: ["pairs of guests", "Gbit/s of all, frames of 64 KiB"],
    published: "no figure: the SV-NIC had no segmentation offload",
};

const PEERS: [Kind; 3] = [Kind::Lasthop, Kind::Ovs, Kind::Bridge];
/// Pairs of guests. Guests have numbers of eight bits.
const PAIRS: [u8; 8] = [1, 2, 4, 8, 16, 32, 64, 120];
/// OVS-DPDK takes minutes to bring up more.
const MOST_OF_OVS: u8 = 32;
/// The papers' figures end here.
const MOST_OF_FIGURES: u8 = 32;
/// Bytes of TCP payload in a frame: of a segment, and of the longest super-frame of segments.
const SEGMENT: usize = 1460;
const SUPER_FRAME: usize = 44 * SEGMENT;
/// Bytes on their way to a guest: what Linux begins to have for a fast connection.
const WINDOW: usize = 256 << 10;
/// Until the first answer: a switch may take its time to notice a port.
const ARRIVE: Duration = Duration::from_secs(30);
const NOTES: [&str; 2] = [
    "guests are threads that spend a microsecond on a kick, on an interrupt and on each frame; \
     those of the bridge write to and read from TAP devices and have no kicks, and the bridge \
     works in their time",
    "the paper's machine had two processors for guests, two for hypervisor and driver domain, and \
     the network processor; here all guests share the cores that the switch does not have",
];

/// See the module.
pub(crate) fn vifs(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "vifs", &NOTES, &PEERS);
    let cores = plan.guest_cores();
    let most = if plan.is_of_figures() {
        MOST_OF_FIGURES
    } else {
        u8::MAX
    };
    let of_all = [&MEDIAN, &SEGMENTS].iter().any(|part| plan.asks(part.name));
    for pairs in PAIRS.into_iter().filter(|pairs| *pairs <= most) {
        for kind in PEERS {
            if !of_all && kind != Kind::Lasthop {
                continue;
            }
            if kind == Kind::Ovs && pairs > MOST_OF_OVS {
                continue;
            }
            let what = format!("{pairs} pairs with {}", kind.name());
            run.attempt(&what, |run| with_pairs(run, kind, pairs, &cores))?;
        }
    }
    Ok(run.report("Virtual interfaces: pairs of guests that talk at the same time"))
}

fn with_pairs(run: &mut Run<'_>, kind: Kind, pairs: u8, cores: &[usize]) -> Result<()> {
    let plan = run.plan;
    progress(&format!("vifs: {pairs} pairs with {}", kind.name()));
    wait_quiet(plan.patience / 100)?;
    let peer = Peer::learning(kind, plan, 2 * u32::from(pairs))?;
    let mut guests = Guests::attach(&peer, 0, cores)?;
    if plan.asks(MEDIAN.name) {
        requests(run, kind, &mut guests, pairs)?;
    }
    if plan.asks(SEGMENTS.name) {
        streams(run, kind, &mut guests, (pairs, &SEGMENTS, SEGMENT))?;
    }
    if kind == Kind::Lasthop && plan.asks(SUPER_FRAMES.name) {
        streams(run, kind, &mut guests, (pairs, &SUPER_FRAMES, SUPER_FRAME))?;
    }
    Ok(())
}

/// Requests one at a time, in each pair.
fn requests(run: &mut Run<'_>, kind: Kind, guests: &mut Guests, pairs: u8) -> Result<()> {
    let (plan, x) = (run.plan, f64::from(pairs));
    let requests = tasks(pairs, |peer| Task::Request {
        peer,
        outstanding: 1,
        payload: MIN_PAYLOAD,
    });
    begin(plan, guests, requests)?;
    for _ in 0..plan.rounds {
        run.take_all([&MEDIAN, &SPREAD], kind.name(), x, || {
            let last = measured(plan, guests)?;
            let [first, third] = last.quartiles_us;
            Ok([last.p50_us, third - first])
        })?;
    }
    Ok(())
}

/// Streams of frames with so many bytes of payload, one in each pair.
fn streams(
    run: &mut Run<'_>,
    kind: Kind,
    guests: &mut Guests,
    (pairs, part, payload): (u8, &'static Part, usize),
) -> Result<()> {
    let plan = run.plan;
    let streams = tasks(pairs, |peer| Task::Stream {
        peers: vec![peer],
        payload,
        window: WINDOW,
    });
    begin(plan, guests, streams)?;
    for _ in 0..plan.rounds {
        run.take(part, kind.name(), f64::from(pairs), || {
            Ok(measured(plan, guests)?.gbit)
        })?;
    }
    Ok(())
}

/// The tasks of all guests: the first of each pair talks to the second, which serves.
fn tasks(pairs: u8, of: impl Fn(u8) -> Task) -> Vec<Task> {
    let pair = |number: u8| [of(2 * number), Task::Serve];
    (1..=pairs).flat_map(pair).collect()
}

/// Sets tasks, and waits until something arrives.
fn begin(plan: &Plan, guests: &mut Guests, tasks: Vec<Task>) -> Result<()> {
    guests.set(tasks);
    stop::try_wait("frames of guests arrive", ARRIVE, || {
        guests.warm_up(plan.settle)?;
        Ok(guests.heard().then_some(()))
    })
}

fn measured(plan: &Plan, guests: &mut Guests) -> Result<Exchange> {
    guests.mpps(plan.window)?;
    guests.exchange().cloned().context("guests that ran")
}
