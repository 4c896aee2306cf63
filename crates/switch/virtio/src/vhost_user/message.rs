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
pub(super) trait Payload: Copy {
    fn parse(reader: &mut Reader<'_>) -> Option<Self>;

    fn to_bytes(self) -> Vec<u8>;
}

impl Payload for u64 {
    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u64()
    }

    fn to_bytes(self) -> Vec<u8> {
        self.to_ne_bytes().to_vec()
    }
}

/// Structures of the specification: their fields lie one behind the other, without padding.
macro_rules! payloads {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ident),* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub(super) struct $name {
            $(pub(super) $field: $type),*
        }

        impl Payload for $name {
            fn parse(reader: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: reader.$type()?),* })
            }

            fn to_bytes(self) -> Vec<u8> {
                [$(&self.$field.to_ne_bytes()[..]),*].concat()
            }
        }
    )*};
}

payloads! {
    /// "A vring state description".
    VringState { index: u32, num: u32 }

    /// "A vring address description"; the addresses are the front end's own.
    VringAddr { index: u32, flags: u32, desc: u64, used: u64, avail: u64, log: u64 }

    /// One region of "Memory regions description".
    RegionDesc { gpa: u64, size: u64, uva: u64, offset: u64 }

    /// "Log description".
    LogDesc { size: u64, offset: u64 }

    /// "Inflight description".
    InflightDesc { size: u64, offset: u64, queues: u16, queue_size: u16 }

    /// The head of "Virtio device config space"; the bytes follow.
    ConfigAccess { offset: u32, size: u32, flags: u32 }
}

impl VringAddr {
    /// Returns whether the queue lies at the same place as `other`, however it is logged.
    pub(super) fn is_at_place_of(&self, other: &Self) -> bool {
        let place = |addr: &Self| (addr.desc, addr.used, addr.avail);
        place(self) == place(other)
    }
}
