//! Access lists: the frames that a port may send and receive.
//!
//! ```text
//!   AccessModel --Rules::compile--> Rules --Program::with_rules--> Program
//!   the operator's text             immutable, shared;   decide() evaluates them
//!                                   Rules::change: another one, with one change
//! ```
//!
//! Each frame is evaluated at two hooks: on ingress from its sender, and on egress to each
//! receiver. At each hook the lists of the port, those of its groups and those of the segment
//! apply; the rule of the highest priority decides, among equals the first in that order.
//! `docs/dev/classifier.md` describes the classifier, `docs/benchmarks/access-lists.md` has its
//! cost.

mod attachments;
mod class_key;
mod compile;
mod error;
mod list;
mod mask_set;
mod matcher;
#[cfg(any(test, feature = "test-utils"))]
pub mod oracle;
mod order;
mod prefix;
mod ranges;
mod resolve;
mod rule_tree;
mod rules;
#[cfg(test)]
mod tests;
mod text;
mod trie;
mod update;

pub(crate) use class_key::{ClassKey, Wildcards};
pub use compile::{Change, CompiledRules, MAX_RULES, Names};
pub use error::{AccessError, Place, Reason, RuleName, ShadowedRule};
pub use mask_set::MAX_MASKS;
pub use model::{
    AccessListSpec, AccessModel, AddressSet, Direction, Group, LogSpec, Otherwise, Pieces,
    PortText, RuleAction, RuleSpec, SegmentDefault,
};
pub use rules::{By, LogLimit, RuleId, RuleInfo, Rules, Ruling, Verdict};
pub(crate) use rules::{ProfileId, Scope};
pub use update::few_changes;
