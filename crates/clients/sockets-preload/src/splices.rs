//! splice(2) between a pipe and a TCP socket of ours. Bytes are copied: once into the stack, or
//! once into pages that the pipe has then.

use std::ffi::c_uint;
use std::ptr;

use super::*;
use crate::bytes::has_sent;

/// Bytes that are moved at a time, as many as a pipe holds.
const PIECE: size_t = 64 << 10;

/// Flags of a call on the socket, for those of splice(2).
fn flags_of(flags: c_uint) -> c_int {
    match flags & libc::SPLICE_F_NONBLOCK {
        0 => 0,
        _ => libc::MSG_DONTWAIT,
    }
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}

fn length(result: ssize_t) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last_error())
}

/// Checks that a descriptor is a pipe, as splice(2) requires of one end.
fn is_pipe(fd: c_int) -> Result<(), Errno> {
    // SAFETY: zeros are a state of a file, which the call fills in.
    let is_pipe = unsafe {
        let mut state: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &raw mut state) == 0 && state.st_mode & libc::S_IFMT == libc::S_IFIFO
    };
    is_pipe.then_some(()).ok_or(Errno::INVAL)
}

/// Moves bytes of a pipe to a socket: no more than it can take at once, so that none is lost.
fn to_socket(pipe: c_int, socket: c_int, len: size_t, flags: c_uint) -> Result<usize, Errno> {
    is_pipe(pipe)?;
    let room = posix::room(socket, flags_of(flags))?;
    let mut bytes = vec![0_u8; len.min(PIECE).min(room)];
    if flags & libc::SPLICE_F_NONBLOCK != 0 {
        let mut fds = [libc::pollfd {
            fd: pipe,
            events: libc::POLLIN,
            revents: 0,
        }];
        let mask = interpose::Mask::NONE;
        if interpose::system::poll(&mut fds, Some(std::time::Duration::ZERO), mask)? == 0 {
            return Err(Errno::AGAIN);
        }
    }
    // SAFETY: there is room for so many.
    let got = length(unsafe { libc::read(pipe, bytes.as_mut_ptr().cast(), bytes.len()) })?;
    match got {
        0 => Ok(0),
        _ => posix::send(socket, &bytes[..got], flags_of(flags), None),
    }
}

/// Pages of their own.
struct Pages(*mut c_void, size_t);

impl Pages {
    fn new(len: size_t) -> Result<Self, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the mapping is a new one.
        let address = unsafe { libc::mmap(ptr::null_mut(), len, protection, kind, -1, 0) };
        match address == libc::MAP_FAILED {
            true => Err(Errno::NOMEM),
            false => Ok(Self(address, len)),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's. A pipe keeps the pages that it has.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// Moves received bytes to a pipe: those that it takes. The others stay received.
fn to_pipe(socket: c_int, pipe: c_int, len: size_t, flags: c_uint) -> Result<usize, Errno> {
    is_pipe(pipe)?;
    let pages = Pages::new(len.clamp(1, PIECE))?;
    // SAFETY: the pages are there, with so many bytes, and nothing else has them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(pages.0.cast::<u8>(), pages.1) };
    let (received, _) = posix::receive(socket, bytes, flags_of(flags) | libc::MSG_PEEK)?;
    if received.len == 0 {
        return Ok(0);
    }
    let given = iovec {
        iov_base: pages.0,
        iov_len: received.len,
    };
    // SAFETY: the pages are not written to any more: the pipe has them.
    let taken = length(unsafe { libc::vmsplice(pipe, &raw const given, 1, flags) })?;
    let mut rest = vec![0; taken];
    posix::receive(socket, &mut rest, libc::MSG_DONTWAIT)?;
    Ok(taken)
}

/// splice(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut libc::loff_t,
    to: c_int,
    to_offset: *mut libc::loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let (is_from, is_to) = (Sockets::is_ours(from), Sockets::is_ours(to));
    if is_from || is_to {
        if is_from && is_to {
            return fail(libc::EINVAL);
        }
        if len == 0 {
            return 0;
        }
        // Neither has a place that could be sought.
        if !from_offset.is_null() || !to_offset.is_null() {
            return fail(libc::ESPIPE);
        }
        return match is_to {
            true => has_sent(to_socket(from, to, len, flags), 0),
            false => size(to_pipe(from, to, len, flags)),
        };
    }
    type SpliceFn = unsafe extern "C" fn(
        c_int,
        *mut libc::loff_t,
        c_int,
        *mut libc::loff_t,
        size_t,
        c_uint,
    ) -> ssize_t;
    call_next!(splice: SpliceFn, from, from_offset, to, to_offset, len, flags)
}
