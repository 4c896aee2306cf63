//! What a driver gives up before the first frame, in two steps around the start of its threads.
//!
//! | what | how | where it cannot be had |
//! |---|---|---|
//! | identity | a user and group id of its own for each port, no groups | not root, or root of a user namespace without such ids: it keeps the supervisor's |
//! | capabilities | none in any set, none to be had again (`no_new_privs`) | - |
//! | namespaces | empty network, IPC and UTS namespaces | not root |
//! | files | Landlock without a single rule: no path can be opened | a kernel without Landlock |
//! | memory | 32 MiB of heap and the shared region, no locked memory | - |
//! | the rest | no new process or thread, few descriptors, no core file, no higher priority | - |
//! | system calls | a list, each with its reason: [`filter`] | - |
//!
//! What cannot be had for want of rights or of a newer kernel is logged; everything else that fails ends the driver.

mod filter;
mod landlock;

use std::io;

use rustix::process::{Gid, Resource, Rlimit, Signal, Uid, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

/// User and group ids of drivers start here, far from those that anybody hands out: 2^30 and some.
const FIRST_ID: u32 = 0x4c48_0000;
/// "nobody": where ids are mapped to a smaller range, as in a container.
const NOBODY: u32 = 65534;
/// Descriptors that a driver may have: what it has, and some for messages.
const DESCRIPTORS: u64 = 1024;
/// Memory of its own, bytes.
const HEAP: u64 = 32 << 20;
/// Of each thread, with a guard.
const STACK: u64 = 4 << 20;
/// Address space that the allocator reserves for a thread, and for what is mapped from files.
const ARENA: u64 = 128 << 20;
const ADDRESSES: u64 = 256 << 20;

/// First step, with one thread: identity, capabilities, namespaces, files.
///
/// # Errors
/// What should always be possible is not.
pub(crate) fn drop_rights(port: u32) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let root = rustix::process::geteuid().is_root();
    if root {
        leave_namespaces();
        if let Err(error) = change_identity(port) {
            tracing::warn!("no user id of its own: {error}");
        }
    }
    landlock::deny_all()?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    rustix::thread::set_capabilities(None, none)?;
    // Another identity clears it. If the supervisor died meanwhile, its end of the link is closed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// Second step, with all threads: limits, and no system call that is not on the list. `shared` are the bytes of the
/// region, which is in a sealed file; `threads` are those beside the main thread.
///
/// # Errors
/// What should always be possible is not.
pub(crate) fn close(shared: u64, threads: u16) -> io::Result<()> {
    let threads = u64::from(threads);
    for (resource, most) in [
        (Resource::Data, HEAP + threads * STACK),
        (Resource::As, shared + ADDRESSES + threads * (STACK + ARENA)),
        (Resource::Memlock, 0),
        (Resource::Nproc, 0),
        (Resource::Nofile, DESCRIPTORS),
        (Resource::Core, 0),
        (Resource::Rtprio, 0),
        (Resource::Nice, 0),
    ] {
        limit(resource, most)?;
    }
    filter::install()
}

/// Lowers both limits; what is lower already stays.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let now = getrlimit(resource).maximum;
    let most = Some(now.map_or(most, |now| now.min(most)));
    let new = Rlimit {
        current: most,
        maximum: most,
    };
    Ok(setrlimit(resource, new)?)
}

/// An empty network, no System V IPC, no host name. The descriptors of the interface keep theirs.
fn leave_namespaces() {
    for (flag, what) in [
        (UnshareFlags::NEWNET, "network"),
        (UnshareFlags::NEWIPC, "IPC"),
        (UnshareFlags::NEWUTS, "UTS"),
    ] {
        // SAFETY: none of these flags is `FILES`; the process has one thread still.
        if let Err(error) = unsafe { rustix::thread::unshare_unsafe(flag) } {
            tracing::info!("no {what} namespace of its own: {error}");
        }
    }
}

/// Takes an id that nobody else has.
fn change_identity(port: u32) -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    for id in [FIRST_ID + port, NOBODY] {
        let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
        match rustix::thread::set_thread_res_gid(group, group, group) {
            Ok(()) => return Ok(rustix::thread::set_thread_res_uid(user, user, user)?),
            Err(error) => tracing::info!("no group id {id}: {error}"),
        }
    }
    Err(io::ErrorKind::PermissionDenied.into())
}
