//! Network namespaces: by name or path, of a socket, and what is done in them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use ipc::names::Namespace;
use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;

use super::interface::{Control, outcome};
use super::{OpenError, context};

/// `SIOCGSKNS` of `linux/sockios.h`: the network namespace of a socket, since Linux 4.10.
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// The file that stands for a network namespace: a path, or a name as `ip netns` knows it.
fn netns_path(netns: &str) -> PathBuf {
    Path::new("/run/netns").join(netns)
}

/// Type of the file system of namespace files (`NSFS_MAGIC` of `linux/magic.h`).
const NSFS: u64 = 0x6e73_6673;

/// Opens the file of a network namespace. The path may lead to any file, and opening one can block
/// or have effects (a device), so it is opened only once it is known to be a namespace.
fn namespace_file(netns: &str) -> Result<OwnedFd, OpenError> {
    let path = netns_path(netns);
    let what = || format!("network namespace {}", path.display());
    let open = |path: &Path, flags| {
        let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        context(opened, what)
    };
    let file = open(&path, OFlags::PATH)?;
    let found = context(rustix::fs::fstatfs(&file), what)?;
    if found.f_type as u64 != NSFS {
        return Err(OpenError::new(format!("{}: no namespace", what())));
    }
    open(sys::file::path_of(&file).as_ref(), OFlags::RDONLY)
}

/// Does something in the configured network namespace; without one, in ours.
pub(super) fn in_desired<T: Send>(
    netns: Option<&Namespace>,
    what: impl FnOnce() -> Result<T, OpenError> + Send,
) -> Result<T, OpenError> {
    match netns {
        None => what(),
        Some(netns) => in_namespace(namespace_file(netns)?.as_fd(), what),
    }
}

/// Does something in a network namespace, in a thread of its own because that stays there. Where we
/// are in it already, no right is needed for that.
pub(super) fn in_namespace<T: Send>(
    namespace: BorrowedFd<'_>,
    what: impl FnOnce() -> Result<T, OpenError> + Send,
) -> Result<T, OpenError> {
    if is_own(namespace) {
        return what();
    }
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            enter(namespace).map_err(|error| OpenError::new(error.to_string()))?;
            what()
        });
        let panicked = |_| Err(OpenError::new("the opening thread panicked"));
        done.join().unwrap_or_else(panicked)
    })
}

/// Enters a network namespace with this thread, which must be the only one of its process. Where we
/// are in it already, no right is needed for that.
///
/// # Errors
/// The system's refusal.
pub fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    if is_own(namespace) {
        return Ok(());
    }
    let kind = Some(LinkNameSpaceType::Network);
    let moved = rustix::thread::move_into_link_name_space(namespace, kind);
    moved.map_err(|error| {
        let error = io::Error::from(error);
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                " (this needs CAP_SYS_ADMIN; for the package's unit, \
                 /usr/share/lasthop/network-namespaces.conf is a drop-in with it)"
            }
            _ => "",
        };
        io::Error::new(
            error.kind(),
            format!("the network namespace: {error}{hint}"),
        )
    })
}

/// Returns whether a network namespace is this thread's.
fn is_own(namespace: BorrowedFd<'_>) -> bool {
    let own = rustix::fs::stat("/proc/thread-self/ns/net");
    let same = own.and_then(|own| {
        let other = rustix::fs::fstat(namespace)?;
        Ok((own.st_dev, own.st_ino) == (other.st_dev, other.st_ino))
    });
    same.unwrap_or(false)
}

/// Returns the network namespace of a socket.
pub(super) fn of_socket(control: &Control) -> io::Result<OwnedFd> {
    // SAFETY: the request takes nothing and makes a descriptor.
    let fd = unsafe { libc::ioctl(control.as_fd().as_raw_fd(), SIOCGSKNS) };
    outcome(fd)?;
    // SAFETY: the kernel has just made it; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_in_our_own_namespace_is_done_here() {
        let own = namespace_file("/proc/self/ns/net").unwrap();
        let here = std::thread::current().id();
        let there = in_namespace(own.as_fd(), || Ok(std::thread::current().id()));
        assert_eq!(there.unwrap(), here, "which needs no right");
    }

    #[test]
    fn namespaces_have_names_or_paths() {
        assert_eq!(netns_path("blue"), Path::new("/run/netns/blue"));
        assert_eq!(netns_path("/proc/7/ns/net"), Path::new("/proc/7/ns/net"));
    }
}
