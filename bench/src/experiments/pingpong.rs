//! Round trips of one frame between two guests, that sleep or poll, through a switch that sleeps or
//! polls: the rows of table 1 of Garzarella, Lettieri and Rizzo (ANCS 2015) between guests.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::lasthop::port_table;
use load::lean::{Lean, LeanConfig, Until};
use load::vcpu::{Costs, MIN_PAYLOAD, Task};

use super::busy::{RequestSample, Requests};
use super::parts::{Part, Run};
use crate::clients::guests::{Guests, Shape};
use crate::clients::{Client as _, Exchange, lean};
use crate::peers::{Kind, Peer, lasthop};
use crate::plan::{Layout, Plan, progress};
use crate::process::wake_ups;
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static PING_PONG: Part = Part {
    name: "ping-pong",
    axes: ["1: guests sleep, 2: guests poll", "microseconds, mean"],
    published: "table 1, guest to guest over VALE, mean: 24.6 us where both sleep, 2.1 us where \
                both poll",
};

static WAKE_UPS: Part = Part {
    name: "wake-ups",
    axes: [
        "1: guests sleep, 2: guests poll",
        "wake-ups a round trip, all threads",
    ],
    published: "no figure",
};

const SLEEP: f64 = 1.0;
const POLL: f64 = 2.0;
/// Names of the switches.
pub(crate) const ADAPTIVE: &str = "Lasthop";
pub(crate) const ALWAYS: &str = "Lasthop, polls always";
/// Until the first answer: a switch may take its time to notice a port.
const ARRIVE: Duration = Duration::from_secs(30);
const NO_COSTS: Costs = Costs {
    exit: Duration::ZERO,
    interrupt: Duration::ZERO,
    frame: Duration::ZERO,
};
const NOTES: [&str; 2] = [
    "guests that sleep are a thread each, on the client's core; they spend nothing beside their \
     system calls, and a wake-up of an idle thread is no exit from a virtual machine",
    "guests that poll are one thread that polls both ports and has one frame on its way, so a \
     round trip is two ways through the switch",
];

/// See the module.
pub(crate) fn ping_pong(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "pingpong", &NOTES, &[Kind::Ovs]);
    let switches = [
        (ADAPTIVE, None),
        (ALWAYS, None),
        (Kind::Ovs.name(), Some(Kind::Ovs)),
    ];
    for (name, kind) in switches {
        run.attempt(name, |run| {
            progress(&format!("pingpong: {name} starts"));
            wait_quiet(plan.patience / 50)?;
            let peer = match kind {
                Some(kind) => Peer::learning(kind, plan, 2)?,
                None => {
                    let text = configuration(name == ALWAYS);
                    lasthop::with_text(plan, &plan.cores[..1], &text, 2)?
                }
            };
            sleeping(run, name, &peer)?;
            polling(run, name, &peer)
        })?;
    }
    Ok(run.report("Round trips between guests that sleep and that poll"))
}

fn configuration(polls: bool) -> String {
    let poll = if polls { "poll = \"always\"\n" } else { "" };
    let ports = ["p0", "p1"].map(|name| port_table(name, "default"));
    format!("[switch]\nname = \"bench\"\n{poll}{}", ports.concat())
}

fn sleeping(run: &mut Run<'_>, name: &str, peer: &Peer) -> Result<()> {
    let plan = run.plan;
    let mut guests = talking(plan, (peer.sockets(), peer.client_listens()))?;
    for _ in 0..plan.rounds {
        run.take_all([&PING_PONG, &WAKE_UPS], name, SLEEP, || {
            let (last, wake_ups) = talk(plan, &mut guests)?;
            Ok([1e6 / last.answers, wake_ups])
        })?;
    }
    Ok(())
}

/// Guests at two sockets, where they listen or the switch does; the first asks the other one.
pub(super) fn talking(plan: &Plan, sockets: (&[PathBuf], bool)) -> Result<Guests> {
    let shape = Shape {
        costs: NO_COSTS,
        ..Shape::default()
    };
    let mut guests = Guests::at_sockets(sockets, 0, &plan.cores[1..], shape)?;
    guests.set(vec![Task::Request {
        peer: 2,
        outstanding: 1,
        payload: MIN_PAYLOAD,
    }]);
    stop::try_wait("answers arrive", ARRIVE, || {
        guests.warm_up(plan.settle)?;
        Ok(guests.heard().then_some(()))
    })?;
    Ok(guests)
}

/// Lets them talk for the time of a sample. Returns also how often threads slept for each answer.
pub(super) fn talk<'a>(plan: &Plan, guests: &'a mut Guests) -> Result<(&'a Exchange, f64)> {
    let before = wake_ups();
    guests.mpps(plan.window)?;
    let slept = wake_ups().saturating_sub(before) as f64;
    let last = guests.exchange().context("guests that ran")?;
    ensure!(last.answers > 0.0, "no answer arrived");
    Ok((last, slept / (last.answers * plan.window.as_secs_f64())))
}

/// Guests that sleep, at a Lasthop of their own.
pub(super) struct Sleeping {
    plan: Plan,
    guests: Guests,
    _peer: Peer,
}

impl Sleeping {
    /// With the worker on these cores.
    pub(super) fn start(plan: &Plan, cores: &[usize]) -> Result<Self> {
        let peer = lasthop::with_text(plan, cores, &configuration(false), 2)?;
        Ok(Self {
            plan: plan.clone(),
            guests: talking(plan, (peer.sockets(), false))?,
            _peer: peer,
        })
    }
}

impl Requests for Sleeping {
    fn ask(&mut self) -> Result<RequestSample> {
        let (last, wake_ups) = talk(&self.plan, &mut self.guests)?;
        Ok(RequestSample {
            a_second: last.answers,
            p50_us: last.p50_us,
            p99_us: last.p99_us,
            wake_ups,
        })
    }
}

fn polling(run: &mut Run<'_>, name: &str, peer: &Peer) -> Result<()> {
    let plan = run.plan;
    let mut client = Lean::connect(LeanConfig {
        batch: 1,
        window: Some(1),
        timeout: ARRIVE,
        ..lean::config(plan, peer, Layout::Split)
    })?;
    stop::try_wait("frames arrive", ARRIVE, || {
        let report = client.run(Until::Elapsed(plan.settle))?;
        Ok((report.received > 0).then_some(()))
    })?;
    for _ in 0..plan.rounds {
        run.take(&PING_PONG, name, POLL, || {
            let mpps = client.run(Until::Elapsed(plan.window))?.mpps();
            ensure!(mpps > 0.0, "no frame arrived");
            // Two frames are on their way, one in each direction.
            Ok(2.0 * 2.0 / mpps)
        })?;
    }
    Ok(())
}
