//! The loop.

use std::time::{Duration, Instant};

use super::port::Port;
use super::ring::Ring;
use super::{Deadline, LeanError, LeanPort, LeanReport, Until};

/// Rounds between two looks at the clock.
const ROUNDS: u32 = 256;

/// Receives on all ports, then sends on all up to `goal` frames each since the port came up;
/// whether anything moved.
#[inline]
fn round<R: Ring>(ports: &mut [Port<R>], goal: &[u64]) -> Result<bool, LeanError> {
    let mut moved = false;
    for port in ports.iter_mut() {
        moved |= port.receive()?;
    }
    for i in 0..ports.len() {
        let there = ports[i ^ 1].counts.received;
        let port = &mut ports[i];
        let left = goal[i] - port.counts.sent;
        let on_the_way = port.counts.sent.saturating_sub(there + port.given_up);
        // Not less than a batch at a time, but for the last ones.
        let most = left.min(u64::from(port.batch()));
        if on_the_way.saturating_add(most) <= port.window {
            moved |= port.send(most)?;
        }
    }
    if !moved {
        ports.iter_mut().for_each(Port::idle);
        (0..ports[0].gap()).for_each(|_| std::hint::spin_loop());
    }
    Ok(moved)
}

/// One round of ports that send as much as they can.
pub(super) fn flood<R: Ring>(ports: &mut [Port<R>]) -> Result<(), LeanError> {
    match ports {
        [_, _] => round(ports, &[u64::MAX; 2]).map(drop),
        _ => Err(LeanError::Config("two ports")),
    }
}

/// See [`super::Lean::one_way`].
pub(super) fn one_way<R: Ring>(ports: &mut [Port<R>]) {
    let receivers = ports.iter_mut().skip(1).step_by(2);
    receivers.for_each(|port| port.window = 0);
}

fn counts<R: Ring>(ports: &[Port<R>]) -> Vec<LeanPort> {
    ports.iter().map(Port::all_counts).collect()
}

fn received<R>(ports: &[Port<R>]) -> u64 {
    ports.iter().map(|p| p.counts.received).sum()
}

fn since(now: &LeanPort, before: &LeanPort) -> LeanPort {
    LeanPort {
        sent: now.sent - before.sent,
        received: now.received - before.received,
        bytes: now.bytes - before.bytes,
        kicks: now.kicks - before.kicks,
        kicking: now.kicking - before.kicking,
        strange: now.strange - before.strange,
        flows_sent: now.flows_sent - before.flows_sent,
        flows_received: now.flows_received - before.flows_received,
        working: now.working - before.working,
        payload_sent: now.payload_sent.wrapping_sub(before.payload_sent),
        payload_received: now.payload_received.wrapping_sub(before.payload_received),
        mappings: now.mappings - before.mappings,
        misses: now.misses - before.misses,
    }
}

/// Rounds until `time` is over; the share of them in which nothing moved.
fn for_time<R: Ring>(ports: &mut [Port<R>], time: Duration) -> Result<f64, LeanError> {
    let endless = vec![u64::MAX; ports.len()];
    let end = Deadline::after(time);
    let (mut rounds, mut moved) = (0u64, 0u64);
    while !end.passed() {
        for _ in 0..ROUNDS {
            moved += u64::from(round(ports, &endless)?);
        }
        rounds += u64::from(ROUNDS);
    }
    Ok(1.0 - moved as f64 / rounds.max(1) as f64)
}

/// Rounds until `goal` is sent and `expected` frames are received in all, or nothing came in for
/// `patience`; the time of the last frame.
fn settle<R: Ring>(
    ports: &mut [Port<R>],
    goal: &[u64],
    expected: u64,
    patience: Duration,
) -> Result<Instant, LeanError> {
    let (mut last, mut last_at) = (received(ports), Instant::now());
    while received(ports) < expected && last_at.elapsed() < patience {
        for _ in 0..ROUNDS {
            round(ports, goal)?;
        }
        if received(ports) != last {
            (last, last_at) = (received(ports), Instant::now());
        } else {
            // The back end may want this very CPU.
            std::thread::yield_now();
        }
    }
    Ok(last_at)
}

/// See [`super::Lean::run`].
pub(super) fn run<R: Ring>(
    ports: &mut [Port<R>],
    until: Until,
    patience: Duration,
) -> Result<LeanReport, LeanError> {
    let before = counts(ports);
    let start = Instant::now();
    let (elapsed, at_end, idle) = match until {
        Until::Elapsed(time) => {
            let idle = for_time(ports, time)?;
            let end = (start.elapsed(), counts(ports), idle);
            let goal: Vec<u64> = ports.iter().map(|p| p.counts.sent).collect();
            let sent: u64 = end
                .1
                .iter()
                .zip(&before)
                .map(|(n, b)| n.sent - b.sent)
                .sum();
            let expected = before.iter().map(|b| b.received).sum::<u64>() + sent;
            settle(ports, &goal, expected, patience)?;
            end
        }
        Until::Sent(count) => {
            let goal: Vec<u64> = before.iter().map(|b| b.sent + count).collect();
            let senders = ports.iter().filter(|port| port.window > 0).count();
            let expected = received(ports) + count * senders as u64;
            let end = settle(ports, &goal, expected, patience)?;
            (end - start, counts(ports), 0.0)
        }
    };
    let after = counts(ports);
    // What was waited for in vain must not narrow the window of later runs.
    for i in 0..ports.len() {
        ports[i].given_up = after[i].sent.saturating_sub(after[i ^ 1].received);
    }
    let parts = |now: &[LeanPort]| -> Vec<LeanPort> {
        now.iter().zip(&before).map(|(n, b)| since(n, b)).collect()
    };
    let (measured, all) = (parts(&at_end), parts(&after));
    let total = |ports: &[LeanPort], of: fn(&LeanPort) -> u64| ports.iter().map(of).sum::<u64>();
    Ok(LeanReport {
        elapsed,
        idle,
        sent: total(&measured, |p| p.sent),
        received: total(&measured, |p| p.received),
        lost: total(&all, |p| p.sent).saturating_sub(total(&all, |p| p.received)),
        ports: measured,
    })
}
