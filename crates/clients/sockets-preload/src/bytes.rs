//! Calls with one buffer.

use super::*;

/// The bytes that a program sends.
///
/// # Safety
/// As write(2).
pub(crate) unsafe fn sent<'a>(bytes: *const c_void, len: size_t) -> &'a [u8] {
    if bytes.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts(bytes.cast(), len.min(isize::MAX as usize)) }
}

/// The room of a program for what it receives.
///
/// # Safety
/// As read(2).
pub(crate) unsafe fn room<'a>(bytes: *mut c_void, len: size_t) -> &'a mut [u8] {
    if bytes.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts_mut(bytes.cast(), len.min(isize::MAX as usize)) }
}

/// The end of a call that sends: a broken pipe is a signal too (signal(7)).
pub(crate) fn has_sent(result: Result<usize, Errno>, flags: c_int) -> ssize_t {
    if result == Err(Errno::PIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: the call has no pointers.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    size(result)
}

/// recvfrom(2) of a socket of ours.
///
/// # Safety
/// As recvfrom(2).
unsafe fn receives(
    fd: c_int,
    (bytes, len): (*mut c_void, size_t),
    flags: c_int,
    (address, address_len): (*mut sockaddr, *mut socklen_t),
) -> ssize_t {
    // SAFETY: the room is the program's.
    let bytes = unsafe { room(bytes, len) };
    size(posix::receive(fd, bytes, flags).map(|(received, domain)| {
        if let Some(from) = received.from {
            // SAFETY: the room is the program's.
            unsafe { posix::address::write(from, domain, address, address_len) };
        }
        match flags & libc::MSG_TRUNC {
            0 => received.len,
            _ => received.whole,
        }
    }))
}

const NO_ADDRESS: (*mut sockaddr, *mut socklen_t) = (std::ptr::null_mut(), std::ptr::null_mut());

/// read(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t {
    if Sockets::is_ours(fd) {
        // SAFETY: the arguments are the program's.
        return unsafe { receives(fd, (bytes, len), 0, NO_ADDRESS) };
    }
    type ReadFn = unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t;
    call_next!(read: ReadFn, fd, bytes, len)
}

/// read(2) of a program that was compiled with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    has: size_t,
) -> ssize_t {
    if Sockets::is_ours(fd) && len <= has {
        // SAFETY: the arguments are the program's.
        return unsafe { receives(fd, (bytes, len), 0, NO_ADDRESS) };
    }
    type ReadFn = unsafe extern "C" fn(c_int, *mut c_void, size_t, size_t) -> ssize_t;
    call_next!(__read_chk: ReadFn, fd, bytes, len, has)
}

/// recv(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    if Sockets::is_ours(fd) {
        // SAFETY: the arguments are the program's.
        return unsafe { receives(fd, (bytes, len), flags, NO_ADDRESS) };
    }
    type RecvFn = unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    call_next!(recv: RecvFn, fd, bytes, len, flags)
}

/// recv(2) of a program that was compiled with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    has: size_t,
    flags: c_int,
) -> ssize_t {
    if Sockets::is_ours(fd) && len <= has {
        // SAFETY: the arguments are the program's.
        return unsafe { receives(fd, (bytes, len), flags, NO_ADDRESS) };
    }
    type RecvFn = unsafe extern "C" fn(c_int, *mut c_void, size_t, size_t, c_int) -> ssize_t;
    call_next!(__recv_chk: RecvFn, fd, bytes, len, has, flags)
}

/// recvfrom(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    if Sockets::is_ours(fd) {
        // SAFETY: the arguments are the program's.
        return unsafe { receives(fd, (bytes, len), flags, (address, address_len)) };
    }
    type RecvfromFn = unsafe extern "C" fn(
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t;
    call_next!(recvfrom: RecvfromFn, fd, bytes, len, flags, address, address_len)
}

