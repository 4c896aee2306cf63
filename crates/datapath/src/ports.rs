//! Ports of guests: their queues, the locks of these, and the notifications of guests.

pub mod coalescing;
pub mod crash_record;
pub mod guest;
pub mod offload;
pub mod queue_lock;
pub mod watchdog;
