//! Two guests that exchange frames, super-frames or requests: alone, and beside one TCP connection
//! of two namespaces that goes through the same switch.
//!
//! ```text
//!   near0  <TAP>  the switch  <TAP>  far0           guest 1, guest 2  <queues>  the switch
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::load::lean::{Lean, LeanConfig, SUPER_FRAME_LEN, Until};
use anyhow::{Result, ensure};
use e2e::lasthop::port_table;

use super::load::Load;
use super::world::{Way, World};
use crate::clients::bulk::with_super_frames;
use crate::experiments::parts::{Bound, Part, Run};
use crate::experiments::pingpong::{talk, talking};
use crate::plan::{BEFORE, OURS, Plan};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

const PLACES: &str = "1: alone, 2: beside a TCP connection of others over TAP";
const ALONE: f64 = 1.0;
const BESIDE: f64 = 2.0;

const fn part(name: &'static str, unit: &'static str) -> Part {
    Part {
        name,
        axes: [PLACES, unit],
        published: "no figure",
    }
}

static FRAMES: Part = part("frames of 64 bytes", "Mpps, both directions");
static SUPER_FRAMES: Part = part("super-frames", "Gbit/s, both directions");
static REQUESTS: [Part; 3] = [
    part("requests, p50", "us"),
    part("requests, p99", "us"),
    part("requests, wake-ups", "wake-ups a request, all threads"),
];
/// Of the namespaces, by what the guests do meanwhile.
static OTHERS: Part = Part {
    name: "the connection of others",
    axes: [
        "1: beside frames of 64 bytes, 2: beside super-frames, 3: beside requests",
        "Gbit/s",
    ],
    published: "no figure",
};

/// The segment of the guests is not that of the namespaces.
const SEGMENT: &str = "guests";
const PORTS: [&str; 2] = ["p0", "p1"];
/// How long frames may take to arrive at first, and how long each look for them is.
const ARRIVE: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_millis(50);
const NOTES: [&str; 2] = [
    "the lean client and guests that send requests have the client's core; switch, senders and \
     receivers of the connection share both, so that what the connection gains guests may lose; \
     the wake-ups of a request beside it are those of all threads, the connection's too",
    "the connection goes from one namespace to another, over two TAP ports in a segment of theirs",
];

/// See the module.
pub(crate) fn beside(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "beside", &NOTES, &[]);
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        for (name, build) in plan.builds() {
            run.attempt(name, |run| {
                let segment = format!("[[segment]]\nname = \"{SEGMENT}\"\n");
                let ports = PORTS.map(|port| port_table(port, SEGMENT)).concat();
                let world = World::with_ports(&build, Way::of_build(name), &(segment + &ports))?;
                frames(run, name, &world)?;
                requests(run, name, &world)
            })?;
        }
    }
    if plan.before.is_some() {
        aims(&mut run);
    }
    Ok(run.report("Guests beside TCP of others over TAP"))
}

/// Takes a sample alone and one beside the connection, which is sampled, too.
fn both<const N: usize>(
    run: &mut Run<'_>,
    (name, world): (&str, &World),
    (parts, place): ([&'static Part; N], f64),
    mut measure: impl FnMut() -> Result<[f64; N]>,
) -> Result<()> {
    let settle = run.plan.settle;
    run.take_all(parts, name, ALONE, &mut measure)?;
    let mut gbit = 0.0;
    run.take_all(parts, name, BESIDE, || {
        let others = Load::TcpOut.start(world)?;
        stop::sleep(settle)?;
        let (began, before) = (Instant::now(), others.count());
        let values = measure()?;
        let count = others.count() - before;
        gbit = Load::TcpOut.per_second(count) / began.elapsed().as_secs_f64();
        others.end()?;
        Ok(values)
    })?;
    run.add_at(&OTHERS, place, gbit);
    Ok(())
}

/// The lean client with both sizes of frames.
fn frames(run: &mut Run<'_>, name: &str, world: &World) -> Result<()> {
    let plan = run.plan;
    let config = LeanConfig {
        sockets: sockets(world)?,
        cpu: Some(plan.cores[1]),
        ..LeanConfig::default()
    };
    let mut lean = connect(config.clone())?;
    both(run, (name, world), ([&FRAMES], 1.0), || {
        lean.run(Until::Elapsed(plan.settle))?;
        Ok([lean.run(Until::Elapsed(plan.window))?.mpps()])
    })?;
    // The ports must be free before they are connected again.
    drop(lean);
    let mut lean = connect(with_super_frames(config))?;
    both(run, (name, world), ([&SUPER_FRAMES], 2.0), || {
        lean.run(Until::Elapsed(plan.settle))?;
        let report = lean.run(Until::Elapsed(plan.window))?;
        let strange = report.ports.iter().any(|port| port.strange > 0);
        ensure!(!strange, "super-frames do not arrive whole");
        Ok([8e-3 * report.mpps() * f64::from(SUPER_FRAME_LEN)])
    })
}

/// Two guests that sleep: the first asks the other one.
fn requests(run: &mut Run<'_>, name: &str, world: &World) -> Result<()> {
    let plan = run.plan;
    let sockets = sockets(world)?;
    let mut guests = talking(plan, (&sockets, false))?;
    both(run, (name, world), (REQUESTS.each_ref(), 3.0), || {
        let (last, wake_ups) = talk(plan, &mut guests)?;
        Ok([last.p50_us, last.p99_us, wake_ups])
    })
}

fn sockets(world: &World) -> Result<Vec<PathBuf>> {
    PORTS.into_iter().map(|port| world.socket(port)).collect()
}

/// A client, once its frames arrive in both directions.
fn connect(config: LeanConfig) -> Result<Lean> {
    let mut lean = Lean::connect(config)?;
    stop::try_wait("frames arrive", ARRIVE, || {
        let report = lean.run(Until::Elapsed(PROBE))?;
        Ok(report
            .ports
            .iter()
            .all(|port| port.received > 0)
            .then_some(()))
    })?;
    Ok(lean)
}

/// The guests' figures beside the connection, to those with the other build.
fn aims(run: &mut Run<'_>) {
    let p99 = &REQUESTS[1];
    for (part, bound) in [
        (&FRAMES, Bound::AtLeast(0.95)),
        (&SUPER_FRAMES, Bound::AtLeast(0.95)),
        (p99, Bound::AtMost(1.0)),
    ] {
        let ratio = run.ratio(part, BESIDE, [OURS, BEFORE]);
        let what = format!("{} beside others: {OURS} to {BEFORE}", part.name);
        run.aim(&what, ratio, bound, "x");
    }
}
