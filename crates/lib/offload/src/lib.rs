//! The table of flows that the kernel decides about before the switch: a cache that control fills
//! with flows that the policy denies, in memory that programs of the kernel read.
//!
//! What is not in the table is decided by the switch, so the table may be small, late or empty.
//! There is one writer ([`Table`]); readers are the programs in `programs/`, and
//! [`Page::look_up`], which is their oracle. [`layout`] has the memory and the rules of its use
//! without locks.
//!
//! Order of modules: layout, page, connections, reader, table, masks.

pub mod connections;
#[cfg(all(not(loom), any(test, feature = "test-utils")))]
pub mod heap;
pub mod layout;
pub mod masks;
mod page;
mod reader;
mod sync;
mod table;
#[cfg(test)]
mod tests;

pub use connections::{ConnectionFilter, Conversation};
pub use page::{Counts, MaskId, Memory, Page, Slot, destination, hash};
pub use reader::{Action, Hit, is_plain};
pub use table::{AddError, Entry, NoTableError, REST, Table, create, is_table};

/// The object with the programs, compiled from `programs/prefilter.c`.
pub const PROGRAMS: &[u8] = include_bytes!("../programs/prefilter.o");
