//! Effect of the notification rules on guests that compute, are interrupted and sleep, each rule
//! alone and all together, beside a switch that polls and one that uses notifications alone. It has
//! some points of figures 4.9, 4.10, 4.11 and 4.13 of the Hyper-Switch (section 4.5.2).
//!
//! A switch that polls has one core, the guests share the others. Lasthop runs wherever the kernel
//! places it, as by default, or on that one core. Guests are threads that cost the scheduler and
//! the switch as much as vCPUs do (`load::vcpu`).

mod tables;

use std::time::Duration;

use anyhow::Result;
use load::vcpu::{MIN_PAYLOAD, Task};

use super::throughput::Run;
use crate::clients::Client as _;
use crate::clients::guests::Guests;
use crate::peers::{Kind, Peer, lasthop};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::Cell;
use crate::stop;

use tables::Exchanges;

/// How Lasthop is set up.
struct Setting {
    name: &'static str,
    /// On the switch's core alone, or wherever the kernel likes.
    own_core: bool,
    /// In the tables of the switch.
    keys: &'static str,
}

/// The line by which a setting does without vCPU states.
const STATES_OFF: &str = "guest_state = \"off\"";
const OFF: &str = "guest_state = \"off\"\n\n[switch.coalescing]\nenabled = false\n";
/// Without any rule: others are compared with these.
const RULES_OFF: &str = "Lasthop, rules off";
const OWN_CORE_RULES_OFF: &str = "Lasthop on a core, rules off";
const OWN_CORE: &str = "Lasthop on a core";

const SETTINGS: [Setting; 5] = [
    Setting {
        name: RULES_OFF,
        own_core: false,
        keys: OFF,
    },
    Setting {
        name: "Lasthop, kicks held",
        own_core: false,
        keys: "\n[switch.coalescing]\nframes = 1\n",
    },
    Setting {
        name: "Lasthop",
        own_core: false,
        keys: "",
    },
    Setting {
        name: OWN_CORE_RULES_OFF,
        own_core: true,
        keys: OFF,
    },
    Setting {
        name: OWN_CORE,
        own_core: true,
        keys: "",
    },
];

/// Returns the series that a setting is compared with; itself if none.
fn base(series: &str) -> &'static str {
    if [OWN_CORE, OWN_CORE_RULES_OFF].contains(&series) {
        OWN_CORE_RULES_OFF
    } else {
        RULES_OFF
    }
}

const PEERS: [Kind; 2] = [Kind::Ovs, Kind::Bridge];
/// Guests that take part at least.
const GUESTS: usize = 4;
/// Bytes on their way to a guest: what Linux begins to have for a fast connection.
const WINDOW: usize = 256 << 10;
/// Until the first answer or acknowledgement: a switch may take its time to notice a port.
const ARRIVE: Duration = Duration::from_secs(20);
/// Time within which a guest's threads are known.
const FOUND: Duration = Duration::from_secs(20);

const COSTS: &str = "Guests are threads that spend a microsecond on a kick, on an interrupt and on \
    each frame sent or received, \
    beside the system calls that they make in any case; those of a bridge write to and read from \
    TAP devices and have no kicks";
const WINDOWS: &str = "A stream has 256 KiB on its way at most, acknowledged every second frame. \
    OVS-DPDK and the bridge have no \
    rows of streams: 'bulk' and 'external' are about those";

/// Tasks of guests, and the measure of the result.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    group: Group,
    name: String,
    x: f64,
    /// Of the first guests; the others serve.
    tasks: Vec<Task>,
}

/// Scenarios of one plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Requests,
    Streams,
    Load,
    Scaling,
}

/// See the module.
pub(crate) fn scheduling(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "scheduling", &PEERS);
    run.note(COSTS);
    run.note(WINDOWS);
    let cores = plan.guest_cores();
    let guests = GUESTS.max(cores.len() / 2 * 2);
    let mut contenders = start(&mut run, plan, &cores, guests)?;
    let all = scenarios(plan, guests).into_iter();
    for scenario in all.filter(|scenario| plan.asks(&scenario.name)) {
        turns(&mut run, plan, &mut contenders, &scenario)?;
    }
    let title = "Guests that compute and sleep: what the rules do for them";
    Ok(run.report(title, |samples| Exchanges { samples }))
}

struct Contender {
    name: &'static str,
    guests: Guests,
    peer: Peer,
}

impl Contender {
    fn takes(&self, scenario: &Scenario) -> bool {
        self.peer.kind() == Kind::Lasthop || matches!(scenario.group, Group::Requests | Group::Load)
    }
}

