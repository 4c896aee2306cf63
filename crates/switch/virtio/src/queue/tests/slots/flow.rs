//! Frames in both directions, notifications, and the death of the switch process.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::queue::tests::death;
use crate::queue::tests::driver::cases;

#[test]
fn frames_of_one_and_of_several_slots_are_taken_in_order() {
    for kind in kinds(false) {
        // Indices wrap in the middle.
        let mut client = Client::new(kind, 16, 0xfff8);
        let mut queue = client.queue();
        for lap in 0..5u32 {
            for lens in [&[60][..], &[200, 200, 7], &[64], &[14]] {
                client.add(&Client::frame(lap + 3, lens));
            }
            let (segs, chains) = take_all(&mut queue, false).expect("sound slots");
            let found: Vec<_> = chains
                .iter()
                .map(|chain| buffers(&client, chain, &segs))
                .collect();
            let first = lap + 3;
            let long = vec![(first, 200), (first + 1, 200), (first + 2, 7)];
            let one = |len| vec![(first, len)];
            assert_eq!(found, [one(60), long, one(64), one(14)]);
            assert_eq!(client.tail(), client.head.wrapping_sub(6), "not published");
            queue.put_read(&chains);
            queue.publish();
            assert_eq!(client.tail(), client.head);
        }
    }
}

#[test]
fn frames_to_the_client_fill_its_buffers() {
    for kind in kinds(true) {
        let mut client = Client::new(kind, 16, 0xfffe);
        let mut queue = client.queue();
        client.add(&(10..15).map(Client::empty).collect::<Vec<_>>());
        let first = client.tail();
        let (segs, chains) = take_all(&mut queue, true).expect("sound slots");
        assert_eq!(chains.len(), 5);
        for (n, chain) in chains.iter().enumerate() {
            assert_eq!(buffers(&client, chain, &segs), [(10 + n as u32, BUFFER)]);
        }
        // A frame of 60 bytes, and one over three buffers.
        queue.put_filled(&chains[..1], Spread { left: 60 });
        queue.put_filled(&chains[1..4], Spread { left: 600 });
        queue.untake(&chains[4..]);
        assert_eq!(client.tail(), first, "nothing is visible before");
        queue.publish();
        assert_eq!(client.tail(), first.wrapping_add(4));
        let found: Vec<_> = (0..4).map(|n| client.slot(first.wrapping_add(n))).collect();
        let mut expected = Client::frame(11, &[BUFFER, BUFFER, 600 - 2 * BUFFER]);
        expected.insert(0, Client::frame(10, &[60])[0]);
        assert_eq!(found, expected);
        let (segs, chains) = take_all(&mut queue, true).expect("sound slots");
        assert_eq!(buffers(&client, &chains[0], &segs), [(14, BUFFER)], "again");
    }
}

#[test]
fn a_slot_that_has_its_result_already_is_not_written() {
    for kind in kinds(true) {
        let mut client = Client::new(kind, 16, 0);
        let mut queue = client.queue();
        // Of the fields that are written, none differs: the only store is that of the tail.
        client.add(&[Client::empty(1), Client::empty(2)]);
        let (_, chains) = take_all(&mut queue, true).expect("sound slots");
        let stores = death::stores(|| {
            queue.put_filled(&chains[..1], Spread { left: BUFFER });
            queue.publish();
        });
        assert_eq!(stores, 1, "{kind:?}");
        let stores = death::stores(|| {
            queue.put_filled(&chains[1..], Spread { left: 60 });
            queue.publish();
        });
        assert_eq!(stores, 2, "{kind:?}");
    }
}

#[test]
fn an_incomplete_frame_waits_and_keeps_nobody_awake() {
    for kind in kinds(false) {
        let mut client = Client::new(kind, 16, 100);
        let mut queue = client.queue();
        let frame = Client::frame(5, &[256, 256, 20]);
        client.add(&frame[..1]);
        for part in &frame[1..] {
            let (_, chains) = take_all(&mut queue, false).expect("sound slots");
            assert!(chains.is_empty());
            assert!(!queue.set_kicks(true), "nothing to do");
            let before = client.head;
            client.add(&[*part]);
            assert!(client.must_kick(before), "{kind:?}");
            assert!(queue.has_available());
        }
        let (segs, chains) = take_all(&mut queue, false).expect("sound slots");
        assert_eq!(
            buffers(&client, &chains[0], &segs),
            [(5, 256), (6, 256), (7, 20)]
        );
        assert_eq!((chains[0].count, chains[0].bytes), (3, 532));
        queue.untake(&chains);
        let (_, again) = take_all(&mut queue, false).expect("sound slots");
        assert_eq!(again, chains);
    }
}

