//! Guests of real KVM behind the rules for notifications: how long an interrupt and its answer take
//! where KVM polls before it lets a vCPU sleep, how many interrupts a guest gets that works, and
//! what the BPF programs cost the host.
//!
//! The guest is a few instructions of real mode (`testkit::kvm`), which runs where no kernel boots,
//! too. Contenders take turns: this build, this build without vCPU states, and another build if one
//! is named (`--before`).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::statistics::percentile;
use rustix::thread::{CpuSet, sched_setaffinity};
use testkit::kvm::{KvmGuest, KvmGuestConfig};
use testkit::net::NetHeader;
use testkit::packets::{Flow, udp};
use testkit::{FakeGuest, GuestConfig};

use super::parts::{Bound, Part, Run};
use crate::peers::Peer;
use crate::peers::lasthop::{self, Lasthop, port_shown};
use crate::plan::{BEFORE, OURS, Plan, progress};
use crate::report::Report;
use crate::stop;

mod load;
mod price;
pub(crate) mod tap;

const OFF: &str = "states off";

/// Nanoseconds for which KVM polls at most, and their names; none is the host's default, with
/// KVM's own growth.
const POLLS: [(Option<u32>, &str); 4] = [
    (Some(0), "no polling"),
    (Some(50_000), "polls 50 us"),
    (Some(200_000), "polls 200 us"),
    (None, "the host's polling"),
];
/// Microseconds between an answer and the next frame.
const PAUSES: [u64; 6] = [0, 20, 60, 120, 200, 1000];
/// Time within which each event comes.
const LIMIT: Duration = Duration::from_secs(2);
/// Time in which all contenders' guests do nothing before a sample, those without a search, too.
const SETTLES: Duration = Duration::from_millis(500);
/// Exchanges before a sample without pauses, and with them: the kernel places the worker beside the
/// vCPU or on another core, where it mostly stays for a while, and KVM learns how long to poll.
const WARM_UP: [usize; 2] = [4000, 100];
/// Within which the threads of guests are known.
const FOUND: Duration = Duration::from_secs(20);
const NOTES: [&str; 3] = [
    "the guest is a few instructions of real mode, which this KVM may emulate, about a microsecond \
     each; all its vCPUs have the client's core, front end and clock the switch's, and the switch \
     is wherever the kernel places it",
    "idle: from a frame's transmission by a front end to the guest's answer, a port write of its \
     interrupt handler; sends: from an order, an interrupt, to the frame's arrival at a front end \
     that sleeps",
    "'before' is the build that --before names",
];

/// A build with a setting, and its switch with two ports.
struct Contender {
    name: &'static str,
    group: usize,
    peer: Peer,
}

/// See the module.
pub(crate) fn kvm(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "kvm", &NOTES, &[]);
    let contenders = start(plan, &[])?;
    own_core(plan)?;
    for (poll, polling) in POLLS {
        for vcpus in [1, 2, 4] {
            if plan.asks("idle") {
                idle(&mut run, &contenders, (poll, polling), vcpus)?;
            }
        }
        if plan.asks("sends") {
            sends(&mut run, &contenders, (poll, polling))?;
        }
        if plan.asks("works") {
            load::works(&mut run, &contenders, (poll, polling))?;
        }
        if plan.asks("half") {
            load::half(&mut run, &contenders, (poll, polling))?;
        }
    }
    if plan.asks("neighbour") {
        load::beside_a_neighbour(&mut run, &contenders)?;
    }
    if plan.asks("price")
        && let Some(ours) = contenders.iter().find(|one| one.name == OURS)
    {
        price::price(&mut run, ours)?;
    }
    drop(contenders);
    for (cores, place) in [
        (&plan.cores[..1], "a core of its own"),
        (&plan.cores[1..], "theirs"),
    ] {
        if plan.asks("ping-pong") {
            let contenders = start(plan, cores)?;
            load::ping_pong(&mut run, &contenders, place)?;
        }
    }
    Ok(run.report("Guests of KVM that idle, send and work"))
}

