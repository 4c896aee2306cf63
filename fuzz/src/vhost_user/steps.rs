//! The front end's steps: what it sends, with which descriptors, and what else happens.

use std::os::fd::OwnedFd;

use arbitrary::{Arbitrary, Result, Unstructured};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use virtio::vhost_user::MAX_FDS;
use wire::virtio::vhost_user::{ProtocolFeatures, code};

/// Bytes of the larger memory file.
pub(super) const MEM: u64 = 0x2_0000;

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Event,
    Memory,
    Page,
    Pipe,
    Socket,
}

impl Kind {
    fn of(n: u8) -> Self {
        match n % 8 {
            0..=2 => Self::Event,
            3 | 4 => Self::Memory,
            5 => Self::Page,
            6 => Self::Pipe,
            _ => Self::Socket,
        }
    }

    pub(super) fn make(self) -> OwnedFd {
        match self {
            Self::Event => eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
            Self::Memory => file(MEM),
            Self::Page => file(0x1000),
            Self::Pipe => rustix::pipe::pipe().expect("a pipe").1,
            Self::Socket => pair().0,
        }
    }
}

fn file(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, len).expect("its size");
    fd
}

/// Two connected sockets.
pub(super) fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets")
}

#[derive(Debug)]
pub(super) enum Step {
    Message {
        code: u32,
        need_reply: bool,
        payload: Vec<u8>,
        fds: Vec<Kind>,
    },
    /// Bytes on the socket that need not be a message.
    Bytes(Vec<u8>, Vec<Kind>),
    /// The guest writes 16 bits at this offset of each region.
    Guest(u32, u16),
    /// The data path serves all queues.
    Serve,
    /// The owner changes the link or the MTU.
    Owner(bool, u16),
    /// The VMM cuts one of its memory files to this many pages.
    Truncate(u8, u8),
    /// A queue lacks the translation of a page: its number, and whether it reads, writes or both.
    Miss(u8, u8),
    /// The front end answers a question for a translation.
    Answer(u8),
    /// It sends these bytes on the back-end channel.
    Channel(Vec<u8>),
    /// Milliseconds pass. The front end reads its end of the channel before, or does not.
    Time(u16),
    /// The front end is gone, and another comes.
    Again,
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? {
            0..=0xbf => message(u)?,
            0xc0..=0xc7 => wild(u)?,
            0xc8..=0xcb => {
                let len = usize::from(u.arbitrary::<u8>()? % 32).min(u.len());
                Self::Bytes(u.bytes(len)?.to_vec(), kinds(u)?)
            }
            0xcc..=0xdf => Self::Guest(u.arbitrary()?, u.arbitrary()?),
            0xe0..=0xeb => Self::Serve,
            0xec..=0xef => Self::Miss(u.arbitrary()?, u.arbitrary()?),
            0xf0..=0xf3 => Self::Answer(u.arbitrary()?),
            0xf4 => {
                let len = usize::from(u.arbitrary::<u8>()? % 64).min(u.len());
                Self::Channel(u.bytes(len)?.to_vec())
            }
            0xf5..=0xf7 => Self::Time(u.arbitrary()?),
            0xf8 | 0xf9 => Self::Owner(u.arbitrary()?, u.arbitrary()?),
            0xfa | 0xfb => Self::Truncate(u.arbitrary()?, u.arbitrary()?),
            _ => Self::Again,
        })
    }
}

fn kinds(u: &mut Unstructured<'_>) -> Result<Vec<Kind>> {
    let count = u.arbitrary::<u8>()? % (MAX_FDS as u8 + 2);
    (0..count).map(|_| Ok(Kind::of(u.arbitrary()?))).collect()
}

/// A message of any code with any payload.
fn wild(u: &mut Unstructured<'_>) -> Result<Step> {
    let (code, need_reply) = (u32::from(u.arbitrary::<u8>()?), u.arbitrary()?);
    let len = usize::from(u.arbitrary::<u8>()?).min(u.len());
    Ok(Step::Message {
        code,
        need_reply,
        payload: u.bytes(len)?.to_vec(),
        fds: kinds(u)?,
    })
}

