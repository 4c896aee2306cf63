//! Frames between buffers of the shared memory and the interface. The system copies each once, from
//! or to the buffer itself; with `AF_XDP` in zero-copy not even that. A vhost device of the kernel
//! does it without a call.
//!
//! A buffer starts with [`HEADROOM`] bytes, of which the last are for a VLAN tag, then comes the
//! virtio header (virtio 1.3, 5.1.6), then the frame: 12 bytes behind the start of a cache line, as
//! in a receive buffer of Linux, so that both places of the switch's copy lie alike. A driver fills
//! a buffer before its receiver is known; DPDK has its frames at the start of a line. Bytes written
//! by the switch are passed to the system unchanged: the system checks them, as it does for every
//! program with such a socket.

mod coalesce;
mod packet;
mod tap;
#[cfg(test)]
mod tests;
mod vhost;
mod xdp;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use channel::driving::{BackEnd, DriverCounters};
use front::queue::Queue;
use front::region::BUFFER;
use rustix::io::Errno;
use wire::udp;
use wire::virtio::net::{self, NetHeader};

pub(crate) use coalesce::Coalescer;
pub(crate) use packet::Packets;
pub(crate) use tap::Tap;
pub(crate) use vhost::VhostNet;
pub(crate) use xdp::Xdp;

use crate::free_buffers::FreeBuffers;

/// Frames moved in one direction before the other has its turn.
pub(crate) const BATCH: usize = 64;
/// Bytes of a buffer before the virtio header: a cache line, so that the header starts at one.
pub(crate) const HEADROOM: u32 = 64;
/// Bytes of the virtio header.
pub(crate) const HEADER: u32 = net::LEN as u32;
/// Place of the header's length in a TCP header, in the upper half of a byte (RFC 9293, 3.1).
const TCP_OFFSET: u32 = 12;
/// Most bytes of a received frame.
const ROOM: usize = (BUFFER - HEADROOM - HEADER) as usize;

/// A buffer with a received frame: its header and frame are `len` bytes from `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// A frame for the switch: `len` bytes from `start` of buffer `id`; of length 0 if it is lost and
/// counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) id: u16,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// A frame of the switch, with its header: `len` bytes at `buffer`, which is number `id`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) id: u16,
    pub(crate) buffer: *mut u8,
    pub(crate) len: u32,
}

/// Why a receive or send stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All frames were moved.
    Done,
    /// There is nothing more to receive, or no room to send, for now: the system will notify.
    Wait,
    /// The system has no memory to receive with, or no place for a frame in a queue of its own, and
    /// will not notify.
    Retry,
}

/// One queue of an interface.
#[derive(Debug)]
pub(crate) enum Interface {
    Tap(Tap),
    Packet(Packets),
    Xdp(Box<Xdp>),
    VhostNet(Box<VhostNet>),
}

/// Lists that are kept for their memory.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    buffers: Vec<*mut u8>,
    received: Vec<Received>,
}

// SAFETY: the pointers are set before each use and mean nothing after it.
unsafe impl Send for Scratch {}

impl Interface {
    /// # Panics
    /// With a back end whose queues need more than a descriptor: [`Xdp::new`], [`VhostNet::new`].
    pub(crate) fn new(back_end: BackEnd, queue: OwnedFd) -> Self {
        match back_end {
            BackEnd::Tap => Self::Tap(Tap::new(queue)),
            BackEnd::Packet => Self::Packet(Packets::new(queue)),
            BackEnd::Xdp { .. } | BackEnd::VhostNet | BackEnd::User => {
                unreachable!("it uses the shared memory")
            }
        }
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
        arrived: &mut Vec<Arrived>,
        scratch: &mut Scratch,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        match self {
            Self::Xdp(xdp) => return xdp.receive(queue, free, arrived, counters),
            Self::VhostNet(vhost) => return vhost.receive(queue, free, arrived, counters),
            Self::Tap(_) | Self::Packet(_) => {}
        }
        if free.len() == 0 {
            return Ok(Stop::Wait);
        }
        let Scratch { buffers, received } = scratch;
        buffers.clear();
        received.clear();
        buffers.extend(free.iter().take(BATCH).map(|id| queue.buffer(id)));
        let stop = self.receive_into(buffers, received, counters)?;
        for frame in received {
            // As many as there were buffers, at most.
            let Some(id) = free.take() else { break };
            let Received { start, len } = *frame;
            if len > HEADER {
                let place = queue.buffer(id).wrapping_add(start as usize);
                counters.received.frames += segments(place, len);
            }
            arrived.push(Arrived { id, start, len });
        }
        Ok(stop)
    }

