//! What a list of system calls lets through, tried by a process that has it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Exit status of a child that could not be confined.
const NOT_CONFINED: i32 = 0x80;

/// Has a child process install a list by `confine`, and set these options of a socket, each with
/// its level (setsockopt(2)). Returns which of them fail with `EPERM`. All of this process is as
/// before.
///
/// # Panics
/// When there is no child, it cannot be confined, or a list ends it; with more than seven options.
pub fn refused_options(
    confine: impl FnOnce() -> io::Result<()>,
    socket: impl AsFd,
    options: &[(i32, i32)],
) -> Vec<bool> {
    assert!(options.len() < 8, "an exit status has a bit for each");
    let socket = socket.as_fd().as_raw_fd();
    let status = in_child(|| {
        let confined = rustix::thread::set_no_new_privs(true);
        if confined.is_err() || confine().is_err() {
            return NOT_CONFINED;
        }
        let refused = |(level, name): &(i32, i32)| is_refused(socket, *level, *name);
        let bits = options.iter().enumerate();
        bits.fold(0, |all, (n, option)| all | i32::from(refused(option)) << n)
    });
    let code = status.code().unwrap_or_else(|| panic!("{status}"));
    assert!(code < NOT_CONFINED, "no list could be installed");
    (0..options.len()).map(|n| code >> n & 1 == 1).collect()
}

/// Has a child process install a list by `confine`, and then run `work`, which returns whether it
/// has worked.
///
/// # Panics
/// When it has not, or a call that is forbidden ends the child; as [`refused_options`].
pub fn assert_works(confine: impl FnOnce() -> io::Result<()>, work: impl FnOnce() -> bool) {
    let status = in_child(|| {
        let confined = rustix::thread::set_no_new_privs(true);
        match confined.is_err() || confine().is_err() {
            true => NOT_CONFINED,
            false => i32::from(!work()),
        }
    });
    assert!(status.success(), "{status}");
}

/// Has a child process install a list by `confine`. Fails unless it lets through the option for
/// room in a socket, and no other, in particular none by which another process would wait.
///
/// # Panics
/// As [`refused_options`].
pub fn assert_room_alone_can_be_set(confine: impl FnOnce() -> io::Result<()>) {
    let (socket, _other) = UnixStream::pair().expect("sockets");
    let options = [
        (libc::SOL_SOCKET, libc::SO_SNDBUF),
        (libc::SOL_SOCKET, libc::SO_LINGER),
        (libc::SOL_SOCKET, libc::SO_RCVBUF),
        (libc::SOL_TCP, libc::SO_SNDBUF),
    ];
    let refused = refused_options(confine, &socket, &options);
    assert_eq!(refused, [false, true, true, true]);
}

fn is_refused(socket: i32, level: i32, name: i32) -> bool {
    // Long enough for a number and for `struct linger`.
    let value = [1i32, 1];
    let (at, len) = ((&raw const value).cast(), size_of_val(&value) as u32);
    // SAFETY: the kernel reads the value, which lives until the call returns.
    let done = unsafe { libc::setsockopt(socket, level, name, at, len) };
    done == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Runs a function in a child process, whose exit status it returns. Nothing of this process is
/// dropped in it.
fn in_child(run: impl FnOnce() -> i32) -> ExitStatus {
    // SAFETY: the child has one thread, and other threads may have held locks. `run` takes none but
    // those of the allocator, which fork(3) leaves usable, and the child ends by `_exit`.
    let child = match unsafe { libc::fork() } {
        -1 => panic!("no child: {}", io::Error::last_os_error()),
        // SAFETY: it ends this process and has no other effect.
        0 => unsafe { libc::_exit(run()) },
        child => child,
    };
    let mut status = 0;
    // SAFETY: the kernel writes the status, which lives until the call returns.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child, "{}", io::Error::last_os_error());
    ExitStatus::from_raw(status)
}
