use std::collections::VecDeque;

use proptest::prelude::*;
use wire::virtio::shape::{BUFFER, QUEUE_SIZE};

use super::device::Device;
use super::*;

fn pair(direction: Direction) -> (Queue, Device) {
    let region = Arc::new(Region::new("test", 1).expect("memory"));
    let index = match direction {
        Direction::Inbound => 0,
        Direction::Outbound => 1,
    };
    let device = Device::new(&region, index);
    (Queue::new(region, index, direction), device)
}

#[test]
fn a_descriptor_says_where_and_how_long_and_who_writes() {
    let (mut queue, mut device) = pair(Direction::Outbound);
    queue.submit(7, 4, 100);
    assert_eq!(device.take(), None, "not before it is published");
    queue.publish();
    let place = queue.place();
    assert_eq!(device.take(), Some((7, place.buffer(7) + 4, 100, 0)));
    let (mut queue, mut device) = pair(Direction::Inbound);
    queue.submit(255, 0, BUFFER);
    queue.publish();
    let address = queue.place().buffer(255);
    assert_eq!(device.take(), Some((255, address, BUFFER, 2)));
    assert_eq!(address + u64::from(BUFFER), queue.region.place(1).buffer(0));
}

#[test]
fn a_hostile_used_ring_is_a_fault() {
    let (mut queue, mut device) = pair(Direction::Inbound);
    queue.submit(3, 0, 100);
    queue.publish();
    device.give(3, 100);
    assert_eq!(queue.take(), Ok(Some(UsedBuffer { id: 3, len: 100 })));
    device.give(3, 100);
    assert_eq!(
        queue.take(),
        Err(Fault::Ahead {
            ahead: 1,
            submitted: 0
        })
    );

    let (mut queue, mut device) = pair(Direction::Inbound);
    queue.submit(3, 0, 100);
    queue.submit(4, 0, 100);
    device.give(3, 12);
    device.give(3, 12);
    assert_eq!(queue.take(), Ok(Some(UsedBuffer { id: 3, len: 12 })));
    assert_eq!(queue.take(), Err(Fault::NotLent(3)), "twice");

    for (id, len, fault) in [
        (256, 1, Fault::NotLent(256)),
        (u32::MAX, 1, Fault::NotLent(u32::MAX)),
        (65_539, 1, Fault::NotLent(65_539)),
        (
            3,
            101,
            Fault::TooLong {
                written: 101,
                room: 100,
            },
        ),
        (
            3,
            u32::MAX,
            Fault::TooLong {
                written: u32::MAX,
                room: 100,
            },
        ),
    ] {
        let (mut queue, mut device) = pair(Direction::Inbound);
        queue.submit(3, 0, 100);
        device.give(id, len);
        assert_eq!(queue.take(), Err(fault));
    }

    let (mut queue, device) = pair(Direction::Outbound);
    queue.submit(3, 0, 100);
    device
        .region
        .u16(device.place.used + 2)
        .store(2, Ordering::Relaxed);
    assert_eq!(
        queue.take(),
        Err(Fault::Ahead {
            ahead: 2,
            submitted: 1
        })
    );
    device
        .region
        .u16(device.place.used + 2)
        .store(u16::MAX, Ordering::Relaxed);
    let ahead = u16::MAX;
    assert_eq!(
        queue.arm(),
        Err(Fault::Ahead {
            ahead,
            submitted: 1
        })
    );
}

#[test]
fn notifications_are_requested_and_suppressed() {
    let (mut queue, mut device) = pair(Direction::Outbound);
    for id in 0..2 {
        queue.submit(id, 0, 60);
    }
    queue.publish();
    assert_eq!(queue.arm(), Ok(false));
    assert_eq!(device.call_wanted_at(), 0);
    device.give(0, 0);
    assert_eq!(queue.arm(), Ok(true), "one is there already");
    assert!(queue.take().unwrap().is_some());
    queue.disarm();
    assert_eq!(device.call_wanted_at(), 0u16);
    assert_eq!(queue.arm(), Ok(false));
    assert_eq!(device.call_wanted_at(), 1);
}

#[test]
fn kicks_go_by_the_event_index() {
    let (mut queue, device) = pair(Direction::Outbound);
    queue.submit(0, 0, 60);
    assert!(queue.publish(), "index 0 is asked for from the start");
    assert!(!queue.publish(), "nothing new");
    queue.submit(1, 0, 60);
    assert!(!queue.publish(), "the event has been passed before");
    device.want_kick_at(4);
    for id in 2..4 {
        queue.submit(id, 0, 60);
        assert!(!queue.publish());
    }
    queue.submit(4, 0, 60);
    assert!(queue.publish());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Buffers go round and round, far beyond the wrap of the index, in any order of return; each
    /// comes back once, with the length that the device wrote.
    #[test]
    fn buffers_come_back_once(seed in any::<u64>(), rounds in 1usize..2000) {
        let (mut queue, mut device) = pair(Direction::Inbound);
        let mut random = seed | 1;
        let mut next = move |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        let mut here: Vec<u16> = (0..QUEUE_SIZE).collect();
        let mut there: Vec<u16> = Vec::new();
        let mut expected = VecDeque::new();
        for _ in 0..rounds {
            for _ in 0..next(64) {
                if here.is_empty() { break; }
                let id = here.swap_remove(next(here.len()));
                queue.submit(id, 0, BUFFER);
            }
            queue.publish();
            while let Some((id, ..)) = device.take() { there.push(id); }
            for _ in 0..next(64) {
                if there.is_empty() { break; }
                let id = there.swap_remove(next(there.len()));
                let len = next(BUFFER as usize + 1) as u32;
                device.give(id.into(), len);
                expected.push_back(UsedBuffer { id, len });
            }
            while let Some(used) = queue.take().expect("an honest device") {
                prop_assert_eq!(Some(used), expected.pop_front());
                here.push(used.id);
            }
            prop_assert!(expected.is_empty());
            prop_assert_eq!(usize::from(queue.lent_count), there.len());
        }
    }

    /// Whatever the other side writes, nothing here leaves its bounds or gives a buffer twice.
    #[test]
    fn garbage_in_the_used_ring(
        words in proptest::collection::vec(any::<u32>(), 1..64), small in any::<bool>(),
    ) {
        let (mut queue, device) = pair(Direction::Inbound);
        for id in 0..QUEUE_SIZE { queue.submit(id, 0, 2000); }
        queue.publish();
        for (at, word) in words.iter().enumerate() {
            let word = if small { word % 300 } else { *word };
            let offset = device.place.used + 4 * (at as u64);
            device.region.u32(offset).store(word, Ordering::Relaxed);
        }
        let mut back = std::collections::HashSet::new();
        while let Ok(Some(used)) = queue.take() {
            prop_assert!(used.len <= 2000 && back.insert(used.id));
        }
    }
}
