//! The sets of select(2).

use std::ffi::{c_int, c_short};
use std::os::fd::RawFd;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, pollfd};
use rustix::io::Errno;

/// The sets of select(2), as the program gave them; each may be null.
#[derive(Debug)]
pub struct Sets {
    /// To be read from.
    pub read: *mut fd_set,
    /// To be written to.
    pub write: *mut fd_set,
    /// Exceptions.
    pub except: *mut fd_set,
}

impl Sets {
    fn all(&self) -> [(*mut fd_set, c_short); 3] {
        [
            (self.read, POLLIN),
            (self.write, POLLOUT),
            (self.except, POLLPRI),
        ]
    }

    /// Whether one of the descriptors below `count` is ours, by `is_ours`.
    ///
    /// # Safety
    /// Each set is null or one of the program.
    #[must_use]
    pub unsafe fn concern(&self, count: c_int, is_ours: impl Fn(RawFd) -> bool) -> bool {
        (0..count.min(libc::FD_SETSIZE as c_int)).any(|fd| {
            // SAFETY: the caller says what the sets are, and `fd` is below their size.
            let is_in = |(set, _): &(*mut fd_set, c_short)| unsafe {
                !set.is_null() && libc::FD_ISSET(fd, *set)
            };
            is_ours(fd) && self.all().iter().any(is_in)
        })
    }

    /// pselect(2), by a ppoll(2) over the same descriptors.
    ///
    /// # Errors
    /// Those of pselect(2).
    ///
    /// # Safety
    /// As [`Self::concern`].
    pub unsafe fn select(
        &self,
        count: c_int,
        poll: impl FnOnce(&mut [pollfd]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        const ROOM: usize = libc::FD_SETSIZE;
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?.min(ROOM);
        let none = pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        let mut fds = [none; ROOM];
        let mut used = 0;
        for fd in 0..count as c_int {
            let mut events = 0;
            for (set, event) in self.all() {
                // SAFETY: as in `concern`.
                if unsafe { !set.is_null() && libc::FD_ISSET(fd, set) } {
                    events |= event;
                }
            }
            if events != 0 {
                (fds[used].fd, fds[used].events) = (fd, events);
                used += 1;
            }
        }
        let fds = &mut fds[..used];
        poll(fds)?;
        if fds.iter().any(|fd| fd.revents & POLLNVAL != 0) {
            return Err(Errno::BADF);
        }
        // SAFETY: as in `concern`.
        Ok(unsafe { self.give(fds) })
    }

    /// Leaves in the sets what is ready; returns how many that are.
    ///
    /// # Safety
    /// As [`Self::concern`].
    unsafe fn give(&self, fds: &[pollfd]) -> usize {
        let mut ready = 0;
        for fd in fds {
            for (set, event) in self.all() {
                if fd.events & event == 0 {
                    continue;
                }
                let counts_as = match event {
                    POLLIN => POLLIN | POLLHUP | POLLERR,
                    POLLOUT => POLLOUT | POLLERR,
                    _ => event,
                };
                if fd.revents & counts_as != 0 {
                    ready += 1;
                } else {
                    // SAFETY: as in `concern`; the bit is set, so the set is not null.
                    unsafe { libc::FD_CLR(fd.fd, set) };
                }
            }
        }
        ready
    }
}
