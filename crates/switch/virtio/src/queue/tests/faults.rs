//! One test for each fault, named after it. Each also sees that the queue stays stopped and leaves
//! the guest's memory and the caller's arena alone.

use std::sync::Arc;

use memory::{GuestMemory, Region};
use wire::virtio::features::Features;

use super::driver::*;
use crate::queue::{
    Chain, Layout, MAX_CHAIN_BYTES, MAX_CHAIN_DESCRIPTORS, Queue, QueueFault, SegRange,
};

/// Takes from a fresh queue and expects `fault`, then that nothing moves any more.
fn expect(guest: &Guest, writable: bool, fault: QueueFault) {
    let mut queue = guest.queue();
    let mut segs = Vec::new();
    assert_eq!(take(&mut queue, writable, &mut segs), Err(fault));
    assert!(segs.is_empty(), "the arena is as before");
    stays_stopped(guest, &mut queue, fault);
}

fn take(
    queue: &mut Queue,
    writable: bool,
    segs: &mut Vec<memory::Segment>,
) -> Result<Option<Chain>, QueueFault> {
    if writable {
        queue.take_writable(segs)
    } else {
        queue.take_readable(segs)
    }
}

fn stays_stopped(guest: &Guest, queue: &mut Queue, fault: QueueFault) {
    let before: [u8; 16] = guest.read(guest.layout.device);
    let ring: [u8; 16] = guest.read(guest.layout.desc);
    let chain = Chain {
        id: 0,
        count: 1,
        segs: SegRange::default(),
        bytes: 1,
    };
    let position = queue.position();
    let mut segs = Vec::new();
    assert_eq!(queue.fault(), Some(fault));
    assert_eq!(queue.take_readable(&mut segs), Err(fault));
    assert_eq!(queue.take_writable(&mut segs), Err(fault));
    assert_eq!(queue.set_memory(guest.mem.clone()), Err(fault));
    queue.put(chain, 1);
    queue.publish();
    queue.untake(&[chain]);
    assert!(!queue.needs_notify());
    assert!(!queue.set_kicks(true));
    assert_eq!(queue.position(), position);
    assert_eq!(guest.read(guest.layout.device), before);
    assert_eq!(guest.read(guest.layout.desc), ring);
}

/// Both layouts, and the guest with one descriptor on offer.
fn one(addr: u64, len: u32, flags: u16, extra: Features) -> [Guest; 2] {
    both(extra).map(|features| {
        let guest = Guest::new(8, features);
        guest.set_ring_desc(0, addr, len, flags, 0);
        guest.offer_first();
        guest
    })
}

/// Both layouts, and the guest with an indirect table of these `(addr, len, flags, next)`.
fn table(entries: &[(u64, u32, u16, u16)]) -> [Guest; 2] {
    let len = 16 * entries.len() as u32;
    let guests = one(TABLES, len, INDIRECT, Features::RING_INDIRECT_DESC);
    for guest in &guests {
        for (i, &(addr, len, flags, next)) in entries.iter().enumerate() {
            guest.set_desc(TABLES + 16 * i as u64, addr, len, flags, next);
        }
    }
    guests
}

#[test]
fn bad_size() {
    for (features, sizes) in both(Features::empty())
        .into_iter()
        .zip([&[0, 3, 4097, 8192][..], &[0, 4097, 65535][..]])
    {
        for &size in sizes {
            let mut guest = Guest::new(4, features);
            guest.layout.size = size;
            let start = guest.start();
            assert_eq!(guest.queue_at(start).err(), Some(QueueFault::BadSize));
        }
    }
}

#[test]
fn bad_position() {
    let [split, packed] = both(Features::empty()).map(|f| Guest::new(4, f));
    for position in [0x1_0000, 5, 0xffff] {
        assert_eq!(
            split.queue_at(position).err(),
            Some(QueueFault::BadPosition)
        );
    }
    // Slots out of range, used behind by more than the ring, used ahead of available.
    for position in [
        0x8004_8000,
        0x8000_8004,
        0x8001_0002,
        0x8003_8002,
        0x0001_8002,
    ] {
        assert_eq!(
            packed.queue_at(position).err(),
            Some(QueueFault::BadPosition)
        );
    }
    for position in [0x8002_0002, 0x8001_0000, 0x8002_8002] {
        assert!(packed.queue_at(position).is_ok());
    }
}

#[test]
fn misaligned() {
    type Shift = fn(&mut Layout);
    let areas: [(Shift, bool); 5] = [
        (|l| l.desc += 8, false),
        (|l| l.driver += 1, false),
        (|l| l.device -= 2, false),
        (|l| l.driver += 2, true),
        (|l| l.device += 2, true),
    ];
    for (shift, packed) in areas {
        let mut guest = Guest::new(4, both(Features::empty())[usize::from(packed)]);
        shift(&mut guest.layout);
        let start = guest.start();
        assert_eq!(guest.queue_at(start).err(), Some(QueueFault::Misaligned));
    }
}

