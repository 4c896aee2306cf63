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
use serde::Serialize;
use testkit::lean::{Lean, LeanConfig, Until};

use self::programs::{Poll, World};
use crate::clients;
use crate::peers::lasthop as peer;
use crate::placement::{Placement, round_trip};
use crate::plan::{Layout, Plan, Traffic, progress};
use crate::report::{Body, Report};
use crate::sample::wait_quiet;
use crate::stop;

/// One part of the experiment: a table, and a plot where it has a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// The lean client over each layout.
    Layouts,
    /// By frames a wait.
    Batch,
    /// By slots of a pipe.
    Slots,
    /// By number of bridges that copy.
    Chain,
    /// Round trips.
    RoundTrips,
    /// CPU by offered load.
    Load,
    /// testpmd as a memif client.
    Memif,
    /// Connected and without traffic.
    Silent,
}

impl Part {
    pub(crate) const ALL: [Self; 8] = [
        Self::Layouts,
        Self::Batch,
        Self::Slots,
        Self::Chain,
        Self::RoundTrips,
        Self::Load,
        Self::Memif,
        Self::Silent,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Layouts => "layouts",
            Self::Batch => "batch",
            Self::Slots => "slots",
            Self::Chain => "chain",
            Self::RoundTrips => "round-trips",
            Self::Load => "load",
            Self::Memif => "memif",
            Self::Silent => "silent",
        }
    }

    /// Returns the names of a row's number and of the measured value.
    pub(crate) fn axes(self) -> [&'static str; 2] {
        match self {
            Self::Layouts => ["bytes of a frame", "Mpps"],
            Self::Batch => ["frames a wait", "Mpps"],
            Self::Slots => ["slots", "Mpps"],
            Self::Chain => ["bridges", "Mpps"],
            Self::RoundTrips => ["bytes of a frame", "microseconds, median"],
            Self::Load => ["frames a second", "CPU of all processes, % of a core"],
            Self::Memif => ["bytes of a frame", "Mpps"],
            Self::Silent => ["clients", "CPU of all processes, % of a core"],
        }
    }

    /// The paper's figures, of its machine.
    pub(crate) fn published(self) -> &'static str {
        match self {
            Self::Layouts => "no figure: the paper has no format conversion to compare with",
            Self::Batch => {
                "figure 6: VALE over 20 Mpps with large batches; figure 7: pipes over 100 Mpps \
                 between processes of the host, over 70 between VMs (i7-3770K, 60-byte frames)"
            }
            Self::Slots => {
                "figure 8: throughput falls as batches grow while the sender waits for room; longer \
                 queues raise the peak (1024, 2048, 4096 slots)"
            }
            Self::Chain => "figure 11: about 20 Mpps over one to four bridges that copy, batch 32",
            Self::RoundTrips => {
                "table 1, host to host, mean: sleeping 4.6 us (pipe) and 5.2 (VALE), busy wait 0.8 \
                 and 1.2"
            }
            Self::Load => "section 5.6 leaves it open: all or nothing, one event in 10 to 20 us",
            Self::Memif | Self::Silent => "no figure",
        }
    }
}

/// One measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) part: Part,
    /// The way of the frames.
    pub(crate) way: String,
    pub(crate) x: f64,
    pub(crate) value: f64,
    pub(crate) trips_ns: [f64; 2],
    /// `None`: the cores were at different places before and after.
    pub(crate) placement: Option<Placement>,
}

/// Takes the samples of a part, once.
type Measure = fn(&mut Run<'_>, &World<'_>) -> Result<()>;

/// Fewer samples say nothing.
const ROUNDS: u32 = 3;

