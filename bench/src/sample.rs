//! One measurement, and whether it counts.

use std::time::{Duration, Instant};

use anyhow::Result;
use load::lean::{BurstReport, Histogram, PacedReport, SUPER_FRAME_LEN};
use serde::Serialize;

use crate::clients::{Captured, Client, Exchange};
use crate::peers::Peer;
use crate::placement::{Placement, round_trip};
use crate::plan::Plan;
use crate::procfs::CpuTimes;
use crate::stop;

/// Of one core, how much others may use during a sample.
const OTHERS_SHARE: f64 = 0.05;
/// Seconds of each core by which ticks can be wrong over a sample.
const TICK_ERROR: f64 = 0.02;
/// How long the machine is looked at to see whether it is quiet.
const LOOK: Duration = Duration::from_millis(300);
/// A switch that sleeps without traffic may take this long to notice that there is none.
const QUIET: Duration = Duration::from_millis(20);

/// Whether a sample counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// It does.
    Kept,
    /// The cores were near before and far after, or the other way round.
    Flipped,
    /// Another process used the machine, or the hypervisor took it away.
    Disturbed,
}

/// Key of a measurement: one row of a table, one point of a plot.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Cell {
    /// The traffic: `64 B split`.
    pub(crate) name: String,
    /// Line of a plot: `split`.
    pub(crate) series: String,
    /// Position on that line: bytes of a frame, flows, or frames per second.
    pub(crate) x: f64,
}

/// A measurement with all that is known about it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    pub(crate) peer: String,
    pub(crate) client: String,
    pub(crate) cell: Cell,
    pub(crate) round: u32,
    /// Both directions added, millions of frames that arrived in a second.
    pub(crate) mpps: f64,
    /// CPU time of the switch's processes, percent of a core.
    pub(crate) switch_percent: f64,
    /// CPU time of all processes of the experiment, its client's included.
    pub(crate) all_percent: f64,
    /// Share of the client's rounds without work, if known: near 0 it was the limit.
    pub(crate) client_idle: Option<f64>,
    /// Round trips of a cache line between the cores.
    pub(crate) before_ns: f64,
    pub(crate) after_ns: f64,
    pub(crate) placement: Option<Placement>,
    /// CPU time of others and stolen time, percent of a core.
    pub(crate) others_percent: f64,
    pub(crate) steal_percent: f64,
    pub(crate) verdict: Verdict,
    /// Of a client that measures it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Latency>,
    /// Of a client that moves bulk; the plain copy was just before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) busy: Option<Busy>,
    /// Of guests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exchange: Option<Exchange>,
    /// Of a client whose flows are new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) misses: Option<Misses>,
    /// Of a client that finds out; just before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wake_ups: Option<WakeUps>,
    /// Of a client that has frames captured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) captured: Option<Captured>,
}

/// How long the sleeping threads of a decision took without a switch, see [`crate::relay`].
#[derive(Debug, Clone, Serialize)]
pub(crate) struct WakeUps {
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    /// All of it, in nanoseconds.
    #[serde(skip)]
    pub(crate) histogram: Histogram,
}

impl From<Histogram> for WakeUps {
    fn from(seen: Histogram) -> Self {
        Self {
            p50_ns: seen.quantile(0.5),
            p99_ns: seen.quantile(0.99),
            histogram: seen,
        }
    }
}

/// Frames about which the switch had to decide.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Misses {
    /// As the switch counts them.
    pub(crate) count: u64,
    pub(crate) a_second: f64,
}

/// Frames moved in bursts, by a switch and by plain copying in its place.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Busy {
    /// GiB in a second in which there was something to move.
    pub(crate) switch_gib: f64,
    pub(crate) memcpy_gib: f64,
}

impl Sample {
    /// GiB a second, of a client that sends super-frames.
    pub(crate) fn super_gib_per_second(&self) -> f64 {
        self.mpps * 1e6 * f64::from(SUPER_FRAME_LEN) / f64::from(1 << 30)
    }

