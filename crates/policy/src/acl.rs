//! Access lists: which frames may come from a guest, and which may go to it.
//!
//! ```text
//!   AccessModel --Rules::compile--> Rules --Program::with_rules--> Program
//!   texts of the operator           immutable, shared;   decide() asks them
//!                                   Rules::change: another one, with one change
//! ```
//!
//! A frame is asked about twice: as it comes from its sender, and as it goes to each receiver. Each time the lists of the
//! port, those of its groups and those of the segment are asked; the rule of the highest priority decides, among equals
//! the first by that order. `docs/POLICY.md` says all of it, and what it costs.

mod compile;
mod error;
mod list;
mod matcher;
pub mod oracle;
mod order;
mod palette;
mod point;
mod prefix;
mod ranges;
mod resolve;
mod rules;
mod shelf;
#[cfg(test)]
mod tests;
mod text;
mod trie;
mod update;
mod wiring;

pub use api::v1::{
    AccessListSpec, AccessModel, AddressSet, Direction, Group, LogSpec, Otherwise, Pieces,
    PortText, RuleAction, RuleSpec, SegmentDefault,
};
pub use compile::{Change, Compiled, MAX_RULES, Names};
pub use error::{AccessError, Place, Reason, RuleName, Shadowed};
pub use palette::MAX_MASKS;
pub(crate) use point::{Looked, Point};
pub(crate) use rules::ProfileId;
pub use rules::{By, LogLimit, RuleId, RuleInfo, Rules, Ruling, Verdict};
pub use update::few_changes;
