//! Feature bits (virtio 1.3 sections 5.1.3 and 6, vhost-user) as this crate reads them.

/// Device handles packets with partial checksum.
pub const CSUM: u64 = 1 << 0;
/// Driver handles packets with partial checksum.
pub const GUEST_CSUM: u64 = 1 << 1;
/// Maximum MTU reporting.
pub const MTU: u64 = 1 << 3;
/// Device has given the MAC address.
pub const MAC: u64 = 1 << 5;
/// Driver can receive TSOv4.
pub const GUEST_TSO4: u64 = 1 << 7;
/// Driver can receive TSOv6.
pub const GUEST_TSO6: u64 = 1 << 8;
/// Driver can receive TSO with ECN.
pub const GUEST_ECN: u64 = 1 << 9;
/// Device can receive TSOv4.
pub const HOST_TSO4: u64 = 1 << 11;
/// Device can receive TSOv6.
pub const HOST_TSO6: u64 = 1 << 12;
/// Device can receive TSO with ECN.
pub const HOST_ECN: u64 = 1 << 13;
/// Driver can merge receive buffers.
pub const MRG_RXBUF: u64 = 1 << 15;
/// Configuration status field is available.
pub const STATUS: u64 = 1 << 16;
/// Control channel is available.
pub const CTRL_VQ: u64 = 1 << 17;
/// Driver can send gratuitous packets.
pub const GUEST_ANNOUNCE: u64 = 1 << 21;
/// Device supports several queue pairs.
pub const MQ: u64 = 1 << 22;
/// vhost: log all writes to guest memory.
pub const LOG_ALL: u64 = 1 << 26;
/// Buffers may be in indirect tables.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Event indices are in use.
pub const EVENT_IDX: u64 = 1 << 29;
/// vhost-user: protocol features can be negotiated.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Compliant with virtio 1.0 or later.
pub const VERSION_1: u64 = 1 << 32;
/// The device uses addresses of its own (I/O virtual ones where there is an IOMMU).
pub const ACCESS_PLATFORM: u64 = 1 << 33;
/// The packed layout is in use.
pub const RING_PACKED: u64 = 1 << 34;
/// Buffers are used in the order they were made available.
pub const IN_ORDER: u64 = 1 << 35;
/// Driver can receive USOv4.
pub const GUEST_USO4: u64 = 1 << 54;
/// Driver can receive USOv6.
pub const GUEST_USO6: u64 = 1 << 55;
/// Device can receive USO.
pub const HOST_USO: u64 = 1 << 56;

/// Everything a sender may hand to the device.
pub const HOST_OFFLOADS: u64 = CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO;
/// Everything a receiver may be handed.
pub const GUEST_OFFLOADS: u64 =
    GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6;
/// Both directions.
pub const ALL_OFFLOADS: u64 = HOST_OFFLOADS | GUEST_OFFLOADS;
/// Checksums only, both directions.
pub const CHECKSUM_ONLY: u64 = CSUM | GUEST_CSUM;

/// Protocol features of vhost-user.
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// The dirty log is a file.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// SEND_RARP.
    pub const RARP: u64 = 1 << 2;
    /// Every message can be answered.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// NET_SET_MTU.
    pub const MTU: u64 = 1 << 4;
    /// A channel for requests of the back end.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// GET_CONFIG and SET_CONFIG.
    pub const CONFIG: u64 = 1 << 9;
    /// GET_INFLIGHT_FD and SET_INFLIGHT_FD.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// RESET_DEVICE.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// GET_MAX_MEM_SLOTS, ADD_MEM_REG, REM_MEM_REG.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// Lasthop's own: rings are slot queues.
    pub const SLOT_QUEUES: u64 = 1 << 63;
    /// SET_STATUS and GET_STATUS.
    pub const STATUS: u64 = 1 << 16;
}
