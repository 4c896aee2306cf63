//! What the mains of control, switch and drivers share.

#[path = "log.rs"]
mod log;

use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use channel::supervision::LINK_FD;
use sandbox::Process;

/// Runs a process that the supervisor started. `process`: whose rights are dropped before anything is heard on the link, which
/// brings all that the process needs; nobody's for a driver, which drops them itself once it has its memory.
pub(crate) fn main(
    name: &str,
    process: Option<Process>,
    run: impl FnOnce(OwnedFd) -> io::Result<()>,
) -> ExitCode {
    log::start();
    let link = supervision_link().and_then(|link| {
        process.map_or(Ok(()), sandbox::drop_rights)?;
        Ok(link)
    });
    match link.and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "{name}: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The link that the supervisor left for us.
fn supervision_link() -> io::Result<OwnedFd> {
    let number = std::env::var(LINK_FD).ok().and_then(|n| n.parse().ok());
    let Some(number @ 3..) = number else {
        return Err(io::Error::other(
            "this is started by `lasthop run`, not by hand",
        ));
    };
    // SAFETY: the supervisor opened this descriptor for this process alone, and this is called once; a
    // number that is none is found by the next call.
    let link = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&link, rustix::io::FdFlags::CLOEXEC)?;
    Ok(link)
}
