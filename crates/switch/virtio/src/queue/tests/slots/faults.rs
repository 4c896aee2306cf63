//! Clients that break rules.

use proptest::prelude::*;

use super::*;
use crate::queue::tests::driver::cases;

/// Takes from the client, and expects this fault.
fn expect_fault(client: &Client, to_client: bool, fault: QueueFault) {
    let mut queue = client.queue();
    let result = take_all(&mut queue, to_client).map(|_| ());
    assert_eq!(result, Err(fault), "{:?}", client.kind);
    assert_eq!(queue.fault(), Some(fault));
    assert_eq!(take_all(&mut queue, to_client).map(|_| ()), Err(fault));
    assert!(!queue.set_kicks(true), "the queue touches nothing any more");
}

#[test]
fn a_head_outside_its_window_stops_the_queue() {
    for kind in KINDS {
        for jump in [17, 0x8000, 0xffff] {
            let mut client = Client::new(kind, 16, 5);
            client.publish(5u16.wrapping_add(jump));
            let to_client = kind == SlotFormat::Memif { to_client: true };
            expect_fault(&client, to_client, QueueFault::IndexJump);
        }
    }
}

#[test]
fn vpp_76d102d1ad2_producer_overruns_the_ring() {
    for kind in kinds(false) {
        let mut client = Client::new(kind, 16, 0);
        let mut queue = client.queue();
        client.add(&Client::frame(1, &[60]));
        let (_, chains) = take_all(&mut queue, false).expect("sound slots");
        // One slot is with the switch: 15 more fit, and 16 do not.
        client.publish(17);
        assert_eq!(
            take_all(&mut queue, false).map(|_| ()),
            Err(QueueFault::IndexJump)
        );
        queue.put_read(&chains);
        queue.publish();
        assert_eq!(client.tail(), 0, "a stopped queue moves nothing");
    }
}

#[test]
fn vpp_fc025725b89_bad_descriptor() {
    let client = |slot| {
        let mut client = Client::new(SlotFormat::Memif { to_client: false }, 16, 0);
        client.add(&[slot]);
        client
    };
    let slot = Client::frame(1, &[60])[0];
    let strange = client(slot);
    strange.write(strange.slot_at(0) + 2, 7u16.to_le_bytes());
    expect_fault(&strange, false, QueueFault::UnmappedAddress);
    let beyond = client(Slot {
        buffer: BUFFERS,
        ..slot
    });
    expect_fault(&beyond, false, QueueFault::UnmappedAddress);
    let last = Slot {
        buffer: BUFFERS - 1,
        ..slot
    };
    let longer = Slot {
        len: BUFFER + 1,
        ..last
    };
    expect_fault(&client(longer), false, QueueFault::UnmappedAddress);
    let huge = Slot {
        len: u32::MAX,
        ..slot
    };
    expect_fault(&client(huge), false, QueueFault::ChainTooLarge);
}

#[test]
fn vpp_e36567760d6_sum_of_offset_and_length_in_32_bits() {
    for to_client in [false, true] {
        let mut client = Client::new(SlotFormat::Memif { to_client }, 16, 0);
        client.add(&Client::frame(0, &[0x2000]));
        // Offset and length are 0x1000 together, if the sum has 32 bits.
        client.write(client.slot_at(0) + 8, 0xffff_f000u32.to_le_bytes());
        expect_fault(&client, to_client, QueueFault::UnmappedAddress);
    }
}

#[test]
fn netmap_slots_name_buffers_of_the_pool() {
    let client = |slot| {
        let mut client = Client::new(SlotFormat::Netmap, 16, 0);
        client.add(&[slot]);
        client
    };
    for buffer in [BUFFERS, u32::MAX] {
        let strange = client(Client::empty(buffer));
        for to_client in [false, true] {
            expect_fault(&strange, to_client, QueueFault::BufferOutOfRange);
        }
    }
    let longer = Slot {
        len: BUFFER + 1,
        ..Client::empty(BUFFERS - 1)
    };
    expect_fault(&client(longer), false, QueueFault::LengthBeyondBuffer);
    // Of an empty buffer the length means nothing.
    let mut queue = client(longer).queue();
    let (segs, chains) = take_all(&mut queue, true).expect("a sound buffer");
    assert_eq!((chains.len(), segs[0].len), (1, BUFFER));
}

