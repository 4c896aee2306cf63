//! Network namespaces without a name: the kernel removes one with the last descriptor that belongs
//! to it.

use std::fs;
use std::io;

use anyhow::{Context as _, Result};

/// Runs `what` in a new network namespace, in a thread that ends with it, and gives what it made
/// there. Programs that it runs are in the namespace, and so are sockets and devices that it opens,
/// wherever they go afterwards.
///
/// # Errors
/// When this process may not make namespaces, and those of `what`.
pub fn inside_new<T: Send + 'static>(
    what: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let thread = std::thread::spawn(|| {
        // SAFETY: the call reads and writes no memory of ours; what it changes is the calling
        // thread's own, which ends with `what` and has children only for what that runs.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            let error = io::Error::last_os_error();
            return Err(error).context("a network namespace needs root");
        }
        // Frames of IPv6's own would be counted as ours. Without IPv6 there is nothing to switch
        // off.
        let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        what()
    });
    thread
        .join()
        .map_err(|_| anyhow::anyhow!("a thread panicked"))?
}
