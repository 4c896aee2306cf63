//! Programs that the program starts.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use interpose::programs::{self, Refusal};
use rustix::io::Errno;

use crate::SAY;
use crate::config::{SOCKET, variable};

/// The settings came by the environment, and so come to the programs that this one starts.
static IS_HEIR: AtomicBool = AtomicBool::new(false);

/// Notes what the environment is; to be called when the library is loaded.
pub fn loaded() {
    let is_there = std::env::var_os(variable(SOCKET)).is_some();
    IS_HEIR.store(is_there, Ordering::Relaxed);
}

/// Checks, before a program starts, that its sockets will be the port's.
///
/// # Errors
/// `EACCES`, after a line that says why. It takes no lock: a child after fork(2) or vfork(2) may
/// call it.
pub fn may_run(path: &Path) -> Result<(), Errno> {
    if !IS_HEIR.load(Ordering::Relaxed) {
        return Ok(());
    }
    match programs::check(path) {
        Err(refusal @ Refusal::Past(_)) => {
            SAY.each_time(&refusal.to_string());
            Err(Errno::ACCESS)
        }
        // The system says itself why it does not start it.
        Ok(()) | Err(Refusal::NoProgram(_)) => Ok(()),
    }
}