    /// Returns the result in a few words.
    pub(crate) fn figure(&self) -> String {
        if let Some(exchange) = &self.exchange {
            return format!(
                "{:.0} answers/s, {:.2} Gbit/s, {:.1} us, {:.0} % of a core",
                exchange.answers, exchange.gbit, exchange.p50_us, self.switch_percent
            );
        }
        if let Some(misses) = self.misses {
            return format!(
                "{} misses, {:.0} a second, {:.1} us",
                misses.count,
                misses.a_second,
                self.latency
                    .as_ref()
                    .map_or(0.0, |latency| latency.p99_ns as f64 / 1e3)
            );
        }
        match (&self.latency, self.busy) {
            (None, None) => format!("{:.2} Mpps", self.mpps),
            (None, Some(busy)) => format!(
                "{:.2} GiB per busy second, memcpy {:.2}",
                busy.switch_gib, busy.memcpy_gib
            ),
            (Some(latency), _) => format!(
                "{:.1} us in the middle, {:.0} % of a core",
                latency.p50_ns as f64 / 1e3,
                self.switch_percent
            ),
        }
    }
}

/// How long the frames of a sample were on their way, and what became of them.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Due, and not sent.
    pub(crate) unsent: u64,
    /// The client's notifications: how often it woke the switch.
    pub(crate) kicks: u64,
    /// The same, a second.
    pub(crate) kicks_a_second: f64,
    /// The part of the client's time in the system calls of notifications, percent.
    pub(crate) kicking_percent: f64,
    /// Nanoseconds that half of all frames do not exceed, and so on.
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
    /// By how much the client was late with 99 of 100 frames at most; not part of the latency.
    pub(crate) client_lag_p99_ns: u64,
    /// All of it, in nanoseconds.
    #[serde(skip)]
    pub(crate) histogram: Histogram,
}

impl From<&PacedReport> for Latency {
    fn from(report: &PacedReport) -> Self {
        let latency = &report.latency;
        Self {
            sent: report.sent,
            lost: report.lost,
            unsent: report.unsent,
            kicks: report.kicks,
            kicks_a_second: report.kicks as f64 / report.elapsed.as_secs_f64().max(1e-9),
            kicking_percent: report.kicking as f64 / report.elapsed.as_nanos().max(1) as f64
                * 100.0,
            p50_ns: latency.quantile(0.5),
            p99_ns: latency.quantile(0.99),
            p999_ns: latency.quantile(0.999),
            max_ns: latency.max(),
            client_lag_p99_ns: report.lag.quantile(0.99),
            histogram: latency.clone(),
        }
    }
}

/// Conditions around a sample.
#[derive(Debug, Clone, Copy)]
struct Surroundings {
    trips_ns: [f64; 2],
    others: f64,
    steal: f64,
    seconds: f64,
    cores: usize,
}

/// Seconds by which ticks can be wrong over a sample, all cores together.
fn tick_error(cores: usize) -> f64 {
    TICK_ERROR * cores as f64
}

/// The label, if both ends of the sample agree on one; and whether it counts.
fn judge(around: Surroundings, near_below: f64) -> (Option<Placement>, Verdict) {
    let placement = Placement::of_both(around.trips_ns, near_below);
    let allowed = OTHERS_SHARE.mul_add(around.seconds, tick_error(around.cores));
    let verdict = if around.others > allowed || around.steal > allowed {
        Verdict::Disturbed
    } else if placement.is_none() {
        Verdict::Flipped
    } else {
        Verdict::Kept
    };
    (placement, verdict)
}

