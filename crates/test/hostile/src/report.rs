//! Report of a run.

use std::time::Duration;

use super::honest::Counts;
use super::row::Row;
use super::times::Latencies;

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// One row a trick.
    pub rows: Vec<Row>,
    /// Counts of honest frames.
    pub counts: Counts,
    /// The goals that were missed, in words.
    pub missed: Vec<String>,
    /// It was ended before the last trick.
    pub interrupted: bool,
    /// Tricks beside which honest frames or messages were late, in words; that alone misses no
    /// goal.
    pub slow: Vec<String>,
    /// Beside all attackers together.
    pub beside: Latencies,
    /// Beside all runs of the burner.
    pub burner: Latencies,
}

impl Report {
    pub(super) fn new(
        rows: Vec<Row>,
        counts: Counts,
        judge_times: bool,
        interrupted: bool,
    ) -> Self {
        let mut missed: Vec<String> = rows.iter().flat_map(Row::missed).collect();
        if counts.lost + counts.damaged + counts.late > 0 {
            missed.push(format!("honest frames: {counts}"));
        }
        missed.extend(counts.faults.iter().cloned());
        let beside = Latencies::of(rows.iter().map(|row| &row.beside));
        let burner = Latencies::of(rows.iter().map(|row| &row.burner));
        let mut slow = Vec::new();
        if judge_times {
            slow.extend(rows.iter().filter_map(Row::slow));
        }
        if judge_times && !interrupted {
            missed.extend(beside.slow_messages());
            missed.extend(beside.slow_frames(&burner));
        }
        Self {
            rows,
            counts,
            missed,
            interrupted,
            slow,
            beside,
            burner,
        }
    }

    /// The end of the report, as text.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = format!(
            "{} tricks; honest frames: {}\n",
            self.rows.len(),
            self.counts
        );
        let cpu = |of: fn(&Row) -> Duration| self.rows.iter().map(of).sum();
        text += &latencies("attackers", cpu(|row| row.played.cpu), &self.beside);
        if self.burner.frames.count > 0 {
            text += &latencies("the burner", cpu(|row| row.burner_cpu), &self.burner);
        }
        for slow in &self.slow {
            text += &format!("slow: {slow}\n");
        }
        for missed in &self.missed {
            text += &format!("missed: {missed}\n");
        }
        text
    }
}

fn latencies(beside: &str, cpu: Duration, of: &Latencies) -> String {
    let Latencies { frames, messages } = of;
    format!(
        "beside {beside} ({:.1} s of CPU time): p50/p99/max of {} frames {frames} us, of {} \
         messages {messages} us\n",
        cpu.as_secs_f64(),
        frames.count,
        messages.count,
    )
}