pub(crate) fn netmap(plan: &Plan) -> Result<Report> {
    let mut run = Run {
        plan,
        samples: Vec::new(),
        notes: NOTES.map(str::to_owned).to_vec(),
    };
    for round in 1..=plan.rounds.max(ROUNDS) {
        progress(&format!("netmap: round {round}"));
        wait_quiet(plan.patience / 50)?;
        let parts: [(Part, Measure); 6] = [
            (Part::Batch, batches),
            (Part::Slots, slots),
            (Part::Chain, chains),
            (Part::RoundTrips, round_trips),
            (Part::Load, loads),
            (Part::Silent, silent),
        ];
        run.attempt(Part::Layouts, round, layouts)?;
        let world = World::start(plan)?;
        for (part, measure) in parts {
            run.attempt(part, round, |run| measure(run, &world))?;
        }
        drop(world);
        run.attempt(Part::Memif, round, dpdk::compare)?;
    }
    let Run { samples, notes, .. } = run;
    Ok(Report::new(
        plan,
        "netmap",
        "Processes on ports and pipes",
        notes,
        Body::Netmap { samples },
    ))
}

const NOTES: [&str; 3] = [
    "programs on ports share core 1 (but those that spin, one of which has the switch's core), and the switch has core 0; the ends of a pipe have a core \
     each; the programs of a chain run where the kernel places them",
    "slotgen's loops are those of netmap's programs: frames are not read, and a sender writes \
     slots, not bytes; testpmd's memif copies on both sides",
    "sleep: a program sleeps whenever it waits; adaptive: it looks on for as long as that has been \
     cheaper than sleeping (the default); spin: it never sleeps",
];

/// Measurements that are being taken.
pub(super) struct Run<'a> {
    plan: &'a Plan,
    samples: Vec<Sample>,
    notes: Vec<String>,
}

impl Run<'_> {
    fn attempt(
        &mut self,
        part: Part,
        round: u32,
        measure: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        stop::check()?;
        if let Err(error) = measure(self) {
            stop::check()?;
            let name = part.name();
            let failed = format!("{name} was not measured to the end in round {round}: {error:#}");
            progress(&failed);
            self.notes.push(failed);
        }
        Ok(())
    }

    /// Takes one sample.
    fn take(
        &mut self,
        part: Part,
        way: &str,
        x: f64,
        measure: impl FnOnce() -> Result<f64>,
    ) -> Result<()> {
        stop::check()?;
        let before = round_trip(self.plan.cores)?;
        let value = measure()?;
        let trips_ns = [before, round_trip(self.plan.cores)?];
        let placement = Placement::of_both(trips_ns, self.plan.near_below);
        progress(&format!(
            "netmap: {}, {way}, {x:.0}: {value:.2}",
            part.name()
        ));
        self.samples.push(Sample {
            part,
            way: way.to_owned(),
            x,
            value,
            trips_ns,
            placement,
        });
        Ok(())
    }
}

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
            run.take(Part::Layouts, layout.name(), size.into(), || {
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
            run.take(Part::Batch, way, batch.into(), take)?;
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
            run.take(Part::Slots, way, slots.into(), take)?;
        }
    }
    Ok(())
}

fn chains(run: &mut Run<'_>, world: &World) -> Result<()> {
    for bridges in 1..=programs::BRIDGES {
        for (way, over_pipes) in [("ports", false), ("pipes", true)] {
            let take = || world.chain(bridges, over_pipes);
            run.take(Part::Chain, way, bridges.into(), take)?;
        }
    }
    Ok(())
}

fn round_trips(run: &mut Run<'_>, world: &World) -> Result<()> {
    run.take(Part::RoundTrips, "eventfd, two threads", 60.0, || {
        programs::eventfd_round_trip(world.cores())
    })?;
    let way = "port, one thread has both ends";
    run.take(Part::RoundTrips, way, 60.0, || one_thread_us(world.plan()))?;
    for poll in [Poll::Sleep, Poll::Adaptive, Poll::Spin] {
        for (way, names) in [("port", world.ports()), ("pipe", world.pipe(2048))] {
            let take = || world.round_trip_us(&names, poll);
            run.take(
                Part::RoundTrips,
                &format!("{way}, {}", poll.name()),
                60.0,
                take,
            )?;
        }
    }
    Ok(())
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
            run.take(Part::Load, way, f64::from(rate), take)?;
        }
    }
    Ok(())
}

fn silent(run: &mut Run<'_>, world: &World) -> Result<()> {
    let way = "64 ports, 16 pipes";
    run.take(Part::Silent, way, 96.0, || world.silent_percent())
}
