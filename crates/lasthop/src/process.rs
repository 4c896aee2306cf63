//! What the mains of control, switch and drivers share.

#[path = "log.rs"]
mod log;
#[path = "self_check.rs"]
mod self_check;

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use channel::supervision::LINK_FD;
use sandbox::Process;
use self_check::SelfCheck;

/// Runs a process that the supervisor started. `process`: whose rights are dropped before anything is heard on the link, which
/// brings all that the process needs; nobody's for a driver, which drops them itself once it has its memory.
pub(crate) fn main(
    name: &str,
    process: Option<Process>,
    run: impl FnOnce(OwnedFd) -> io::Result<()>,
) -> ExitCode {
    log::start();
    // It was started from an open file, which has no name of its own. Without one it works too.
    let _ = CString::new(name).map(|name| rustix::thread::set_name(&name));
    let drop_rights = || process.map_or(Ok(()), sandbox::drop_rights);
    let checked = std::env::args()
        .nth(1)
        .is_some_and(|a| a == self_check::ARGUMENT);
    let done = match checked {
        true => drop_rights().and_then(|()| SelfCheck::own().print()),
        false => supervision_link().and_then(|link| drop_rights().and_then(|()| run(link))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // A peer is gone, which the supervisor knows and has said.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            tracing::info!("{name}: {error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("{name}: {error}");
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
