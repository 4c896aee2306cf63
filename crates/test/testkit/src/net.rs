//! A guest NIC: a receive and a transmit queue, buffers, headers, and the device's duties.
//!
//! [`NetPair::receive`] checks what virtio 1.3 section 5.1.6 asks of the device and names what was
//! broken.

use std::borrow::Cow;

use crate::driver::{DriverQueue, Layout, Piece, QueueOptions, Shape, Used, UsedFault};
use crate::features::{
    EVENT_IDX, GUEST_CSUM, GUEST_ECN, GUEST_TSO4, GUEST_TSO6, GUEST_USO4, GUEST_USO6, IN_ORDER,
    INDIRECT_DESC, MRG_RXBUF, RING_PACKED,
};
use crate::guest_ram::{BufferPool, GuestRam};
use crate::iommu::Access;

mod cuts;
mod header;

pub use cuts::Cuts;
pub use header::{
    DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HEADER_LEN, NEEDS_CSUM,
    NetHeader, SHORT_HEADER_LEN, header_len,
};

use cuts::Slot;

/// The size of a receive buffer that holds any segmented packet (section 5.1.6.3.1): 65550 bytes of
/// packet behind the header.
pub const BIG: u32 = 65562;
/// The size of a receive buffer for one packet of at most 1514 bytes.
pub const SMALL: u32 = 1526;

/// Which receive buffers the guest offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxBuffers {
    /// Buffers of this size, merged when MRG_RXBUF was negotiated.
    Of(u32),
    /// [`BIG`] ones.
    Big,
    /// [`SMALL`] ones.
    Small,
}

impl RxBuffers {
    /// Bytes in one buffer, header included.
    #[must_use]
    pub fn size(self) -> u32 {
        match self {
            Self::Of(size) => size,
            Self::Big => BIG,
            Self::Small => SMALL,
        }
    }
}

/// Parameters of a NIC.
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// Negotiated features.
    pub features: u64,
    /// Entries of each queue.
    pub queue_size: u16,
    /// Receive buffers.
    pub rx_buffers: RxBuffers,
    /// How receive buffers are cut into pieces.
    pub rx_cuts: Cuts,
    /// How transmit buffers are cut into pieces.
    pub tx_cuts: Cuts,
    /// How pieces become descriptors; taken as direct when INDIRECT_DESC was not negotiated.
    pub shape: Shape,
}

impl NetOptions {
    /// Mergeable or [`BIG`] buffers in one piece, direct descriptors.
    #[must_use]
    pub fn new(features: u64, queue_size: u16) -> Self {
        let merge = features & MRG_RXBUF != 0;
        Self {
            features,
            queue_size,
            rx_buffers: if merge {
                RxBuffers::Of(2048)
            } else {
                RxBuffers::Big
            },
            rx_cuts: Cuts::Together,
            tx_cuts: Cuts::Together,
            shape: Shape::Direct,
        }
    }

    fn queue(&self) -> QueueOptions {
        let has = |bit| self.features & bit != 0;
        QueueOptions {
            layout: if has(RING_PACKED) {
                Layout::Packed
            } else {
                Layout::Split
            },
            size: self.queue_size,
            event_idx: has(EVENT_IDX),
            in_order: has(IN_ORDER),
        }
    }

    /// Bytes of a header.
    fn header(&self) -> usize {
        header_len(self.features)
    }

    fn shape(&self) -> Shape {
        if self.features & INDIRECT_DESC != 0 {
            self.shape
        } else {
            Shape::Direct
        }
    }
}

/// Violations of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NicFault {
    /// The used ring itself is wrong.
    #[error("used ring: {0}")]
    Used(#[from] UsedFault),
    /// The first buffer of a packet is too short for the header.
    #[error("a received packet of {0} bytes, shorter than its header")]
    NoHeader(u32),
    /// `num_buffers` is 0, or not 1 without MRG_RXBUF.
    #[error("num_buffers is {0}")]
    NumBuffers(u16),
    /// Not all buffers of a packet became used together.
    #[error("a packet of {desired} buffers became visible with {there}")]
    Torn {
        /// `num_buffers`.
        desired: u16,
        /// Buffers that were there.
        there: u16,
    },
    /// A buffer that is not a packet's last was not used completely.
    #[error("buffer {index} of a packet holds {len} bytes of {size}")]
    NotFull {
        /// Which buffer of the packet.
        index: u16,
        /// Bytes written.
        len: u32,
        /// Bytes offered.
        size: u32,
    },
    /// The header uses something that was not negotiated, or contradicts itself.
    #[error("received header {header:?}: {why}")]
    Header {
        /// The header.
        header: NetHeader,
        /// The rule.
        why: &'static str,
    },
    /// The device wrote between the pieces of a buffer.
    #[error("the device wrote outside of the buffer, near {0:#x}")]
    PortSecurity(u64),
}