    /// Receives frames, one into each of at most [`BATCH`] `buffers` of `BUFFER` bytes; what came
    /// is appended to `received`, in the order of the buffers, with length 0 for a frame that is
    /// lost and counted.
    fn receive_into(
        &mut self,
        buffers: &[*mut u8],
        received: &mut Vec<Received>,
        counters: &mut DriverCounters,
    ) -> io::Result<Stop> {
        let stop = match self {
            Self::Tap(tap) => tap.receive(buffers, received, counters),
            Self::Packet(packets) => packets.receive(buffers, received, counters),
            Self::Xdp(_) | Self::VhostNet(_) => Ok(Stop::Wait),
        };
        stop.or_else(|error| after(error, counters))
    }

    /// Sends frames, at most [`BATCH`], in order or in that of their groups ([`Coalescer`]), in
    /// which they are then; returns how many are dealt with: sent, or refused by the interface and
    /// counted. The numbers of buffers that are free again are appended to `back`; with `AF_XDP`
    /// and vhost they may be those of frames before these.
    ///
    /// # Errors
    /// The interface is gone.
    pub(crate) fn send(
        &mut self,
        frames: &mut [Outgoing],
        back: &mut Vec<u16>,
        coalescer: &mut Coalescer,
        counters: &mut DriverCounters,
    ) -> io::Result<(usize, Stop)> {
        match self {
            Self::Xdp(xdp) => xdp.send(frames, back, counters)?,
            Self::VhostNet(vhost) => vhost.send(frames, back, coalescer, counters)?,
            Self::Tap(_) | Self::Packet(_) => {
                return self.send_by_calls(frames, back, coalescer, counters);
            }
        }
        Ok((frames.len(), Stop::Done))
    }

    fn send_by_calls(
        &mut self,
        frames: &mut [Outgoing],
        back: &mut Vec<u16>,
        coalescer: &mut Coalescer,
        counters: &mut DriverCounters,
    ) -> io::Result<(usize, Stop)> {
        let sent = self.send_groups(frames, coalescer, counters)?;
        back.extend(frames[..sent.0].iter().map(|frame| frame.id));
        Ok(sent)
    }

