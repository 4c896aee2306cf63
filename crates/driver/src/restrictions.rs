//! Restriction of a driver process before the first frame, in two steps around the start of its
//! threads: first the rights that all processes drop ([`sandbox::drop_rights`]), then the limits
//! that are specific to drivers.
//!
//! | restricted | limit |
//! |---|---|
//! | memory | 32 MiB of heap, of a user port 128 MiB, and the shared region |
//! | the rest | no new process or thread, few descriptors but for the sockets of a user port |
//! | system calls | a list, each with its reason: [`filter`] |

mod filter;

use std::io;

use channel::driving::BackEnd;
use front::region::Shape;
use rustix::process::Resource;

use crate::user::{FLOWS_MAX, OTHER_DESCRIPTORS};

/// Descriptors that a driver may have: what it has, and some for messages.
const DESCRIPTORS: u64 = 1024;
/// Heap, bytes.
const HEAP: u64 = 32 << 20;
/// The same of a user port, whose flows have about one KiB each.
const USER_HEAP: u64 = 128 << 20;
/// Memory of the system for the sockets of a user port, bytes: 16 KiB for each on average.
const USER_SOCKETS: u64 = 16 << 10;
/// Stack of each thread, with its guard page, bytes.
const STACK: u64 = 4 << 20;
/// Address space that the allocator reserves for a thread, and for mappings of files, bytes.
const ARENA: u64 = 128 << 20;
const ADDRESSES: u64 = 256 << 20;
/// Memory that the system may need for a driver, bytes: page tables, and packets in sockets.
const SYSTEM: u64 = 64 << 20;

/// Returns the limit of memory of a driver with so many queue pairs, in bytes, memory in the kernel
/// included. Other back ends than that of user ports have the same.
#[must_use]
pub fn most_memory(pairs: u16, back_end: BackEnd) -> u64 {
    // Buffers of the kernel for a queue, each direction.
    let queues = u64::from(pairs) * 2 * crate::device::BACKLOG;
    let sockets = match back_end {
        BackEnd::User => u64::from(FLOWS_MAX) * USER_SOCKETS,
        _ => 0,
    };
    Shape::LONG.size(pairs) + heap(back_end) + u64::from(pairs) * STACK + SYSTEM + queues + sockets
}

fn heap(back_end: BackEnd) -> u64 {
    match back_end {
        BackEnd::User => USER_HEAP,
        _ => HEAP,
    }
}

/// Returns the number of threads of such a driver, with those that the kernel makes for vhost
/// devices.
#[must_use]
pub fn threads(pairs: u16) -> u64 {
    2 * u64::from(pairs) + 1
}

/// Second step, with all threads: limits, and the system call filter. `shared` are the bytes of the
/// region, which is in a sealed file; `threads` are those beside the main thread.
///
/// # Errors
/// The system's refusal.
pub(crate) fn apply(shared: u64, threads: u16, back_end: BackEnd) -> io::Result<()> {
    let threads = u64::from(threads);
    let descriptors = match back_end {
        BackEnd::User => u64::from(FLOWS_MAX + OTHER_DESCRIPTORS),
        _ => DESCRIPTORS,
    };
    for (resource, most) in [
        (Resource::Data, heap(back_end) + threads * STACK),
        (
            Resource::As,
            shared + heap(back_end) + ADDRESSES + threads * (STACK + ARENA),
        ),
        (Resource::Nproc, 0),
        (Resource::Nofile, descriptors),
    ] {
        sandbox::limit(resource, most)?;
    }
    sandbox::filter::install(&filter::list(back_end))
}
