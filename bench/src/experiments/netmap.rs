//! Processes on ports and pipes: the experiments of Garzarella, Lettieri and Rizzo, "Virtual device
//! passthrough for high speed VM networking" (ANCS 2015), sections 5.3 to 5.6, with `slotgen` in
//! place of netmap's programs, and the peers that this machine has.
//!
//! ```text
//! ports    switch on core 0, all programs on core 1      pipes   one program on each core
//! chains   all bridges together, as the kernel places them
//! ```

mod dpdk;
mod programs;

use anyhow::Result;
use load::lean::{Lean, LeanConfig, Until};

use self::programs::{Poll, World};
use super::busy::{RequestSample, Requests};
use super::parts::{Part, Run};
use crate::clients;
use crate::peers::lasthop as peer;
use crate::plan::{Layout, Plan, Traffic, progress};
use crate::report::Report;
use crate::sample::wait_quiet;

/// The lean client over each layout.
static LAYOUTS: Part = Part {
    name: "layouts",
    axes: ["bytes of a frame", "Mpps"],
    published: "no figure: the paper has no format conversion to compare with",
};
/// By frames a wait.
static BATCH: Part = Part {
    name: "batch",
    axes: ["frames a wait", "Mpps"],
    published: "figure 6: VALE over 20 Mpps with large batches; figure 7: pipes over 100 Mpps \
                between processes of the host, over 70 between VMs (i7-3770K, 60-byte frames)",
};
/// By slots of a pipe.
static SLOTS: Part = Part {
    name: "slots",
    axes: ["slots", "Mpps"],
    published: "figure 8: throughput falls as batches grow while the sender waits for room; longer \
                queues raise the peak (1024, 2048, 4096 slots)",
};
/// By number of bridges that copy.
static CHAIN: Part = Part {
    name: "chain",
    axes: ["bridges", "Mpps"],
    published: "figure 11: about 20 Mpps over one to four bridges that copy, batch 32",
};
static ROUND_TRIPS: Part = Part {
    name: "round-trips",
    axes: ["bytes of a frame", "microseconds, median"],
    published: "table 1, host to host, mean: sleeping 4.6 us (pipe) and 5.2 (VALE), busy wait 0.8 \
                and 1.2",
};
static WAKE_UPS: Part = Part {
    name: "wake-ups",
    axes: ["bytes of a frame", "wake-ups a round trip, all threads"],
    published: "no figure",
};
/// CPU by offered load.
static LOAD: Part = Part {
    name: "load",
    axes: ["frames a second", "CPU of all processes, % of a core"],
    published: "section 5.6 leaves it open: all or nothing, one event in 10 to 20 us",
};
/// testpmd as a memif client.
pub(super) static MEMIF: Part = Part {
    name: "memif",
    axes: ["bytes of a frame", "Mpps"],
    published: "no figure",
};
/// Connected and without traffic.
static SILENT: Part = Part {
    name: "silent",
    axes: ["clients", "CPU of all processes, % of a core"],
    published: "no figure",
};

/// Takes the samples of a part, once.
type Measure = fn(&mut Run<'_>, &World) -> Result<()>;

/// Fewer samples say nothing.
const ROUNDS: u32 = 3;

pub(crate) fn netmap(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "netmap", &NOTES, &[]);
    for round in 1..=plan.rounds.max(ROUNDS) {
        progress(&format!("netmap: round {round}"));
        wait_quiet(plan.patience / 50)?;
        let parts: [(&Part, Measure); 6] = [
            (&BATCH, batches),
            (&SLOTS, slots),
            (&CHAIN, chains),
            (&ROUND_TRIPS, round_trips),
            (&LOAD, loads),
            (&SILENT, silent),
        ];
        if plan.asks(LAYOUTS.name) {
            run.attempt(LAYOUTS.name, layouts)?;
        }
        let world = World::start(plan)?;
        for (part, measure) in parts.into_iter().filter(|(part, _)| plan.asks(part.name)) {
            run.attempt(part.name, |run| measure(run, &world))?;
        }
        drop(world);
        if plan.asks(MEMIF.name) {
            run.attempt(MEMIF.name, dpdk::compare)?;
        }
    }
    Ok(run.report("Processes on ports and pipes"))
}

const NOTES: [&str; 3] = [
    "programs on ports share core 1 (but those that spin, one of which has the switch's core), and the switch has core 0; the ends of a pipe have a core \
     each; the programs of a chain run where the kernel places them",
    "slotgen's loops are those of netmap's programs: frames are not read, and a sender writes \
     slots, not bytes; testpmd's memif copies on both sides",
    "sleep: a program sleeps whenever it waits; adaptive: it looks on for as long as that has been \
     cheaper than sleeping (the default); spin: it never sleeps",
];

