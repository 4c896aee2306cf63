//! The wire format: header, codes, feature bits and payloads, all in native byte order (vhost-user
//! specification, "Message Specification"). Everything is copied out of the received bytes once.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::fault::Fault;

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 12;
/// Longest payload that is read. The longest that is served is 268 bytes (`GET_CONFIG`).
pub const MAX_PAYLOAD: usize = 4096;
/// Most file descriptors that any message carries (`SET_MEM_TABLE`).
pub const MAX_FDS: usize = 8;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// Virtio feature bit 26 within vhost: log every write to guest memory.
pub(super) const F_LOG_ALL: u64 = 1 << 26;
/// Virtio feature bit 30 within vhost-user: the protocol features exist.
pub(super) const F_PROTOCOL_FEATURES: u64 = 1 << 30;

bitflags::bitflags! {
    /// Protocol features (`VHOST_USER_PROTOCOL_F_*`) that this back end can offer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct ProtocolFeatures: u64 {
        /// Several queue pairs, `GET_QUEUE_NUM`.
        const MQ = 1;
        /// The dirty log is passed as a file.
        const LOG_SHMFD = 1 << 1;
        /// `SEND_RARP`.
        const RARP = 1 << 2;
        /// Acknowledgements on demand.
        const REPLY_ACK = 1 << 3;
        /// `NET_SET_MTU`.
        const NET_MTU = 1 << 4;
        /// `SET_BACKEND_REQ_FD`: requests from us to the front end.
        const BACKEND_REQ = 1 << 5;
        /// `GET_CONFIG`, `SET_CONFIG`.
        const CONFIG = 1 << 9;
        /// `GET_INFLIGHT_FD`, `SET_INFLIGHT_FD`.
        const INFLIGHT_SHMFD = 1 << 12;
        /// `RESET_DEVICE`.
        const RESET_DEVICE = 1 << 13;
        /// `GET_MAX_MEM_SLOTS`, `ADD_MEM_REG`, `REM_MEM_REG`.
        const CONFIGURE_MEM_SLOTS = 1 << 15;
        /// `SET_STATUS`, `GET_STATUS`.
        const STATUS = 1 << 16;
    }
}

/// Message codes of the front end, as in the specification.
#[expect(missing_docs, reason = "the names are the specification's")]
pub mod code {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const IOTLB_MSG: u32 = 22;
    pub const SET_VRING_ENDIAN: u32 = 23;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const CREATE_CRYPTO_SESSION: u32 = 26;
    pub const CLOSE_CRYPTO_SESSION: u32 = 27;
    pub const POSTCOPY_ADVISE: u32 = 28;
    pub const POSTCOPY_LISTEN: u32 = 29;
    pub const POSTCOPY_END: u32 = 30;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const GPU_SET_SOCKET: u32 = 33;
    pub const RESET_DEVICE: u32 = 34;
    pub const VRING_KICK: u32 = 35;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
    pub const GET_SHARED_OBJECT: u32 = 41;
    pub const SET_DEVICE_STATE_FD: u32 = 42;
    pub const CHECK_DEVICE_STATE: u32 = 43;
    pub const GET_SHMEM_CONFIG: u32 = 44;
}

/// The header in front of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Message code, see [`code`].
    pub code: u32,
    /// Version and flags.
    pub flags: u32,
    /// Bytes of payload that follow.
    pub size: u32,
}

impl Header {
    /// Reads a header; nothing is checked yet.
    #[must_use]
    pub fn parse(bytes: [u8; HEADER_LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Header {
            code: u32::from_ne_bytes([a, b, c, d]),
            flags: u32::from_ne_bytes([e, f, g, h]),
            size: u32::from_ne_bytes([i, j, k, l]),
        }
    }

    /// Returns the header's bytes on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&self.code.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }

    /// Builds the header of a request of the back end with `size` bytes of payload and no reply.
    #[must_use]
    pub(super) fn request(code: u32, size: u32) -> Self {
        Header {
            code,
            flags: VERSION,
            size,
        }
    }

    fn reply(code: u32, size: usize) -> Self {
        Header {
            code,
            flags: VERSION | FLAG_REPLY,
            size: size as u32,
        }
    }

    /// Returns whether the front end requested an acknowledgement.
    #[must_use]
    pub fn need_reply(self) -> bool {
        self.flags & FLAG_NEED_REPLY != 0
    }

    /// Checks what has to hold for every request, before its payload is read.
    ///
    /// # Errors
    /// Another version, a reply, or a payload longer than [`MAX_PAYLOAD`].
    pub fn check(self) -> Result<(), Fault> {
        let version = self.flags & VERSION_MASK;
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        if self.flags & FLAG_REPLY != 0 {
            return Err(Fault::UnexpectedReply(self.code));
        }
        if self.size as usize > MAX_PAYLOAD {
            return Err(Fault::Oversized {
                code: self.code,
                size: self.size,
            });
        }
        Ok(())
    }
}

/// A request of the front end, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Message code, see [`code`].
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
        bytes.extend_from_slice(&Header::reply(self.code, self.payload.len()).to_bytes());
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
