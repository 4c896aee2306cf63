//! Common parts of Lasthop's processes: the main function of control, switch and drivers, the log,
//! the rights that a process drops, and the self-check before an upgrade.

pub mod log;
pub mod sandbox;
pub mod self_check;

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use ipc::supervision::{LINK_FD, SPARE};
use sandbox::Process;
use self_check::SelfCheck;

/// Name of a process that waits for its first message.
const SPARE_NAME: &str = "lasthop-spare";

/// Runs a process that the supervisor started. `process` selects the rights that are dropped before
/// the first message on the link is read. A driver has none there: it drops its rights after it has
/// its memory.
pub fn main(
    name: &str,
    process: Option<Process>,
    run: impl FnOnce(OwnedFd) -> io::Result<()>,
) -> ExitCode {
    log::start();
    let is_spare = std::env::var_os(SPARE).is_some();
    set_name(if is_spare { SPARE_NAME } else { name });
    let drop_rights = || process.map_or(Ok(()), sandbox::drop_rights);
    let checked = std::env::args()
        .nth(1)
        .is_some_and(|a| a == self_check::ARGUMENT);
    let done = if checked {
        drop_rights().and_then(|()| SelfCheck::own().print())
    } else {
        supervision_link().and_then(|link| drop_rights().and_then(|()| run(link)))
    };
    match done {
        Ok(()) => return ExitCode::SUCCESS,
        // The peer is gone; the supervisor has logged that.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            tracing::info!("{name}: {error}")
        }
        Err(error) => tracing::error!("{name}: {error}"),
    }
    ExitCode::FAILURE
}

/// Gives this process the name of what it does: a process that was started from an open file has no
/// useful one, and a spare one is called otherwise until it is used.
pub fn set_name(name: &str) {
    // A failure is harmless.
    let _ = CString::new(name).map(|name| rustix::thread::set_name(&name));
}

/// Returns the link that the supervisor opened.
fn supervision_link() -> io::Result<OwnedFd> {
    let number = std::env::var(LINK_FD).ok().and_then(|n| n.parse().ok());
    let Some(number @ 3..) = number else {
        return Err(io::Error::other(
            "this is started by `lasthop run`, not by hand",
        ));
    };
    // SAFETY: the supervisor opened this descriptor for this process alone, and this is called
    // once; the next call fails for a number that is no descriptor.
    let link = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&link, rustix::io::FdFlags::CLOEXEC)?;
    Ok(link)
}
