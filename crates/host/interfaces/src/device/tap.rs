//! TAP devices (Linux, `Documentation/networking/tuntap.rst`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::driving::{BackEnd, DeviceSpec};
use rustix::fs::{Mode, OFlags};

use super::interface::{Control, Request, outcome};
use super::{Device, NotReadyError, OpenError, address, context};

const CLONE_DEVICE: &str = "/dev/net/tun";
/// Name of an interface that is set aside; the system fills in the number.
const ASIDE: &str = "lasthop-old%d";
/// Maximum time to wait for an interface of a process that was killed, milliseconds.
const ENDS_WITHIN: Duration = Duration::from_millis(200);

// `linux/if_tun.h`.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;
const TUNGETIFF: libc::Ioctl = 0x8004_54d2;
const TUNSETSNDBUF: libc::Ioctl = 0x4004_54d4;
const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8;
const TUNSETVNETLE: libc::Ioctl = 0x4004_54dc;
/// A new interface, or none.
const IFF_TUN_EXCL: u16 = 0x8000;
const BASE: u16 = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as u16;
const MULTI_QUEUE: u16 = libc::IFF_MULTI_QUEUE as u16;

/// `TUN_F_*`: what frames for us may still need.
const OFFLOADS: u32 = 1 | 2 | 4 | 8;
/// `TUN_F_USO4` and `TUN_F_USO6`, which Linux has since 6.2.
const USO: u32 = 0x20 | 0x40;

pub(super) fn open(spec: &DeviceSpec, control: Control) -> Result<Device, OpenError> {
    let name = &spec.interface;
    let exists = control.index(name).is_ok();
    if spec.own && exists && !disappears(name, &control) {
        return Err(OpenError::new(format!("interface {name} exists already")));
    }
    let first = attach_first(spec);
    // All queues of the device are in use.
    let is_busy = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
    let busy = first.as_ref().is_err_and(is_busy);
    let first = context(first, || format!("TAP device {name}"));
    let first = first.map_err(|error| OpenError {
        missing: error.missing || busy,
        ..error
    })?;
    let mut queues = vec![first];
    for _ in 1..spec.queues {
        let next = attach(name, BASE | MULTI_QUEUE);
        queues.push(context(next, || {
            format!("a further queue of TAP device {name}")
        })?);
    }
    let mut uso = true;
    for queue in &queues {
        let set = set_up(queue);
        uso &= context(set, || format!("the offloads of TAP device {name}"))?;
    }
    if spec.own {
        configure(spec, &control)?;
    }
    if spec.own || !exists {
        context(control.up(name), || format!("switching {name} on"))?;
    }
    Ok(Device::new(name, control, BackEnd::Tap, uso, queues))
}

/// Waits a moment for the end of an interface: the driver of a Lasthop that was killed ends after
/// its supervisor, and its interface with it. Returns whether it is gone.
fn disappears(name: &str, control: &Control) -> bool {
    let end = Instant::now() + ENDS_WITHIN;
    while Instant::now() < end {
        std::thread::sleep(ENDS_WITHIN / 40);
        if control.index(name).is_err() {
            return true;
        }
    }
    false
}

/// The first queue; it makes the interface where there is none.
fn attach_first(spec: &DeviceSpec) -> io::Result<OwnedFd> {
    let new = if spec.own { IFF_TUN_EXCL } else { 0 };
    let several = if spec.queues > 1 { MULTI_QUEUE } else { 0 };
    let first = attach(&spec.interface, BASE | new | several);
    match first {
        // The device was made for several queues: then one of them is used.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && spec.queues == 1 => {
            attach(&spec.interface, BASE | new | MULTI_QUEUE)
        }
        other => other,
    }
}

fn attach(name: &str, flags: u16) -> io::Result<OwnedFd> {
    let mode = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let queue = rustix::fs::open(CLONE_DEVICE, mode, Mode::empty())
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("{CLONE_DEVICE}: {e}")))?;
    let mut request = Request::new(name)?.with(&flags.to_ne_bytes());
    request.make(queue.as_fd(), TUNSETIFF)?;
    Ok(queue)
}

/// Header and offloads of a queue; whether UDP segmentation is among them.
fn set_up(queue: &OwnedFd) -> io::Result<bool> {
    set_int(queue, TUNSETVNETHDRSZ, wire::virtio::net::LEN as i32)?;
    set_int(queue, TUNSETVNETLE, 1)?;
    if set_number(queue, TUNSETOFFLOAD, OFFLOADS | USO).is_ok() {
        return Ok(true);
    }
    set_number(queue, TUNSETOFFLOAD, OFFLOADS)?;
    Ok(false)
}

/// Bounds the bytes that may wait in the host for frames of a queue, or no longer. They do so where
/// the host passes them on by a bridge; what it takes itself, it takes at once. The system counts
/// its own bytes of each frame, too.
pub(super) fn set_room(queue: &OwnedFd, bytes: Option<u64>) -> io::Result<()> {
    // As much as a packet socket has: the system doubles what is told to that.
    let bytes = bytes.map_or(i32::MAX, |bytes| {
        i32::try_from(2 * bytes).unwrap_or(i32::MAX)
    });
    set_int(queue, TUNSETSNDBUF, bytes)
}

fn set_int(queue: &OwnedFd, code: libc::Ioctl, value: i32) -> io::Result<()> {
    // SAFETY: all these requests read one int.
    outcome(unsafe { libc::ioctl(queue.as_raw_fd(), code, &raw const value) })
}

fn set_number(queue: &OwnedFd, code: libc::Ioctl, value: u32) -> io::Result<()> {
    // SAFETY: the request takes a number and no address.
    outcome(unsafe { libc::ioctl(queue.as_raw_fd(), code, libc::c_ulong::from(value)) })
}

/// Configures an own interface.
fn configure(spec: &DeviceSpec, control: &Control) -> Result<(), OpenError> {
    let name = &spec.interface;
    let mac = spec.mac;
    let mac = mac.unwrap_or_else(|| address::derived(name, spec.netns.as_deref()));
    let set = control.set_mac(name, mac);
    context(set, || format!("the MAC address of {name}"))?;
    if let Some(mtu) = spec.mtu {
        let set = control.set_mtu(name, mtu);
        context(set, || format!("the MTU of {name}"))?;
    }
    if let Some((address, prefix)) = spec.address {
        let set = control.set_address(name, address, prefix);
        context(set, || format!("the address of {name}"))?;
    }
    Ok(())
}

/// Frees the name of an own interface that another process still has open: it is switched off and
/// renamed, and goes with its last descriptor.
pub(super) fn set_aside(name: &str, control: &Control) -> io::Result<()> {
    control.down(name)?;
    control.rename(name, ASIDE)
}

/// A device that was removed has no name any more.
pub(super) fn check(queue: BorrowedFd<'_>) -> Result<(), NotReadyError> {
    let named = Request::new("?").and_then(|mut request| request.make(queue, TUNGETIFF));
    named.map_err(|_| NotReadyError::Gone)
}