/// Lets a peer and its client, both frozen, run for the time of one sample.
pub(crate) fn take(
    plan: &Plan,
    peer: &Peer,
    client: &mut dyn Client,
    cell: &Cell,
    round: u32,
) -> Result<Sample> {
    let copy = client.reference(plan.window)?;
    let wake_ups = client.wake_ups(plan.window)?.map(WakeUps::from);
    let before_ns = round_trip(plan.cores)?;
    peer.thaw();
    client.thaw()?;
    client.warm_up(plan.settle)?;
    let counts = client.meets_new_flows();
    let count = || counts.then(|| peer.misses()).transpose();
    let missed = count()?;
    let (cpu, start, switch) = (CpuTimes::now(), Instant::now(), peer.cpu_seconds());
    let mpps = client.mpps(plan.window)?;
    let switch = peer.cpu_seconds() - switch;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = CpuTimes::now().since(&cpu);
    let misses = missed.zip(count()?).map(|(before, after)| Misses {
        count: after - before,
        a_second: (after - before) as f64 / seconds,
    });
    client.freeze()?;
    stop::sleep(QUIET)?;
    peer.freeze();
    let after_ns = round_trip(plan.cores)?;
    let around = Surroundings {
        trips_ns: [before_ns, after_ns],
        others: cpu.others(),
        steal: cpu.steal,
        seconds,
        cores: plan.machine.cores,
    };
    let (placement, verdict) = judge(around, plan.near_below);
    Ok(Sample {
        peer: peer.kind().name().to_owned(),
        client: client.name().to_owned(),
        cell: cell.clone(),
        round,
        mpps,
        switch_percent: 100.0 * switch / seconds,
        all_percent: 100.0 * cpu.ours / seconds,
        client_idle: client.idle(),
        before_ns,
        after_ns,
        placement,
        others_percent: 100.0 * cpu.others() / seconds,
        steal_percent: 100.0 * cpu.steal / seconds,
        verdict,
        latency: client.paced().map(Latency::from),
        busy: client.bursts().zip(copy.as_ref()).map(busy),
        exchange: client.exchange().cloned(),
        misses,
        wake_ups,
        captured: client.captured().copied(),
    })
}

fn busy((switch, memcpy): (&BurstReport, &BurstReport)) -> Busy {
    Busy {
        switch_gib: switch.gib_per_busy_second(),
        memcpy_gib: memcpy.gib_per_busy_second(),
    }
}

/// Waits until the machine is otherwise idle, until `limit` has passed at most.
pub(crate) fn wait_quiet(limit: Duration) -> Result<()> {
    let end = Instant::now() + limit;
    let error = tick_error(std::thread::available_parallelism().map_or(1, usize::from));
    while Instant::now() < end {
        let before = CpuTimes::now();
        stop::sleep(LOOK)?;
        let cpu = CpuTimes::now().since(&before);
        if cpu.others() + cpu.steal < error {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::NEAR_BELOW_NS;

    fn around(trips_ns: [f64; 2], others: f64, steal: f64) -> Surroundings {
        Surroundings {
            trips_ns,
            others,
            steal,
            seconds: 1.0,
            cores: 2,
        }
    }

    #[test]
    fn quiet_samples_at_one_place_count() {
        let near = judge(around([55.0, 58.0], 0.02, 0.0), NEAR_BELOW_NS);
        assert_eq!(near, (Some(Placement::Near), Verdict::Kept));
        let far = judge(around([330.0, 360.0], 0.0, 0.01), NEAR_BELOW_NS);
        assert_eq!(far, (Some(Placement::Far), Verdict::Kept));
    }

    #[test]
    fn a_flip_is_a_flip_in_both_directions() {
        for trips in [[55.0, 350.0], [350.0, 55.0]] {
            assert_eq!(
                judge(around(trips, 0.0, 0.0), NEAR_BELOW_NS),
                (None, Verdict::Flipped)
            );
        }
    }

    #[test]
    fn other_load_disturbs() {
        let trips = [55.0, 55.0];
        assert_eq!(
            judge(around(trips, 0.2, 0.0), NEAR_BELOW_NS).1,
            Verdict::Disturbed
        );
        assert_eq!(
            judge(around(trips, 0.0, 0.2), NEAR_BELOW_NS).1,
            Verdict::Disturbed
        );
    }
}
