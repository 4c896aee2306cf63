//! A descriptor of `/dev/netmap`, as a program opens it: an epoll instance over everything that can
//! wake its rings, so that the kernel can wait for it.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use interpose::system::out_of_the_way;
use interpose::table::Table;
use interpose::{Library, Mask};
use libc::{epoll_event, pollfd};
use rustix::event::epoll::{self, CreateFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::port::{MARK_ERROR, MARK_SESSION};
use crate::registration::Registration;
use crate::{SAY, epolls, wait};

/// Time between two looks at the connection of a program that never sleeps, milliseconds.
const LOOK_MS: u64 = 100;

const NOT_OURS: &str = "no port of this program is behind it: netmap's descriptors cannot be passed \
                        to another process, or kept over execve; open the port in this program";

/// The descriptors of this process that are netmap's.
pub(crate) static DEVICES: Table<Device> = Table::new();

/// See the module.
#[derive(Debug)]
pub struct Device {
    /// A duplicate of the program's descriptor.
    epoll: Arc<OwnedFd>,
    registration: OnceLock<Registration>,
    /// Time of the last look at the connection, milliseconds.
    tended: AtomicU64,
}

/// Opens a device; returns the program's descriptor.
///
/// # Errors
/// The system has no more descriptors.
pub fn open() -> Result<RawFd, Errno> {
    interpose::forks::watch();
    let fd = epoll::create(CreateFlags::CLOEXEC)?;
    let device = Device {
        epoll: Arc::new(out_of_the_way(fd.try_clone().map_err(|_| Errno::MFILE)?)),
        registration: OnceLock::new(),
        tended: AtomicU64::new(0),
    };
    DEVICES.insert(fd.as_raw_fd(), Arc::new(device))?;
    Ok(fd.into_raw_fd())
}

/// The program has a new descriptor for what `old` is: the device gets it, too.
///
/// # Errors
/// `EMFILE`: its number is too large; it is closed.
pub fn duplicated(old: RawFd, new: RawFd) -> Result<(), Errno> {
    let Some(device) = DEVICES.get(old) else {
        return Ok(());
    };
    DEVICES.insert(new, device).inspect_err(|_| {
        // SAFETY: the program does not know the descriptor, which is returned as an error.
        drop(unsafe { OwnedFd::from_raw_fd(new) });
    })
}

/// The program closes a descriptor, or puts another file in its place: it is netmap's no more.
pub fn closed(fd: RawFd) {
    epolls::ENTRIES.closed(fd);
    drop(DEVICES.remove(fd));
}

/// Maps the memory of a device, as mmap(2) would.
///
/// # Errors
/// `EINVAL`: no port is registered. The system's refusal.
///
/// # Safety
/// As mmap(2) with the same arguments: with `MAP_FIXED` what was there is replaced.
pub unsafe fn map(
    fd: RawFd,
    (address, len): (usize, usize),
    prot: i32,
    flags: i32,
    offset: u64,
) -> Result<usize, Errno> {
    let device = DEVICES.get(fd).ok_or(Errno::BADF)?;
    let region = device.registration().ok_or(Errno::INVAL)?.region();
    let prot = ProtFlags::from_bits_truncate(prot.cast_unsigned());
    let flags = MapFlags::from_bits_truncate(flags.cast_unsigned());
    if flags.contains(MapFlags::FIXED) {
        unmapped(address, len);
    }
    let mapped = region.view.map(address, len as u64, prot, flags, offset);
    mapped.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))
}

/// The program unmaps a range, or maps something else there.
pub fn unmapped(address: usize, len: usize) {
    if !DEVICES.is_used() {
        return;
    }
    for (_, device) in DEVICES.all() {
        if let Some(registration) = device.registration() {
            registration.region().view.forget(address, len);
        }
    }
}

/// Says why a request of netmap's has failed for a descriptor that is none of this process's
/// devices. The error number stays.
pub fn say_not_ours(fd: RawFd) {
    SAY.once(&format!("descriptor {fd}: {NOT_OURS}"));
}

/// Says why a descriptor cannot be mapped, if it may be a device of another process. The error
/// number stays.
pub fn say_if_of_another(fd: RawFd) {
    if is_epoll(fd) {
        say_not_ours(fd);
    }
}

