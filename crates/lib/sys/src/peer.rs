//! The process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns its credentials when it connected, or began to listen (`SO_PEERCRED`, unix(7)). The
/// process id is 0 where the process is in a PID namespace that is not visible here.
///
/// # Errors
/// When the socket is not in the Unix domain.
pub fn credentials(socket: impl AsFd) -> io::Result<libc::ucred> {
    // Not rustix's: that has no room for the process id 0.
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `peer`, which may have any value, and their
    // number to `len`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    match failed {
        // The kernel's value for no peer; a TCP socket, for one, returns it.
        0 if len as usize != size_of_val(&peer) || peer.uid == u32::MAX => {
            Err(io::ErrorKind::InvalidData.into())
        }
        0 => Ok(peer),
        _ => Err(io::Error::last_os_error()),
    }
}