#[test]
fn unmapped_ring() {
    let areas: [fn(&mut Layout); 4] = [
        |l| l.desc = NOWHERE,
        |l| l.driver = NOWHERE,
        |l| l.device = NOWHERE,
        // Mapped, but in two regions.
        |l| l.desc = SEAM - 16,
    ];
    for features in both(Features::empty()) {
        for area in areas {
            let mut guest = Guest::new(4, features);
            area(&mut guest.layout);
            let start = guest.start();
            assert_eq!(guest.queue_at(start).err(), Some(QueueFault::UnmappedRing));
        }
    }
}

#[test]
fn unmapped_address() {
    for addr in [NOWHERE, u64::MAX - 5, SEAM + DATA_LEN - 10, 0] {
        for guest in one(addr, 64, 0, Features::empty()) {
            expect(&guest, false, QueueFault::UnmappedAddress);
        }
    }
}

#[test]
fn unmapped_table() {
    for addr in [NOWHERE, u64::MAX - 15, SEAM + DATA_LEN - 8] {
        for guest in one(addr, 32, INDIRECT, Features::RING_INDIRECT_DESC) {
            expect(&guest, false, QueueFault::UnmappedTable);
        }
    }
}

#[test]
fn zero_length() {
    for guest in one(DATA, 0, 0, Features::empty()) {
        expect(&guest, false, QueueFault::ZeroLength);
    }
    for guest in table(&[(DATA, 5, NEXT, 1), (DATA, 0, 0, 0)]) {
        expect(&guest, false, QueueFault::ZeroLength);
    }
}

#[test]
fn index_jump_split() {
    let [features, _] = both(Features::empty());
    for jump in [9, 0x100, 0xffff] {
        let guest = Guest::new(8, features);
        guest.set16(guest.layout.driver + 2, jump);
        expect(&guest, false, QueueFault::IndexJump);
    }
}

#[test]
fn index_jump_back_behind_chains_in_flight() {
    let guest = Guest::new(8, both(Features::empty())[0]);
    for i in 0..8 {
        guest.set_ring_desc(i, DATA, 64, 0, 0);
        guest.set16(guest.layout.driver + 4 + 2 * u64::from(i), i);
    }
    guest.set16(guest.layout.driver + 2, 8);
    let mut queue = guest.queue();
    let mut segs = Vec::new();
    for _ in 0..8 {
        assert!(queue.take_readable(&mut segs).unwrap().is_some());
    }
    // Seven more than taken, though none of the eight was used; also: back to before them.
    guest.set16(guest.layout.driver + 2, 9);
    assert_eq!(queue.take_readable(&mut segs), Err(QueueFault::IndexJump));
    assert_eq!(segs.len(), 8);
    let mut queue = guest.queue_at(8).unwrap();
    guest.set16(guest.layout.driver + 2, 7);
    assert_eq!(queue.take_readable(&mut segs), Err(QueueFault::IndexJump));
}

#[test]
fn index_jump_packed() {
    let guest = Guest::new(2, both(Features::empty())[1]);
    for i in 0..2 {
        guest.set_ring_desc(i, DATA, 64, 0, i);
    }
    let mut queue = guest.queue();
    let mut segs = Vec::new();
    assert!(queue.take_readable(&mut segs).unwrap().is_some());
    assert!(queue.take_readable(&mut segs).unwrap().is_some());
    // Offered again for the next lap, though nothing was used.
    guest.set_desc(guest.layout.desc, DATA, 64, 0x8000, 0);
    assert_eq!(queue.take_readable(&mut segs), Err(QueueFault::IndexJump));
    stays_stopped(&guest, &mut queue, QueueFault::IndexJump);
}

#[test]
fn index_jump_packed_in_a_chain() {
    let guest = Guest::new(3, both(Features::empty())[1]);
    guest.set_ring_desc(0, DATA, 64, 0, 0);
    guest.set_ring_desc(1, DATA, 64, NEXT, 1);
    guest.set_ring_desc(2, DATA, 64, NEXT, 1);
    let mut queue = guest.queue();
    let mut segs = Vec::new();
    assert!(queue.take_readable(&mut segs).unwrap().is_some());
    assert_eq!(queue.take_readable(&mut segs), Err(QueueFault::IndexJump));
    assert_eq!(segs.len(), 1);
}