fn start(run: &mut Run<'_>, plan: &Plan, cores: &[usize], guests: usize) -> Result<Vec<Contender>> {
    let mut contenders = Vec::new();
    let ours = SETTINGS
        .iter()
        .map(|setting| (setting.name, Some(setting), Kind::Lasthop));
    let theirs = PEERS.iter().map(|kind| (kind.name(), None, *kind));
    for (group, (name, setting, kind)) in ours.chain(theirs).enumerate() {
        progress(&format!("scheduling: {name} starts"));
        let started = match setting {
            Some(setting) => {
                let cores = if setting.own_core {
                    &plan.cores[..1]
                } else {
                    &[]
                };
                lasthop::with_guests(plan, cores, (group, guests), setting.keys)
            }
            None => Peer::start(kind, plan),
        };
        let attached = started.and_then(|peer| {
            let guests = Guests::attach(&peer, group, cores)?;
            if let Some(setting) = setting {
                let known = || lasthop::follows(&peer, !setting.keys.contains(STATES_OFF));
                stop::try_wait("threads of guests are found", FOUND, known)?;
            }
            peer.freeze();
            Ok(Contender { name, guests, peer })
        });
        match attached {
            Ok(contender) => contenders.push(contender),
            Err(error) => {
                stop::check()?;
                run.leave_out(format!("{name}: {error:#}"));
            }
        }
    }
    Ok(contenders)
}

/// Samples of all contenders in turn.
fn turns(
    run: &mut Run<'_>,
    plan: &Plan,
    contenders: &mut [Contender],
    scenario: &Scenario,
) -> Result<()> {
    let mut taking: Vec<_> = contenders
        .iter_mut()
        .filter(|contender| contender.takes(scenario))
        .collect();
    for contender in &mut taking {
        contender.guests.set(scenario.tasks.clone());
        contender.peer.thaw();
        stop::try_wait("guests receive each other's frames", ARRIVE, || {
            contender.guests.warm_up(plan.settle)?;
            Ok(contender.guests.heard().then_some(()))
        })?;
        contender.peer.freeze();
    }
    for round in 1..=2 * plan.rounds {
        let cell = |name: &str| cell(scenario, name);
        let enough = |contender: &&mut Contender| {
            run.has_enough(contender.peer.kind(), &cell(contender.name))
        };
        if taking.iter().all(enough) {
            break;
        }
        for Contender { name, guests, peer } in taking.iter_mut().map(|one| &mut **one) {
            run.sample(peer, guests, &cell(name), round)?;
        }
    }
    Ok(())
}

fn cell(scenario: &Scenario, contender: &str) -> Cell {
    Cell {
        name: scenario.name.clone(),
        series: contender.to_owned(),
        x: scenario.x,
    }
}

fn scenarios(plan: &Plan, guests: usize) -> Vec<Scenario> {
    let pick = |quick: &'static [usize], full: &'static [usize]| {
        (if plan.quick { quick } else { full }).iter().copied()
    };
    let mut all = Vec::new();
    for outstanding in pick(&[1, 32], &[1, 8, 32]) {
        all.extend(
            pick(&[64, 1024], &[64, 256, 512, 1024])
                .map(|payload| requests(outstanding as u32, payload)),
        );
    }
    all.extend(pick(&[64, 1460, 60_000], &[64, 512, 1460, 8192, 60_000]).map(stream));
    all.extend(
        pick(
            &[1000, 5000, 20_000],
            &[1000, 2500, 5000, 10_000, 20_000, 50_000],
        )
        .map(load),
    );
    let mut pairs = 2;
    while 2 * pairs <= guests {
        all.push(pairwise(pairs));
        pairs *= 2;
    }
    // The last has all guests.
    let mut number = GUESTS;
    while number < guests {
        all.push(all_to_all(number));
        number *= 2;
    }
    all.push(all_to_all(guests));
    all
}

fn requests(outstanding: u32, payload: usize) -> Scenario {
    Scenario {
        group: Group::Requests,
        name: format!("requests, {outstanding} at once, {payload} B"),
        x: payload as f64,
        tasks: vec![Task::Request {
            peer: 2,
            outstanding,
            payload,
        }],
    }
}

fn stream(payload: usize) -> Scenario {
    Scenario {
        group: Group::Streams,
        name: format!("stream, {payload} B"),
        x: payload as f64,
        tasks: vec![stream_to(vec![2], payload)],
    }
}

fn stream_to(peers: Vec<u8>, payload: usize) -> Task {
    Task::Stream {
        peers,
        payload,
        window: WINDOW,
    }
}

fn load(rate: usize) -> Scenario {
    Scenario {
        group: Group::Load,
        name: format!("load, {rate} requests a second"),
        x: rate as f64,
        tasks: vec![Task::Pace {
            peer: 2,
            rate: rate as f64,
            payload: MIN_PAYLOAD.max(64),
        }],
    }
}

/// Every second guest sends to the one after it.
fn pairwise(pairs: usize) -> Scenario {
    let one = |pair: usize| [stream_to(vec![2 * pair as u8 + 2], 1460), Task::Serve];
    Scenario {
        group: Group::Scaling,
        name: format!("streams, {pairs} pairs, 1460 B"),
        x: pairs as f64,
        tasks: (0..pairs).flat_map(one).collect(),
    }
}

/// Every one of the first guests sends to all others of them.
fn all_to_all(guests: usize) -> Scenario {
    let numbers = || 1..=guests as u8;
    let others = |me: u8| numbers().filter(|peer| *peer != me).collect();
    Scenario {
        group: Group::Scaling,
        name: format!("streams, all of {guests} guests to all, 1460 B"),
        x: guests as f64,
        tasks: numbers().map(|me| stream_to(others(me), 1460)).collect(),
    }
}