/// Whether a descriptor is an epoll instance, which a device is to the kernel.
fn is_epoll(fd: RawFd) -> bool {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new());
    link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[eventpoll]")
}

/// The library of the netmap API.
#[derive(Clone, Copy, Debug)]
pub struct Netmap;

impl Library for Netmap {
    #[inline]
    fn is_ours(fd: RawFd) -> bool {
        DEVICES.is_ours(fd)
    }

    fn closed(fd: RawFd) {
        closed(fd);
    }

    fn duplicated(old: RawFd, new: RawFd) -> Result<(), Errno> {
        duplicated(old, new)
    }

    fn poll(fds: &mut [pollfd], limit: Option<Duration>, mask: Mask) -> Result<usize, Errno> {
        wait::poll(fds, limit, mask)
    }

    #[inline]
    fn concerns(epoll: RawFd) -> bool {
        epolls::ENTRIES.concern(epoll)
    }

    fn epoll_control(
        epoll: RawFd,
        operation: i32,
        fd: RawFd,
        event: Option<(u32, u64)>,
    ) -> Result<(), Errno> {
        epolls::control(epoll, operation, fd, event)
    }

    fn take_own(events: &mut [epoll_event]) -> Option<usize> {
        epolls::take_own(events)
    }

    fn epoll_wait(
        epoll: RawFd,
        events: &mut [epoll_event],
        limit: Option<Duration>,
        mask: Mask,
    ) -> Result<usize, Errno> {
        epolls::wait(epoll, events, limit, mask)
    }
}

impl Device {
    /// The registered port, if there is one.
    #[inline]
    pub(crate) fn registration(&self) -> Option<&Registration> {
        self.registration.get()
    }

    /// The epoll instance.
    pub(crate) fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// Registers a port.
    ///
    /// # Errors
    /// `EBUSY`: there is one already. What binding gave.
    pub(crate) fn bind(
        &self,
        bind: impl FnOnce() -> Result<Registration, Errno>,
    ) -> Result<&Registration, Errno> {
        if self.registration.get().is_some() {
            return Err(Errno::BUSY);
        }
        let registration = bind()?;
        self.registration
            .set(registration)
            .map_err(|_| Errno::BUSY)?;
        self.registration.get().ok_or(Errno::BUSY)
    }

    /// Syncs all rings of a direction, as `NIOCTXSYNC` and `NIOCRXSYNC` do.
    ///
    /// # Errors
    /// `ENXIO`: no port is registered. `EINVAL`: a ring's positions were wrong and were set back,
    /// or the ring is stopped.
    pub(crate) fn sync(&self, sends: bool) -> Result<(), Errno> {
        let registration = self.registration.get().ok_or(Errno::NXIO)?;
        let mut result = Ok(());
        for ring in registration.rings(sends) {
            if let Err(errno) = ring.sync() {
                result = Err(errno);
            }
        }
        if sends && registration.rings(true).iter().any(|ring| ring.is_stuck()) {
            self.tend();
        } else {
            self.tend_if_due();
        }
        result
    }

    /// Looks at the connection, if the last look was long ago. The clock is the kernel's coarse
    /// one, which costs a few nanoseconds.
    #[inline]
    pub(crate) fn tend_if_due(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        if now.wrapping_sub(self.tended.load(Ordering::Relaxed)) >= LOOK_MS {
            self.tended.store(now, Ordering::Relaxed);
            self.tend();
        }
    }

    /// Takes the events of the epoll instance, and looks at the connection.
    pub(crate) fn tend(&self) {
        self.drain();
        if let Some(registration) = self.registration.get() {
            registration.tend();
        }
    }

    /// Takes the events of the epoll instance, and does what the connection needs.
    pub(crate) fn drain(&self) {
        let mut buffer = [MaybeUninit::uninit(); 8];
        let events = sys::wait::events(&*self.epoll, &mut buffer, Some(Duration::ZERO));
        let marks = events.unwrap_or_default().iter();
        self.handle(marks.map(|event| event.data.u64()));
    }

    /// Handles events of the epoll instance.
    pub(crate) fn handle(&self, marks: impl Iterator<Item = u64>) {
        let Some(registration) = self.registration.get() else {
            return;
        };
        for mark in marks {
            match mark {
                MARK_SESSION => drop(registration.tend()),
                MARK_ERROR => registration.failed(),
                _ => {}
            }
        }
    }
}
