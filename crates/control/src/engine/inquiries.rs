//! Questions about frames and flows, of which nothing comes.

mod flows;
mod seen;
mod trace;

use flows::FlowQuestions;
use seen::Seen;

/// What is kept for those who ask.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    pub(super) flows: FlowQuestions,
    pub(super) seen: Seen,
}
