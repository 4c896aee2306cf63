//! The descriptors of this process that are netmap's. A look-up of any other descriptor is one
//! load.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::io::Errno;

use crate::device::Device;

/// Descriptors below this number can be netmap's.
const MOST: usize = 1 << 14;

/// One bit for each descriptor that is ours.
static OURS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
static DEVICES: [RwLock<Option<Arc<Device>>>; MOST] = [const { RwLock::new(None) }; MOST];

/// Devices were opened; for those who need not look through all.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Whether there ever was a device.
#[inline]
pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

fn index(fd: RawFd) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < MOST)
}

/// Whether a descriptor is netmap's.
#[inline]
#[must_use]
pub fn is_ours(fd: RawFd) -> bool {
    index(fd).is_some_and(|fd| OURS[fd / 64].load(Ordering::Relaxed) >> (fd % 64) & 1 != 0)
}

/// The device behind a descriptor, if it is netmap's.
#[inline]
pub(crate) fn get(fd: RawFd) -> Option<Arc<Device>> {
    if !is_ours(fd) {
        return None;
    }
    let device = DEVICES[index(fd)?].read();
    device.unwrap_or_else(PoisonError::into_inner).clone()
}

/// Notes a new descriptor.
///
/// # Errors
/// `EMFILE`: its number is too large.
pub(crate) fn insert(fd: RawFd, device: Arc<Device>) -> Result<(), Errno> {
    let index = index(fd).ok_or(Errno::MFILE)?;
    let mut entry = DEVICES[index]
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    let before = entry.replace(device);
    IS_USED.store(true, Ordering::Relaxed);
    OURS[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
    drop(entry);
    drop(before);
    Ok(())
}

/// Forgets a descriptor; returns its device.
pub(crate) fn remove(fd: RawFd) -> Option<Arc<Device>> {
    let index = index(fd).filter(|_| is_ours(fd))?;
    let mut entry = DEVICES[index]
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    OURS[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
    entry.take()
}

/// The number of a program's new descriptor for a device is the system's; all devices, to look
/// through.
pub(crate) fn devices() -> impl Iterator<Item = Arc<Device>> {
    let words = OURS.iter().enumerate();
    let bits = words.flat_map(|(word, bits)| {
        let bits = bits.load(Ordering::Relaxed);
        (0..64)
            .filter(move |bit| bits >> bit & 1 != 0)
            .map(move |bit| word * 64 + bit)
    });
    bits.filter_map(|fd| get(fd as RawFd))
}
