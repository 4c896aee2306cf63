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

use interfaces::limits::{STACK, heap};
use ipc::driving::BackEnd;
use process::sandbox;
use rustix::process::Resource;

use crate::user::{FLOWS_MAX, OTHER_DESCRIPTORS};

/// Descriptors that a driver may have: what it has, and some for messages.
const DESCRIPTORS: u64 = 1024;
/// Address space that the allocator reserves for a thread, and for mappings of files, bytes.
const ARENA: u64 = 128 << 20;
const ADDRESSES: u64 = 256 << 20;
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