#[test]
fn an_empty_slot_is_a_frame_without_bytes() {
    for kind in kinds(false) {
        let mut client = Client::new(kind, 16, 0);
        let mut queue = client.queue();
        client.add(&Client::frame(1, &[0]));
        client.add(&Client::frame(1, &[60]));
        let (segs, chains) = take_all(&mut queue, false).expect("sound slots");
        assert_eq!(chains.len(), 2);
        assert_eq!((chains[0].bytes, chains[0].count), (0, 1));
        assert_eq!(buffers(&client, &chains[1], &segs), [(1, 60)]);
    }
}

#[test]
fn kicks_are_requested_and_suppressed() {
    for kind in kinds(false) {
        let mut client = Client::new(kind, 64, 0xfffc);
        let mut queue = client.queue();
        queue.set_kicks(false);
        let one = |client: &mut Client| {
            let before = client.head;
            client.add(&Client::frame(1, &[60]));
            client.must_kick(before)
        };
        // After a start the event index may ask for one kick.
        one(&mut client);
        assert!(!one(&mut client));
        assert!(queue.set_kicks(true), "frames are available");
        take_all(&mut queue, false).expect("sound slots");
        assert!(!queue.set_kicks(true));
        assert!(one(&mut client));
        take_all(&mut queue, false).expect("sound slots");
        match queue.set_kick_threshold(4) {
            Some(available) => {
                assert!(!available);
                let kicks: Vec<_> = (0..6).map(|_| one(&mut client)).collect();
                assert_eq!(kicks, [false, false, false, true, false, false]);
            }
            None => assert!(matches!(kind, SlotFormat::Memif { .. })),
        }
    }
}

#[test]
fn clients_are_called_as_they_ask() {
    for kind in kinds(true) {
        let mut client = Client::new(kind, 64, 0xfffc);
        let mut queue = client.queue();
        client.add(&(0..40).map(Client::empty).collect::<Vec<_>>());
        let mut deliver = |count: usize| {
            let (_, chains) = take_all(&mut queue, true).expect("sound slots");
            let (now, later) = chains.split_at(count);
            for chain in now {
                queue.put(*chain, 60);
            }
            queue.untake(later);
            queue.publish();
            queue.needs_notify()
        };
        assert!(deliver(1), "a process before may have died too early");
        if kind == SlotFormat::Netmap {
            assert!(!deliver(3), "it asked for nothing");
            client.want_call(client.tail());
            assert!(deliver(2));
            assert!(!deliver(1), "once");
            client.want_call(client.tail().wrapping_add(4));
            assert!(!deliver(4));
            assert!(deliver(1), "the fifth passes the event");
        } else {
            assert!(deliver(1) && deliver(1));
            client.set16(client.layout.driver + 4, 1);
            assert!(!deliver(1));
            client.want_call(0);
            assert!(deliver(1));
        }
    }
}

#[test]
fn a_memif_client_owns_the_mask_of_the_rings_that_it_receives_from() {
    let kind = SlotFormat::Memif { to_client: true };
    let client = Client::new(kind, 16, 0);
    let mut queue = client.queue();
    for mask in [0, 1] {
        client.set16(client.layout.driver + 4, mask);
        queue.set_kicks(true);
        queue.set_kicks(false);
        assert_eq!(client.get16(client.layout.driver + 4), mask);
    }
}

#[test]
fn headers_are_read_once_when_the_queue_starts() {
    for header in [0, 10, 12] {
        let client = Client::new(SlotFormat::Netmap, 16, 0);
        client.set_parameters(header, POOL, BUFFER, BUFFERS);
        let mut queue = client.queue();
        client.set_parameters(7, 0, 0, 0);
        assert_eq!(queue.header(), Some(u32::from(header)));
        queue
            .set_memory(client.mem.clone())
            .expect("the same memory");
        assert_eq!(queue.header(), Some(u32::from(header)));
    }
    let memif = Client::new(SlotFormat::Memif { to_client: true }, 16, 0);
    assert_eq!(memif.queue().header(), Some(0));
}

/// Bytes of each frame to the client.
const WRITTEN: u32 = 40;

