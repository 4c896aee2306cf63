//! Results of one trick.

use std::time::Duration;

use super::attack::Played;
use super::honest::Samples;
use super::newcomer::{Arrival, LIMIT};
use super::times::Latencies;
use super::tricks::Trick;
use super::watch::Snapshot;

/// The p99 of a single trick's frames is not called slow up to this, in microseconds: there are too
/// few of them.
const FRAMES_P99: f64 = 1000.0;

/// One trick's part of a run.
#[derive(Clone, Debug)]
pub struct Row {
    /// The trick.
    pub trick: &'static Trick,
    /// Counts of the attackers.
    pub played: Played,
    /// How long they attacked.
    pub attacked: Duration,
    /// Processor time of the burner.
    pub burner_cpu: Duration,
    /// Honest frames and messages beside the attackers.
    pub beside: Samples,
    /// Honest frames that were lost, doubled, damaged or late meanwhile.
    pub wrong: u64,
    /// Latencies beside the burner; empty in the short form.
    pub burner: Samples,
    /// Honest VMMs that came while the trick went on.
    pub newcomers: Vec<Arrival>,
    /// One that came afterwards.
    pub newcomer: Arrival,
    /// This Lasthop before its first trick.
    pub first: Snapshot,
    /// Lasthop before this trick.
    pub before: Snapshot,
    /// Lasthop once this trick was over.
    pub after: Snapshot,
}

/// The columns of [`Row::line`].
pub const HEAD: &str = "\
trick                   steps unansw  attacker    switch  \
frames p50/p99/max us  beside the burner      messages p50/p99/max   beside the burner      \
newcomers ms     maps        fds       rss KiB   log  source";

impl Row {
    /// The row as text.
    #[must_use]
    pub fn line(&self) -> String {
        let (before, after) = (self.before.switch(), self.after.switch());
        let Latencies { frames, messages } = self.beside_attackers();
        let burner = self.beside_burner();
        let newcomers = format!(
            "{}x{}/{}",
            self.newcomers.len(),
            arrived(&self.newcomers),
            arrived(std::slice::from_ref(&self.newcomer))
        );
        let mut line = format!(
            "{:22} {:6} {:6} {:6} ms {:6} ms  {frames:21}  {:21}  {messages:21}  {:21}  \
             {newcomers:15}  {:4}->{:4}  {:3}->{:3}  {:+7} {:5}  {}",
            self.trick.name,
            self.played.steps,
            self.played.unanswered,
            self.played.cpu.as_millis(),
            after.cpu_ms.saturating_sub(before.cpu_ms),
            burner.frames,
            burner.messages,
            before.mappings,
            after.mappings,
            before.descriptors,
            after.descriptors,
            after.rss_kib.cast_signed() - before.rss_kib.cast_signed(),
            self.after.log_lines.saturating_sub(self.before.log_lines),
            self.trick.source,
        );
        if self.played.panics > 0 {
            line += &format!("; {} attackers panicked", self.played.panics);
        }
        for harm in self.harm() {
            line += &format!("; {harm}");
        }
        line
    }

    fn beside_attackers(&self) -> Latencies {
        Latencies::of(std::iter::once(&self.beside))
    }

    fn beside_burner(&self) -> Latencies {
        Latencies::of(std::iter::once(&self.burner))
    }

    /// How late honest frames or messages were beside this trick, in words, if that is worth a
    /// look.
    pub(super) fn slow(&self) -> Option<String> {
        let (beside, burner) = (self.beside_attackers(), self.beside_burner());
        let frames = beside.slow_frames(&burner);
        let frames = frames.filter(|_| beside.frames.p99 > FRAMES_P99);
        let found: Vec<String> = frames.into_iter().chain(beside.slow_messages()).collect();
        (!found.is_empty()).then(|| format!("{}: {}", self.trick.name, found.join("; ")))
    }

    /// Describes the harm of this trick to Lasthop's processes.
    fn harm(&self) -> Vec<String> {
        self.after.harm(&self.first)
    }

    /// The goals that this trick made Lasthop miss, in words.
    pub(super) fn missed(&self) -> Vec<String> {
        let name = self.trick.name;
        let harm = self.harm().into_iter();
        let mut missed: Vec<String> = harm.map(|harm| format!("{name}: {harm}")).collect();
        if self.wrong > 0 {
            missed.push(format!(
                "{name}: {} honest frames were lost, doubled, damaged or late beside it",
                self.wrong
            ));
        }
        let all = self.newcomers.len();
        let failed: Vec<&String> = self
            .newcomers
            .iter()
            .filter_map(|one| one.as_ref().err())
            .collect();
        if let Some(error) = failed.first() {
            missed.push(format!(
                "{name}: {} of {all} honest VMMs beside it were not up within {LIMIT:?}: {error}",
                failed.len()
            ));
        }
        if let Err(error) = &self.newcomer {
            missed.push(format!(
                "{name}: an honest VMM was not up within {LIMIT:?} afterwards: {error}"
            ));
        }
        missed
    }
}

/// Returns the slowest arrival, in milliseconds.
fn arrived(all: &[Arrival]) -> String {
    let slowest = all
        .iter()
        .max_by_key(|one| one.as_ref().copied().unwrap_or(Duration::MAX));
    match slowest {
        Some(Ok(time)) => time.as_millis().to_string(),
        _ => "none".to_owned(),
    }
}
