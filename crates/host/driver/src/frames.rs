//! Frames between buffers of the shared memory and the interface. The system copies each once, from
//! or to the buffer itself; with `AF_XDP` in zero-copy not even that. A vhost device of the kernel
//! does it without a call.
//!
//! A buffer starts with [`HEADROOM`] bytes, the last of them for a VLAN tag, then comes the virtio
//! header (virtio 1.3, 5.1.6), then the frame: 12 bytes after the start of a cache line, as in a
//! receive buffer of Linux, so that both places of the switch's copy lie alike. A driver fills a
//! buffer before its receiver is known; DPDK has its frames at the start of a line. Bytes written
//! by the switch are passed to the system unchanged: the system checks them, as it does for every
//! program with such a socket.

mod by_calls;
mod vhost;
mod xdp;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ipc::driving::{BackEnd, DriverCounters};
use netio::Kind;
pub(crate) use netio::{BATCH, HEADER, HEADROOM, Stop, is_lost};
use vhost_frontend::queue::Queue;

use by_calls::ByCalls;
pub(crate) use vhost::VhostNet;
pub(crate) use xdp::Xdp;

use crate::free_buffers::FreeBuffers;

/// A frame for the switch: `len` bytes from `start` of buffer `id`; of length 0 if it is lost and
/// counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IncomingFrame {
    pub(crate) id: u16,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// A frame of the switch, with its header: `len` bytes at `buffer`, which is number `id`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingFrame {
    pub(crate) id: u16,
    pub(crate) buffer: *mut u8,
    pub(crate) len: u32,
}

/// One queue of an interface.
#[derive(Debug)]
pub(crate) enum Interface {
    /// A TAP device or a packet socket.
    Calls(Box<ByCalls>),
    Xdp(Box<Xdp>),
    VhostNet(Box<VhostNet>),
}

impl Interface {
    /// Returns one that takes super-frames of UDP if `uso`.
    ///
    /// # Panics
    /// With a back end that needs more than a descriptor for its queues: [`Xdp::new`],
    /// [`VhostNet::new`].
    pub(crate) fn new(back_end: BackEnd, queue: OwnedFd, uso: bool) -> Self {
        let kind = match back_end {
            BackEnd::Tap => Kind::Tap,
            BackEnd::Packet => Kind::Packet,
            BackEnd::Xdp { .. } | BackEnd::VhostNet | BackEnd::User => {
                unreachable!("it uses the shared memory")
            }
        };
        Self::Calls(Box::new(ByCalls::new(kind, queue, uso)))
    }

    /// Receives at most [`BATCH`] frames for a queue, into `free` buffers; received frames are
    /// appended to `arrived`. The free buffer at the lowest address is used first.
    ///
    /// # Errors
    /// The interface is gone ([`is_lost`]), or the system returns an unexpected error.
    pub(crate) fn receive(
        &mut self,
        queue: &Queue,
        free: &mut FreeBuffers,
        arrived: &mut Vec<IncomingFrame>,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        match self {
            Self::Calls(calls) => calls.receive(queue, free, arrived, counters),
            Self::Xdp(xdp) => xdp.receive(queue, free, arrived, counters),
            Self::VhostNet(vhost) => vhost.receive(queue, free, arrived, counters),
        }
    }

    /// Returns the number of frames that were given to [`send`](Self::send) and wait here for the
    /// interface.
    pub(crate) fn waiting(&self) -> usize {
        match self {
            Self::Calls(calls) => calls.waiting(),
            Self::Xdp(_) | Self::VhostNet(_) => 0,
        }
    }

