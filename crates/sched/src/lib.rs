//! What the system's scheduler does with guests: for each of their threads that stands for a processor (a *vCPU*) whether it
//! runs, waits for a core or sleeps, where, and since when; and for each core of the host whether it idles.
//!
//! ```text
//! kernel, at each context switch      `program`  --stores-->  +--------+
//!                                                             | layout |  <--loads--  `view`: who decides
//! supervisor, where that is refused   `sample`   --stores-->  +--------+
//!                                                    `bells`: hearing that one goes to sleep
//! supervisor                          `table`, `threads`: whose states are kept
//! ```
//!
//! The memory is one array of words ([`layout`]). Who decides by it maps it read-only ([`view`]) and makes no system call: a
//! state is one word, so it is never torn, and it is a hint: it may be out of date by the time it was loaded. Who keeps it has a
//! [`table`], in which it notes whom to follow; the kernel's programs come with one ([`load`]).

pub mod bells;
pub mod layout;
pub mod load;
mod program;
mod region;
pub mod sample;
pub mod table;
pub mod threads;
pub mod view;

pub use bells::Bells;
pub use layout::{Activity, Method, Slot, Vcpu};
pub use table::Table;
pub use view::View;