#[test]
fn head_out_of_range() {
    for head in [8, 0x8000, 0xffff] {
        let guest = Guest::new(8, both(Features::empty())[0]);
        guest.set16(guest.layout.driver + 4, head);
        guest.set16(guest.layout.driver + 2, 1);
        expect(&guest, true, QueueFault::HeadOutOfRange);
    }
}

#[test]
fn next_out_of_range() {
    let guest = Guest::new(8, both(Features::empty())[0]);
    guest.set_ring_desc(0, DATA, 64, NEXT, 8);
    guest.offer_first();
    expect(&guest, false, QueueFault::NextOutOfRange);
    let [split, _] = table(&[(DATA, 5, NEXT, 2), (DATA, 5, 0, 0)]);
    expect(&split, false, QueueFault::NextOutOfRange);
}

#[test]
fn id_out_of_range() {
    let guest = Guest::new(8, both(Features::RING_INDIRECT_DESC)[1]);
    guest.set_ring_desc(0, DATA, 64, 0, 8);
    expect(&guest, false, QueueFault::IdOutOfRange);
    guest.set_ring_desc(0, DATA, 64, NEXT, 0);
    guest.set_ring_desc(1, DATA, 64, 0, 0xffff);
    expect(&guest, false, QueueFault::IdOutOfRange);
    guest.set_ring_desc(0, TABLES, 16, INDIRECT, 9);
    guest.set_desc(TABLES, DATA, 64, 0, 0);
    expect(&guest, false, QueueFault::IdOutOfRange);
}

#[test]
fn descriptor_loop() {
    let [split, packed] = both(Features::empty()).map(|f| Guest::new(8, f));
    split.set_ring_desc(0, DATA, 64, NEXT, 1);
    split.set_ring_desc(1, DATA, 64, NEXT, 0);
    split.offer_first();
    expect(&split, false, QueueFault::DescriptorLoop);
    for i in 0..8 {
        packed.set_ring_desc(i, DATA, 64, NEXT, 0);
    }
    expect(&packed, false, QueueFault::DescriptorLoop);
    let [split, _] = table(&[(DATA, 5, NEXT, 1), (DATA, 5, NEXT, 0)]);
    expect(&split, false, QueueFault::DescriptorLoop);
}

#[test]
fn chain_too_long() {
    let size = 2 * MAX_CHAIN_DESCRIPTORS as u16;
    for features in both(Features::empty()) {
        let guest = Guest::new(size, features);
        for i in 0..size {
            guest.set_ring_desc(i, DATA, 1, NEXT, (i + 1) % size);
        }
        guest.offer_first();
        expect(&guest, false, QueueFault::ChainTooLong);
    }
    // A table of a thousand and twenty-five entries.
    for features in both(Features::RING_INDIRECT_DESC) {
        let guest = Guest::new(256, features);
        for i in 0..=MAX_CHAIN_DESCRIPTORS {
            let next = if guest.packed() { 0 } else { NEXT };
            let at = TABLES + 16 * u64::from(i);
            guest.set_desc(at, DATA, 1, next, i as u16 + 1);
        }
        guest.set_ring_desc(0, TABLES, 16 * (MAX_CHAIN_DESCRIPTORS + 1), INDIRECT, 0);
        guest.offer_first();
        expect(&guest, false, QueueFault::ChainTooLong);
    }
}

/// A guest with three regions of 4096 bytes side by side, the first at this address, and so many
/// descriptors that each lie in two of them.
fn across(features: Features, descriptors: u16) -> (Guest, u64) {
    let mut guest = Guest::new(MAX_CHAIN_DESCRIPTORS as u16, features);
    let at = 0x1000_0000;
    let mut regions = guest.mem.regions().to_vec();
    let three = (0..3).map(|n| at + n * 4096);
    regions.extend(three.map(|at| Arc::new(Region::heap(at, 4096, at))));
    guest.mem = Arc::new(GuestMemory::new(regions, None).unwrap());
    for i in 0..descriptors {
        let next = if i + 1 < descriptors { NEXT } else { 0 };
        guest.set_ring_desc(i, at + 4095, 2, next, (i + 1) % descriptors);
    }
    guest.offer_first();
    (guest, at)
}

#[test]
fn too_many_pieces() {
    let most = MAX_CHAIN_DESCRIPTORS as u16;
    for features in both(Features::empty()) {
        let (guest, at) = across(features, most);
        let mut segs = Vec::new();
        let chain = guest.queue().take_readable(&mut segs).unwrap().unwrap();
        assert_eq!((chain.bytes, segs.len()), (2048, 2048));
        // One more border, and the whole middle region.
        guest.set_ring_desc(0, at + 4095, 4098, NEXT, 1);
        expect(&guest, false, QueueFault::TooManyPieces);
    }
}

