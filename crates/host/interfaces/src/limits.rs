//! Memory and threads of a driver process: the supervisor limits its control group by them, and
//! the process itself.

use ipc::driving::{BackEnd, FLOWS_MAX, PACKET_BACKLOG};
use wire::virtio::shape::Shape;

/// Heap, bytes.
const HEAP: u64 = 32 << 20;
/// The same of a user port, whose flows have about one KiB each.
const USER_HEAP: u64 = 128 << 20;
/// Memory of the system for the sockets of a user port, bytes: 16 KiB for each on average.
const USER_SOCKETS: u64 = 16 << 10;
/// Stack of each thread, with its guard page, bytes.
pub const STACK: u64 = 4 << 20;
/// Memory that the system may need for a driver, bytes: page tables, and packets in sockets.
const SYSTEM: u64 = 64 << 20;

/// Returns the maximum memory of a driver with this number of queue pairs, in bytes, memory in the
/// kernel included. All back ends but that of user ports have the same.
#[must_use]
pub fn memory(pairs: u16, back_end: BackEnd) -> u64 {
    // Buffers of the kernel for a queue, each direction.
    let queues = u64::from(pairs) * 2 * PACKET_BACKLOG;
    let sockets = match back_end {
        BackEnd::User => u64::from(FLOWS_MAX) * USER_SOCKETS,
        _ => 0,
    };
    Shape::LONG.size(pairs) + heap(back_end) + u64::from(pairs) * STACK + SYSTEM + queues + sockets
}

/// Returns the maximum heap of a driver, in bytes.
#[must_use]
pub fn heap(back_end: BackEnd) -> u64 {
    match back_end {
        BackEnd::User => USER_HEAP,
        _ => HEAP,
    }
}

/// Returns the number of threads of a driver with this number of queue pairs, including those that
/// the kernel makes for vhost devices.
#[must_use]
pub fn threads(pairs: u16) -> u64 {
    2 * u64::from(pairs) + 1
}
