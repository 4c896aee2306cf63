//! Header, codes and protocol features of vhost-user, in native byte order (vhost-user
//! specification, "Message Specification").

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 12;

/// The only version, in a header's flags.
pub const VERSION: u32 = 1;
/// Bits of the version in a header's flags.
pub const VERSION_MASK: u32 = 3;
/// The message is a reply.
pub const FLAG_REPLY: u32 = 1 << 2;
/// The front end requests an acknowledgement.
pub const FLAG_NEED_REPLY: u32 = 1 << 3;

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

impl ProtocolFeatures {
    /// Rings are slot queues, not virtqueues: a feature of Lasthop's own, offered on ports of
    /// netmap clients alone, and required there. It is not among [`ProtocolFeatures::all`].
    pub const SLOT_QUEUES: Self = Self::from_bits_retain(1 << 63);
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

/// Message codes of the back end, on its own channel (`VHOST_USER_BACKEND_*`).
#[expect(missing_docs, reason = "the names are the specification's")]
pub mod backend_code {
    pub const IOTLB_MSG: u32 = 1;
    pub const CONFIG_CHANGE_MSG: u32 = 2;
}

/// Types of an [`IotlbMessage`] (`VHOST_IOTLB_*` in `linux/vhost_types.h`).
pub mod iotlb_type {
    /// The back end asks for a translation.
    pub const MISS: u8 = 1;
    /// The front end grants one.
    pub const UPDATE: u8 = 2;
    /// The front end revokes some.
    pub const INVALIDATE: u8 = 3;
    /// The back end reports an access without a translation.
    pub const ACCESS_FAIL: u8 = 4;
}

/// The payload of IOTLB messages in both directions ("An IOTLB message", `struct vhost_iotlb_msg`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IotlbMessage {
    /// First I/O virtual address.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
    /// Address of the first byte in the front end.
    pub user_addr: u64,
    /// Access: 1 read, 2 write, 3 both.
    pub permission: u8,
    /// See [`iotlb_type`].
    pub kind: u8,
}

impl IotlbMessage {
    /// Bytes of the payload.
    pub const LEN: usize = 32;

    /// Reads a payload; nothing is checked yet, and the padding is not looked at.
    #[must_use]
    pub fn parse(bytes: [u8; Self::LEN]) -> Self {
        let field = |at| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        Self {
            iova: field(0),
            size: field(8),
            user_addr: field(16),
            permission: bytes[24],
            kind: bytes[25],
        }
    }

    /// Returns the payload on the wire, padded with zeros.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let fields = [self.iova, self.size, self.user_addr].map(u64::to_ne_bytes);
        bytes[..24].copy_from_slice(fields.as_flattened());
        (bytes[24], bytes[25]) = (self.permission, self.kind);
        bytes
    }
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
        let field = |at| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        Header {
            code: field(0),
            flags: field(4),
            size: field(8),
        }
    }

    /// Returns the header's bytes on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let fields = [self.code, self.flags, self.size].map(u32::to_ne_bytes);
        std::array::from_fn(|at| fields[at / 4][at % 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iotlb_message_has_the_layout_of_the_kernels_structure() {
        let message = IotlbMessage {
            iova: 0x1000,
            size: 0x2000,
            user_addr: 0x7f00_0000_3000,
            permission: 3,
            kind: iotlb_type::UPDATE,
        };
        let mut bytes = message.to_bytes();
        let words = [0x1000u64, 0x2000, 0x7f00_0000_3000].map(u64::to_ne_bytes);
        assert_eq!(bytes[..24], *words.as_flattened());
        assert_eq!(bytes[24..], [3, 2, 0, 0, 0, 0, 0, 0]);
        bytes[26..].fill(0xff);
        assert_eq!(IotlbMessage::parse(bytes), message);
    }
}
