//! Ports that lead to interfaces of the host: a network namespace with a TAP interface talks
//! through each switch with another one, over a TAP interface or over a veth pair, with the same
//! sockets.

pub(crate) mod beside;
pub(crate) mod breakdown;
mod guests;
mod load;
pub(crate) mod one_thread;
mod requests;
mod tables;
mod world;

use std::time::Instant;

use ::load::lean::Histogram;
use anyhow::{Context as _, Result};
use serde::Serialize;

use self::guests::Guests;
pub(crate) use self::load::{Load, over};
use self::tables::Ways;
use self::world::Used;
pub(crate) use self::world::{FAR, NEAR, Namespace, Way, World};
use super::busy::{RequestSample, Requests};
use crate::hugepages::HugePages;
use crate::peers::Kind;
use crate::placement::{Placement, round_trip};
use crate::plan::{Plan, progress};
use crate::process::wake_ups;
use crate::report::Report;
use crate::sample::wait_quiet;

/// One way through one switch, with one kind of traffic.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) way: Way,
    pub(crate) load: Load,
    /// Samples of one round are taken one after the other.
    pub(crate) round: u32,
    /// Gbit/s of TCP, thousands of packets a second, or transactions a second.
    pub(crate) value: f64,
    /// Of requests: the median and the 99th percentile, in microseconds.
    pub(crate) latency_us: Option<[f64; 2]>,
    /// Of a request: how often threads of the switch and of the two programs went to sleep.
    pub(crate) wake_ups: Option<f64>,
    /// Of a core, what all processes of the switch used.
    pub(crate) switch_percent: f64,
    /// Of a core, what the process between switch and interface used, where there is one.
    pub(crate) driver_percent: Option<f64>,
    pub(crate) trips_ns: [f64; 2],
    /// `None` when it changed meanwhile, or another process used the machine: the sample does not
    /// count.
    pub(crate) placement: Option<Placement>,
}

/// Samples of each cell with near cores: fewer say nothing where everything shares two cores.
const SAMPLES: usize = 5;
/// Longer than any cache line takes, in nanoseconds: another process was on a core.
const DISTURBED: f64 = 500.0;

pub(crate) fn external(plan: &Plan) -> Result<Report> {
    let (mut samples, mut notes) = (Vec::new(), Vec::new());
    let pages = HugePages::reserve(Kind::Ovs.huge_pages());
    if let Err(error) = &pages {
        notes.push(format!("no huge pages, so no guests at OVS: {error:#}"));
    }
    let (ways, missing) = here(plan);
    let (rounds, most) = if plan.exact {
        (plan.rounds, plan.rounds)
    } else {
        let rounds = plan.rounds.max(SAMPLES as u32);
        (rounds, 2 * rounds)
    };
    for round in 1..=most {
        if round > rounds && has_enough(&samples) {
            break;
        }
        for &way in &ways {
            match one_way(plan, (way, round), &mut samples) {
                Ok(()) => progress(&format!("external: round {round}, {way:?}")),
                Err(error) => {
                    crate::stop::check()?;
                    let failed = format!("{way:?} was not measured in round {round}: {error:#}");
                    progress(&failed);
                    notes.push(failed);
                }
            }
        }
    }
    notes.extend(NOTES.map(str::to_owned));
    Ok(Report::new(
        plan,
        "external",
        "Interfaces of the host: two network namespaces talk through each switch",
        notes,
        Ways { samples, missing },
    ))
}

/// A way that cannot be measured here, and the reason.
pub(crate) type Missing = (Way, String);

/// The ways that can be measured here, and the others.
fn here(plan: &Plan) -> (Vec<Way>, Vec<Missing>) {
    let (mut ways, mut missing) = (Vec::new(), Vec::new());
    let of_figures = |way: &Way| !plan.is_of_figures() || Way::OF_FIGURES.contains(way);
    for way in Way::ALL.into_iter().filter(of_figures) {
        match way.missing(plan) {
            None => ways.push(way),
            Some(reason) => missing.push((way, reason)),
        }
    }
    (ways, missing)
}

/// Returns whether all that was measured has enough samples with near cores. A machine whose cores
/// are always far has none, and takes as many rounds as it was to take.
fn has_enough(samples: &[Sample]) -> bool {
    let near = |sample: &&Sample| sample.placement == Some(Placement::Near);
    let enough = |cell: &Sample| {
        let same = |sample: &&Sample| sample.way == cell.way && sample.load == cell.load;
        samples.iter().filter(same).filter(near).count() >= SAMPLES
    };
    !samples.iter().any(|sample| near(&sample)) || samples.iter().all(enough)
}

