//! Metrics for Prometheus: its text format 0.0.4, or OpenMetrics 1.0 for clients that accept it.
//!
//! Nothing is counted here: the values come from the switch, the supervisor and control. Names
//! follow Prometheus's conventions: base units, and `_total` for counters, which grow until their
//! process restarts.

mod connections;
mod egress;
mod families;
mod limits;
mod prefilter;
mod text;
mod user;

use api::v1::{ConnectionTable, EgressDocument, MirrorStats, StatusDocument};
use ipc::figures::WorkerFigures;
use ipc::switching::{PortState, SwitchFigures};
use port::counters::PortCounts;

use crate::rule_counts::CountSnapshot;

pub use text::Format;

/// Values for all metrics.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Processes, ports, segments.
    pub status: StatusDocument,
    /// Figures of the switch as a whole.
    pub figures: SwitchFigures,
    /// CPU time of the switch's workers.
    pub workers: Vec<WorkerFigures>,
    /// Ports, in the order of the status.
    pub ports: Vec<PortFacts>,
    /// Ticks of the switch's counter in a second, once they are known.
    pub ticks_per_second: Option<u64>,
    /// Number of learned MAC addresses.
    pub stations: u64,
    /// Counters of mirrors.
    pub mirrors: Vec<MirrorStats>,
    /// Use of scheduled ports.
    pub egress: Vec<EgressDocument>,
    /// The table of connections, if there is one.
    pub connections: Option<ConnectionTable>,
    /// Counters of rules, of the last query to the switch.
    pub rules: CountSnapshot,
}

/// Counters and state of a port.
#[derive(Clone, Debug, Default)]
pub struct PortFacts {
    /// Its counters.
    pub counts: PortCounts,
    /// Its state in the switch, if the switch has the port.
    pub state: Option<PortState>,
}

/// Returns the page.
#[must_use]
pub fn page(facts: &Facts, format: Format) -> String {
    let mut page = text::Page::new(format);
    families::write(facts, &mut page);
    connections::write(facts, &mut page);
    prefilter::write(facts, &mut page);
    page.finish()
}

#[cfg(test)]
mod tests;
