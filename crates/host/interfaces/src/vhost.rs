//! Requests of vhost devices of the kernel (Linux, `include/uapi/linux/vhost.h`,
//! `drivers/vhost/vhost.c` and `net.c`).
//!
//! `/dev/vhost-net` is opened by the supervisor for each queue pair of each driver process, because
//! a device belongs to the memory of the process that becomes its owner, once. The process makes
//! all requests but one before it gives up ioctl(2): [`AT_WORK`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use wire::virtio::features::Features;

/// The device file.
pub const PATH: &str = "/dev/vhost-net";
/// The virtqueue of the device with frames for us.
pub const RECEIVE: u32 = 0;
/// The virtqueue of the device with frames of ours.
pub const SEND: u32 = 1;
/// The requests that a driver process makes after its set-up.
pub const AT_WORK: &[u32] = &[NET_SET_BACKEND as u32];

const GET_FEATURES: libc::Ioctl = 0x8008_af00;
const SET_FEATURES: libc::Ioctl = 0x4008_af00;
const SET_OWNER: libc::Ioctl = 0xaf01;
const SET_MEM_TABLE: libc::Ioctl = 0x4008_af03;
const SET_VRING_NUM: libc::Ioctl = 0x4008_af10;
const SET_VRING_ADDR: libc::Ioctl = 0x4028_af11;
const SET_VRING_BASE: libc::Ioctl = 0x4008_af12;
const SET_VRING_KICK: libc::Ioctl = 0x4008_af20;
const SET_VRING_CALL: libc::Ioctl = 0x4008_af21;
const SET_VRING_ERR: libc::Ioctl = 0x4008_af22;
const SET_VRING_BUSYLOOP_TIMEOUT: libc::Ioctl = 0x4008_af23;
const NET_SET_BACKEND: libc::Ioctl = 0x4008_af30;

/// The kernel's thread looks at a ring and at its socket for this time before it sleeps,
/// microseconds. It is about what the two wake-ups take that the look saves, and what the kernel's
/// documentation recommends for `net.core.busy_poll`. The thread stops at once when another one
/// waits for its core (`vhost_can_busy_poll`).
const BUSY_LOOK_US: i32 = 50;

/// Features that are used. The header of 12 bytes that follows from `VERSION_1` is the TAP
/// device's: `VHOST_NET_F_VIRTIO_NET_HDR` would make vhost add one of its own.
const FEATURES: Features = Features::VERSION_1.union(Features::RING_EVENT_IDX);

/// `struct vhost_memory` with one region.
#[repr(C)]
struct Memory {
    regions: u32,
    padding: u32,
    guest_address: u64,
    size: u64,
    user_address: u64,
    flags: u64,
}

/// `struct vhost_vring_state`, and `struct vhost_vring_file` with a descriptor as the number.
#[repr(C)]
struct RingNumber {
    index: u32,
    number: i32,
}

/// `struct vhost_vring_addr`.
#[repr(C)]
struct RingAddress {
    index: u32,
    flags: u32,
    descriptors: u64,
    used: u64,
    available: u64,
    log: u64,
}

/// A ring of the device.
pub struct Ring<'a> {
    /// Entries, a power of 2.
    pub size: u16,
    /// Descriptor table, available ring, used ring; all zero.
    pub areas: [*mut u8; 3],
    /// We signal it.
    pub kick: BorrowedFd<'a>,
    /// The device signals it.
    pub call: BorrowedFd<'a>,
    /// The device signals it when it finds a ring malformed.
    pub error: BorrowedFd<'a>,
}

