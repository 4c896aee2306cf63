//! Memory files (memfd_create(2)) that processes share, and text of the host's files.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};

/// Seals that fix the length permanently.
const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
/// Seals of a file that can no longer change.
const CONSTANT: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW);

fn create(name: &str) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(rustix::fs::memfd_create(name, flags)?.into())
}

/// Returns the text of a file that the system or its operator writes. Such files are bytes, as are
/// the names in them: what is not UTF-8 becomes U+FFFD, and costs nothing else.
///
/// # Errors
/// The error of the system calls.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = std::fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Creates a file of so many zero bytes, whose length is sealed (`F_ADD_SEALS` in fcntl(2)): a
/// process that maps a file that another truncates dies of `SIGBUS`, and so does each of its
/// successors.
///
/// # Errors
/// The error of the system call.
pub fn fixed(name: &str, size: u64) -> io::Result<OwnedFd> {
    let file = create(name)?;
    file.set_len(size)?;
    rustix::fs::fcntl_add_seals(&file, FIXED)?;
    Ok(file.into())
}

/// As [`fixed`], with all its memory taken, so that no later access lacks any. The caller checks
/// before that there is enough ([`crate::memory::check`]).
///
/// # Errors
/// The error of the system call, as of a limit.
pub fn filled(name: &str, size: u64) -> io::Result<OwnedFd> {
    let file = fixed(name, size)?;
    let flags = FallocateFlags::empty();
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&file, flags, 0, size))?;
    Ok(file)
}

/// Returns another descriptor of a memory file: it cannot write to the file, nor map it to be
/// written. A process that may open no path gets no better one by it.
///
/// # Errors
/// The error of the system call.
pub fn read_only(file: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path_of(file), flags, Mode::empty())?)
}

/// Returns whether the length of a file is sealed.
///
/// # Errors
/// The error of the system call, as of a file that is not in memory.
pub fn is_fixed(file: impl AsFd) -> io::Result<bool> {
    let kept = SealFlags::SHRINK | SealFlags::GROW;
    Ok(rustix::fs::fcntl_get_seals(file)?.contains(kept))
}

/// Returns the length of a file, in bytes.
///
/// # Errors
/// The error of the system call.
pub fn len(file: impl AsFd) -> io::Result<u64> {
    // Not `File::metadata`, which makes another call, statx(2).
    Ok(rustix::fs::fstat(file)?.st_size.unsigned_abs())
}

/// Creates a file of these bytes that can no longer change; it is read from its start.
///
/// # Errors
/// The error of the system call.
pub fn constant(name: &str, bytes: &[u8]) -> io::Result<File> {
    let file = create(name)?;
    // Its position stays at the start, without a call for that.
    file.write_all_at(bytes, 0)?;
    rustix::fs::fcntl_add_seals(&file, CONSTANT)?;
    Ok(file)
}

/// Returns whether a file can no longer change.
///
/// # Errors
/// The error of the system call, as of a file that is not in memory.
pub fn is_constant(file: impl AsFd) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_get_seals(file)?.contains(CONSTANT))
}

/// Returns the path at which this process can open the file of a descriptor once more, or run it
/// (proc_pid_fd(5)).
#[must_use]
pub fn path_of(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn bytes_that_are_no_text_cost_nothing_else() {
        let path = std::env::temp_dir().join(format!("lasthop-text-{}", std::process::id()));
        std::fs::write(&path, b"a caf\xe9 b\n").unwrap();
        let found = text(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap(), "a caf\u{fffd} b\n");
        assert!(text(&path).is_err());
    }

    #[test]
    fn the_length_of_a_fixed_file_does_not_change() {
        let file = fixed("test", 4096).unwrap();
        assert!(is_fixed(&file).unwrap() && !is_constant(&file).unwrap());
        for size in [0, 4095, 4097] {
            let refused = rustix::fs::ftruncate(&file, size);
            assert_eq!(refused, Err(Errno::PERM), "{size}");
        }
        rustix::io::pwrite(&file, &[1], 0).unwrap();
        assert!(!is_fixed(create("test").unwrap()).unwrap());
    }

    #[test]
    fn a_filled_file_has_all_its_memory() {
        let file = filled("test", 3 << 20).unwrap();
        assert!(is_fixed(&file).unwrap() && len(&file).unwrap() == 3 << 20);
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, (3 << 20) / 512);
    }

    #[test]
    fn a_file_is_not_written_by_its_descriptor_for_readers() {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = fixed("test", 4096).unwrap();
        let reader = read_only(&file).unwrap();
        rustix::io::pwrite(&file, b"abc", 0).unwrap();
        let mut found = [0; 3];
        rustix::io::pread(&reader, &mut found, 0).unwrap();
        assert_eq!(&found, b"abc");
        assert_eq!(rustix::io::pwrite(&reader, b"x", 0), Err(Errno::BADF));
        let (write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, if there were any, and its address is not used.
        let mapped = unsafe { mmap(std::ptr::null_mut(), 4096, write, shared, &reader, 0) };
        assert_eq!(mapped.unwrap_err(), Errno::ACCESS);
    }

    #[test]
    fn a_constant_file_does_not_change() {
        let file = constant("test", b"abc").unwrap();
        assert!(is_constant(&file).unwrap());
        assert_eq!(io::read_to_string(&file).unwrap(), "abc");
        assert_eq!(rustix::io::pwrite(&file, &[1], 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 4), Err(Errno::PERM));
        assert!(is_constant(File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn a_file_is_opened_once_more_by_its_path() {
        let file = constant("test", b"abc").unwrap();
        assert_eq!(std::fs::read(path_of(&file)).unwrap(), b"abc");
    }
}