#[test]
fn a_frame_has_64_slots_at_most() {
    for kind in kinds(false) {
        let mut client = Client::new(kind, 128, 9);
        client.add(&Client::frame(0, &[5; 64]));
        let (_, chains) = take_all(&mut client.queue(), false).expect("64 are allowed");
        assert_eq!(chains[0].count, 64);
        let mut client = Client::new(kind, 128, 9);
        let mut slots = Client::frame(0, &[5; 64]);
        slots[63].more = true;
        slots.extend(Client::frame(0, &[5]));
        client.add(&slots);
        expect_fault(&client, false, QueueFault::ChainTooLong);
    }
}

#[test]
fn a_frame_that_fills_the_ring_stops_the_queue() {
    for kind in kinds(false) {
        let mut client = Client::new(kind, 16, 3);
        let mut slots = Client::frame(0, &[5; 16]);
        client.add(&slots[..14]);
        assert!(
            take_all(&mut client.queue(), false)
                .expect("waits")
                .1
                .is_empty()
        );
        slots[14].more = true;
        client.add(&slots[14..15]);
        expect_fault(&client, false, QueueFault::ChainFillsRing);
    }
}

#[test]
fn parameters_are_checked() {
    let refused = |header, pool, size, buffers| {
        let client = Client::new(SlotFormat::Netmap, 16, 0);
        client.set_parameters(header, pool, size, buffers);
        client.try_queue().expect_err("refused")
    };
    let bad = QueueFault::BadParameters;
    assert_eq!(refused(11, POOL, BUFFER, BUFFERS), bad);
    assert_eq!(refused(0, POOL, 0, BUFFERS), bad);
    assert_eq!(refused(0, POOL, BUFFER, 0), bad);
    assert_eq!(refused(0, POOL, 1 << 16, 1), bad, "a length has 16 bits");
    assert_eq!(refused(0, POOL, 1 << 15, 1 << 17), bad, "4 GiB");
    let unmapped = QueueFault::UnmappedPool;
    assert_eq!(refused(0, POOL, BUFFER, BUFFERS + 1), unmapped);
    assert_eq!(refused(0, u64::MAX - 5, BUFFER, BUFFERS), unmapped);
    let client = Client::new(SlotFormat::Netmap, 16, 0);
    client.write(client.layout.driver + 64, *b"LHS!");
    assert_eq!(client.try_queue().expect_err("magic"), bad);
    client.write(client.layout.driver + 64, *b"LHSQ\x02");
    assert_eq!(client.try_queue().expect_err("version"), bad);
    let memif = Client::new(SlotFormat::Memif { to_client: true }, 16, 0);
    memif.write(memif.layout.driver, 0x03e3_1f21u32.to_le_bytes());
    assert_eq!(
        memif.try_queue().expect_err("cookie"),
        QueueFault::WrongCookie
    );
}

#[test]
fn sizes_and_places_are_checked() {
    for kind in KINDS {
        let mut client = Client::new(kind, 16, 0);
        let layout = client.layout;
        let mut refused = |layout| {
            client.layout = layout;
            client.try_queue().expect_err("refused")
        };
        for size in [0, 12, 4097] {
            assert_eq!(refused(Layout { size, ..layout }), QueueFault::BadSize);
        }
        for desc in [layout.desc + 4, layout.desc + 1] {
            assert_eq!(refused(Layout { desc, ..layout }), QueueFault::Misaligned);
        }
        let driver = layout.driver + 4;
        assert_eq!(refused(Layout { driver, ..layout }), QueueFault::Misaligned);
        let device = POOL + POOL_LEN;
        assert_eq!(
            refused(Layout { device, ..layout }),
            QueueFault::UnmappedRing
        );
    }
}

/// The same buffer in two slots, or of both directions, harms no other port: the bytes that are
/// read and written are the client's own in any case, frames are checked on their copy, and a slot
/// is never used for more than its own frame. So there is no check.
#[test]
fn the_same_buffer_in_two_slots_harms_its_owner_alone() {
    for kind in kinds(true) {
        let mut client = Client::new(kind, 16, 0);
        client.add(&[Client::empty(4), Client::empty(4)]);
        let mut queue = client.queue();
        let (segs, chains) = take_all(&mut queue, true).expect("sound slots");
        for chain in &chains {
            assert_eq!(buffers(&client, chain, &segs), [(4, BUFFER)]);
            queue.put(*chain, 60);
        }
        queue.publish();
        assert_eq!((client.tail(), queue.fault()), (2, None));
    }
}

