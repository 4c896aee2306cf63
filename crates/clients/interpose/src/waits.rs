//! Functions of the C library that wait.

/// Defines `poll`, `select`, `epoll_wait` and their relatives for a [`Library`](crate::Library).
/// They must be in the list of [`functions`](crate::functions).
#[macro_export]
macro_rules! interpose_waits {
    ($library:ty) => {
        mod interposed_waits {
            use std::ffi::c_int;
            use std::time::Duration;

            use $crate::limits::{self, descriptors};
            use $crate::sets::Sets;
            use $crate::{Library as _, Mask, any_ours, epolls, outcome};
            use libc::{epoll_event, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

            use super::*;

            type Ours = $library;

            /// ppoll(2) over the library's descriptors and others.
            ///
            /// # Safety
            /// As ppoll(2).
            unsafe fn poll_ours(
                fds: &mut [pollfd],
                limit: *const timespec,
                mask: *const sigset_t,
            ) -> c_int {
                // SAFETY: the limit is the program's.
                let limit = unsafe { limits::of_timespec(limit) };
                outcome::count(limit.and_then(|limit| Ours::poll(fds, limit, Mask(mask))))
            }

            /// poll(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int {
                // SAFETY: the array is the program's.
                let ours = unsafe { descriptors(fds, count) };
                if any_ours::<Ours>(ours) {
                    return outcome::count(Ours::poll(
                        ours,
                        limits::of_millis(limit),
                        Mask::NONE,
                    ));
                }
                type PollFn = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
                $crate::call_next!(poll: PollFn, fds, count, limit)
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
                let ours = unsafe {
                    descriptors(fds, count.min((room / size_of::<pollfd>()) as nfds_t))
                };
                if any_ours::<Ours>(ours) {
                    return outcome::count(Ours::poll(
                        ours,
                        limits::of_millis(limit),
                        Mask::NONE,
                    ));
                }
                type PollFn = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int, size_t) -> c_int;
                $crate::call_next!(__poll_chk: PollFn, fds, count, limit, room)
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
                    let ours = descriptors(fds, count);
                    if any_ours::<Ours>(ours) {
                        return poll_ours(ours, limit, mask);
                    }
                }
                type PpollFn = unsafe extern "C" fn(
                    *mut pollfd,
                    nfds_t,
                    *const timespec,
                    *const sigset_t,
                ) -> c_int;
                $crate::call_next!(ppoll: PpollFn, fds, count, limit, mask)
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
                    let ours =
                        descriptors(fds, count.min((room / size_of::<pollfd>()) as nfds_t));
                    if any_ours::<Ours>(ours) {
                        return poll_ours(ours, limit, mask);
                    }
                }
                type PpollFn = unsafe extern "C" fn(
                    *mut pollfd,
                    nfds_t,
                    *const timespec,
                    *const sigset_t,
                    size_t,
                ) -> c_int;
                $crate::call_next!(__ppoll_chk: PpollFn, fds, count, limit, mask, room)
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
                    if sets.concern(count, Ours::is_ours) {
                        let limit = limit.as_ref().map(limits::of_timeval);
                        let poll = |fds: &mut [pollfd]| Ours::poll(fds, limit, Mask::NONE);
                        return outcome::count(sets.select(count, poll));
                    }
                }
                type SelectFn = unsafe extern "C" fn(
                    c_int,
                    *mut libc::fd_set,
                    *mut libc::fd_set,
                    *mut libc::fd_set,
                    *mut timeval,
                ) -> c_int;
                $crate::call_next!(select: SelectFn, count, read, write, except, limit)
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
                    if sets.concern(count, Ours::is_ours) {
                        let limit = limits::of_timespec(limit);
                        return outcome::count(limit.and_then(|limit| {
                            sets.select(count, |fds| Ours::poll(fds, limit, Mask(mask)))
                        }));
                    }
                }
                type PselectFn = unsafe extern "C" fn(
                    c_int,
                    *mut libc::fd_set,
                    *mut libc::fd_set,
                    *mut libc::fd_set,
                    *const timespec,
                    *const sigset_t,
                ) -> c_int;
                $crate::call_next!(pselect: PselectFn, count, read, write, except, limit, mask)
            }

            /// epoll_ctl(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn epoll_ctl(
                epoll: c_int,
                operation: c_int,
                fd: c_int,
                event: *mut epoll_event,
            ) -> c_int {
                if Ours::is_ours(fd) {
                    // SAFETY: the event is the program's, or null.
                    let event = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
                    return outcome::done(
                        Ours::epoll_control(epoll, operation, fd, event).map(|()| 0),
                    );
                }
                type EpollCtlFn =
                    unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
                $crate::call_next!(epoll_ctl: EpollCtlFn, epoll, operation, fd, event)
            }

            /// Waits for an instance with the library's descriptors.
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
                    return outcome::fail(libc::EINVAL);
                }
                // SAFETY: the program says that there is room for this number.
                let events = unsafe { std::slice::from_raw_parts_mut(events, most as usize) };
                outcome::count(Ours::epoll_wait(epoll, events, limit, Mask(mask)))
            }

            /// Waits for an instance: by the next function while it has none of the library's
            /// descriptors. When it gets the first one meanwhile, the wait begins anew.
            ///
            /// # Safety
            /// As epoll_wait(2).
            unsafe fn waits(
                epoll: c_int,
                (events, most): (*mut epoll_event, c_int),
                limit: Option<Duration>,
                mask: *const sigset_t,
                next: impl FnOnce() -> c_int,
            ) -> c_int {
                epolls::begins();
                if Ours::concerns(epoll) {
                    epolls::ends();
                    // SAFETY: the caller says so.
                    return unsafe { wait_ours(epoll, (events, most), limit, mask) };
                }
                let count = next();
                epolls::ends();
                if count <= 0 {
                    return count;
                }
                // SAFETY: the next function has written this number.
                let found = unsafe { std::slice::from_raw_parts_mut(events, count as usize) };
                match Ours::take_own(found) {
                    // SAFETY: the caller says so.
                    Some(0) => unsafe { wait_ours(epoll, (events, most), limit, mask) },
                    Some(left) => left as c_int,
                    None => count,
                }
            }

            /// epoll_wait(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn epoll_wait(
                epoll: c_int,
                events: *mut epoll_event,
                most: c_int,
                limit: c_int,
            ) -> c_int {
                type EpollWaitFn =
                    unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
                let next =
                    || $crate::call_next!(epoll_wait: EpollWaitFn, epoll, events, most, limit);
                let (limit, mask) = (limits::of_millis(limit), std::ptr::null());
                // SAFETY: the arguments are the program's.
                unsafe { waits(epoll, (events, most), limit, mask, next) }
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
                type EpollPwaitFn = unsafe extern "C" fn(
                    c_int,
                    *mut epoll_event,
                    c_int,
                    c_int,
                    *const sigset_t,
                ) -> c_int;
                let next = || {
                    $crate::call_next!(
                        epoll_pwait: EpollPwaitFn,
                        epoll, events, most, limit, mask
                    )
                };
                let limit = limits::of_millis(limit);
                // SAFETY: the arguments are the program's.
                unsafe { waits(epoll, (events, most), limit, mask, next) }
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
                type EpollPwait2Fn = unsafe extern "C" fn(
                    c_int,
                    *mut epoll_event,
                    c_int,
                    *const timespec,
                    *const sigset_t,
                ) -> c_int;
                let next = || {
                    $crate::call_next!(
                        epoll_pwait2: EpollPwait2Fn,
                        epoll, events, most, limit, mask
                    )
                };
                // SAFETY: the arguments are the program's.
                match unsafe { limits::of_timespec(limit) } {
                    // SAFETY: as above.
                    Ok(limit) => unsafe { waits(epoll, (events, most), limit, mask, next) },
                    Err(errno) => outcome::fail(errno.raw_os_error()),
                }
            }
        }
    };
}
