//! Messages and their payloads, all in native byte order (vhost-user specification, "Message
//! Specification"). Everything is copied out of the received bytes once.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use wire::virtio::features::Features;
use wire::virtio::vhost_user::{FLAG_REPLY, HEADER_LEN, Header, VERSION, VERSION_MASK};

use super::fault::Fault;

/// Longest payload that is read. The longest that is served is 268 bytes (`GET_CONFIG`).
pub const MAX_PAYLOAD: usize = 4096;
/// Most file descriptors that any message carries (`SET_MEM_TABLE`).
pub const MAX_FDS: usize = 8;

/// Virtio feature bit 26 within vhost: log every write to guest memory.
pub(super) const F_LOG_ALL: u64 = Features::VHOST_LOG_ALL.bits();
/// Virtio feature bit 30 within vhost-user: the protocol features exist.
pub(super) const F_PROTOCOL_FEATURES: u64 = Features::VHOST_PROTOCOL_FEATURES.bits();

/// Reads the header of a request and checks what has to hold for each, before its payload is read.
///
/// # Errors
/// Another version, a reply, or a payload longer than [`MAX_PAYLOAD`].
pub(super) fn request_header(bytes: [u8; HEADER_LEN]) -> Result<Header, Fault> {
    let header = Header::parse(bytes);
    let Header { code, flags, size } = header;
    match flags & VERSION_MASK {
        VERSION if flags & FLAG_REPLY != 0 => Err(Fault::UnexpectedReply(code)),
        VERSION if size as usize > MAX_PAYLOAD => Err(Fault::Oversized { code, size }),
        VERSION => Ok(header),
        version => Err(Fault::Version(version)),
    }
}

/// A request of the front end, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Message code, see [`code`](wire::virtio::vhost_user::code).
    pub code: u32,
    /// Whether the front end requested an acknowledgement.
    pub need_reply: bool,
    /// At most [`MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

/// Reply to a request.
#[derive(Debug)]
pub struct Reply {
    /// The request's code.
    pub code: u32,
    /// Payload of the reply.
    pub payload: Vec<u8>,
    /// Descriptor that is sent with it.
    pub fd: Option<OwnedFd>,
}

impl Reply {
    /// Builds a reply without a descriptor.
    #[must_use]
    pub fn new(code: u32, payload: Vec<u8>) -> Self {
        Reply {
            code,
            payload,
            fd: None,
        }
    }

    /// Returns header and payload on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + self.payload.len());
        let header = Header {
            code: self.code,
            flags: VERSION | FLAG_REPLY,
            size: self.payload.len() as u32,
        };
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// Reads a payload from its front. `None` means that it is too short.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Reader(payload)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// A payload with a fixed layout.
pub(super) trait Payload: Sized {
    fn parse(reader: &mut Reader<'_>) -> Option<Self>;
}

impl Payload for u64 {
    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u64()
    }
}

/// "A vring state description".
#[derive(Debug, Clone, Copy)]
pub(super) struct VringState {
    pub(super) index: u32,
    pub(super) num: u32,
}

impl VringState {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [self.index.to_ne_bytes(), self.num.to_ne_bytes()].concat()
    }
}

impl Payload for VringState {
    fn parse(r: &mut Reader<'_>) -> Option<Self> {
        Some(VringState {
            index: r.u32()?,
            num: r.u32()?,
        })
    }
}

/// "A vring address description"; the addresses are the front end's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VringAddr {
    pub(super) index: u32,
    pub(super) flags: u32,
    pub(super) desc: u64,
    pub(super) used: u64,
    pub(super) avail: u64,
    pub(super) log: u64,
}

impl VringAddr {
    /// Returns whether the queue lies at the same place as `other`, however it is logged.
    pub(super) fn is_at_place_of(&self, other: &Self) -> bool {
        let place = |addr: &Self| (addr.desc, addr.used, addr.avail);
        place(self) == place(other)
    }
}

impl Payload for VringAddr {
    fn parse(r: &mut Reader<'_>) -> Option<Self> {
        Some(VringAddr {
            index: r.u32()?,
            flags: r.u32()?,
            desc: r.u64()?,
            used: r.u64()?,
            avail: r.u64()?,
            log: r.u64()?,
        })
    }
}

/// One region of "Memory regions description".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RegionDesc {
    pub(super) gpa: u64,
    pub(super) size: u64,
    pub(super) uva: u64,
    pub(super) offset: u64,
}

impl Payload for RegionDesc {
    fn parse(r: &mut Reader<'_>) -> Option<Self> {
        Some(RegionDesc {
            gpa: r.u64()?,
            size: r.u64()?,
            uva: r.u64()?,
            offset: r.u64()?,
        })
    }
}

/// "Log description".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogDesc {
    pub(super) size: u64,
    pub(super) offset: u64,
}

impl Payload for LogDesc {
    fn parse(r: &mut Reader<'_>) -> Option<Self> {
        Some(LogDesc {
            size: r.u64()?,
            offset: r.u64()?,
        })
    }
}

/// "Inflight description".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InflightDesc {
    pub(super) size: u64,
    pub(super) offset: u64,
    pub(super) queues: u16,
    pub(super) queue_size: u16,
}

impl InflightDesc {
    /// Returns `len` bytes, because some front ends send 20 and some pad to 24.
    pub(super) fn to_bytes(self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&self.size.to_ne_bytes());
        bytes.extend_from_slice(&self.offset.to_ne_bytes());
        bytes.extend_from_slice(&self.queues.to_ne_bytes());
        bytes.extend_from_slice(&self.queue_size.to_ne_bytes());
        bytes.resize(len, 0);
        bytes
    }
}

impl Payload for InflightDesc {
    fn parse(r: &mut Reader<'_>) -> Option<Self> {
        Some(InflightDesc {
            size: r.u64()?,
            offset: r.u64()?,
            queues: r.u16()?,
            queue_size: r.u16()?,
        })
    }
}

/// The head of "Virtio device config space"; the bytes follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConfigAccess {
    pub(super) offset: u32,
    pub(super) size: u32,
    pub(super) flags: u32,
}

impl ConfigAccess {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [
            self.offset.to_ne_bytes(),
            self.size.to_ne_bytes(),
            self.flags.to_ne_bytes(),
        ]
        .concat()
    }
}

impl Payload for ConfigAccess {
    fn parse(r: &mut Reader<'_>) -> Option<Self> {
        Some(ConfigAccess {
            offset: r.u32()?,
            size: r.u32()?,
            flags: r.u32()?,
        })
    }
}
