//! Read-only queries: trace, flow dump.

mod flows;
mod seen;
mod trace;

use flows::FlowDumpQueue;
use seen::SeenAddresses;

/// State of open queries.
#[derive(Debug, Default)]
pub(super) struct Queries {
    pub(super) flows: FlowDumpQueue,
    pub(super) seen: SeenAddresses,
}