/// A packet that the guest received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The frame, from the Ethernet header on.
    pub frame: Vec<u8>,
    /// Its virtio header.
    pub header: NetHeader,
    /// Receive buffers it was spread over.
    pub buffers: u16,
}

/// One queue pair of a guest NIC. Staging and publishing are separate, so that a test can batch;
/// kicks are the caller's business.
#[derive(Debug)]
pub struct NetPair {
    /// The receive queue (the guest's receive: the device writes).
    pub rx: DriverQueue,
    /// The transmit queue.
    pub tx: DriverQueue,
    ram: GuestRam,
    options: NetOptions,
    pool: BufferPool,
    rx_slots: Vec<Slot>,
    rx_idle: Vec<u64>,
    /// Receive buffers that came back without a packet, from a device behind an IOMMU that has no
    /// access to them.
    pub inaccessible: u64,
    /// Whether `receive` offers emptied buffers again at once; off models a guest that stopped
    /// reading.
    pub auto_refill: bool,
}

impl NetPair {
    /// A NIC whose receive queue is filled but not yet published.
    ///
    /// # Panics
    /// When guest memory is exhausted.
    #[must_use]
    pub fn new(ram: &GuestRam, options: NetOptions) -> Self {
        let queue = options.queue();
        let mut pair = Self {
            rx: DriverQueue::new(ram, queue),
            tx: DriverQueue::new(ram, queue),
            ram: ram.clone(),
            options,
            pool: BufferPool::default(),
            rx_slots: Vec::new(),
            rx_idle: Vec::new(),
            inaccessible: 0,
            auto_refill: true,
        };
        pair.refill();
        pair
    }

    /// Returns the parameters of the NIC.
    #[must_use]
    pub fn options(&self) -> &NetOptions {
        &self.options
    }

    /// Sets the memory for buffers allocated later, after hot-plug.
    pub fn set_ram(&mut self, ram: &GuestRam) {
        self.ram = ram.clone();
        self.rx.set_ram(ram);
        self.tx.set_ram(ram);
    }

    /// Takes all buffers back and fills the receive queue anew, as a driver does that starts again.
    pub fn reset(&mut self) {
        self.rx.reset();
        self.tx.reset();
        self.rx_idle = (0..self.rx_slots.len() as u64).collect();
        let slots = self.rx_slots.iter();
        slots.for_each(|slot| self.ram.unmap(slot.memory.gpa));
        self.pool.recall(&self.ram);
        self.refill();
    }

    /// Stages receive buffers until the ring is full; returns how many.
    pub fn refill(&mut self) -> u16 {
        let mut count = 0;
        while let Some(slot) = self.idle_slot() {
            let Slot { memory, pieces, .. } = &self.rx_slots[slot as usize];
            let shape = self.options.shape();
            if !self.rx.fits(pieces.len(), shape) {
                self.rx_idle.push(slot);
                break;
            }
            if self.ram.iommu().is_some() {
                // What was mapped lies on other pages each time.
                self.rx_slots[slot as usize].guard(&self.ram);
            }
            let pieces = give(&self.ram, *memory, pieces, Access::Write);
            self.rx.add(&[], &pieces, shape, slot);
            count += 1;
        }
        count
    }

    /// Refills and publishes; returns whether the device wants a kick.
    pub fn offer(&mut self) -> bool {
        self.refill();
        self.rx.publish() > 0 && self.rx.needs_kick()
    }

    fn idle_slot(&mut self) -> Option<u64> {
        if let Some(slot) = self.rx_idle.pop() {
            return Some(slot);
        }
        if self.rx.free() == 0 || self.rx_slots.len() >= usize::from(self.options.queue_size) {
            return None;
        }
        let slot = self
            .options
            .rx_cuts
            .slot(&self.ram, self.options.rx_buffers.size());
        self.rx_slots.push(slot);
        Some(self.rx_slots.len() as u64 - 1)
    }

