//! Calls with several buffers.

use std::net::SocketAddr;

use super::*;
use crate::bytes::{has_sent, room, sent};

/// Buffers of a call at most (`IOV_MAX`).
const MOST: usize = 1024;

/// The address of a call that sends; null: none.
///
/// # Safety
/// As sendto(2).
pub(crate) unsafe fn to(
    address: *const sockaddr,
    len: socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() || len == 0 {
        return Ok(None);
    }
    // SAFETY: the caller says so.
    unsafe { posix::address::read(address, len) }
}

/// The buffers of a call.
///
/// # Safety
/// As readv(2).
unsafe fn buffers<'a>(buffers: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    if count > MOST {
        return Err(Errno::INVAL);
    }
    if buffers.is_null() || count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller says so.
    Ok(unsafe { std::slice::from_raw_parts(buffers, count) })
}

/// Sends the bytes of several buffers as one.
///
/// # Safety
/// As writev(2).
unsafe fn gather(
    fd: c_int,
    buffers: &[iovec],
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<usize, Errno> {
    if let [one] = buffers {
        // SAFETY: the caller says so.
        return posix::send(fd, unsafe { sent(one.iov_base, one.iov_len) }, flags, to);
    }
    let mut all = Vec::new();
    for buffer in buffers {
        // SAFETY: the caller says so.
        all.extend_from_slice(unsafe { sent(buffer.iov_base, buffer.iov_len) });
    }
    posix::send(fd, &all, flags, to)
}

/// The result of a call that receives into several buffers.
struct ReceiveResult {
    len: usize,
    whole: usize,
    from: Option<(SocketAddr, c_int)>,
}

/// Receives into several buffers, as if they were one.
///
/// # Safety
/// As readv(2).
unsafe fn scatter(fd: c_int, buffers: &[iovec], flags: c_int) -> Result<ReceiveResult, Errno> {
    let result = |received: sockets::ReceivedBytes, domain| ReceiveResult {
        len: received.len,
        whole: received.whole,
        from: received.from.map(|from| (from, domain)),
    };
    if let [one] = buffers {
        // SAFETY: the caller says so.
        let bytes = unsafe { room(one.iov_base, one.iov_len) };
        let (received, domain) = posix::receive(fd, bytes, flags)?;
        return Ok(result(received, domain));
    }
    let len = buffers.iter().map(|buffer| buffer.iov_len);
    let len = len.fold(0, usize::saturating_add).min(1 << 20);
    let mut all = vec![0; len];
    let (received, domain) = posix::receive(fd, &mut all, flags)?;
    let mut rest = &all[..received.len];
    for buffer in buffers {
        // SAFETY: the caller says so.
        let bytes = unsafe { room(buffer.iov_base, buffer.iov_len) };
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
    }
    Ok(result(received, domain))
}

/// sendmsg(2) of a socket of ours.
///
/// # Safety
/// As sendmsg(2).
unsafe fn sends(fd: c_int, message: &msghdr, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the message is the program's.
    unsafe {
        let to = to(message.msg_name.cast(), message.msg_namelen)?;
        gather(fd, buffers(message.msg_iov, message.msg_iovlen)?, flags, to)
    }
}

/// recvmsg(2) of a socket of ours.
///
/// # Safety
/// As recvmsg(2).
unsafe fn receives(fd: c_int, message: &mut msghdr, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the message is the program's.
    let got = unsafe { scatter(fd, buffers(message.msg_iov, message.msg_iovlen)?, flags)? };
    match got.from {
        Some((from, domain)) => {
            let len = &raw mut message.msg_namelen;
            // SAFETY: as above.
            unsafe { posix::address::write(from, domain, message.msg_name.cast(), len) };
        }
        None => message.msg_namelen = 0,
    }
    message.msg_controllen = 0;
    message.msg_flags = if got.whole > got.len {
        libc::MSG_TRUNC
    } else {
        0
    };
    Ok(match flags & libc::MSG_TRUNC {
        0 => got.len,
        _ => got.whole,
    })
}

/// readv(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t {
    if Sockets::is_ours(fd) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        // SAFETY: the buffers are the program's.
        let result = unsafe { buffers(to, count).and_then(|to| scatter(fd, to, 0)) };
        return size(result.map(|got| got.len));
    }
    type ReadvFn = unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
    call_next!(readv: ReadvFn, fd, to, count)
}

