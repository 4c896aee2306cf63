//! Landlock (Linux, `Documentation/userspace-api/landlock.rst`): no path can be opened, no TCP port
//! bound or connected to, no outside process signalled. A process whose work is to connect may
//! connect, and still bind no TCP port.

use std::io;

use rustix::io::Errno;

/// `struct landlock_ruleset_attr`; older kernels know only its start.
#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
struct Ruleset {
    fs: u64,
    net: u64,
    scoped: u64,
}

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION: u32 = 1;
/// Bits of `LANDLOCK_ACCESS_FS_*` by the version that added them: 13, then REFER, TRUNCATE,
/// IOCTL_DEV.
const FS_BITS: [u32; 5] = [13, 14, 15, 15, 16];
/// `LANDLOCK_ACCESS_NET_BIND_TCP` and `_CONNECT_TCP`, from version 4.
const BIND: u64 = 1;
const CONNECT: u64 = 2;
/// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET` and `_SIGNAL`, from version 6.
const SCOPED: u64 = 3;

/// Returns the rule set that a kernel of this version (at least 1) supports, and the size of its
/// structure. `connects`: TCP connections are not forbidden.
fn ruleset(version: usize, connects: bool) -> (Ruleset, usize) {
    let net = if connects { BIND } else { BIND | CONNECT };
    let bits = FS_BITS[version.clamp(1, FS_BITS.len()) - 1];
    let rules = Ruleset {
        fs: (1 << bits) - 1,
        net: if version >= 4 { net } else { 0 },
        scoped: if version >= 6 { SCOPED } else { 0 },
    };
    let size = match version {
        0..=3 => 8,
        4 | 5 => 16,
        _ => size_of::<Ruleset>(),
    };
    (rules, size)
}

/// Forbids this thread, and all that it starts, everything that Landlock covers, but for TCP
/// connections if it `connects`. A kernel without Landlock is logged.
///
/// # Errors
/// The kernel has Landlock and refuses.
pub(super) fn deny_all(connects: bool) -> io::Result<()> {
    // SAFETY: with this flag the kernel reads no structure.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0usize, 0usize, VERSION) };
    let Ok(version @ 1..) = usize::try_from(version) else {
        let error = io::Error::last_os_error();
        tracing::info!("no Landlock: {error}");
        return Ok(());
    };
    let (rules, size) = ruleset(version, connects);
    // SAFETY: the kernel reads `size` bytes of the structure, which is at least as long.
    let set =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rules, size, 0) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes two numbers.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, set, 0) };
    let error = Errno::from_io_error(&io::Error::last_os_error());
    // SAFETY: the descriptor is the one that was created above, and has no other owner.
    unsafe { libc::close(set as i32) };
    match (done, error) {
        (0, _) => Ok(()),
        (_, error) => Err(error.unwrap_or(Errno::PERM).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_is_asked_for_what_it_knows() {
        let rules = |fs, net, scoped| Ruleset { fs, net, scoped };
        assert_eq!(ruleset(1, false), (rules(0x1fff, 0, 0), 8));
        assert_eq!(ruleset(3, false), (rules(0x7fff, 0, 0), 8));
        assert_eq!(ruleset(4, false), (rules(0x7fff, 3, 0), 16));
        assert_eq!(ruleset(5, false), (rules(0xffff, 3, 0), 16));
        assert_eq!(ruleset(7, false), (rules(0xffff, 3, 3), 24));
        assert_eq!(ruleset(7, true), (rules(0xffff, 1, 3), 24));
    }
}