/// One turn: the lengths of frames that are offered, how many are taken, and how many of those go
/// back.
type Turn = (Vec<Vec<u32>>, usize, usize);

fn turn() -> impl Strategy<Value = Turn> {
    let frame = prop::collection::vec(1..BUFFER, 1..4);
    (prop::collection::vec(frame, 0..5), 0..6usize, 0..3usize)
}

/// Serves a client by processes that die after `lives` stores each. Every frame is taken in order,
/// and after a death the next process begins with the oldest that was not published.
fn serve(kind: SlotFormat, turns: &[Turn], lives: &[usize]) {
    let to_client = kind == SlotFormat::Memif { to_client: true };
    let mut client = Client::new(kind, 16, 0xfff0);
    let mut lives = lives.iter().copied();
    let mut queue = client.queue();
    let mut open: VecDeque<(u16, Vec<(u32, u32)>)> = VecDeque::new();
    let mut taken = 0;
    death::allow(lives.next());
    for (n, (frames, take, untake)) in turns.iter().enumerate() {
        for lens in frames {
            let lens = if to_client { &[BUFFER][..] } else { lens };
            let used = client.head.wrapping_sub(client.tail());
            if usize::from(used) + lens.len() > 15 {
                break;
            }
            let slots = Client::frame(n as u32 % 40, lens);
            open.push_back((
                client.head,
                slots.iter().map(|s| (s.buffer, s.len)).collect(),
            ));
            client.add(&slots);
        }
        let (mut segs, mut chains) = (Vec::new(), Vec::new());
        while chains.len() < *take {
            let next = if to_client {
                queue.take_writable(&mut segs)
            } else {
                queue.take_readable(&mut segs)
            };
            let Some(chain) = next.expect("a sound client") else {
                break;
            };
            let mut found = (chain.id, buffers(&client, &chain, &segs));
            if to_client {
                // A process that died may have written the frame's length, which was the room.
                assert!((WRITTEN..=BUFFER).contains(&found.1[0].1));
                found.1[0].1 = BUFFER;
            }
            assert_eq!(Some(&found), open.get(taken));
            taken += 1;
            chains.push(chain);
        }
        let (done, back) = chains.split_at(chains.len().saturating_sub(*untake));
        queue.untake(back);
        taken -= back.len();
        if to_client {
            done.iter().for_each(|chain| queue.put(*chain, WRITTEN));
        } else {
            queue.put_read(done);
        }
        queue.publish();
        // The client looks: frames behind its tail are done, in order, once each.
        while open
            .front()
            .is_some_and(|(at, _)| client.tail().wrapping_sub(*at).wrapping_sub(1) < 0x8000)
        {
            let (at, buffers) = open.pop_front().expect("just seen");
            if to_client {
                let slot = client.slot(at);
                assert_eq!((slot.buffer, slot.len), (buffers[0].0, WRITTEN));
            }
            taken -= 1;
        }
        if death::is_dead() {
            death::allow(lives.next());
            queue = client.queue();
            taken = 0;
        }
    }
    death::allow(None);
}

proptest! {
    #![proptest_config(cases(8, 300))]

    #[test]
    fn no_frame_is_lost_and_none_is_done_twice_over_deaths(
        turns in prop::collection::vec(turn(), 1..40),
        lives in prop::collection::vec(0..30usize, 0..6),
    ) {
        for kind in KINDS {
            serve(kind, &turns, &lives);
        }
    }
}

#[test]
fn client_and_switch_run_side_by_side() {
    let total = if cfg!(miri) { 40 } else { 4_000u32 };
    for kind in kinds(false) {
        let mut client = Client::new(kind, 4, 0xfffe);
        let mut queue = client.queue();
        let device = std::thread::spawn(move || {
            let mut seen = 0;
            while seen < total {
                let (segs, chains) = take_all(&mut queue, false).expect("a sound client");
                for chain in &chains {
                    assert_eq!(chain.segs.of(&segs)[0].len, 14 + seen % 100);
                    seen += 1;
                }
                queue.put_read(&chains);
                queue.publish();
                std::thread::yield_now();
            }
        });
        for n in 0..total {
            while client.head.wrapping_sub(client.tail()) == 4 {
                std::thread::yield_now();
            }
            client.add(&Client::frame(n % BUFFERS, &[14 + n % 100]));
        }
        device.join().expect("the switch's checks");
    }
}