#[test]
fn the_name_of_a_program_is_printable_or_absent() {
    let client = Client::new(SlotFormat::Netmap, 16, 0);
    let name = |bytes: &[u8; 16]| {
        client.write(client.layout.driver + 88, *bytes);
        crate::queue::netmap_program(&client.mem, client.layout.driver)
    };
    assert_eq!(name(&[0; 16]), None);
    assert_eq!(name(b"pkt-gen\0junk\x07\0\0\0").as_deref(), Some("pkt-gen"));
    assert_eq!(
        name(b"sixteen bytes ab").as_deref(),
        Some("sixteen bytes ab")
    );
    assert_eq!(name(b"bell\x07\0\0\0\0\0\0\0\0\0\0\0"), None);
    assert_eq!(name(b"\xffabc\0\0\0\0\0\0\0\0\0\0\0\0"), None);
}

#[derive(Clone, Debug)]
enum Step {
    Add(Slot),
    Raw(u16, [u8; 8]),
    Head(u16),
    Driver(u16, u16),
    Device(u16, u16),
    Take,
    Put(usize),
    Untake,
    Publish,
    Kicks(bool),
    Threshold(u16),
    Memory,
    Again,
}

fn step() -> impl Strategy<Value = Step> {
    let slot = (0..BUFFERS + 2, 0..BUFFER + 2, any::<bool>());
    prop_oneof![
        6 => slot.prop_map(|(buffer, len, more)| Step::Add(Slot { buffer, len, more })),
        1 => (any::<u16>(), any::<[u8; 8]>()).prop_map(|(at, bytes)| Step::Raw(at, bytes)),
        1 => any::<u16>().prop_map(Step::Head),
        1 => (0..64u16, any::<u16>()).prop_map(|(at, value)| Step::Driver(at, value)),
        1 => (0..32u16, any::<u16>()).prop_map(|(at, value)| Step::Device(at, value)),
        4 => Just(Step::Take),
        4 => (0..8usize).prop_map(Step::Put),
        2 => Just(Step::Untake),
        3 => Just(Step::Publish),
        2 => any::<bool>().prop_map(Step::Kicks),
        1 => any::<u16>().prop_map(Step::Threshold),
        1 => Just(Step::Memory),
        1 => Just(Step::Again),
    ]
}

/// Runs a hostile client; every buffer that is given out lies in its memory.
fn run(kind: SlotFormat, steps: &[Step]) {
    let to_client = kind == SlotFormat::Memif { to_client: true };
    let mut client = Client::new(kind, 8, 0);
    let mut queue = client.queue();
    let mut held: Vec<Chain> = Vec::new();
    for step in steps {
        match step {
            Step::Add(slot) => client.add(&[*slot]),
            Step::Raw(at, bytes) => {
                client.write(client.slot_at(*at) + u64::from(at % 2) * 8, *bytes)
            }
            Step::Head(head) => client.publish(*head),
            Step::Driver(at, value) => {
                client.set16(client.layout.driver + 2 * u64::from(*at), *value)
            }
            Step::Device(at, value) => {
                client.set16(client.layout.device + 2 * u64::from(*at), *value)
            }
            Step::Take => {
                if let Ok((segs, chains)) = take_all(&mut queue, to_client) {
                    for seg in &segs {
                        let inside = client.mem.translate(seg.gpa, seg.len);
                        assert_eq!(inside.map(|s| s.ptr), Some(seg.ptr));
                    }
                    let slots: usize = chains.iter().map(|c| usize::from(c.count)).sum();
                    assert!(slots + held.iter().map(|c| usize::from(c.count)).sum::<usize>() <= 8);
                    held.extend(chains);
                }
            }
            Step::Put(count) => {
                let done: Vec<_> = held.drain(..(*count).min(held.len())).collect();
                if to_client {
                    queue.put_filled(&done, Spread { left: 300 });
                } else {
                    queue.put_read(&done);
                }
            }
            Step::Untake => {
                queue.untake(&held);
                held.clear();
            }
            Step::Publish => {
                queue.publish();
                let _ = queue.needs_notify();
            }
            Step::Kicks(on) => {
                queue.set_kicks(*on);
            }
            Step::Threshold(slots) => {
                queue.set_kick_threshold(*slots);
            }
            Step::Memory => {
                let _ = queue.set_memory(client.mem.clone());
            }
            Step::Again => {
                held.clear();
                match client.try_queue() {
                    Ok(again) => queue = again,
                    Err(_) => return,
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(16, 600))]

    #[test]
    fn a_client_that_writes_anything_gets_a_fault_or_service(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        for kind in KINDS {
            run(kind, &steps);
        }
    }
}