/// An open vhost device.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Opens a device, which loads the module where the system permits that.
    ///
    /// # Errors
    /// There is none, the right is missing, or it lacks a feature.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = Self(rustix::fs::open(PATH, flags, Mode::empty())?);
        let mut offered = 0u64;
        device.request(GET_FEATURES, &raw mut offered, "VHOST_GET_FEATURES")?;
        if !Features::from_bits_retain(offered).contains(FEATURES) {
            return Err(io::Error::other(format!("features {offered:#x}")));
        }
        Ok(device)
    }

    /// Makes this process the owner, and agrees on features. The kernel then works with this
    /// process's memory, in a thread of this process or of its own.
    ///
    /// # Errors
    /// The system's refusal: another process is the owner, or there may be no further thread.
    pub fn take_over(&self) -> io::Result<()> {
        let none = std::ptr::null_mut::<u64>();
        self.request(SET_OWNER, none, "VHOST_SET_OWNER")?;
        let mut features = FEATURES.bits();
        self.request(SET_FEATURES, &raw mut features, "VHOST_SET_FEATURES")
    }

    /// Gives the device `size` bytes of memory, in which addresses of buffers are offsets.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn share(&self, memory: *mut u8, size: u64) -> io::Result<()> {
        let mut table = Memory {
            regions: 1,
            padding: 0,
            guest_address: 0,
            size,
            user_address: memory as u64,
            flags: 0,
        };
        self.request(SET_MEM_TABLE, &raw mut table, "VHOST_SET_MEM_TABLE")
    }

    /// Sets ring `index` up.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn set_ring(&self, index: u32, ring: &Ring<'_>) -> io::Result<()> {
        let size = i32::from(ring.size);
        self.set_number(SET_VRING_NUM, index, size, "VHOST_SET_VRING_NUM")?;
        self.set_number(SET_VRING_BASE, index, 0, "VHOST_SET_VRING_BASE")?;
        let [descriptors, available, used] = ring.areas.map(|area| area as u64);
        let mut address = RingAddress {
            index,
            flags: 0,
            descriptors,
            used,
            available,
            log: 0,
        };
        self.request(SET_VRING_ADDR, &raw mut address, "VHOST_SET_VRING_ADDR")?;
        for (code, fd, name) in [
            (SET_VRING_ERR, ring.error, "VHOST_SET_VRING_ERR"),
            (SET_VRING_CALL, ring.call, "VHOST_SET_VRING_CALL"),
            (SET_VRING_KICK, ring.kick, "VHOST_SET_VRING_KICK"),
        ] {
            self.set_number(code, index, fd.as_raw_fd(), name)?;
        }
        // Without it, before Linux 4.6, the thread sleeps at once.
        let name = "VHOST_SET_VRING_BUSYLOOP_TIMEOUT";
        let set = self.set_number(SET_VRING_BUSYLOOP_TIMEOUT, index, BUSY_LOOK_US, name);
        if let Err(error) = set {
            tracing::debug!("{error}");
        }
        Ok(())
    }

    /// Connects ring `index` with a queue of a TAP device, or with none: when this returns then,
    /// the device has published all it had for the ring, and nothing follows.
    ///
    /// # Errors
    /// The system's refusal: the descriptor is of no TAP device.
    pub fn set_backend(&self, index: u32, tap: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let tap = tap.map_or(-1, |tap| tap.as_raw_fd());
        self.set_number(NET_SET_BACKEND, index, tap, "VHOST_NET_SET_BACKEND")
    }

    fn set_number(&self, code: libc::Ioctl, index: u32, number: i32, name: &str) -> io::Result<()> {
        let mut value = RingNumber { index, number };
        self.request(code, &raw mut value, name)
    }

    /// Makes a request, whose argument is of the type that `linux/vhost.h` has for it.
    fn request<T>(&self, code: libc::Ioctl, argument: *mut T, name: &str) -> io::Result<()> {
        // SAFETY: the argument is a value of the request's type that lives until the call returns.
        // The addresses in it are checked by the system whenever it uses them, and belong to
        // memory that is only accessed as other processes' memory is.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), code, argument) } {
            0.. => Ok(()),
            _ => {
                let error = io::Error::last_os_error();
                Err(io::Error::new(error.kind(), format!("{name}: {error}")))
            }
        }
    }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Device> for OwnedFd {
    fn from(device: Device) -> Self {
        device.0
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_those_of_the_kernel() {
        // `_IOC_SIZE` of each request.
        let size = |code: libc::Ioctl| (code >> 16 & 0x3fff) as usize;
        assert_eq!(size(SET_VRING_ADDR), size_of::<RingAddress>());
        for code in [
            SET_VRING_NUM,
            SET_VRING_BASE,
            SET_VRING_KICK,
            SET_VRING_BUSYLOOP_TIMEOUT,
            NET_SET_BACKEND,
        ] {
            assert_eq!(size(code), size_of::<RingNumber>());
        }
        // The table's request has the size of its head.
        assert_eq!(size_of::<Memory>(), size(SET_MEM_TABLE) + 32);
    }

    #[test]
    fn a_refused_request_has_its_name() {
        let device = Device(std::fs::File::open("/dev/null").unwrap().into());
        let error = device.take_over().unwrap_err().to_string();
        assert!(error.starts_with("VHOST_SET_OWNER: "), "{error}");
    }
}
