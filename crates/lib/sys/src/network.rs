//! The network that a process has.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketType};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

/// The interface of loopback.
const LOOPBACK: &[u8] = b"lo";

/// Leaves the network of the host for one of this process's own, which has nothing but loopback:
/// 127.0.0.1 and `::1` of its own, and no abstract sockets of others. Without the right to make one
/// (`CAP_SYS_ADMIN`), it is made in a user namespace, in which user and group are what they were.
/// The process has one thread.
///
/// # Errors
/// The system's refusal. What was done before stays.
pub fn leave_hosts() -> io::Result<()> {
    // SAFETY: neither kind of namespace has a descriptor or memory that others rely on.
    let alone = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
    if alone == Err(rustix::io::Errno::PERM) {
        leave_as_user()?;
    } else {
        alone?;
    }
    switch_on_loopback()
}

/// As [`leave_hosts`], in a user namespace with this user and group alone (user_namespaces(7)).
fn leave_as_user() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: as above.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// A new network has its loopback switched off.
fn switch_on_loopback() -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: zeros are a request about an interface without a name.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(LOOPBACK) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is one about flags (netdevice(7)).
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