    fn send_groups(
        &mut self,
        frames: &mut [Outgoing],
        coalescer: &mut Coalescer,
        counters: &mut DriverCounters,
    ) -> io::Result<(usize, Stop)> {
        let coalesces = frames.len() > 1 && self.takes_super_frames();
        coalescer.arrange(frames, coalesces);
        // Of frames, and of groups since they were made last.
        let (mut done, mut at) = (0, 0);
        while let [group, ..] = &coalescer.groups()[at..] {
            let sent = match self {
                Self::Tap(tap) => {
                    let frames = &frames[done..done + group.count];
                    tap.send(coalescer, group, frames).map(|()| 1)
                }
                Self::Packet(packets) => {
                    packets.send(coalescer, &coalescer.groups()[at..], &frames[done..])
                }
                Self::Xdp(_) | Self::VhostNet(_) => Err(Errno::AGAIN),
            };
            match sent {
                Ok(count) => {
                    let groups = &coalescer.groups()[at..at + count];
                    let left = groups.iter().map(|group| group.count).sum::<usize>();
                    counters.sent.calls += 1;
                    counters.sent.frames += frames_on_the_wire(&frames[done..done + left]);
                    done += left;
                    at += count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok((done, Stop::Wait)),
                Err(Errno::NOBUFS) if self.is_worth_a_retry() => return Ok((done, Stop::Retry)),
                Err(error) if is_gone(error) => return Err(error.into()),
                // The system cannot describe it: its frames go singly.
                Err(Errno::INVAL) if group.is_super_frame() => {
                    coalescer.refuse(at);
                    coalescer.arrange(&mut frames[done..], true);
                    at = 0;
                }
                Err(_) => {
                    counters.rejected_by_interface += group.count as u64;
                    done += group.count;
                    at += 1;
                }
            }
        }
        Ok((done, Stop::Done))
    }

    /// Returns whether frames may be coalesced. Where room is bounded, each frame is to be taken or
    /// to wait, and traffic control may cut a super-frame and take a part of it (`tbf`).
    fn takes_super_frames(&self) -> bool {
        match self {
            Self::Tap(_) | Self::VhostNet(_) => true,
            Self::Packet(packets) => !packets.has_bounded_room(),
            Self::Xdp(_) => false,
        }
    }

    /// Returns whether a frame that a queue of the system did not take is to be sent again later.
    fn is_worth_a_retry(&mut self) -> bool {
        match self {
            Self::Packet(packets) => packets.is_worth_a_retry(Instant::now()),
            Self::Tap(_) | Self::Xdp(_) | Self::VhostNet(_) => false,
        }
    }

    /// Sets up what needs the process to have its final rights, and still ioctl(2).
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn attach(&mut self) -> io::Result<()> {
        match self {
            Self::VhostNet(vhost) => vhost.attach(),
            Self::Tap(_) | Self::Packet(_) | Self::Xdp(_) => Ok(()),
        }
    }

    /// Returns the interface without a vhost device. One that was attached has taken no frame yet,
    /// because it gets its buffers later.
    pub(crate) fn without_vhost(self) -> Self {
        match self {
            Self::VhostNet(vhost) => Self::Tap(Tap::new(vhost.into_tap())),
            other => other,
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
            Self::Tap(_) | Self::Packet(_) | Self::Xdp(_) => Ok(false),
        }
    }

    /// Requests to be notified of frames, where that has to be requested. `true` when there is work
    /// already.
    ///
    /// # Errors
    /// The other side has broken a rule.
    pub(crate) fn arm(&mut self) -> io::Result<bool> {
        match self {
            Self::VhostNet(vhost) => vhost.arm(),
            Self::Tap(_) | Self::Packet(_) | Self::Xdp(_) => Ok(false),
        }
    }

    /// Returns whether it has no frame that is still to leave.
    pub(crate) fn has_sent(&self) -> bool {
        match self {
            Self::VhostNet(vhost) => vhost.has_sent(),
            Self::Tap(_) | Self::Packet(_) | Self::Xdp(_) => true,
        }
    }

    /// Looks, with each heartbeat, for what is not reported otherwise.
    ///
    /// # Errors
    /// The interface is gone, or the device that moves its frames.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self {
            Self::VhostNet(vhost) => vhost.check(),
            Self::Tap(_) | Self::Packet(_) | Self::Xdp(_) => Ok(()),
        }
    }

    /// Counts the frames that the kernel has dropped, as far as it reports that to a driver.
    pub(crate) fn count_drops(&mut self, counters: &mut DriverCounters) {
        match self {
            Self::Packet(packets) => packets.count_drops(counters),
            Self::Xdp(xdp) => xdp.count_drops(counters),
            Self::Tap(_) | Self::VhostNet(_) => {}
        }
    }

    /// Returns whether the kernel reports the frames that it drops to a driver.
    pub(crate) fn reports_drops(&self) -> bool {
        match self {
            Self::Packet(_) | Self::Xdp(_) => true,
            Self::Tap(_) | Self::VhostNet(_) => false,
        }
    }

    /// Returns whether the return of buffers by the switch is worth being woken for, with so many
    /// free ones.
    pub(crate) fn is_short(&self, free: u16) -> bool {
        match self {
            Self::Tap(_) | Self::Packet(_) => free == 0,
            Self::Xdp(xdp) => xdp.is_short(),
            Self::VhostNet(vhost) => vhost.is_short(),
        }
    }

    /// Returns whether receive moderation is useful: for TAP devices, where each frame may cause a
    /// wake-up; a burst into a socket may exceed the room of the interface.
    pub(crate) fn benefits_from_moderation(&self) -> bool {
        matches!(self, Self::Tap(_) | Self::VhostNet(_))
    }

    /// Returns the limit of its worker's sleep; `None`: unlimited.
    pub(crate) fn sleep_limit(&self) -> Option<Duration> {
        match self {
            Self::Tap(_) | Self::Packet(_) | Self::VhostNet(_) => None,
            Self::Xdp(xdp) => xdp.sleep_limit(),
        }
    }
}

impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tap(tap) => tap.as_fd(),
            Self::Packet(packets) => packets.as_fd(),
            Self::Xdp(xdp) => xdp.as_fd(),
            Self::VhostNet(vhost) => vhost.as_fd(),
        }
    }
}

fn frames_on_the_wire(frames: &[Outgoing]) -> u64 {
    let each = frames.iter().map(|of| segments(of.buffer, of.len));
    each.sum()
}

/// Returns the number of frames that the `len` bytes of virtio header and frame at `place` are cut
/// into.
fn segments(place: *const u8, len: u32) -> u64 {
    let mut bytes = [0; net::LEN];
    // SAFETY: the caller's frame has a header and is mapped. The switch may write it at any time:
    // it is copied, and no reference to it is made. A wrong number is counted, and no more.
    unsafe { ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), net::LEN) };
    let header = NetHeader::decode(&bytes);
    if header.gso() == net::GSO_NONE || header.gso_size == 0 {
        return 1;
    }
    let transport = HEADER + u32::from(header.csum_start);
    let header_len = if header.gso() == net::GSO_UDP_L4 {
        udp::HEADER_LEN as u32
    } else if transport + TCP_OFFSET < len {
        // SAFETY: the byte is inside the frame, which is used as above.
        let words = unsafe { place.add((transport + TCP_OFFSET) as usize).read_volatile() } >> 4;
        4 * u32::from(words)
    } else {
        0
    };
    let payload = len.saturating_sub(transport + header_len);
    payload.div_ceil(header.gso_size.into()).max(1).into()
}

/// Returns how to continue receiving after an error.
fn after(error: Errno, counters: &mut DriverCounters) -> io::Result<Stop> {
    match error {
        Errno::AGAIN => Ok(Stop::Wait),
        Errno::INTR => Ok(Stop::Done),
        Errno::NOMEM | Errno::NOBUFS => Ok(Stop::Retry),
        // One frame that the system could not describe with a virtio header, and has dropped.
        // Others wait behind it.
        Errno::INVAL => {
            counters.rejected_by_interface += 1;
            Ok(Stop::Done)
        }
        // It is unknown whether there was a frame, and a retry could loop.
        error => Err(error.into()),
    }
}

/// Returns whether it is one of those after which only a new descriptor helps.
pub(crate) fn is_lost(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    number.is_some_and(|number| is_gone(Errno::from_raw_os_error(number)))
}

/// Errors after which only a new descriptor helps: the interface was removed (`EBADFD` of a TAP
/// device, `ENXIO` and `ENODEV` of a socket), or a socket has none because it was switched off
/// (`ENETDOWN`). What is no descriptor of an interface at all is none either.
fn is_gone(error: Errno) -> bool {
    matches!(
        error,
        Errno::BADFD | Errno::NXIO | Errno::NODEV | Errno::NETDOWN | Errno::BADF | Errno::NOTSOCK
    )
}

/// The last error of the C library.
fn last_error() -> Errno {
    let number = io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}