/// A message of the right shape with numbers near what matters.
fn message(u: &mut Unstructured<'_>) -> Result<Step> {
    let which = u.arbitrary::<u8>()?;
    let how = u.arbitrary::<u8>()?;
    let mut words = Words(Vec::new());
    let code = u32::from(which % 44) + 1;
    let mut fds: Vec<Kind> = Vec::new();
    match code {
        code::SET_FEATURES => words.u64(features(u)?),
        code::SET_PROTOCOL_FEATURES => words.u64(match u.arbitrary::<u8>()? {
            0..=0xdf => ProtocolFeatures::all().bits(),
            _ => u.arbitrary()?,
        }),
        code::SET_MEM_TABLE => {
            let count = u.arbitrary::<u8>()? % 4;
            words.u64(u64::from(count));
            for _ in 0..count {
                words.region(u)?;
                fds.push(Kind::of(u.arbitrary::<u8>()? | 3));
            }
        }
        code::ADD_MEM_REG | code::REM_MEM_REG => {
            words.u64(0);
            words.region(u)?;
            if code == code::ADD_MEM_REG {
                fds.push(Kind::of(u.arbitrary::<u8>()? | 3));
            }
        }
        code::SET_VRING_ADDR => {
            words.index(u)?;
            words.u32(u32::from(u.arbitrary::<u8>()? % 4));
            let base = number(u)?;
            for _ in 0..4 {
                words.u64(base.wrapping_add(u64::from(u.arbitrary::<u8>()?) << 6));
            }
        }
        code::IOTLB_MSG => {
            [number(u)?, number(u)?, number(u)?]
                .into_iter()
                .for_each(|n| words.u64(n));
            let (permission, kind) = (u.arbitrary::<u8>()?, u.arbitrary::<u8>()?);
            words.u32(u32::from(permission % 5) | u32::from(kind % 7) << 8);
            words.u32(0);
        }
        code::SET_VRING_NUM
        | code::SET_VRING_BASE
        | code::GET_VRING_BASE
        | code::SET_VRING_ENABLE => {
            words.index(u)?;
            words.u32(number(u)? as u32);
        }
        code::SET_VRING_KICK | code::SET_VRING_CALL | code::SET_VRING_ERR => {
            let n = u.arbitrary::<u8>()?;
            words.u64(u64::from(n % 5) | u64::from(n & 0x80) << 1);
            if n & 0x80 == 0 {
                fds.push(Kind::of(how >> 4));
            }
        }
        code::SET_LOG_BASE => {
            words.u64(number(u)?);
            words.u64(number(u)?);
            fds.push(Kind::of(how >> 4 | 3));
        }
        code::GET_INFLIGHT_FD | code::SET_INFLIGHT_FD => {
            words.u64(number(u)?);
            words.u64(number(u)?);
            words.u32(u32::from(u.arbitrary::<u8>()? % 6) | u32::from(u.arbitrary::<u8>()?) << 16);
            words.u32(0);
            if code == code::SET_INFLIGHT_FD {
                fds.push(Kind::of(how >> 4 | 3));
            }
        }
        code::GET_CONFIG | code::SET_CONFIG => {
            let size = u.arbitrary::<u8>()? % 70;
            words.u32(number(u)? as u32);
            words.u32(u32::from(size));
            words.u32(0);
            words.0.resize(12 + usize::from(size), 0);
        }
        code::SEND_RARP | code::NET_SET_MTU | code::SET_STATUS => words.u64(number(u)?),
        code::SET_BACKEND_REQ_FD | code::SET_LOG_FD => fds.push(Kind::of(how >> 4)),
        _ => {}
    }
    if how & 14 == 14 {
        fds = kinds(u)?;
    }
    Ok(Step::Message {
        code,
        need_reply: how & 1 != 0,
        payload: words.0,
        fds,
    })
}

fn features(u: &mut Unstructured<'_>) -> Result<u64> {
    let base = 1 << 32 | 1 << 30;
    Ok(match u.arbitrary::<u8>()? % 8 {
        0 => base,
        // A guest with an IOMMU.
        1 => base | 1 << 33,
        // A legacy driver.
        2 => 1 << 30,
        3 => base | 1 << 26,
        4 => base | 1 << 34,
        5 => base | 1 << 29 | 1 << 28,
        6 => 1 << 32,
        _ => u.arbitrary()?,
    })
}

/// A number near what matters: small, a page of the memory used here, a power of two, or any.
fn number(u: &mut Unstructured<'_>) -> Result<u64> {
    let n = u.arbitrary::<u8>()?;
    Ok(match n >> 6 {
        0 => u64::from(n),
        1 => u64::from(n & 63) << 12,
        2 => 1 << (n & 63),
        _ if n < 0xf0 => MEM,
        _ => u.arbitrary()?,
    })
}

/// A payload in the making.
struct Words(Vec<u8>);

impl Words {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_ne_bytes());
    }

    fn index(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let n = u.arbitrary::<u8>()?;
        let index = if n < 0xf8 {
            u32::from(n % 5)
        } else {
            u.arbitrary()?
        };
        self.u32(index);
        Ok(())
    }

    fn region(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let [gpa, size, uva, offset] = [number(u)?, number(u)?, number(u)?, number(u)?];
        [gpa, size, uva, offset]
            .into_iter()
            .for_each(|n| self.u64(n));
        Ok(())
    }
}
