//! Guests that work while frames come, guests that talk to each other, and a neighbour on the core
//! of an idle guest.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::statistics::median;
use testkit::FakeGuest;
use testkit::kvm::{KvmGuest, KvmGuestConfig, Task};
use testkit::net::NetHeader;

use super::{
    Contender, LIMIT, POLLS, Scene, aim, exchanges, guest, latencies, part, quantiles, rows,
    wait_found,
};
use crate::busy::BusyThreads;
use crate::experiments::parts::{Bound, Run};
use crate::plan::{Plan, progress};

/// Frames a second to a guest that works.
const RATES: [u64; 4] = [20_000, 50_000, 100_000, 200_000];
const RATE: &str = "frames a second to the guest";
/// How long frames are sent for one figure.
const WINDOW: Duration = Duration::from_millis(400);
/// The number of a frame, in its UDP payload.
const NUMBER: Range<usize> = 42..50;
/// Time between two looks at which frames are due.
const TICK: Duration = Duration::from_micros(50);
/// Time between two orders of a guest that works half of the time.
const ORDERS: Duration = Duration::from_millis(4);
/// The part of the time between two orders that its counts take. Interrupts take longer for it, so
/// that it works for about a half.
const SHARE: f64 = 0.45;
/// Counts by which the speed of a guest is measured.
const TRIAL: u32 = 500;

/// Sends numbered frames at a steady rate for a window; `each` is called before each, and while
/// none is due. Returns the frames.
fn pace(
    other: &mut FakeGuest,
    frame: &mut [u8],
    rate: u64,
    mut each: impl FnMut(u64, Instant),
) -> Result<u64> {
    let (begun, mut sent) = (Instant::now(), 0);
    loop {
        let elapsed = begun.elapsed();
        if elapsed >= WINDOW {
            return Ok(sent);
        }
        let due = (elapsed.as_secs_f64() * rate as f64) as u64;
        while sent < due {
            each(sent, Instant::now());
            frame[NUMBER].copy_from_slice(&sent.to_le_bytes());
            other.pairs[0].send(frame, &NetHeader::default())?;
            sent += 1;
        }
        each(sent, Instant::now());
        std::thread::sleep(TICK);
    }
}

/// The guest counts all the time.
pub(super) fn works(
    run: &mut Run<'_>,
    contenders: &[Contender],
    (poll, polling): (Option<u32>, &str),
) -> Result<()> {
    let parts = [
        ("interrupts", "interrupts a second"),
        ("work", "counts of the guest a second"),
    ]
    .map(|(name, unit)| part(format!("works, {polling}, {name}"), [RATE, unit]));
    let config = KvmGuestConfig {
        task: Task::Work,
        answers: false,
        halt_poll_ns: poll,
        ..KvmGuestConfig::default()
    };
    rows(
        run,
        contenders,
        &config,
        &RATES,
        |run, scene, name, rate| run.take_all(parts, name, rate as f64, || work_for(scene, rate)),
    )?;
    aim(run, parts[0], &RATES, Bound::AtMost(0.3));
    aim(run, parts[1], &RATES, Bound::AtLeast(1.0));
    Ok(())
}

/// Returns interrupts and counts a second.
fn work_for(scene: &mut Scene, rate: u64) -> Result<[f64; 2]> {
    let Scene {
        guest,
        other,
        frame,
    } = scene;
    let (interrupts, work) = (guest.interrupts(), guest.work());
    let begun = Instant::now();
    let sent = pace(other, frame, rate, |_, _| ())?;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(sent > 0, "no frame was sent");
    let interrupts = guest.interrupts().wrapping_sub(interrupts);
    let work = guest.work() - work;
    Ok([f64::from(interrupts) / seconds, work as f64 / seconds])
}

/// The guest counts half of the time, and halts for the other half.
pub(super) fn half(
    run: &mut Run<'_>,
    contenders: &[Contender],
    (poll, polling): (Option<u32>, &str),
) -> Result<()> {
    let [p50, p99] = latencies(&format!("half, {polling}"), RATE);
    let interrupts = part(
        format!("half, {polling}, interrupts"),
        [RATE, "interrupts a second"],
    );
    let config = KvmGuestConfig {
        task: Task::Orders {
            iterations: half_of_the_time(run.plan)?,
        },
        halt_poll_ns: poll,
        ..KvmGuestConfig::default()
    };
    rows(
        run,
        contenders,
        &config,
        &RATES,
        |run, scene, name, rate| {
            let parts = [p50, p99, interrupts];
            run.take_all(parts, name, rate as f64, || half_for(scene, rate))
        },
    )?;
    aim(run, p50, &RATES, Bound::AtMost(1.2));
    aim(run, interrupts, &RATES, Bound::AtMost(0.8));
    Ok(())
}

/// Returns how often a guest counts for an order to work half of the time.
fn half_of_the_time(plan: &Plan) -> Result<u32> {
    let config = KvmGuestConfig {
        task: Task::Orders { iterations: TRIAL },
        ..KvmGuestConfig::default()
    };
    let guest = KvmGuest::unconnected(config)?;
    guest.set_affinity(0, plan.cores[1])?;
    let mut trials = Vec::new();
    for trial in 1..=9 {
        let begun = Instant::now();
        guest.order();
        while guest.work() < trial * u64::from(TRIAL) {
            ensure!(begun.elapsed() < LIMIT, "the guest does not work");
        }
        trials.push(begun.elapsed().as_secs_f64() / f64::from(TRIAL));
    }
    let each = median(&trials).context("trials")?;
    progress(&format!("kvm: a count takes {:.1} us", each * 1e6));
    Ok((ORDERS.as_secs_f64() * SHARE / each).max(1.0) as u32)
}

