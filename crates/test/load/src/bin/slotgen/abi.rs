//! What a program of netmap's needs of `net/netmap.h`, written down a second time: this program
//! shares nothing with the library that it tests.

use std::ffi::c_ulong;

pub(crate) const NIOCCTRL: c_ulong = 0xc058_6997;
pub(crate) const NIOCTXSYNC: c_ulong = 0x6994;
pub(crate) const NIOCRXSYNC: c_ulong = 0x6995;

pub(crate) const REQ_REGISTER: u16 = 1;
pub(crate) const REQ_PORT_HDR_SET: u16 = 6;

pub(crate) const REG_ALL_NIC: u32 = 1;
pub(crate) const REG_ONE_NIC: u32 = 4;
pub(crate) const NR_EXCLUSIVE: u64 = 0x800;
pub(crate) const NR_TX_RINGS_ONLY: u64 = 0x4000;
pub(crate) const NR_ACCEPT_VNET_HDR: u64 = 0x8000;

pub(crate) const NS_BUF_CHANGED: u16 = 1;
pub(crate) const NS_MOREFRAG: u16 = 0x20;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) buf_idx: u32,
    pub(crate) len: u16,
    pub(crate) flags: u16,
    pub(crate) ptr: u64,
}

#[repr(C)]
pub(crate) struct Ring {
    pub(crate) buf_ofs: i64,
    pub(crate) num_slots: u32,
    pub(crate) nr_buf_size: u32,
    pub(crate) ringid: u16,
    pub(crate) dir: u16,
    pub(crate) head: u32,
    pub(crate) cur: u32,
    pub(crate) tail: u32,
    pub(crate) flags: u32,
    pub(crate) rest: [u8; 220],
}

/// Offset of the slots from the ring.
pub(crate) const SLOTS: usize = 256;

#[repr(C)]
pub(crate) struct Interface {
    pub(crate) name: [u8; 16],
    pub(crate) version: u32,
    pub(crate) flags: u32,
    pub(crate) tx_rings: u32,
    pub(crate) rx_rings: u32,
    pub(crate) bufs_head: u32,
    pub(crate) host_tx_rings: u32,
    pub(crate) host_rx_rings: u32,
    pub(crate) spare: [u32; 3],
}

#[repr(C)]
pub(crate) struct Header {
    pub(crate) version: u16,
    pub(crate) reqtype: u16,
    pub(crate) reserved: u32,
    pub(crate) name: [u8; 64],
    pub(crate) options: u64,
    pub(crate) body: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Register {
    pub(crate) offset: u64,
    pub(crate) memsize: u64,
    pub(crate) tx_slots: u32,
    pub(crate) rx_slots: u32,
    pub(crate) tx_rings: u16,
    pub(crate) rx_rings: u16,
    pub(crate) host_tx_rings: u16,
    pub(crate) host_rx_rings: u16,
    pub(crate) mem_id: u16,
    pub(crate) ringid: u16,
    pub(crate) mode: u32,
    pub(crate) extra_bufs: u32,
    pub(crate) flags: u64,
}
