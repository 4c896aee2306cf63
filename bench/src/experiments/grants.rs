//! Guests with an IOMMU: figures 3.6 to 3.13 of the thesis of K. K. Ram, chapter 3, with a table
//! for each way of the frames, by the time for which a page is mapped. The switch's ports and the
//! client are those of all rows, and ways of mapping take turns.

use anyhow::Result;
use load::lean::{Grants, LeanPort, SUPER_FRAME_LEN};

use super::parts::{Part, Run};
use crate::clients::grants::{Behind, GrantsClient, Mapped};
use crate::peers::{Kind, Peer};
use crate::placement::Placement;
use crate::plan::{Layout, Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;

mod beside;
mod messages;
mod waits;

/// A way of the frames: who has an IOMMU, and what is measured.
struct Way {
    behind: Behind,
    rate: Part,
    ratio: Part,
    messages: Part,
    misses: Part,
    cpu: Part,
    /// Open vSwitch's rate.
    ovs: Part,
    /// Rate and ratio with packed rings.
    packed: [Part; 2],
}

impl Way {
    fn is_asked(&self, plan: &Plan) -> bool {
        plan.asks(self.rate.name) || plan.asks(self.cpu.name)
    }
}

const AXIS: &str = "bytes of a frame";
const RATE: &str = "1000 frames a second";
const RATIO: &str = "% of the rate without an IOMMU in the same round";
const PACKED_RATIO: &str = "% of the rate of packed rings without an IOMMU in the same round";
const MESSAGES: &str = "UPDATE and INVALIDATE messages for each frame that arrived";
const MISSES: &str = "MISS messages for each frame that arrived";
const CPU: &str = "microseconds of CPU of the switch's processes for each frame that arrived";
const COUNTS: &str = "no figure";

const fn part(name: &'static str, value: &'static str, published: &'static str) -> Part {
    Part {
        name,
        axes: [AXIS, value],
        published,
    }
}

static WAYS: [Way; 3] = [
    Way {
        behind: Behind::Sender,
        rate: part(
            "sending",
            RATE,
            "figure 3.8, Mbit/s of a TCP stream: no IOMMU 8400, IOMMU 800, with batched flushes \
             1100, with mapping counts 6000, grants that are reused 9400, slab 9400",
        ),
        ratio: part(
            "sending-ratio",
            RATIO,
            "figure 3.8: IOMMU 10, with batched flushes 13, with mapping counts 71, grants that \
             are reused 112, slab 112",
        ),
        messages: part("sending-messages", MESSAGES, COUNTS),
        misses: part("sending-misses", MISSES, COUNTS),
        ovs: part("sending-ovs", RATE, COUNTS),
        packed: [
            part("sending-packed", RATE, COUNTS),
            part("sending-packed-ratio", PACKED_RATIO, COUNTS),
        ],
        cpu: part(
            "sending-cpu",
            CPU,
            "figure 3.9, cycles a packet of 1514 bytes: IOMMU 600 % more than no IOMMU; mapping \
             counts 80 % less than batched flushes; than with both, grants that are reused 45 % \
             less, without reuse 88 % more",
        ),
    },
    Way {
        behind: Behind::Receiver,
        rate: part(
            "receiving",
            RATE,
            "figure 3.6, Mbit/s of a TCP stream: no IOMMU 7200, IOMMU 4300, with batched flushes \
             5300, grants that are reused 9400, slab 9300",
        ),
        ratio: part(
            "receiving-ratio",
            RATIO,
            "figure 3.6: IOMMU 60, with batched flushes 74, grants that are reused 131, slab 129",
        ),
        messages: part("receiving-messages", MESSAGES, COUNTS),
        misses: part("receiving-misses", MISSES, COUNTS),
        ovs: part("receiving-ovs", RATE, COUNTS),
        packed: [
            part("receiving-packed", RATE, COUNTS),
            part("receiving-packed-ratio", PACKED_RATIO, COUNTS),
        ],
        cpu: part(
            "receiving-cpu",
            CPU,
            "figure 3.7, cycles a packet of 1514 bytes: IOMMU 40 % more than no IOMMU; than with \
             batched flushes and mapping counts, grants that are reused 20 % less, without reuse \
             14 % more",
        ),
    },
    Way {
        behind: Behind::Both,
        rate: part(
            "guest-to-guest",
            RATE,
            "figure 3.10, Mbit/s of a TCP stream: no IOMMU 7800, IOMMU 1700, with mapping counts \
             9000, grants that are reused 22500, slab 23700",
        ),
        ratio: part(
            "guest-to-guest-ratio",
            RATIO,
            "figure 3.10: IOMMU 22, with mapping counts 115, grants that are reused 288, slab 304",
        ),
        messages: part("guest-to-guest-messages", MESSAGES, COUNTS),
        misses: part("guest-to-guest-misses", MISSES, COUNTS),
        ovs: part("guest-to-guest-ovs", RATE, COUNTS),
        packed: [
            part("guest-to-guest-packed", RATE, COUNTS),
            part("guest-to-guest-packed-ratio", PACKED_RATIO, COUNTS),
        ],
        cpu: part(
            "guest-to-guest-cpu",
            CPU,
            "figure 3.11, cycles a packet of 1514 bytes: IOMMU 170 % more than no IOMMU; batched \
             flushes 60 % less than that; than with mapping counts, too, grants that are reused \
             40 % less, without reuse 475 % more",
        ),
    },
];

const SUPER_FRAME: u32 = SUPER_FRAME_LEN as u32;
const SIZES: [u32; 3] = [64, 1500, SUPER_FRAME];
/// A way of mapping: its name, mappings of a port with an IOMMU, and frames that are offered
/// together.
type Method = (&'static str, Option<Grants>, u16);
const NO_IOMMU: Method = ("no IOMMU", None, 32);
const HUGE_PAGES: Method = (
    "persistent, 2 MiB",
    Some(Grants::Persistent { huge: true }),
    32,
);
const SMALL_PAGES: Method = (
    "persistent, 4 KiB",
    Some(Grants::Persistent { huge: false }),
    32,
);
const REUSE: Method = ("reuse", Some(Grants::Reuse { drained: None }), 32);
const BATCHED: Method = ("batched", Some(Grants::Batched(64)), 64);
const STRICT: Method = ("strict", Some(Grants::Strict), 1);
const ON_DEMAND: Method = ("on demand", Some(Grants::OnDemand), 32);
/// The first is what the others are compared with.
const METHODS: [Method; 8] = [
    NO_IOMMU,
    HUGE_PAGES,
    SMALL_PAGES,
    REUSE,
    (
        "reuse, drained",
        Some(Grants::Reuse {
            drained: Some(4096),
        }),
        32,
    ),
    BATCHED,
    STRICT,
    ON_DEMAND,
];
/// Those that are measured with packed rings.
const PACKED: [Method; 3] = [NO_IOMMU, HUGE_PAGES, SMALL_PAGES];
/// Entries of a queue, as QEMU has them.
const QUEUE: u16 = 256;
const NOTES: [&str; 3] = [
    "frames go one way, from a port to the other, and one thread has both; where more are sent \
     than a receiver has mapped buffers for, the switch drops them: rates are of those that \
     arrived",
    "strict: UPDATE, frame, INVALIDATE, each answered; batched: UPDATEs of 64 frames together, \
     then INVALIDATEs for 64, neighbours in one; on demand: the switch asks (MISS), a page each; \
     reuse, drained: every page is unmapped once for 4096 frames",
    "floor: as many messages of 44 bytes as a strict frame has, answered one by one with 20 bytes \
     over a socket pair by a thread on the switch's core",
];

/// See the module.
pub(crate) fn grants(plan: &Plan) -> Result<Report> {
    let peers = [Kind::Forwarder, Kind::Ovs];
    let room_for: &[Kind] = if plan.is_of_figures() { &[] } else { &peers };
    let mut run = Run::new(plan, "grants", &NOTES, room_for);
    let lasthop = Peer::start(Kind::Lasthop, plan)?;
    let [forwarder, ovs] = if plan.is_of_figures() {
        [Ok(None), Ok(None)]
    } else {
        peers.map(|kind| started(&mut run, kind))
    };
    let (forwarder, ovs) = (forwarder?, ovs?);
    for round in 1..=plan.rounds {
        progress(&format!("grants: round {round} of {}", plan.rounds));
        wait_quiet(plan.patience / 50)?;
        for way in WAYS.iter().filter(|way| way.is_asked(plan)) {
            for size in SIZES {
                let what = format!("{}, {size} bytes", way.rate.name);
                run.attempt(&what, |run| split(run, &lasthop, way, size))?;
                if plan.is_of_figures() {
                    continue;
                }
                let what = format!("{}, {size} bytes, packed", way.rate.name);
                run.attempt(&what, |run| packed(run, &lasthop, way, size))?;
                if let Some(ovs) = &ovs {
                    beside::open_vswitch(&mut run, ovs, way, size)?;
                }
            }
        }
        if plan.is_of_figures() {
            continue;
        }
        messages::all(&mut run, &lasthop)?;
        waits::all(&mut run, &lasthop)?;
        beside::pages(&mut run, &lasthop, forwarder.as_ref())?;
    }
    Ok(run.report("Guests with an IOMMU: by the time for which a page is mapped"))
}

/// Starts a peer and takes it off its core again. Where that fails there is a note, and none.
fn started(run: &mut Run<'_>, kind: Kind) -> Result<Option<Peer>> {
    let mut peer = None;
    run.attempt(kind.name(), |run| {
        let started = Peer::with_iommu(kind, run.plan)?;
        started.freeze();
        peer = Some(started);
        Ok(())
    })?;
    Ok(peer)
}

/// All ways of mapping in turn.
fn split(run: &mut Run<'_>, peer: &Peer, way: &'static Way, size: u32) -> Result<()> {
    let parts = [&way.rate, &way.messages, &way.misses, &way.cpu];
    let mut ratios = Ratios::of(&way.ratio);
    for method in METHODS {
        let measured = (way, size, Layout::Split);
        sampled(run, peer, measured, method, |run, name, measure| {
            let mut rate = 0.0;
            run.take_all(parts, name, size.into(), || {
                let taken = measure()?;
                rate = taken.rate;
                Ok([rate, taken.messages, taken.misses, taken.cpu])
            })?;
            ratios.add(run, rate);
            Ok(())
        })?;
    }
    Ok(())
}

/// Persistent mappings with packed rings.
fn packed(run: &mut Run<'_>, peer: &Peer, way: &'static Way, size: u32) -> Result<()> {
    let [part, ratio] = &way.packed;
    let mut ratios = Ratios::of(ratio);
    for method in PACKED {
        let measured = (way, size, Layout::Packed);
        sampled(run, peer, measured, method, |run, name, measure| {
            let mut rate = 0.0;
            run.take(part, name, size.into(), || {
                rate = measure()?.rate;
                Ok(rate)
            })?;
            ratios.add(run, rate);
            Ok(())
        })?;
    }
    Ok(())
}

/// Rates by the first one. A rate of another placement has no ratio.
struct Ratios {
    part: &'static Part,
    first: Option<(f64, Option<Placement>)>,
}

impl Ratios {
    fn of(part: &'static Part) -> Self {
        Self { part, first: None }
    }

    /// The rate is that of the last sample.
    fn add(&mut self, run: &mut Run<'_>, rate: f64) {
        let placement = run.placement();
        let (first, place) = *self.first.get_or_insert((rate, placement));
        if place == placement {
            run.add(self.part, 100.0 * rate / first);
        }
    }
}

/// One measurement, each number for a frame that arrived but for the rate.
struct Taken {
    rate: f64,
    messages: f64,
    misses: f64,
    cpu: f64,
}

/// Connects a client that maps by a method, and has a sample of it taken.
fn sampled(
    run: &mut Run<'_>,
    peer: &Peer,
    (way, size, layout): (&'static Way, u32, Layout),
    (name, mode, batch): Method,
    take: impl FnOnce(&mut Run<'_>, &str, &mut dyn FnMut() -> Result<Taken>) -> Result<()>,
) -> Result<()> {
    let plan = run.plan;
    let mapped = Mapped {
        behind: way.behind,
        mode,
        batch,
        to_all: false,
    };
    let mut client = GrantsClient::connect(plan, peer, (size, QUEUE, layout), mapped)?;
    client.run(plan.settle)?;
    take(run, name, &mut || {
        let cpu = peer.cpu_seconds();
        let (rate, report) = client.run(plan.window)?;
        let cpu = peer.cpu_seconds() - cpu;
        let frames = report.received.max(1) as f64;
        let of_all = |count: fn(&LeanPort) -> u64| {
            report.ports.iter().map(count).sum::<u64>() as f64 / frames
        };
        Ok(Taken {
            rate,
            messages: of_all(|port| port.mappings),
            misses: of_all(|port| port.misses),
            cpu: 1e6 * cpu / frames,
        })
    })
}
