//! Frames between buffers of the shared memory and the interface. The system copies each once, from or to the buffer
//! itself.
//!
//! A buffer starts with [`HEADROOM`] bytes for a VLAN tag, then comes the virtio header (virtio 1.3, 5.1.6), then the
//! frame. What the switch writes is passed to the system as it is: the system checks it, as it does for every program
//! with such a socket.

mod packet;
mod tap;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use channel::driving::{BackEnd, Refused};
use rustix::io::Errno;
use virtio::net;

pub(crate) use packet::Packets;
pub(crate) use tap::Tap;

use crate::region::BUFFER;

/// Frames moved in one direction before the other has its turn.
pub(crate) const BATCH: usize = 64;
/// Bytes of a buffer before the virtio header: room for the tag that the system takes off.
pub(crate) const HEADROOM: u32 = 4;
/// Bytes of the virtio header.
pub(crate) const HEADER: u32 = net::LEN as u32;
/// Most bytes of a received frame.
const ROOM: usize = (BUFFER - HEADROOM - HEADER) as usize;

/// What came into a buffer: its header and frame are `len` bytes from `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// A frame of the switch, with its header: `len` bytes at `buffer`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) buffer: *mut u8,
    pub(crate) len: u32,
}

/// Why a receive or send stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All frames were moved.
    Done,
    /// There is nothing more to receive, or no room to send, for now: the system has said so.
    Wait,
}

/// One queue of an interface.
#[derive(Debug)]
pub(crate) enum Interface {
    Tap(Tap),
    Packet(Packets),
}

impl Interface {
    pub(crate) fn new(back_end: BackEnd, queue: OwnedFd) -> Self {
        match back_end {
            BackEnd::Tap => Self::Tap(Tap::new(queue)),
            BackEnd::Packet => Self::Packet(Packets::new(queue)),
        }
    }

    /// Receives frames, one into each of at most [`BATCH`] `buffers` of `BUFFER` bytes; what came is appended to
    /// `received`, in the order of the buffers, with length 0 for a frame that is lost and counted.
    ///
    /// # Errors
    /// The interface is gone.
    pub(crate) fn receive(
        &mut self,
        buffers: &[*mut u8],
        received: &mut Vec<Received>,
        refused: &mut Refused,
    ) -> io::Result<Stop> {
        let stop = match self {
            Self::Tap(tap) => tap.receive(buffers, received, refused),
            Self::Packet(packets) => packets.receive(buffers, received, refused),
        };
        match stop {
            Err(Errno::AGAIN) => Ok(Stop::Wait),
            Err(Errno::INTR) => Ok(Stop::Done),
            Err(error) if is_gone(error) => Err(error.into()),
            // One frame that the system could not say with a virtio header, and has thrown away. Others wait behind it.
            Err(_) => {
                refused.by_interface += 1;
                Ok(Stop::Done)
            }
            Ok(stop) => Ok(stop),
        }
    }

    /// Sends frames in order; returns how many are dealt with: sent, or refused by the interface and counted.
    ///
    /// # Errors
    /// The interface is gone.
    pub(crate) fn send(
        &mut self,
        frames: &[Outgoing],
        refused: &mut Refused,
    ) -> io::Result<(usize, Stop)> {
        let mut done = 0;
        while done < frames.len() {
            let sent = match self {
                Self::Tap(tap) => tap.send(frames[done]),
                Self::Packet(packets) => packets.send(&frames[done..]),
            };
            match sent {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok((done, Stop::Wait)),
                Err(error) if is_gone(error) => return Err(error.into()),
                Err(_) => {
                    refused.by_interface += 1;
                    done += 1;
                }
            }
        }
        Ok((done, Stop::Done))
    }
}

impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tap(tap) => tap.as_fd(),
            Self::Packet(packets) => packets.as_fd(),
        }
    }
}

/// Errors after which only a new descriptor helps: the interface was removed (`EBADFD` of a TAP device, `ENXIO` and
/// `ENODEV` of a packet socket), or a packet socket lost it because it was switched off (`ENETDOWN`). What is no descriptor of
/// an interface at all is none either.
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