/// Starts a switch for each contender, on these cores or wherever the kernel likes.
fn start(plan: &Plan, cores: &[usize]) -> Result<Vec<Contender>> {
    let before = plan.before.as_deref();
    let all = [
        (before, BEFORE, ""),
        (Some(plan.bin.as_path()), OFF, "guest_state = \"off\"\n"),
        (Some(plan.bin.as_path()), OURS, ""),
    ];
    let mut contenders = Vec::new();
    for (group, (bin, name, keys)) in all.into_iter().enumerate() {
        if let Some(bin) = bin {
            progress(&format!("kvm: {name} starts"));
            let peer = start_one(plan, bin, cores, (group, keys))?;
            contenders.push(Contender { name, group, peer });
        }
    }
    Ok(contenders)
}

fn start_one(
    plan: &Plan,
    bin: &Path,
    cores: &[usize],
    (group, keys): (usize, &str),
) -> Result<Peer> {
    let plan = Plan {
        bin: bin.to_owned(),
        ..plan.clone()
    };
    lasthop::with_guests(&plan, cores, (group, 2), keys)
}

/// A part of this experiment; there are a few dozen in a run.
fn part(name: String, axes: [&'static str; 2]) -> &'static Part {
    Box::leak(Box::new(Part {
        name: name.leak(),
        axes,
        published: "no figure",
    }))
}

/// Keeps this thread on the switch's core, and lets it sleep for as long as it wants to: by default
/// it is 50 us longer.
fn own_core(plan: &Plan) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(plan.cores[0]);
    sched_setaffinity(None, &only)?;
    // SAFETY: the call sets a number of the calling thread.
    let set = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    ensure!(set == 0, "timers are coarse");
    Ok(())
}

/// A guest of KVM on the first port of a contender, and a front end on the second.
struct Scene {
    guest: KvmGuest,
    other: FakeGuest,
    /// From the front end to the guest.
    frame: Vec<u8>,
}

impl Scene {
    fn start(plan: &Plan, contender: &Contender, config: KvmGuestConfig) -> Result<Self> {
        let guest = guest(plan, contender, 1, config)?;
        let socket = &contender.peer.sockets()[1];
        let mut other = FakeGuest::connect(socket, GuestConfig::default().guest(2))?;
        other.wait_link()?;
        wait_found(contender, &["p0"])?;
        stop::sleep(SETTLES)?;
        Ok(Self {
            guest,
            other,
            frame: udp(&Flow::v4(2, 1), &[7; 18]),
        })
    }

    fn send(&mut self) -> Result<()> {
        Ok(self.other.pairs[0].send(&self.frame, &NetHeader::default())?)
    }

    /// Sends a frame and waits for the guest's answer, so many times after a pause.
    fn ask(&mut self, times: usize, pause: Duration) -> Result<Vec<f64>> {
        let mut all = Vec::with_capacity(times);
        for _ in 0..times {
            rest(pause);
            let begun = Instant::now();
            self.send()?;
            ensure!(self.guest.answered().wait(LIMIT) > 0, "no answer came");
            all.push(micros(begun));
        }
        Ok(all)
    }
}

/// A guest of KVM on port `number`, counted from 1, of a contender, on the client's core.
fn guest(
    plan: &Plan,
    contender: &Contender,
    number: usize,
    config: KvmGuestConfig,
) -> Result<KvmGuest> {
    let config = KvmGuestConfig {
        thread_name: lasthop::thread_name(contender.group, number),
        ..config
    };
    let vcpus = config.vcpus;
    let guest = KvmGuest::start(&contender.peer.sockets()[number - 1], config)?;
    for vcpu in 0..vcpus {
        guest.set_affinity(vcpu, plan.cores[1])?;
    }
    Ok(guest)
}

/// Waits until the vCPUs of these ports are known.
fn wait_found(contender: &Contender, ports: &[&str]) -> Result<()> {
    if contender.name == OFF {
        return Ok(());
    }
    let lasthop = contender.peer.lasthop().context("Lasthop")?;
    wait_known(lasthop, ports)
}

/// Waits until a Lasthop with states knows the vCPUs of these ports.
fn wait_known(lasthop: &Lasthop, ports: &[&str]) -> Result<()> {
    stop::try_wait("vCPUs are found", FOUND, || {
        for port in ports {
            if port_shown(lasthop, port)?["vcpus"].as_u64() == Some(0) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

fn rest(pause: Duration) {
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
}

fn micros(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

/// The 50th and the 99th percentile.
fn quantiles(all: &[f64]) -> Result<[f64; 2]> {
    match (percentile(all, 0.5), percentile(all, 0.99)) {
        (Some(p50), Some(p99)) => Ok([p50, p99]),
        _ => bail!("nothing was measured"),
    }
}

/// The parts of latencies.
fn latencies(what: &str, axis: &'static str) -> [&'static Part; 2] {
    [("p50", "us, p50"), ("p99", "us, p99")]
        .map(|(name, unit)| part(format!("{what}, {name}"), [axis, unit]))
}

/// Notes whether each row of a part is within a bound of the same without states.
fn aim(run: &mut Run<'_>, part: &'static Part, places: &[u64], bound: Bound) {
    for contender in [BEFORE, OURS] {
        let ratios = places
            .iter()
            .filter_map(|place| run.ratio(part, *place as f64, [contender, OFF]));
        let worst = match bound {
            Bound::AtMost(_) => ratios.max_by(|a, b| a.0.total_cmp(&b.0)),
            Bound::AtLeast(_) => ratios.min_by(|a, b| a.0.total_cmp(&b.0)),
        };
        if worst.is_some() || contender == OURS {
            let what = format!("{}: {contender} beside {OFF}, the worst row", part.name);
            run.aim(&what, worst, bound, "x");
        }
    }
}

/// Measures all places of some rows, in each round with a new guest of each contender.
fn rows(
    run: &mut Run<'_>,
    contenders: &[Contender],
    config: &KvmGuestConfig,
    places: &[u64],
    measure: impl Fn(&mut Run<'_>, &mut Scene, &str, u64) -> Result<()>,
) -> Result<()> {
    let plan = run.plan;
    for _ in 0..plan.rounds {
        for contender in contenders {
            run.attempt(contender.name, |run| {
                let mut scene = Scene::start(plan, contender, config.clone())?;
                let mut places = places.iter();
                places.try_for_each(|place| measure(run, &mut scene, contender.name, *place))
            })?;
        }
    }
    Ok(())
}

/// Measures latencies of one exchange after pauses of so many microseconds.
fn exchanges(
    run: &mut Run<'_>,
    contenders: &[Contender],
    config: &KvmGuestConfig,
    (parts, pauses): ([&'static Part; 2], &[u64]),
    exchange: impl Fn(&mut Scene, usize, Duration) -> Result<Vec<f64>>,
) -> Result<()> {
    rows(
        run,
        contenders,
        config,
        pauses,
        |run, scene, name, pause| {
            let times = if pause < 1000 { 1000 } else { 400 };
            let pause_for = Duration::from_micros(pause);
            exchange(scene, WARM_UP[usize::from(pause > 0)], pause_for)?;
            run.take_all(parts, name, pause as f64, || {
                quantiles(&exchange(scene, times, pause_for)?)
            })
        },
    )?;
    for part in parts {
        aim(run, part, pauses, Bound::AtMost(1.1));
    }
    Ok(())
}

fn idle(
    run: &mut Run<'_>,
    contenders: &[Contender],
    (poll, polling): (Option<u32>, &str),
    vcpus: usize,
) -> Result<()> {
    let parts = latencies(
        &format!("idle, {vcpus} vCPU, {polling}"),
        "us between answer and frame",
    );
    let config = KvmGuestConfig {
        vcpus,
        halt_poll_ns: poll,
        ..KvmGuestConfig::default()
    };
    exchanges(run, contenders, &config, (parts, &PAUSES), Scene::ask)
}

/// The guest halts, is ordered to send, and halts again.
fn sends(
    run: &mut Run<'_>,
    contenders: &[Contender],
    (poll, polling): (Option<u32>, &str),
) -> Result<()> {
    const PAUSES: [u64; 4] = [0, 60, 200, 1000];
    let parts = latencies(&format!("sends, {polling}"), "us between arrival and order");
    let config = KvmGuestConfig {
        halt_poll_ns: poll,
        ..KvmGuestConfig::default()
    };
    exchanges(run, contenders, &config, (parts, &PAUSES), sent)
}

/// Orders frames of the guest, so many after a pause each.
fn sent(scene: &mut Scene, times: usize, pause: Duration) -> Result<Vec<f64>> {
    let mut all = Vec::with_capacity(times);
    for _ in 0..times {
        rest(pause);
        let begun = Instant::now();
        scene.guest.order();
        let frame = scene.other.pairs[0].recv(LIMIT)?;
        frame.context("no frame came")?;
        all.push(micros(begun));
    }
    Ok(all)
}