    /// Stages a frame; false when the transmit queue is full (used buffers are taken back first).
    ///
    /// # Errors
    /// When the device broke the used ring.
    pub fn stage(&mut self, frame: &[u8], header: &NetHeader) -> Result<bool, NicFault> {
        self.reclaim()?;
        let total = (self.options.header() + frame.len()) as u32;
        let room = self.options.tx_cuts.room(total);
        let (gpa, size) = self.pool.take(&self.ram, room);
        let token = gpa << 6 | u64::from(size.trailing_zeros());
        let pieces = self.write_tx(gpa, total, frame, header);
        let shape = self.options.shape();
        if !self.tx.fits(pieces.len(), shape) {
            self.pool.give(gpa, size);
            return Ok(false);
        }
        let memory = Piece::new(gpa, size as u32);
        let pieces = give(&self.ram, memory, &pieces, Access::Read);
        self.tx.add(&pieces, &[], shape, token);
        Ok(true)
    }

    fn write_tx(&self, gpa: u64, total: u32, frame: &[u8], header: &NetHeader) -> Vec<Piece> {
        let pieces = self.options.tx_cuts.pieces(gpa, total);
        let header = &header.to_bytes()[..self.options.header()];
        if let [whole] = pieces[..] {
            self.ram.write(whole.gpa, header);
            self.ram.write(whole.gpa + header.len() as u64, frame);
            return pieces;
        }
        let bytes = [header, frame].concat();
        let mut done = 0;
        for piece in &pieces {
            self.ram
                .write(piece.gpa, &bytes[done..done + piece.len as usize]);
            done += piece.len as usize;
        }
        pieces
    }

    /// Stages a frame and publishes it; false when the queue is full.
    ///
    /// # Errors
    /// When the device broke the used ring.
    pub fn send(&mut self, frame: &[u8], header: &NetHeader) -> Result<bool, NicFault> {
        let staged = self.stage(frame, header)?;
        self.tx.publish();
        Ok(staged)
    }

    /// Takes back transmitted buffers; returns how many.
    ///
    /// # Errors
    /// When the device broke the used ring.
    pub fn reclaim(&mut self) -> Result<u16, NicFault> {
        let mut count = 0;
        while let Some(used) = self.tx.poll()? {
            self.ram.unmap(used.token >> 6);
            self.pool.give(used.token >> 6, 1 << (used.token & 63));
            count += 1;
        }
        Ok(count)
    }

    /// Takes the next received packet, all of its buffers merged.
    ///
    /// # Errors
    /// When the device broke one of its duties.
    pub fn receive(&mut self) -> Result<Option<Received>, NicFault> {
        let mut frame = Vec::new();
        let taken = self.receive_into(&mut frame)?;
        Ok(taken.map(|(header, buffers)| Received {
            frame,
            header,
            buffers,
        }))
    }

    /// As [`NetPair::receive`], with the frame in the caller's buffer, which is cleared first.
    ///
    /// # Errors
    /// As [`NetPair::receive`].
    pub fn receive_into(
        &mut self,
        frame: &mut Vec<u8>,
    ) -> Result<Option<(NetHeader, u16)>, NicFault> {
        frame.clear();
        let Some(first) = self.poll_rx(frame)? else {
            return Ok(None);
        };
        let len = self.options.header();
        if (first.len as usize) < len {
            return Err(NicFault::NoHeader(first.len));
        }
        // A header that ends before `num_buffers` says 1.
        let mut bytes = NetHeader {
            num_buffers: 1,
            ..NetHeader::default()
        }
        .to_bytes();
        self.empty(first.token, first.len, frame)?;
        bytes[..len].copy_from_slice(&frame[..len]);
        let header = NetHeader::from_bytes(bytes);
        let merged = header.num_buffers;
        if merged == 0 || (merged > 1 && self.options.features & MRG_RXBUF == 0) {
            return Err(NicFault::NumBuffers(merged));
        }
        self.merge(merged, first.len, frame)?;
        frame.drain(..len);
        check_header(&header, self.options.features, frame.len())?;
        if self.auto_refill {
            self.refill();
        }
        Ok(Some((header, merged)))
    }

