//! Rights that a process drops, so that an attacker who takes it over gains little.
//!
//! | right | how | where it is not possible |
//! |---|---|---|
//! | identity | a user and group id of its own, no groups | not root, or root of a user namespace without such ids: it keeps the supervisor's |
//! | capabilities | none in any set, none can be gained again (`no_new_privs`) | - |
//! | namespaces | empty network, IPC and UTS namespaces; the driver of a user port keeps the network | without `CAP_SYS_ADMIN` |
//! | files | Landlock without a single rule: no path can be opened | a kernel without Landlock |
//! | limits | no core file, no locked memory, no higher priority: `CLOSED_TO_ALL` | - |
//! | system calls | a list, each with its reason: [`filter`] | - |
//!
//! A right that cannot be dropped for lack of privileges or of a newer kernel is logged; every
//! other failure is an error, which is to end the process.

pub mod filter;
mod landlock;

use std::io;

pub use rustix::thread::CapabilitySet;

use rustix::process::{Gid, Resource, Rlimit, Signal, Uid, getrlimit, setrlimit};
use rustix::thread::{CapabilitySets, UnshareFlags};

/// First user and group id of drivers, far from ids in common use: 2^30 and some.
const DRIVERS: u32 = 0x4c48_0000;
/// The ids of the switch and of control lie before.
const SWITCH: u32 = DRIVERS - 1;
const CONTROL: u32 = DRIVERS - 2;
/// The system's user `nobody`: used where ids are mapped to a smaller range, as in a container.
const NOBODY: u32 = 65534;

/// Resources that no process of the supervisor needs.
const CLOSED_TO_ALL: [Resource; 4] = [
    Resource::Core,
    Resource::Memlock,
    Resource::Rtprio,
    Resource::Nice,
];

/// Process whose rights are dropped: each has a user id of its own, so that none can signal or
/// trace another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Process {
    /// The switch.
    Switch,
    /// Control.
    Control,
    /// The driver of the port with this number.
    Driver(u32),
    /// The driver of the user port with this number: its sockets are its work.
    UserDriver(u32),
}

impl Process {
    /// Returns its user id and group id.
    #[must_use]
    pub fn id(self) -> u32 {
        match self {
            Self::Switch => SWITCH,
            Self::Control => CONTROL,
            Self::Driver(port) | Self::UserDriver(port) => DRIVERS + port,
        }
    }

    /// Returns whether it works with sockets of its network namespace.
    fn has_network(self) -> bool {
        matches!(self, Self::UserDriver(_))
    }
}

/// Drops identity, capabilities, namespaces, files and `CLOSED_TO_ALL`. The process must still
/// have one thread: those that it starts inherit the remaining rights.
///
/// # Errors
/// A step that should always be possible failed.
pub fn drop_rights(process: Process) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    if rustix::process::geteuid().is_root() {
        leave_namespaces(process.has_network());
        if let Err(error) = change_identity(process) {
            tracing::warn!("no user id of its own: {error}");
        }
    }
    landlock::deny_all(process.has_network())?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    rustix::thread::set_capabilities(None, none)?;
    for resource in CLOSED_TO_ALL {
        limit(resource, 0)?;
    }
    // A change of identity clears it. If the supervisor died meanwhile, its end of the link is
    // closed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// Gives up some capabilities for good: no program that this process executes gets them again. The
/// process must still have one thread.
///
/// # Errors
/// A step that should always be possible failed.
pub fn give_up(capabilities: CapabilitySet) -> io::Result<()> {
    // Also for root, which gets all of its bounding set when it executes a program.
    rustix::thread::set_no_new_privs(true)?;
    for one in capabilities {
        // That takes `CAP_SETPCAP`; without it the flag above has to do.
        let _ = rustix::thread::remove_capability_from_bounding_set(one);
    }
    let now = rustix::thread::capabilities(None)?;
    let left = CapabilitySets {
        effective: now.effective - capabilities,
        permitted: now.permitted - capabilities,
        inheritable: now.inheritable - capabilities,
    };
    Ok(rustix::thread::set_capabilities(None, left)?)
}

/// Lowers both limits of a resource (getrlimit(2), in its units); lower limits stay.
///
/// # Errors
/// The error of the system call.
pub fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let now = getrlimit(resource).maximum;
    let most = Some(now.map_or(most, |now| now.min(most)));
    let new = Rlimit {
        current: most,
        maximum: most,
    };
    Ok(setrlimit(resource, new)?)
}

/// Enters an empty network namespace, without System V IPC and host name. Descriptors of an
/// interface keep their namespace. `has_network`: the network namespace stays.
fn leave_namespaces(has_network: bool) {
    let mut kept = Vec::new();
    let all = [
        (UnshareFlags::NEWNET, "network"),
        (UnshareFlags::NEWIPC, "IPC"),
        (UnshareFlags::NEWUTS, "UTS"),
    ];
    for (flag, what) in all.into_iter().skip(usize::from(has_network)) {
        // SAFETY: none of these flags is `FILES`; the process still has one thread.
        if let Err(error) = unsafe { rustix::thread::unshare_unsafe(flag) } {
            kept.push(format!("{what}: {error}"));
        }
    }
    if !kept.is_empty() {
        tracing::info!("not all namespaces of its own ({})", kept.join("; "));
    }
}

/// Takes an id that no other process has.
fn change_identity(process: Process) -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    for id in [process.id(), NOBODY] {
        let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
        match rustix::thread::set_thread_res_gid(group, group, group) {
            Ok(()) => return Ok(rustix::thread::set_thread_res_uid(user, user, user)?),
            Err(error) => tracing::info!("no group id {id}: {error}"),
        }
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_an_id_of_its_own() {
        let all = [
            Process::Switch,
            Process::Control,
            Process::Driver(0),
            Process::Driver(1),
        ];
        let mut ids: Vec<_> = all.into_iter().map(Process::id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4);
        assert!(ids.iter().all(|id| *id > 1 << 30 && *id < 1 << 31));
    }
}