const NOTES: [&str; 9] = [
    "out is from the namespace behind the switch's TAP interface, in is to it; one TCP connection, \
     or UDP packets of 64 bytes on the \
     wire, of which those count that arrive",
    "two guests exchange frames as fast as they can (both directions added): what the one sends \
     leaves by one interface and comes \
     back by the other, the two ends of a veth pair, or two TAP interfaces and a kernel bridge; \
     here OVS has DPDK, a polling \
     thread for the guests on core 0 and its main thread for the interfaces; the client polls on \
     core 1",
    "senders, receivers, switch and drivers share the machine's cores, and the kernel's work for \
     them counts as theirs",
    "OVS is its userspace datapath without DPDK, with userspace-tso-enable, an internal port, and \
     the same end of the veth pair or \
     another internal port",
    "the bridge has no process at all: its namespace is behind a second veth pair, as behind TAP \
     there would have to be one",
    "OVS-DPDK polls two veth pairs through DPDK's packet sockets on core 0, with checksum offload \
     of the two interfaces off, which those sockets do not know",
    "a request is a packet of 64 bytes over UDP or as much payload over TCP, from the namespace \
     behind the switch's TAP interface, and its answer is the same; one at a time",
    "requests at a rate are sent by a timer, and times are those from sending to the answer",
    "one thread is a program that reads from one TAP device, writes to the other, and decides \
     nothing; the other build is that of --before",
];

/// Counts of an interval.
struct Measured {
    count: u64,
    seconds: f64,
    before: Used,
    after: Used,
    latency: Histogram,
    wake_ups: u64,
}

impl Measured {
    /// The median and the 99th percentile of requests.
    fn latency_us(&self) -> Option<[f64; 2]> {
        let quantile = |share| self.latency.quantile(share) as f64 / 1e3;
        (self.latency.count() > 0).then(|| [0.5, 0.99].map(quantile))
    }
}

/// All traffic over a switch that is started for it.
fn one_way(plan: &Plan, (way, round): (Way, u32), samples: &mut Vec<Sample>) -> Result<()> {
    wait_quiet(plan.patience / 100)?;
    let world = World::start(plan, way)?;
    let asked = |load: &Load| plan.asks(load.name());
    for load in Load::SOCKETS.into_iter().filter(asked) {
        samples.push(sample(plan, (way, round), load, || {
            between_sockets(plan, load, &world)
        })?);
    }
    drop(world);
    if Guests::suit(way) && plan.asks(Load::Guests.name()) {
        let mut guests = Guests::start(plan, way)?;
        let measured = sample(plan, (way, round), Load::Guests, || {
            between_guests(plan, &mut guests)
        })?;
        samples.push(measured);
    }
    Ok(())
}

fn between_sockets(plan: &Plan, load: Load, world: &World) -> Result<Measured> {
    let traffic = load.start(world)?;
    crate::stop::sleep(plan.settle)?;
    let _ = traffic.take_latency();
    let slept = wake_ups();
    let (start, before, count) = (Instant::now(), world.cpu_seconds(), traffic.count());
    crate::stop::sleep(plan.window)?;
    let measured = Measured {
        seconds: start.elapsed().as_secs_f64(),
        count: traffic.count().saturating_sub(count),
        before,
        after: world.cpu_seconds(),
        latency: traffic.take_latency(),
        wake_ups: wake_ups().saturating_sub(slept),
    };
    traffic.end()?;
    Ok(measured)
}

/// Two namespaces at a switch: one asks the other.
pub(super) struct Namespaces {
    plan: Plan,
    world: World,
    load: Load,
}

impl Namespaces {
    pub(super) fn start(plan: &Plan, way: Way, load: Load) -> Result<Self> {
        Ok(Self {
            plan: plan.clone(),
            world: World::start(plan, way)?,
            load,
        })
    }
}

impl Requests for Namespaces {
    fn ask(&mut self) -> Result<RequestSample> {
        let measured = between_sockets(&self.plan, self.load, &self.world)?;
        let [p50_us, p99_us] = measured.latency_us().context("no answer arrived")?;
        Ok(RequestSample {
            a_second: measured.count as f64 / measured.seconds,
            p50_us,
            p99_us,
            wake_ups: measured.wake_ups as f64 / measured.count.max(1) as f64,
        })
    }
}

fn between_guests(plan: &Plan, guests: &mut Guests) -> Result<Measured> {
    guests.exchange(plan.settle)?;
    let (start, before) = (Instant::now(), guests.cpu_seconds());
    let count = guests.exchange(plan.window)?;
    Ok(Measured {
        seconds: start.elapsed().as_secs_f64(),
        count,
        before,
        after: guests.cpu_seconds(),
        latency: Histogram::default(),
        wake_ups: 0,
    })
}

fn sample(
    plan: &Plan,
    (way, round): (Way, u32),
    load: Load,
    measure: impl FnOnce() -> Result<Measured>,
) -> Result<Sample> {
    let before_ns = round_trip(plan.cores)?;
    let measured = measure()?;
    let trips_ns = [before_ns, round_trip(plan.cores)?];
    let placement = Placement::of_both(trips_ns, plan.near_below);
    let Measured {
        count,
        seconds,
        before,
        after,
        wake_ups,
        ..
    } = measured;
    let percent = |now: f64, before: f64| 100.0 * (now - before) / seconds;
    Ok(Sample {
        way,
        load,
        round,
        value: load.per_second(count) / seconds,
        latency_us: measured.latency_us(),
        wake_ups: (load.is_requests() && count > 0).then(|| wake_ups as f64 / count as f64),
        switch_percent: percent(after.switch, before.switch),
        driver_percent: after.driver.zip(before.driver).map(|(a, b)| percent(a, b)),
        trips_ns,
        placement: placement.filter(|_| trips_ns.iter().all(|ns| *ns < DISTURBED)),
    })
}
