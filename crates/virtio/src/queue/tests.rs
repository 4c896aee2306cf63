//! The queues against a straight-line driver that knows nothing of their code.

pub(crate) mod driver;
mod events;
mod faults;
mod flow;
mod memory_change;
mod threads;
