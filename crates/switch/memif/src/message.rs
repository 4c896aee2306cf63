//! Messages and their payloads (DPDK 22.11, `drivers/net/memif/memif.h`): 128 bytes, packed, in
//! native byte order. The type is in the first two, the payload in the others.

use virtio::vhost_user::{Message, Reply};

/// Bytes of each message.
pub const MESSAGE_LEN: usize = 128;
/// Bytes of the type.
const HEAD: usize = 2;
/// Bytes of each payload; a shorter one is padded with zeros.
pub const PAYLOAD_LEN: usize = MESSAGE_LEN - HEAD;
/// Version of the protocol, 2.0: major number times 256, plus the minor number.
pub const VERSION: u16 = 0x200;
/// Bytes of a secret; a shorter one is padded with zeros.
pub const SECRET_LEN: usize = 24;
/// Bytes of a name, padded with zeros.
const NAME_LEN: usize = 32;
/// Bytes of the reason in a `DISCONNECT`, the zero at its end included.
pub const REASON_LEN: usize = 96;
/// In the flags of `ADD_RING`: the ring has frames to the server.
pub(crate) const RING_TO_SERVER: u16 = 1;
/// The interface mode of Ethernet frames; IP is 1, punt/inject is 2.
pub(crate) const MODE_ETHERNET: u8 = 0;

/// Types of messages.
pub mod code {
    /// Acknowledges a message of the client.
    pub const ACK: u32 = 1;
    /// The server's first message.
    pub const HELLO: u32 = 2;
    /// The client's first message: the interface that it wants.
    pub const INIT: u32 = 3;
    /// A memory file.
    pub const ADD_REGION: u32 = 4;
    /// A ring in a region.
    pub const ADD_RING: u32 = 5;
    /// Everything is there.
    pub const CONNECT: u32 = 6;
    /// The answer to `CONNECT`.
    pub const CONNECTED: u32 = 7;
    /// The end of the connection, from either side.
    pub const DISCONNECT: u32 = 8;
}

/// Returns the bytes of a message on the socket.
pub(crate) fn to_bytes(code: u32, payload: &[u8]) -> [u8; MESSAGE_LEN] {
    let mut bytes = [0; MESSAGE_LEN];
    bytes[..HEAD].copy_from_slice(&(code as u16).to_ne_bytes());
    let rest = &mut bytes[HEAD..];
    let len = payload.len().min(rest.len());
    rest[..len].copy_from_slice(&payload[..len]);
    bytes
}

/// Returns the message in these bytes.
pub(crate) fn from_bytes(bytes: &[u8; MESSAGE_LEN]) -> Message {
    let (head, payload) = bytes.split_at(HEAD);
    Message {
        code: u32::from(u16::from_ne_bytes([head[0], head[1]])),
        need_reply: false,
        payload: payload.to_vec(),
    }
}

/// Reads a payload from its front. `None` means that it is too short.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Returns a text that ends at the first zero. It goes to logs and operators, so other bytes
    /// than those of printable ASCII become question marks.
    pub(crate) fn text<const N: usize>(&mut self) -> Option<String> {
        let bytes = self.array::<N>()?;
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let printable = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '?',
        };
        Some(bytes.iter().map(printable).collect())
    }
}

/// `INIT`.
pub(crate) struct Init {
    pub(crate) version: u16,
    pub(crate) id: u32,
    pub(crate) mode: u8,
    pub(crate) secret: [u8; SECRET_LEN],
    pub(crate) name: String,
}

impl Init {
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        Some(Self {
            version: reader.u16()?,
            id: reader.u32()?,
            mode: reader.u8()?,
            secret: reader.array()?,
            name: reader.text::<NAME_LEN>()?,
        })
    }
}

/// `ADD_REGION`.
pub(crate) struct AddRegion {
    pub(crate) index: u16,
    /// In bytes.
    pub(crate) size: u64,
}

impl AddRegion {
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        Some(Self {
            index: reader.u16()?,
            size: reader.u64()?,
        })
    }
}

/// `ADD_RING`.
pub(crate) struct AddRing {
    pub(crate) flags: u16,
    pub(crate) index: u16,
    pub(crate) region: u16,
    /// Of the ring in its region, in bytes.
    pub(crate) offset: u32,
    pub(crate) log2_size: u8,
    pub(crate) private_header: u16,
}

impl AddRing {
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        Some(Self {
            flags: reader.u16()?,
            index: reader.u16()?,
            region: reader.u16()?,
            offset: reader.u32()?,
            log2_size: reader.u8()?,
            private_header: reader.u16()?,
        })
    }
}

/// Parses the name in a `CONNECT`.
pub(crate) fn interface_name(payload: &[u8]) -> Option<String> {
    Reader::new(payload).text::<NAME_LEN>()
}

/// Parses the reason in a `DISCONNECT`, behind its code.
pub(crate) fn disconnect_reason(payload: &[u8]) -> Option<String> {
    let mut reader = Reader::new(payload);
    reader.u32()?;
    reader.text::<REASON_LEN>()
}

/// Returns the bytes of a text for a field of `len` bytes, the last of which stays zero.
fn field(text: &str, len: usize) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.truncate(len - 1);
    bytes.resize(len, 0);
    bytes
}

/// Builds the server's first message. The largest index of regions and of rings of each direction
/// is one less than their number.
pub(crate) fn hello(name: &str, regions: u16, rings: u16, log2_size: u8) -> Reply {
    let mut payload = field(name, NAME_LEN);
    let numbers = [VERSION, VERSION, regions - 1, rings - 1, rings - 1];
    payload.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    payload.push(log2_size);
    Reply::new(code::HELLO, payload)
}

/// Builds an acknowledgement.
pub(crate) fn ack() -> Reply {
    Reply::new(code::ACK, Vec::new())
}

/// Builds the answer to `CONNECT`.
pub(crate) fn connected(interface: &str) -> Reply {
    Reply::new(code::CONNECTED, field(interface, NAME_LEN))
}

/// Builds the end of a connection, with its reason.
pub(crate) fn disconnect(reason: &str) -> Reply {
    let mut payload = 0_u32.to_ne_bytes().to_vec();
    payload.extend(field(reason, REASON_LEN));
    Reply::new(code::DISCONNECT, payload)
}
