//! The binary interface of netmap, API 14: structures and constants of `net/netmap.h` and
//! `net/netmap_legacy.h`, as far as they are used here. Names are those of the headers, in lower
//! case without prefix where a structure already says where they belong.
//!
//! Everything in these structures is written by the program, or may be: it is copied once, checked,
//! and the copy is used.

/// API version of these structures (`NETMAP_API`).
pub const API: u16 = 14;
/// Newest API version that is accepted in a request (`NETMAP_MAX_API`).
pub const MAX_API: u16 = 15;

/// `NIOCGINFO`: information about a port, with [`LegacyRequest`].
pub const NIOCGINFO: u64 = 0xc03c_6991;
/// `NIOCREGIF`: registration, with [`LegacyRequest`].
pub const NIOCREGIF: u64 = 0xc03c_6992;
/// `NIOCTXSYNC`: sends what was queued.
pub const NIOCTXSYNC: u64 = 0x6994;
/// `NIOCRXSYNC`: shows what has arrived.
pub const NIOCRXSYNC: u64 = 0x6995;
/// `NIOCCTRL`: all requests that start with [`Header`].
pub const NIOCCTRL: u64 = 0xc058_6997;

/// `buf_idx` was changed by the program (`NS_BUF_CHANGED`).
pub const NS_BUF_CHANGED: u16 = 0x0001;
/// The frame lies at `ptr` (`NS_INDIRECT`), rings for transmission of ports only.
pub const NS_INDIRECT: u16 = 0x0010;
/// The frame continues in the next slot (`NS_MOREFRAG`).
pub const NS_MOREFRAG: u16 = 0x0020;
/// `ts` of the ring is set by each rxsync (`NR_TIMESTAMP`).
pub const NR_TIMESTAMP: u32 = 0x0002;

/// One buffer and its frame, or part of one (`struct netmap_slot`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Number of the buffer.
    pub buf_idx: u32,
    /// Bytes of the frame in it.
    pub len: u16,
    /// `NS_*`.
    pub flags: u16,
    /// Address of the frame with [`NS_INDIRECT`].
    pub ptr: u64,
}

/// A ring as the program sees it (`struct netmap_ring`); its slots follow.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Ring {
    /// Distance of buffer 0 from this structure, in bytes.
    pub buf_ofs: i64,
    /// Number of slots.
    pub num_slots: u32,
    /// Bytes of a buffer.
    pub nr_buf_size: u32,
    /// Number of the ring in its direction.
    pub ringid: u16,
    /// 0: transmission, 1: reception.
    pub dir: u16,
    /// First slot of the program.
    pub head: u32,
    /// The program is woken when `tail` passes it.
    pub cur: u32,
    /// First slot that is not the program's.
    pub tail: u32,
    /// `NR_*`.
    pub flags: u32,
    pad: u32,
    /// Time of the last sync: seconds and microseconds.
    pub ts: [i64; 2],
    /// Bits of `ptr` that are an offset: none.
    pub offset_mask: u64,
    /// Alignment of frames in buffers.
    pub buf_align: u64,
    pad2: [u64; 7],
    /// For the program alone.
    pub sem: [u8; 128],
}

/// A registered port (`struct netmap_if`); the offsets of its rings follow, of 64 bits each.
#[repr(C)]
#[derive(Debug)]
pub struct Interface {
    /// Name of the port, cut to 15 bytes.
    pub ni_name: [u8; 16],
    /// API version.
    pub ni_version: u32,
    /// Properties: none is set.
    pub ni_flags: u32,
    /// Rings for transmission, host rings left out.
    pub ni_tx_rings: u32,
    /// Rings for reception, host rings left out.
    pub ni_rx_rings: u32,
    /// First extra buffer, 0: none. Each names the next one in its first four bytes.
    pub ni_bufs_head: u32,
    /// Host rings for transmission.
    pub ni_host_tx_rings: u32,
    /// Host rings for reception.
    pub ni_host_rx_rings: u32,
    /// Unused.
    pub ni_spare1: [u32; 3],
}

/// Start of every request of [`NIOCCTRL`] (`struct nmreq_header`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// API version.
    pub version: u16,
    /// `NETMAP_REQ_*`, see [`req`].
    pub reqtype: u16,
    /// Zero.
    pub reserved: u32,
    /// Name of a port, ended by NUL.
    pub name: [u8; 64],
    /// Address of the first [`Opt`], or 0.
    pub options: u64,
    /// Address of the body.
    pub body: u64,
}

/// Start of an option (`struct nmreq_option`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// Address of the next one, or 0.
    pub next: u64,
    /// `NETMAP_REQ_OPT_*`.
    pub reqtype: u32,
    /// Out: 0, or an error number.
    pub status: u32,
    /// Bytes, where they vary.
    pub size: u64,
}