/// A guest with a region large enough for the largest chain.
fn large(features: Features) -> (Guest, u64) {
    let mut guest = Guest::new(8, features);
    let at = 0x1000_0000;
    let mut regions = guest.mem.regions().to_vec();
    regions.push(Arc::new(Region::heap(at, 2 << 20, at)));
    guest.mem = Arc::new(GuestMemory::new(regions, None).unwrap());
    (guest, at)
}

#[test]
fn chain_too_large() {
    for features in both(Features::empty()) {
        let (guest, at) = large(features);
        guest.set_ring_desc(0, at, MAX_CHAIN_BYTES, 0, 0);
        guest.offer_first();
        let chain = guest.queue().take_readable(&mut Vec::new());
        assert_eq!(chain.unwrap().unwrap().bytes, MAX_CHAIN_BYTES);
        for len in [MAX_CHAIN_BYTES + 1, u32::MAX] {
            guest.set_ring_desc(0, at, len, 0, 0);
            expect(&guest, false, QueueFault::ChainTooLarge);
        }
        // The sum counts, and does not overflow.
        guest.set_ring_desc(0, at, MAX_CHAIN_BYTES, NEXT, 1);
        guest.set_ring_desc(1, at, 1, 0, 0);
        expect(&guest, false, QueueFault::ChainTooLarge);
        guest.set_ring_desc(1, at, u32::MAX, 0, 0);
        expect(&guest, false, QueueFault::ChainTooLarge);
    }
}

#[test]
fn writable_in_readable() {
    for guest in one(DATA, 64, WRITE, Features::empty()) {
        expect(&guest, false, QueueFault::WritableInReadable);
        guest.set_ring_desc(0, DATA, 64, NEXT, 1);
        guest.set_ring_desc(1, DATA, 64, WRITE, 1);
        expect(&guest, false, QueueFault::WritableInReadable);
    }
}

#[test]
fn writable_in_readable_is_tolerated_in_a_packed_indirect_table() {
    let [split, packed] = table(&[(DATA, 12, WRITE | NEXT, 1), (DATA, 5, 0, 0)]);
    expect(&split, false, QueueFault::WritableInReadable);
    let mut queue = packed.queue();
    let mut segs = Vec::new();
    let chain = queue.take_readable(&mut segs).unwrap().unwrap();
    assert_eq!((chain.bytes, segs.len()), (17, 2));
}

#[test]
fn readable_in_writable() {
    for guest in one(DATA, 64, 0, Features::empty()) {
        expect(&guest, true, QueueFault::ReadableInWritable);
    }
}

#[test]
fn readable_after_writable() {
    for guest in one(DATA, 64, WRITE | NEXT, Features::empty()) {
        guest.set_ring_desc(0, DATA, 64, WRITE | NEXT, 1);
        guest.set_ring_desc(1, DATA, 64, 0, 1);
        expect(&guest, true, QueueFault::ReadableAfterWritable);
    }
    for guest in table(&[(DATA, 5, WRITE | NEXT, 1), (DATA, 5, 0, 0)]) {
        expect(&guest, true, QueueFault::ReadableAfterWritable);
    }
}

#[test]
fn indirect_not_negotiated() {
    for guest in one(TABLES, 16, INDIRECT, Features::empty()) {
        expect(&guest, false, QueueFault::IndirectNotNegotiated);
    }
}

#[test]
fn indirect_nested() {
    for guest in table(&[(DATA, 5, NEXT, 1), (TABLES, 16, INDIRECT, 0)]) {
        expect(&guest, false, QueueFault::IndirectNested);
    }
}

#[test]
fn indirect_with_next() {
    for guest in one(TABLES, 16, INDIRECT | NEXT, Features::RING_INDIRECT_DESC) {
        expect(&guest, false, QueueFault::IndirectWithNext);
    }
    let packed = Guest::new(8, both(Features::RING_INDIRECT_DESC)[1]);
    packed.set_ring_desc(0, DATA, 5, NEXT, 0);
    packed.set_ring_desc(1, TABLES, 16, INDIRECT, 0);
    expect(&packed, false, QueueFault::IndirectWithNext);
}

#[test]
fn indirect_length() {
    for len in [0, 1, 15, 17, u32::MAX] {
        for guest in one(TABLES, len, INDIRECT, Features::RING_INDIRECT_DESC) {
            expect(&guest, false, QueueFault::IndirectLength);
        }
    }
}

#[test]
fn the_largest_table_length_is_bounded() {
    // 4 GiB less 16 bytes of table: refused for being unmapped before anything is walked.
    for guest in one(TABLES, 0xffff_fff0, INDIRECT, Features::RING_INDIRECT_DESC) {
        let mut queue = guest.queue();
        assert!(queue.take_readable(&mut Vec::new()).is_err());
    }
}
