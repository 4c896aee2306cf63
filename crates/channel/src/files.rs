//! Memory files shared by Lasthop's processes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

/// Seals that fix the length permanently.
const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Creates a file of so many zero bytes, whose length is sealed (`F_ADD_SEALS` in fcntl(2)): a
/// process that maps a file that another truncates dies of `SIGBUS`, and so does each of its
/// successors.
///
/// # Errors
/// The error of the system call.
pub fn fixed(name: &str, size: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&file, size)?;
    rustix::fs::fcntl_add_seals(&file, FIXED)?;
    Ok(file)
}

/// Returns whether the length of a file is sealed.
///
/// # Errors
/// The error of the system call, as of a file that is not in memory.
pub fn is_fixed(file: impl AsFd) -> io::Result<bool> {
    let kept = SealFlags::SHRINK | SealFlags::GROW;
    Ok(rustix::fs::fcntl_get_seals(file)?.contains(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_changes_its_length() {
        let file = fixed("test", 4096).unwrap();
        assert!(is_fixed(&file).unwrap());
        for size in [0, 4095, 4097] {
            let refused = rustix::fs::ftruncate(&file, size);
            assert_eq!(refused, Err(rustix::io::Errno::PERM), "{size}");
        }
        rustix::io::pwrite(&file, &[1], 0).unwrap();
        let other = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(!is_fixed(&other).unwrap());
    }
}
