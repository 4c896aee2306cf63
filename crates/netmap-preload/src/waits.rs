//! Waits.

use super::*;

/// The descriptors of a wait.
///
/// # Safety
/// As poll(2): there are `count` of them, or none.
unsafe fn slice<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if fds.is_null() {
        return &mut [];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
}

/// A limit in milliseconds; less than 0: none.
fn of_millis(limit: c_int) -> Option<Duration> {
    u64::try_from(limit).ok().map(Duration::from_millis)
}

/// A limit in seconds and nanoseconds; null: none.
///
/// # Safety
/// It is null or leads to a limit.
unsafe fn of_timespec(limit: *const timespec) -> Result<Option<Duration>, Errno> {
    // SAFETY: the caller says so.
    let Some(limit) = (unsafe { limit.as_ref() }) else {
        return Ok(None);
    };
    let nanos = u32::try_from(limit.tv_nsec)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000);
    match (u64::try_from(limit.tv_sec), nanos) {
        (Ok(seconds), Some(nanos)) => Ok(Some(Duration::new(seconds, nanos))),
        _ => Err(Errno::INVAL),
    }
}

/// ppoll(2) over netmap's descriptors and others.
///
/// # Safety
/// As ppoll(2).
unsafe fn poll_ours(fds: &mut [pollfd], limit: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: the limit is the program's.
    let limit = unsafe { of_timespec(limit) };
    count(limit.and_then(|limit| wait::poll(fds, limit, Mask(mask))))
}

/// poll(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int {
    // SAFETY: the array is the program's.
    let ours = unsafe { slice(fds, count) };
    if wait::concerns(ours) {
        return super::count(wait::poll(ours, of_millis(limit), Mask::NONE));
    }
    type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
    call_next!(poll: Poll, fds, count, limit)
}

/// poll(2) of a program that was compiled with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    limit: c_int,
    room: size_t,
) -> c_int {
    // SAFETY: the array is the program's.
    let ours = unsafe { slice(fds, count.min((room / size_of::<pollfd>()) as nfds_t)) };
    if wait::concerns(ours) {
        return super::count(wait::poll(ours, of_millis(limit), Mask::NONE));
    }
    type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int, size_t) -> c_int;
    call_next!(__poll_chk: Poll, fds, count, limit, room)
}

/// ppoll(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the arguments are the program's.
    unsafe {
        let ours = slice(fds, count);
        if wait::concerns(ours) {
            return poll_ours(ours, limit, mask);
        }
    }
    type Ppoll =
        unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    call_next!(ppoll: Ppoll, fds, count, limit, mask)
}

/// ppoll(2) of a program that was compiled with `_FORTIFY_SOURCE`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: the arguments are the program's.
    unsafe {
        let ours = slice(fds, count.min((room / size_of::<pollfd>()) as nfds_t));
        if wait::concerns(ours) {
            return poll_ours(ours, limit, mask);
        }
    }
    type Ppoll = unsafe extern "C" fn(
        *mut pollfd,
        nfds_t,
        *const timespec,
        *const sigset_t,
        size_t,
    ) -> c_int;
    call_next!(__ppoll_chk: Ppoll, fds, count, limit, mask, room)
}

/// select(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    limit: *mut timeval,
) -> c_int {
    let sets = Sets {
        read,
        write,
        except,
    };
    // SAFETY: the sets and the limit are the program's.
    unsafe {
        if sets.concern(count) {
            let limit = limit.as_ref().map(|limit| {
                let micros = u64::try_from(limit.tv_usec).unwrap_or(0);
                let seconds = u64::try_from(limit.tv_sec).unwrap_or(0);
                Duration::from_secs(seconds) + Duration::from_micros(micros)
            });
            return super::count(sets.select(count, limit, Mask::NONE));
        }
    }
    type Select = unsafe extern "C" fn(
        c_int,
        *mut libc::fd_set,
        *mut libc::fd_set,
        *mut libc::fd_set,
        *mut timeval,
    ) -> c_int;
    call_next!(select: Select, count, read, write, except, limit)
}

/// pselect(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = Sets {
        read,
        write,
        except,
    };
    // SAFETY: the sets, the limit and the mask are the program's.
    unsafe {
        if sets.concern(count) {
            let limit = of_timespec(limit);
            return super::count(limit.and_then(|limit| sets.select(count, limit, Mask(mask))));
        }
    }
    type Pselect = unsafe extern "C" fn(
        c_int,
        *mut libc::fd_set,
        *mut libc::fd_set,
        *mut libc::fd_set,
        *const timespec,
        *const sigset_t,
    ) -> c_int;
    call_next!(pselect: Pselect, count, read, write, except, limit, mask)
}

/// epoll_ctl(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if table::is_ours(fd) {
        // SAFETY: the event is the program's, or null.
        let event = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
        return done(epolls::control(epoll, operation, fd, event).map(|()| 0));
    }
    type EpollCtl = unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    call_next!(epoll_ctl: EpollCtl, epoll, operation, fd, event)
}

/// Waits for an instance with netmap's descriptors.
///
/// # Safety
/// As epoll_wait(2).
unsafe fn wait_ours(
    epoll: c_int,
    (events, most): (*mut epoll_event, c_int),
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    if events.is_null() || most <= 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: the program says that there is room for so many.
    let events = unsafe { std::slice::from_raw_parts_mut(events, most as usize) };
    count(epolls::wait(epoll, events, limit, Mask(mask)))
}

/// epoll_wait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: c_int,
) -> c_int {
    if epolls::concerns(epoll) {
        // SAFETY: the arguments are the program's.
        return unsafe { wait_ours(epoll, (events, most), of_millis(limit), std::ptr::null()) };
    }
    type EpollWait = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    call_next!(epoll_wait: EpollWait, epoll, events, most, limit)
}

/// epoll_pwait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: c_int,
    mask: *const sigset_t,
) -> c_int {
    if epolls::concerns(epoll) {
        // SAFETY: the arguments are the program's.
        return unsafe { wait_ours(epoll, (events, most), of_millis(limit), mask) };
    }
    type EpollPwait =
        unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    call_next!(epoll_pwait: EpollPwait, epoll, events, most, limit, mask)
}

/// epoll_pwait2(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if epolls::concerns(epoll) {
        // SAFETY: the arguments are the program's.
        return match unsafe { of_timespec(limit) } {
            // SAFETY: as above.
            Ok(limit) => unsafe { wait_ours(epoll, (events, most), limit, mask) },
            Err(errno) => fail(errno.raw_os_error()),
        };
    }
    type EpollPwait2 = unsafe extern "C" fn(
        c_int,
        *mut epoll_event,
        c_int,
        *const timespec,
        *const sigset_t,
    ) -> c_int;
    call_next!(epoll_pwait2: EpollPwait2, epoll, events, most, limit, mask)
}
