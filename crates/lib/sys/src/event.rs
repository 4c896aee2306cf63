//! Event descriptors (eventfd(2)): one thread or process wakes another.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Creates an event descriptor that never blocks and is close-on-exec.
///
/// # Errors
/// The error of the system call.
pub fn create() -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

/// Makes an event descriptor readable: adds one to its counter. A full one is readable already.
///
/// # Errors
/// The error of the system call: the descriptor is no event descriptor.
pub fn ring(event: impl AsFd) -> io::Result<()> {
    match rustix::io::write(event, &1u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sets the counter of an event descriptor to zero: it is no longer readable.
pub fn clear(event: impl AsFd) {
    // A counter that is zero already is the one error of a descriptor of `create`.
    let _ = rustix::io::read(event, &mut [0u8; 8]);
}

/// Checks that a descriptor of another process is an event descriptor, and makes it non-blocking.
/// A write to another kind of file could block or have side effects.
///
/// # Errors
/// A reason, as text.
pub fn check(fd: &OwnedFd) -> Result<(), String> {
    let target = rustix::fs::readlink(crate::file::path_of(fd), Vec::new());
    match target.as_deref().map(std::ffi::CStr::to_bytes) {
        Ok(b"anon_inode:[eventfd]") => {}
        Ok(_) => return Err("the descriptor is no eventfd".into()),
        Err(error) => return Err(format!("the descriptor cannot be checked: {error}")),
    }
    let flags = rustix::fs::fcntl_getfl(fd);
    let set = flags.and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK));
    set.map_err(|error| format!("event descriptor: {error}"))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::event::PollFlags;

    use super::*;
    use crate::wait;

    #[test]
    fn a_ring_is_readable_until_it_is_cleared() {
        let event = create().unwrap();
        let is_readable = || {
            let ready = wait::ready(&event, PollFlags::IN, Some(Instant::now()));
            ready.unwrap() == PollFlags::IN
        };
        assert!(!is_readable());
        clear(&event);
        ring(&event).unwrap();
        ring(&event).unwrap();
        assert!(is_readable());
        clear(&event);
        assert!(!is_readable());
    }

    #[test]
    fn a_full_counter_is_no_error() {
        let event = create().unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        ring(&event).unwrap();
    }

    #[test]
    fn another_file_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(ring(&file).is_err());
    }
}