/// The same client over each layout of the same switch.
fn layouts(run: &mut Run<'_>) -> Result<()> {
    let plan = run.plan;
    let layouts = [Layout::Split, Layout::Packed, Layout::Slots];
    for size in [64, 1500] {
        for layout in layouts {
            let peer = peer::with_layout(plan, layout)?;
            let mut client = clients::start(plan, &peer, layout, Traffic::Lean(1))?;
            client.set_size(size)?;
            client.warm_up(plan.settle)?;
            run.take(&LAYOUTS, layout.name(), size.into(), || {
                client.mpps(plan.window)
            })?;
        }
    }
    Ok(())
}

fn batches(run: &mut Run<'_>, world: &World) -> Result<()> {
    for batch in [1, 4, 16, 64, 256, 1024] {
        for (way, names) in [("port", world.ports()), ("pipe", world.pipe(2048))] {
            let take = || world.throughput(&names, batch, Poll::Adaptive);
            run.take(&BATCH, way, batch.into(), take)?;
        }
    }
    Ok(())
}

fn slots(run: &mut Run<'_>, world: &World) -> Result<()> {
    for slots in [256, 1024, 2048, 4096] {
        for (way, batch, poll) in [
            ("batch 64, adaptive", 64, Poll::Adaptive),
            ("batch 64, sleep", 64, Poll::Sleep),
            ("batch 256, sleep", 256, Poll::Sleep),
        ] {
            let take = || world.throughput(&world.pipe(slots), batch, poll);
            run.take(&SLOTS, way, slots.into(), take)?;
        }
    }
    Ok(())
}

fn chains(run: &mut Run<'_>, world: &World) -> Result<()> {
    for bridges in 1..=programs::BRIDGES {
        for (way, over_pipes) in [("ports", false), ("pipes", true)] {
            let take = || world.chain(bridges, over_pipes);
            run.take(&CHAIN, way, bridges.into(), take)?;
        }
    }
    Ok(())
}

fn round_trips(run: &mut Run<'_>, world: &World) -> Result<()> {
    run.take(&ROUND_TRIPS, "eventfd, two threads", 60.0, || {
        programs::eventfd_round_trip(world.cores())
    })?;
    let way = "port, one thread has both ends";
    run.take(&ROUND_TRIPS, way, 60.0, || one_thread_us(world.plan()))?;
    for poll in [Poll::Sleep, Poll::Adaptive, Poll::Spin] {
        for (way, names) in [("port", world.ports()), ("pipe", world.pipe(2048))] {
            let way = format!("{way}, {}", poll.name());
            run.take_all([&ROUND_TRIPS, &WAKE_UPS], &way, 60.0, || {
                let asked = world.round_trips(&names, poll)?;
                Ok([asked.p50_us, asked.wake_ups])
            })?;
        }
    }
    Ok(())
}

/// Round trips over ports of a Lasthop of their own.
pub(super) struct Pings(World);

impl Pings {
    pub(super) fn start(plan: &Plan) -> Result<Self> {
        Ok(Self(World::start(plan)?))
    }
}

impl Requests for Pings {
    fn ask(&mut self) -> Result<RequestSample> {
        self.0.round_trips(&self.0.ports(), Poll::Adaptive)
    }
}

/// The round trip of a frame through the switch in microseconds, without a third core: one thread
/// polls both ports, and each has one frame on its way.
fn one_thread_us(plan: &Plan) -> Result<f64> {
    let peer = peer::with_layout(plan, Layout::Slots)?;
    let mut lean = Lean::connect(LeanConfig {
        sockets: peer.sockets().to_vec(),
        slots: true,
        batch: 1,
        window: Some(1),
        cpu: Some(plan.cores[1]),
        ..LeanConfig::default()
    })?;
    lean.run(Until::Elapsed(plan.settle))?;
    let ways = lean.run(Until::Elapsed(plan.window))?.mpps() / 2.0;
    Ok(2.0 / ways)
}

fn loads(run: &mut Run<'_>, world: &World) -> Result<()> {
    for rate in [1_000, 10_000, 100_000, 1_000_000, 4_000_000] {
        for (way, names) in [("port", world.ports()), ("pipe", world.pipe(2048))] {
            let take = || world.cpu_at(&names, rate);
            run.take(&LOAD, way, f64::from(rate), take)?;
        }
    }
    Ok(())
}

fn silent(run: &mut Run<'_>, world: &World) -> Result<()> {
    let way = "64 ports, 16 pipes";
    run.take(&SILENT, way, 96.0, || world.silent_percent())
}
