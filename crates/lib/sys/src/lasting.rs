//! Errors of the environment: a system call that fails by one of them fails again until what it
//! needs is mended.

use std::io;

use rustix::io::Errno;

/// Errors of a path or an address that is wrong, in use, or not for this process, and of limits
/// that its environment sets (errno(3)).
const LASTING: [Errno; 17] = [
    Errno::PERM,
    Errno::ACCESS,
    Errno::NOENT,
    Errno::NOEXEC,
    Errno::NXIO,
    Errno::NOTDIR,
    Errno::ISDIR,
    Errno::EXIST,
    Errno::LOOP,
    Errno::NAMETOOLONG,
    Errno::NODEV,
    Errno::ROFS,
    Errno::ADDRINUSE,
    Errno::ADDRNOTAVAIL,
    Errno::MFILE,
    Errno::NFILE,
    Errno::OPNOTSUPP,
];

/// Returns whether the same call fails again until the environment is another one. An error
/// without a number counts by its kind.
#[must_use]
pub fn is_lasting(error: &io::Error) -> bool {
    match Errno::from_io_error(error) {
        Some(errno) => LASTING.contains(&errno),
        None => kinds().any(|kind| kind == error.kind()),
    }
}

/// Returns the kinds of these errors.
fn kinds() -> impl Iterator<Item = io::ErrorKind> {
    LASTING.iter().map(|errno| errno.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_lasts_and_a_full_disk_may_not() {
        let denied = io::Error::from(Errno::ACCESS);
        let named = io::Error::new(denied.kind(), "the runtime directory /run/x");
        let taken = io::Error::new(io::ErrorKind::AddrInUse, "another Lasthop");
        for error in [denied, named, taken, Errno::MFILE.into()] {
            assert!(is_lasting(&error), "{error}");
        }
        let other = io::Error::other("no reason");
        for error in [
            Errno::NOSPC.into(),
            Errno::IO.into(),
            Errno::AGAIN.into(),
            other,
        ] {
            assert!(!is_lasting(&error), "{error}");
        }
    }
}
