//! Metrics as Prometheus reads them: its text format 0.0.4, or OpenMetrics 1.0 for those who ask for that.
//!
//! Nothing is counted here: it is what the switch, the supervisor and control know anyway. Names follow Prometheus's conventions: base units,
//! `_total` for what only grows until a process starts anew.

mod families;
mod limits;
mod text;

use api::v1::{MirrorStats, StatusDocument};
use channel::figures::WorkerFigures;
use channel::switching::{PortState, SwitchFigures};
use port::counters::PortCounts;

use crate::rule_counts::Counted;

pub use text::Format;

/// What metrics are made of.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Processes, ports, segments.
    pub status: StatusDocument,
    /// Figures of the switch as a whole.
    pub figures: SwitchFigures,
    /// What its threads have done that forward.
    pub workers: Vec<WorkerFigures>,
    /// Ports, in the order of the status.
    pub ports: Vec<PortFacts>,
    /// Ticks of the switch's counter in a second, once they are known.
    pub ticks_per_second: Option<u64>,
    /// Stations that were learned.
    pub stations: u64,
    /// What mirrors have copied.
    pub mirrors: Vec<MirrorStats>,
    /// What was counted for rules when the switch was asked last.
    pub rules: Counted,
}

/// What is counted at a port.
#[derive(Clone, Debug, Default)]
pub struct PortFacts {
    /// Its counters.
    pub counts: PortCounts,
    /// As the switch sees it, if it does.
    pub state: Option<PortState>,
}

/// The page.
#[must_use]
pub fn page(facts: &Facts, format: Format) -> String {
    let mut page = text::Page::new(format);
    families::write(facts, &mut page);
    page.finish()
}

#[cfg(test)]
mod tests;