/// Body of `NETMAP_REQ_REGISTER` (`struct nmreq_register`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Register {
    /// Out: offset of the [`Interface`] in the memory.
    pub offset: u64,
    /// Out: bytes of the memory.
    pub memsize: u64,
    /// Slots of a ring for transmission; in: 0 is the default.
    pub tx_slots: u32,
    /// Slots of a ring for reception.
    pub rx_slots: u32,
    /// Rings for transmission.
    pub tx_rings: u16,
    /// Rings for reception.
    pub rx_rings: u16,
    /// Host rings for transmission.
    pub host_tx_rings: u16,
    /// Host rings for reception.
    pub host_rx_rings: u16,
    /// Number of the memory.
    pub mem_id: u16,
    /// Number of the ring, for modes of one ring.
    pub ringid: u16,
    /// `NR_REG_*`, see [`mode`].
    pub mode: u32,
    /// Extra buffers.
    pub extra_bufs: u32,
    /// [`flags`].
    pub flags: u64,
}

/// Body of `NETMAP_REQ_PORT_INFO_GET` (`struct nmreq_port_info_get`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortInfo {
    /// Bytes of the memory.
    pub memsize: u64,
    /// Slots of a ring for transmission.
    pub tx_slots: u32,
    /// Slots of a ring for reception.
    pub rx_slots: u32,
    /// Rings for transmission.
    pub tx_rings: u16,
    /// Rings for reception.
    pub rx_rings: u16,
    /// Host rings for transmission.
    pub host_tx_rings: u16,
    /// Host rings for reception.
    pub host_rx_rings: u16,
    /// Number of the memory.
    pub mem_id: u16,
    /// Unused.
    pub pad: [u16; 3],
}

/// Body of `NETMAP_REQ_POOLS_INFO_GET` (`struct nmreq_pools_info`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolsInfo {
    /// Bytes of the memory.
    pub memsize: u64,
    /// Number of the memory.
    pub mem_id: u16,
    /// Unused.
    pub pad1: [u16; 3],
    /// Offset of the interfaces.
    pub if_pool_offset: u64,
    /// Number of interfaces.
    pub if_pool_objtotal: u32,
    /// Bytes of an interface.
    pub if_pool_objsize: u32,
    /// Offset of the rings.
    pub ring_pool_offset: u64,
    /// Number of rings.
    pub ring_pool_objtotal: u32,
    /// Bytes of a ring.
    pub ring_pool_objsize: u32,
    /// Offset of the buffers.
    pub buf_pool_offset: u64,
    /// Number of buffers.
    pub buf_pool_objtotal: u32,
    /// Bytes of a buffer.
    pub buf_pool_objsize: u32,
}

/// Body of `NETMAP_REQ_VALE_LIST` (`struct nmreq_vale_list`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValeList {
    /// Number of the switch.
    pub bridge_idx: u16,
    /// Unused.
    pub pad1: u16,
    /// Number of the port.
    pub port_idx: u32,
}

/// Body of `NETMAP_REQ_PORT_HDR_SET` and `_GET` (`struct nmreq_port_hdr`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortHeader {
    /// Bytes before each frame: 0, 10 or 12.
    pub hdr_len: u32,
    /// Unused.
    pub pad1: u32,
}

/// Request of [`NIOCGINFO`] and [`NIOCREGIF`] (`struct nmreq`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegacyRequest {
    /// Name of a port, ended by NUL.
    pub name: [u8; 16],
    /// API version.
    pub version: u32,
    /// Out: offset of the [`Interface`] in the memory.
    pub offset: u32,
    /// Out: bytes of the memory.
    pub memsize: u32,
    /// Slots of a ring for transmission.
    pub tx_slots: u32,
    /// Slots of a ring for reception.
    pub rx_slots: u32,
    /// Rings for transmission.
    pub tx_rings: u16,
    /// Rings for reception.
    pub rx_rings: u16,
    /// Number of the ring, and [`legacy`] bits.
    pub ringid: u16,
    /// Other commands (`NETMAP_BDG_*`).
    pub cmd: u16,
    /// Of the command.
    pub arg1: u16,
    /// Number of the memory.
    pub arg2: u16,
    /// Extra buffers.
    pub arg3: u32,
    /// `NR_REG_*` in the lowest four bits, and [`flags`].
    pub flags: u32,
    /// Unused.
    pub spare2: [u32; 1],
}

/// Types of requests (`NETMAP_REQ_*`).
#[expect(missing_docs, reason = "the names are the header's")]
pub mod req {
    pub const REGISTER: u16 = 1;
    pub const PORT_INFO_GET: u16 = 2;
    pub const VALE_ATTACH: u16 = 3;
    pub const VALE_DETACH: u16 = 4;
    pub const VALE_LIST: u16 = 5;
    pub const PORT_HDR_SET: u16 = 6;
    pub const PORT_HDR_GET: u16 = 7;
    pub const VALE_NEWIF: u16 = 8;
    pub const VALE_DELIF: u16 = 9;
    pub const VALE_POLLING_ENABLE: u16 = 10;
    pub const VALE_POLLING_DISABLE: u16 = 11;
    pub const POOLS_INFO_GET: u16 = 12;
    pub const SYNC_KLOOP_START: u16 = 13;
    pub const SYNC_KLOOP_STOP: u16 = 14;
    pub const CSB_ENABLE: u16 = 15;
}