/// writev(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    if Sockets::is_ours(fd) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        // SAFETY: the buffers are the program's.
        let result = unsafe { buffers(from, count).and_then(|from| gather(fd, from, 0, None)) };
        return has_sent(result, 0);
    }
    type WritevFn = unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
    call_next!(writev: WritevFn, fd, from, count)
}

/// Replaces a socket of ours by one of the kernel, if a message is to go there.
///
/// # Safety
/// As sendmsg(2).
unsafe fn is_ours(fd: c_int, message: *const msghdr) -> bool {
    if !Sockets::is_ours(fd) {
        return false;
    }
    // SAFETY: the message is the program's.
    let to = unsafe {
        let message = message.as_ref();
        message.map(|message| to(message.msg_name.cast(), message.msg_namelen))
    };
    let Some(Ok(Some(to))) = to else {
        return true;
    };
    // What the system refuses is found out by the call.
    !posix::give_to_kernel(fd, to.ip()).unwrap_or(false)
}

/// sendmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the message is the program's.
    unsafe {
        if is_ours(fd, message) {
            return match message.as_ref() {
                Some(message) => has_sent(sends(fd, message, flags), flags),
                None => fail(libc::EFAULT),
            };
        }
    }
    type SendmsgFn = unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t;
    call_next!(sendmsg: SendmsgFn, fd, message, flags)
}

/// recvmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if Sockets::is_ours(fd) {
        // SAFETY: the message is the program's.
        return match unsafe { message.as_mut() } {
            // SAFETY: as above.
            Some(message) => size(unsafe { receives(fd, message, flags) }),
            None => fail(libc::EFAULT),
        };
    }
    type RecvmsgFn = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t;
    call_next!(recvmsg: RecvmsgFn, fd, message, flags)
}

/// The messages of a call.
///
/// # Safety
/// As sendmmsg(2).
unsafe fn messages<'a>(messages: *mut mmsghdr, count: u32) -> &'a mut [mmsghdr] {
    if messages.is_null() {
        return &mut [];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts_mut(messages, (count as usize).min(MOST)) }
}

/// Does one message after the other; returns how many were done, or the error of the first.
fn each(
    messages: &mut [mmsghdr],
    mut act: impl FnMut(usize, &mut msghdr) -> Result<usize, Errno>,
) -> Result<c_int, Errno> {
    let mut count = 0;
    for message in messages {
        match act(count, &mut message.msg_hdr) {
            Ok(len) => message.msg_len = len as u32,
            Err(errno) if count == 0 => return Err(errno),
            Err(_) => break,
        }
        count += 1;
    }
    Ok(count as c_int)
}

/// sendmmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, all: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    // SAFETY: the messages are the program's.
    unsafe {
        let first = messages(all, count).first();
        if is_ours(
            fd,
            first.map_or(std::ptr::null(), |first| &raw const first.msg_hdr),
        ) {
            let all = messages(all, count);
            return done(each(all, |_, message| sends(fd, message, flags)));
        }
    }
    type SendmmsgFn = unsafe extern "C" fn(c_int, *mut mmsghdr, u32, c_int) -> c_int;
    call_next!(sendmmsg: SendmmsgFn, fd, all, count, flags)
}

/// recvmmsg(2). The limit counts between messages, as in the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    all: *mut mmsghdr,
    count: u32,
    flags: c_int,
    limit: *mut timespec,
) -> c_int {
    if Sockets::is_ours(fd) {
        // SAFETY: the messages are the program's.
        let all = unsafe { messages(all, count) };
        return done(each(all, |at, message| {
            let waits = at == 0 || flags & libc::MSG_WAITFORONE == 0;
            let flags = if waits {
                flags
            } else {
                flags | libc::MSG_DONTWAIT
            };
            // SAFETY: as above.
            unsafe { receives(fd, message, flags & !libc::MSG_WAITFORONE) }
        }));
    }
    type RecvmmsgFn = unsafe extern "C" fn(c_int, *mut mmsghdr, u32, c_int, *mut timespec) -> c_int;
    call_next!(recvmmsg: RecvmmsgFn, fd, all, count, flags, limit)
}
