//! Scheduling states of guests: for each of their vCPU threads whether it runs, waits for a core or
//! sleeps, where, and since when.
//!
//! ```text
//! kernel, at each context switch      `program`  --stores-->  +--------+
//!                                                             | layout | <--loads-- `view`: switch
//!                                                             +--------+
//!                                                    `block_events`: wake-ups
//! supervisor                          `table`, `vcpus`: followed threads
//! ```
//!
//! The memory is one array of words ([`layout`]). Readers map it read-only ([`view`]) and make no
//! system call: a state is one word, so it is never torn, and it is a hint: it may be outdated when
//! it was loaded. The writer has a [`table`] of the threads to follow; the BPF programs come with
//! one ([`load`]).

pub mod block_events;
pub mod layout;
pub mod load;
mod program;
pub mod stat;
pub mod table;
pub mod vcpus;
pub mod view;

pub use block_events::BlockEvents;
pub use layout::{Activity, Slot, Vcpu};
pub use table::Table;
pub use view::View;

/// The memory of all states.
type Region = mapping::SharedWords<{ layout::SIZE }>;
