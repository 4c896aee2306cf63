//! Forwarding of one batch at a time, without threads, sockets or a clock.

mod classes;
pub mod cycles;
pub mod egress;
mod fabric;
mod flow_batch;
pub mod limits;
pub mod mirror;
pub mod pending_upcalls;
mod receive_shares;
pub(crate) mod reject;
pub mod revalidator;
pub mod switch;
mod tables;
pub mod tap;
pub mod tracking;