    /// Sends those that wait and these frames, together at most [`BATCH`]; each flow in order. The
    /// numbers of buffers that are free again are appended to `back`: of frames that were sent, or
    /// refused by the interface and counted.
    ///
    /// # Errors
    /// The interface is gone.
    pub(crate) fn send(
        &mut self,
        frames: &[OutgoingFrame],
        back: &mut Vec<u16>,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        match self {
            Self::Calls(calls) => return calls.send(frames, back, counters),
            Self::Xdp(xdp) => xdp.send(frames, back, counters)?,
            Self::VhostNet(vhost) => vhost.send(frames, back, counters)?,
        }
        Ok(Stop::Done)
    }

    /// Sets up what needs the process to have its final rights, and still ioctl(2).
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn attach(&mut self) -> io::Result<()> {
        match self {
            Self::VhostNet(vhost) => vhost.attach(),
            Self::Calls(_) | Self::Xdp(_) => Ok(()),
        }
    }

    /// Takes no more frames of the interface. `true` where some may have come that are still to be
    /// received.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn stop_receiving(&mut self) -> io::Result<bool> {
        match self {
            Self::VhostNet(vhost) => vhost.stop_receiving().map(|()| true),
            Self::Calls(_) | Self::Xdp(_) => Ok(false),
        }
    }

    /// Requests notifications of frames, where the system needs a request. `true` when there is
    /// work already.
    ///
    /// # Errors
    /// The other side has broken a rule.
    pub(crate) fn arm(&mut self) -> io::Result<bool> {
        match self {
            Self::VhostNet(vhost) => vhost.arm(),
            Self::Calls(_) | Self::Xdp(_) => Ok(false),
        }
    }

    /// Returns whether it has no frame that is still to leave.
    pub(crate) fn has_sent(&self) -> bool {
        match self {
            Self::VhostNet(vhost) => vhost.has_sent(),
            Self::Calls(calls) => calls.waiting() == 0,
            Self::Xdp(_) => true,
        }
    }

    /// Looks, with each heartbeat, for what is not reported otherwise.
    ///
    /// # Errors
    /// The interface is gone, or the device that moves its frames.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self {
            Self::VhostNet(vhost) => vhost.check(),
            Self::Calls(_) | Self::Xdp(_) => Ok(()),
        }
    }

    /// Counts the frames that the kernel has dropped, as far as it reports that to a driver.
    pub(crate) fn count_drops(&mut self, counters: &mut DriverCounters) {
        match self {
            Self::Calls(calls) => calls.count_drops(counters),
            Self::Xdp(xdp) => xdp.count_drops(counters),
            Self::VhostNet(_) => {}
        }
    }

    /// Returns whether the kernel reports the frames that it drops to a driver.
    pub(crate) fn reports_drops(&self) -> bool {
        match self {
            Self::Calls(calls) => calls.reports_drops(),
            Self::Xdp(_) => true,
            Self::VhostNet(_) => false,
        }
    }

    /// Returns whether the return of buffers by the switch is worth being woken for, with `free`
    /// free buffers.
    pub(crate) fn is_short(&self, free: u16) -> bool {
        match self {
            Self::Calls(_) => free == 0,
            Self::Xdp(xdp) => xdp.is_short(),
            Self::VhostNet(vhost) => vhost.is_short(),
        }
    }

    /// Returns whether receive moderation is useful: for TAP devices, where each frame may cause a
    /// wake-up; a burst into a socket may exceed the room of the interface.
    pub(crate) fn benefits_from_moderation(&self) -> bool {
        match self {
            Self::Calls(calls) => calls.kind() == Kind::Tap,
            Self::Xdp(_) => false,
            Self::VhostNet(_) => true,
        }
    }

    /// Returns the limit of its worker's sleep; `None`: unlimited.
    pub(crate) fn sleep_limit(&self) -> Option<Duration> {
        match self {
            Self::Calls(_) | Self::VhostNet(_) => None,
            Self::Xdp(xdp) => xdp.sleep_limit(),
        }
    }
}

impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Calls(calls) => calls.as_fd(),
            Self::Xdp(xdp) => xdp.as_fd(),
            Self::VhostNet(vhost) => vhost.as_fd(),
        }
    }
}