/// Registration modes (`NR_REG_*`).
#[expect(missing_docs, reason = "the names are the header's")]
pub mod mode {
    pub const ALL_NIC: u32 = 1;
    pub const SW: u32 = 2;
    pub const NIC_SW: u32 = 3;
    pub const ONE_NIC: u32 = 4;
    pub const PIPE_MASTER: u32 = 5;
    pub const PIPE_SLAVE: u32 = 6;
    pub const NULL: u32 = 7;
    pub const ONE_SW: u32 = 8;
}

/// Flags of a registration (`NR_*`).
#[expect(missing_docs, reason = "the names are the header's")]
pub mod flags {
    pub const MONITOR_TX: u64 = 0x100;
    pub const MONITOR_RX: u64 = 0x200;
    pub const ZCOPY_MON: u64 = 0x400;
    pub const EXCLUSIVE: u64 = 0x800;
    pub const RX_RINGS_ONLY: u64 = 0x2000;
    pub const TX_RINGS_ONLY: u64 = 0x4000;
    pub const ACCEPT_VNET_HDR: u64 = 0x8000;
    pub const DO_RX_POLL: u64 = 0x1_0000;
    pub const NO_TX_POLL: u64 = 0x2_0000;
}

/// Bits of `nr_ringid` in a [`LegacyRequest`].
#[expect(missing_docs, reason = "the names are the header's")]
pub mod legacy {
    pub const HW_RING: u16 = 0x4000;
    pub const SW_RING: u16 = 0x2000;
    pub const RING_MASK: u16 = 0x0fff;
    pub const NO_TX_POLL: u16 = 0x1000;
    pub const DO_RX_POLL: u16 = 0x8000;
    pub const MODE_MASK: u32 = 0xf;
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// Numbers that a C program with `net/netmap.h` printed on x86-64.
    #[test]
    fn the_layout_is_that_of_the_header() {
        assert_eq!(size_of::<Slot>(), 16);
        assert_eq!(size_of::<Ring>(), 256);
        let of_ring = [
            offset_of!(Ring, num_slots),
            offset_of!(Ring, nr_buf_size),
            offset_of!(Ring, ringid),
            offset_of!(Ring, dir),
            offset_of!(Ring, head),
            offset_of!(Ring, cur),
            offset_of!(Ring, tail),
            offset_of!(Ring, flags),
            offset_of!(Ring, ts),
            offset_of!(Ring, offset_mask),
            offset_of!(Ring, buf_align),
            offset_of!(Ring, sem),
        ];
        assert_eq!(of_ring, [8, 12, 16, 18, 20, 24, 28, 32, 40, 56, 64, 128]);
        assert_eq!(size_of::<Interface>(), 56);
        let of_interface = [
            offset_of!(Interface, ni_version),
            offset_of!(Interface, ni_tx_rings),
            offset_of!(Interface, ni_bufs_head),
            offset_of!(Interface, ni_host_tx_rings),
        ];
        assert_eq!(of_interface, [16, 24, 32, 36]);
        assert_eq!(size_of::<Header>(), 88);
        assert_eq!(offset_of!(Header, options), 72);
        assert_eq!(size_of::<Opt>(), 24);
        assert_eq!(size_of::<Register>(), 56);
        assert_eq!(offset_of!(Register, mem_id), 32);
        assert_eq!(offset_of!(Register, flags), 48);
        assert_eq!(size_of::<PortInfo>(), 32);
        assert_eq!(size_of::<PoolsInfo>(), 64);
        assert_eq!(size_of::<ValeList>(), 8);
        assert_eq!(size_of::<PortHeader>(), 8);
        assert_eq!(size_of::<LegacyRequest>(), 60);
        assert_eq!(offset_of!(LegacyRequest, ringid), 40);
        assert_eq!(offset_of!(LegacyRequest, arg3), 48);
        assert_eq!(offset_of!(LegacyRequest, flags), 52);
    }

    /// `_IOC(dir, 'i', nr, size)` of Linux.
    #[test]
    fn the_numbers_of_ioctls_follow_from_direction_and_size() {
        let both = |nr: u64, size: usize| 3 << 30 | (size as u64) << 16 | 0x69 << 8 | nr;
        assert_eq!(NIOCGINFO, both(145, size_of::<LegacyRequest>()));
        assert_eq!(NIOCREGIF, both(146, size_of::<LegacyRequest>()));
        assert_eq!(NIOCCTRL, both(151, size_of::<Header>()));
        assert_eq!((NIOCTXSYNC, NIOCRXSYNC), (0x6900 | 148, 0x6900 | 149));
    }
}
