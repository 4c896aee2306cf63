//! Ports: batches of frames that are taken from them, those of guests with their queues and of the
//! host's interfaces, the locks of queues, and the notifications of guests.

pub mod alike;
pub mod attached;
pub mod batch;
pub mod budget;
pub mod calls;
pub mod coalescing;
pub mod crash_record;
pub mod faults;
pub mod guest;
pub mod interface;
#[cfg(any(test, feature = "test-utils"))]
pub mod loopback;
pub mod offload;
pub mod payload;
pub mod port;
pub mod queue_lock;
pub mod watchdog;

#[cfg(test)]
mod tests;
