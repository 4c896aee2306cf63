//! Memory files that processes of ours share.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

/// What keeps the length as it is, for good.
const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A file of so many zero bytes, which nobody can make shorter or longer (`F_ADD_SEALS` in fcntl(2)): who maps one that another
/// process cuts off dies of `SIGBUS`, and so does each of its successors.
///
/// # Errors
/// The system's refusal.
pub fn fixed(name: &str, size: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&file, size)?;
    rustix::fs::fcntl_add_seals(&file, FIXED)?;
    Ok(file)
}

/// Whether a file has the length for good that it has.
///
/// # Errors
/// The system's refusal, as of a file that is not in memory.
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