/// Returns the percentiles of the time from a frame's transmission until the guest has taken it in
/// an interrupt, and interrupts a second.
fn half_for(scene: &mut Scene, rate: u64) -> Result<[f64; 3]> {
    let Scene {
        guest,
        other,
        frame,
    } = scene;
    let guest = &*guest;
    let most = (WINDOW.as_secs_f64() * rate as f64) as usize + 1;
    let times: Vec<AtomicU64> = (0..most).map(|_| AtomicU64::new(0)).collect();
    let (times, ends) = (&times[..], &AtomicBool::new(false));
    let (zero, interrupts, handled) = (Instant::now(), guest.interrupts(), guest.handled());
    let all = std::thread::scope(|scope| {
        let takes = scope.spawn(move || taken(guest, handled, (times, zero), ends));
        let mut order_at = Instant::now();
        let result = pace(other, frame, rate, |number, now| {
            if let Some(time) = times.get(number as usize) {
                time.store((now - zero).as_nanos() as u64, Ordering::Release);
            }
            if now >= order_at {
                guest.order();
                order_at = now + ORDERS;
            }
        });
        ends.store(true, Ordering::Relaxed);
        let all = takes.join();
        result.map(|_| all.unwrap_or_default())
    })?;
    let interrupts = guest.interrupts().wrapping_sub(interrupts);
    let [p50, p99] = quantiles(&all)?;
    let seconds = zero.elapsed().as_secs_f64();
    Ok([p50, p99, f64::from(interrupts) / seconds])
}

/// Returns the microseconds until the guest had taken a frame, of those that arrived, as its
/// answers tell.
fn taken(
    guest: &KvmGuest,
    mut handled: u16,
    (sent, zero): (&[AtomicU64], Instant),
    ends: &AtomicBool,
) -> Vec<f64> {
    let mut all = Vec::with_capacity(sent.len());
    while !ends.load(Ordering::Relaxed) {
        if guest.answered().wait(Duration::from_millis(10)) == 0 {
            continue;
        }
        let (now, until) = (zero.elapsed().as_nanos() as u64, guest.handled());
        while handled != until {
            let mut bytes = [0; NUMBER.end];
            guest.read_frame(handled, &mut bytes);
            let number: [u8; 8] = bytes[NUMBER].try_into().unwrap_or_default();
            let at = sent.get(u64::from_le_bytes(number) as usize);
            let at = at.map(|at| at.load(Ordering::Acquire));
            all.extend(at.map(|at| now.saturating_sub(at) as f64 / 1e3));
            handled = handled.wrapping_add(1);
        }
    }
    all
}

/// Two guests on one core send a frame back and forth; the worker is on `place`.
pub(super) fn ping_pong(run: &mut Run<'_>, contenders: &[Contender], place: &str) -> Result<()> {
    let plan = run.plan;
    let part = part(
        format!("ping-pong, worker on {place}"),
        [
            "1: no polling, 2: polls 50 us, 3: polls 200 us, 4: the host's polling",
            "us, p50 of round trips",
        ],
    );
    for _ in 0..plan.rounds {
        for (x, (poll, _)) in (1..).zip(POLLS) {
            for contender in contenders {
                run.attempt(contender.name, |run| {
                    let one = talker(plan, contender, (1, 2), poll)?;
                    let _other = talker(plan, contender, (2, 1), poll)?;
                    wait_found(contender, &["p0", "p1"])?;
                    one.order();
                    round_trips(&one, Duration::from_millis(100))?;
                    run.take(part, contender.name, f64::from(x), || {
                        let all = round_trips(&one, WINDOW)?;
                        Ok(quantiles(&all)?[0])
                    })
                })?;
            }
        }
    }
    aim(run, part, &[1, 2, 3, 4], Bound::AtMost(1.0));
    Ok(())
}

/// A guest that answers each frame by one to the other guest.
fn talker(
    plan: &Plan,
    contender: &Contender,
    (number, peer): (u8, u8),
    poll: Option<u32>,
) -> Result<KvmGuest> {
    let config = KvmGuestConfig {
        answers: number == 1,
        replies: true,
        halt_poll_ns: poll,
        frame: testkit::packets::udp(&testkit::packets::Flow::v4(number, peer), &[0; 18]),
        ..KvmGuestConfig::default()
    };
    guest(plan, contender, number.into(), config)
}

/// Returns the times between two interrupts of a guest.
fn round_trips(guest: &KvmGuest, window: Duration) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    let begun = Instant::now();
    let mut last = begun;
    while begun.elapsed() < window {
        ensure!(guest.answered().wait(LIMIT) > 0, "no frame came back");
        let now = Instant::now();
        all.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    Ok(all)
}

/// A thread that computes all the time has the core of an idle guest.
pub(super) fn beside_a_neighbour(run: &mut Run<'_>, contenders: &[Contender]) -> Result<()> {
    const PAUSES: [u64; 3] = [20, 200, 1000];
    let plan = run.plan;
    let parts = latencies("neighbour on the core", "us between answer and frame");
    let _neighbour = BusyThreads::on(&plan.cores[1..])?;
    let config = KvmGuestConfig::default();
    exchanges(run, contenders, &config, (parts, &PAUSES), Scene::ask)
}
