//! The queues against a straight-line driver that knows nothing of their code.
//!
//! All of it runs under Miri, with fewer cases and without any flag; rings and regions are heap
//! memory:
//!
//! ```text
//! cargo +nightly miri test -p lasthop-virtio --lib queue::
//! ```
//!
//! Miri models no atomics of mixed size that race. The code has none: a field has one width on each
//! side, and where the device reads two fields as one word (split descriptors, indirect tables),
//! the driver's writes happen before.

mod batch;
pub(in crate::queue) mod death;
pub(crate) mod driver;
mod events;
mod faults;
mod flow;
mod hostile;
mod memory_change;
mod slots;
mod threads;
mod translated;