    /// The next used receive buffer, without those that the device had no access to.
    fn poll_rx(&mut self, frame: &mut Vec<u8>) -> Result<Option<Used>, NicFault> {
        loop {
            match self.rx.poll()? {
                Some(used) if used.len == 0 && self.ram.iommu().is_some() => {
                    self.inaccessible += 1;
                    self.empty(used.token, 0, frame)?;
                }
                other => return Ok(other),
            }
        }
    }

    /// Takes the packet's other buffers, which must be there already.
    fn merge(&mut self, merged: u16, first: u32, frame: &mut Vec<u8>) -> Result<(), NicFault> {
        let size = self.options.rx_buffers.size();
        let mut len = first;
        for index in 1..merged {
            if len != size {
                return Err(NicFault::NotFull {
                    index: index - 1,
                    len,
                    size,
                });
            }
            let used = self.rx.poll()?.ok_or(NicFault::Torn {
                desired: merged,
                there: index,
            })?;
            self.empty(used.token, used.len, frame)?;
            len = used.len;
        }
        Ok(())
    }

    /// Appends what a receive buffer holds and marks the buffer idle.
    fn empty(&mut self, slot: u64, len: u32, out: &mut Vec<u8>) -> Result<(), NicFault> {
        let buffer = &self.rx_slots[slot as usize];
        let mut left = len;
        for piece in &buffer.pieces {
            let n = left.min(piece.len);
            self.ram.read_onto(piece.gpa, n as usize, out);
            left -= n;
        }
        buffer
            .check_canaries(&self.ram)
            .map_err(NicFault::PortSecurity)?;
        self.ram.unmap(buffer.memory.gpa);
        self.rx_idle.push(slot);
        Ok(())
    }

    /// Address and length of the `n`th receive buffer; none while the driver has it.
    #[must_use]
    pub fn offered_buffer(&self, n: usize) -> Option<(u64, u64)> {
        let n = n % self.rx_slots.len().max(1);
        let memory = self.rx_slots.get(n)?.memory;
        let is_idle = self.rx_idle.contains(&(n as u64));
        (!is_idle).then_some((memory.gpa, memory.len.into()))
    }

    /// Receive buffers that the device holds or has used.
    #[must_use]
    pub fn offered(&self) -> u16 {
        self.rx.outstanding()
    }
}

/// Gives the memory of a buffer to the device; its pieces with the device's addresses.
fn give<'a>(
    ram: &GuestRam,
    memory: Piece,
    pieces: &'a [Piece],
    access: Access,
) -> Cow<'a, [Piece]> {
    if ram.iommu().is_none() {
        return Cow::Borrowed(pieces);
    }
    let at = ram.map(memory.gpa, memory.len.into(), access);
    let piece = |piece: &Piece| Piece::new(at + (piece.gpa - memory.gpa), piece.len);
    pieces.iter().map(piece).collect()
}

/// The device's duties in section 5.1.6.4.1 towards a driver with these features.
fn check_header(header: &NetHeader, features: u64, frame_len: usize) -> Result<(), NicFault> {
    let fail = |why| {
        Err(NicFault::Header {
            header: *header,
            why,
        })
    };
    if header.flags & !(NEEDS_CSUM | DATA_VALID) != 0 {
        return fail("reserved flags");
    }
    if header.flags != 0 && features & GUEST_CSUM == 0 {
        return fail("checksum flags without GUEST_CSUM");
    }
    let end = usize::from(header.csum_start) + usize::from(header.csum_offset) + 2;
    if header.flags & NEEDS_CSUM != 0 && end > frame_len {
        return fail("the checksum field lies behind the frame");
    }
    let desired = match header.gso_type & !GSO_ECN {
        GSO_NONE if header.gso_type == GSO_NONE => return Ok(()),
        GSO_TCPV4 => GUEST_TSO4,
        GSO_TCPV6 => GUEST_TSO6,
        GSO_UDP_L4 => GUEST_USO4 | GUEST_USO6,
        _ => return fail("unknown gso_type"),
    };
    let ecn = header.gso_type & GSO_ECN != 0;
    if features & desired == 0 || (ecn && features & GUEST_ECN == 0) {
        return fail("segmentation that was not negotiated");
    }
    if header.flags & NEEDS_CSUM == 0 || header.gso_size == 0 {
        return fail("segmentation without NEEDS_CSUM or gso_size");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
