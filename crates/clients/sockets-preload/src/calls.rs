//! Sockets and their addresses.

use super::*;

/// The socket, replaced by one of the kernel if the address is the kernel's; `true`: it was.
///
/// # Safety
/// As bind(2) and connect(2).
unsafe fn is_kernels(fd: c_int, address: *const sockaddr, len: socklen_t) -> Result<bool, Errno> {
    // SAFETY: the caller says so.
    match unsafe { posix::address::read(address, len) } {
        Ok(Some(address)) => posix::give_to_kernel(fd, address.ip()),
        _ => Ok(false),
    }
}

/// socket(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if let Some(result) = posix::open(domain, kind, protocol) {
        return done(result);
    }
    type SocketFn = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    call_next!(socket: SocketFn, domain, kind, protocol)
}

/// bind(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if Sockets::is_ours(fd) {
        // SAFETY: the address is the program's.
        match unsafe { is_kernels(fd, address, len) } {
            Ok(true) => {}
            Ok(false) => {
                // SAFETY: as above.
                let address = unsafe { posix::address::read(address, len) };
                let result = address.and_then(|address| posix::bind(fd, address));
                return done(result.map(|()| 0));
            }
            Err(errno) => return fail(errno.raw_os_error()),
        }
    }
    type BindFn = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    call_next!(bind: BindFn, fd, address, len)
}

/// connect(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if Sockets::is_ours(fd) {
        // SAFETY: the address is the program's.
        match unsafe { is_kernels(fd, address, len) } {
            Ok(true) => {}
            Ok(false) => {
                // SAFETY: as above.
                let address = unsafe { posix::address::read(address, len) };
                let result = address.and_then(|address| posix::connect(fd, address));
                return done(result.map(|()| 0));
            }
            Err(errno) => return fail(errno.raw_os_error()),
        }
    }
    type ConnectFn = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    call_next!(connect: ConnectFn, fd, address, len)
}

/// listen(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if Sockets::is_ours(fd) {
        return done(posix::listen(fd, backlog).map(|()| 0));
    }
    type ListenFn = unsafe extern "C" fn(c_int, c_int) -> c_int;
    call_next!(listen: ListenFn, fd, backlog)
}

/// accept4(2) of a socket of ours.
///
/// # Safety
/// As accept4(2).
unsafe fn accepts(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    done(posix::accept(fd, flags).map(|(new, peer, domain)| {
        // SAFETY: the room is the program's.
        unsafe { posix::address::write(peer, domain, address, len) };
        new
    }))
}

/// accept(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if Sockets::is_ours(fd) {
        // SAFETY: the arguments are the program's.
        return unsafe { accepts(fd, address, len, 0) };
    }
    type AcceptFn = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    call_next!(accept: AcceptFn, fd, address, len)
}

/// accept4(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if Sockets::is_ours(fd) {
        // SAFETY: the arguments are the program's.
        return unsafe { accepts(fd, address, len, flags) };
    }
    type Accept4Fn = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    call_next!(accept4: Accept4Fn, fd, address, len, flags)
}

macro_rules! names {
    ($($name:ident)*) => { $(
        /// getsockname(2) or getpeername(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            fd: c_int,
            address: *mut sockaddr,
            len: *mut socklen_t,
        ) -> c_int {
            if Sockets::is_ours(fd) {
                return done(posix::$name(fd).map(|(name, domain)| {
                    // SAFETY: the room is the program's.
                    unsafe { posix::address::write(name, domain, address, len) };
                    0
                }));
            }
            type NameFn = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
            call_next!($name: NameFn, fd, address, len)
        }
    )* };
}

names! { getsockname getpeername }

/// shutdown(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if Sockets::is_ours(fd) {
        return done(posix::shutdown(fd, how).map(|()| 0));
    }
    type ShutdownFn = unsafe extern "C" fn(c_int, c_int) -> c_int;
    call_next!(shutdown: ShutdownFn, fd, how)
}

/// Bytes of the longest value of an option, a name.
const LONGEST: usize = 256;

/// setsockopt(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if Sockets::is_ours(fd) {
        if (len as c_int) < 0 {
            return fail(libc::EINVAL);
        }
        if value.is_null() && len > 0 {
            return fail(libc::EFAULT);
        }
        // SAFETY: the value is the program's, with so many bytes.
        let value = unsafe { crate::bytes::sent(value, (len as usize).min(LONGEST)) };
        return done(posix::set_option(fd, level, name, value).map(|()| 0));
    }
    type SetsockoptFn =
        unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    call_next!(setsockopt: SetsockoptFn, fd, level, name, value, len)
}

/// getsockopt(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if Sockets::is_ours(fd) {
        if value.is_null() || len.is_null() {
            return fail(libc::EFAULT);
        }
        // SAFETY: the length is the program's.
        if (unsafe { len.read() } as c_int) < 0 {
            return fail(libc::EINVAL);
        }
        return done(posix::get_option(fd, level, name).map(|bytes| {
            // SAFETY: the room is the program's, as long as it says.
            unsafe {
                let count = (len.read() as usize).min(bytes.len());
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), count);
                len.write(count as socklen_t);
            }
            0
        }));
    }
    type GetsockoptFn =
        unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    call_next!(getsockopt: GetsockoptFn, fd, level, name, value, len)
}

/// ioctl(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if Sockets::is_ours(fd) {
        // SAFETY: the argument is the program's, as the request needs it.
        return done(unsafe { posix::request(fd, request, argument) });
    }
    type IoctlFn = unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;
    call_next!(ioctl: IoctlFn, fd, request, argument)
}