/// recvfrom(2) of a program that was compiled with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    has: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    if Sockets::is_ours(fd) && len <= has {
        // SAFETY: the arguments are the program's.
        return unsafe { receives(fd, (bytes, len), flags, (address, address_len)) };
    }
    type RecvfromFn = unsafe extern "C" fn(
        c_int,
        *mut c_void,
        size_t,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t;
    call_next!(__recvfrom_chk: RecvfromFn, fd, bytes, len, has, flags, address, address_len)
}

/// write(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    if Sockets::is_ours(fd) {
        // SAFETY: the bytes are the program's.
        let bytes = unsafe { sent(bytes, len) };
        return has_sent(posix::send(fd, bytes, 0, None), 0);
    }
    type WriteFn = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
    call_next!(write: WriteFn, fd, bytes, len)
}

/// send(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    if Sockets::is_ours(fd) {
        // SAFETY: the bytes are the program's.
        let bytes = unsafe { sent(bytes, len) };
        return has_sent(posix::send(fd, bytes, flags, None), flags);
    }
    type SendFn = unsafe extern "C" fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
    call_next!(send: SendFn, fd, bytes, len, flags)
}

/// sendto(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    if Sockets::is_ours(fd) {
        // SAFETY: the arguments are the program's.
        let to = unsafe { messages::to(address, address_len) };
        let kernels = to.and_then(|to| {
            let to = to.map(|to| to.ip());
            to.map_or(Ok(false), |to| posix::give_to_kernel(fd, to))
        });
        match (kernels, to) {
            (Ok(false), Ok(to)) => {
                // SAFETY: as above.
                let bytes = unsafe { sent(bytes, len) };
                return has_sent(posix::send(fd, bytes, flags, to), flags);
            }
            (Err(errno), _) | (_, Err(errno)) => return fail(errno.raw_os_error()),
            (Ok(true), _) => {}
        }
    }
    type SendtoFn = unsafe extern "C" fn(
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t;
    call_next!(sendto: SendtoFn, fd, bytes, len, flags, address, address_len)
}

/// Bytes of a file that are sent at a time.
const PIECE: usize = 64 << 10;

/// sendfile(2) to a socket of ours: reads, and sends.
///
/// # Safety
/// As sendfile(2).
unsafe fn sends_file(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let mut piece = vec![0_u8; PIECE.min(count)];
    let mut done = 0;
    while done < count {
        let len = piece.len().min(count - done);
        let into = piece.as_mut_ptr().cast();
        // SAFETY: the piece has room; the offset is the program's, or null.
        let got = unsafe {
            match offset.as_mut() {
                Some(offset) => libc::pread(from, into, len, *offset),
                None => {
                    let at = libc::lseek(from, 0, libc::SEEK_CUR);
                    libc::pread(from, into, len, at)
                }
            }
        };
        let Ok(got) = usize::try_from(got) else {
            return if done > 0 { done as ssize_t } else { -1 };
        };
        let sent = match posix::send(to, &piece[..got], 0, None) {
            Ok(sent) => sent,
            Err(_) if done > 0 => break,
            Err(errno) => return has_sent(Err(errno), 0),
        };
        // SAFETY: as above. What was not sent is read again.
        unsafe {
            match offset.as_mut() {
                Some(offset) => *offset += sent as off_t,
                None => drop(libc::lseek(from, sent as off_t, libc::SEEK_CUR)),
            }
        }
        done += sent;
        if got < len || sent < got {
            break;
        }
    }
    done as ssize_t
}

macro_rules! sendfile {
    ($($name:ident)*) => { $(
        /// sendfile(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            to: c_int,
            from: c_int,
            offset: *mut off_t,
            count: size_t,
        ) -> ssize_t {
            if Sockets::is_ours(to) {
                // SAFETY: the arguments are the program's.
                return unsafe { sends_file(to, from, offset, count) };
            }
            type SendfileFn = unsafe extern "C" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t;
            call_next!($name: SendfileFn, to, from, offset, count)
        }
    )* };
}

sendfile! { sendfile sendfile64 }
