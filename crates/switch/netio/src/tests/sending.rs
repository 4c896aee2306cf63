//! What an interface takes, does not take for now, and refuses.

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// Frames of no flow, with their virtio headers.
fn frames(count: u8, len: usize) -> Vec<Vec<u8>> {
    let frame = |n| {
        let mut frame = [&[0; net::LEN], &ADDRESSES[..], &[0x88, 0xb5]].concat();
        frame.resize(net::LEN + len, n);
        frame
    };
    (0..count).map(frame).collect()
}

/// Adds the frames whole, with numbers from `first` on.
fn push(outbox: &mut Outbox, frames: &[Vec<u8>], first: u16) {
    for (id, frame) in (first..).zip(frames) {
        // SAFETY: the frames outlive the outbox's use of them.
        assert!(unsafe { outbox.push_whole(id, frame.as_ptr(), frame.len() as u32) });
    }
}

fn sent(ids: std::ops::Range<u16>) -> Vec<(u16, bool)> {
    ids.map(|id| (id, true)).collect()
}

#[test]
fn a_caller_can_stop_after_each_call() {
    let Some(mut world) = world() else { return };
    let frames = frames(5, 60);
    let mut outbox = Outbox::new(true);
    push(&mut outbox, &frames, 0);
    let (mut done, mut calls) = (Vec::new(), Vec::new());
    let Queue {
        sender, counters, ..
    } = &mut world.tap;
    let stop = sender.send_while(&mut outbox, &mut done, counters, |of| {
        calls.push(of.to_vec());
        calls.len() < 2
    });
    assert_eq!(stop.unwrap(), Stop::Done);
    assert_eq!(calls, [sent(0..1), sent(1..2)]);
    assert_eq!((outbox.len(), &done), (3, &sent(0..2)));
    // More come, and the order stays.
    push(&mut outbox, &frames, 5);
    assert_eq!(world.tap.send(&mut outbox), (sent(2..10), Stop::Done));
    let got = world.socket.receive_all();
    let last: Vec<_> = got.iter().filter_map(|frame| frame.last()).collect();
    assert_eq!(last, [&0, &1, &2, &3, &4, &0, &1, &2, &3, &4]);
}

#[test]
fn a_call_is_for_a_limited_number_of_bytes() {
    let Some(mut world) = world() else { return };
    ip("link set up0 mtu 60000");
    let frames = frames(12, 60_000);
    let mut outbox = Outbox::new(true);
    push(&mut outbox, &frames, 0);
    let before = world.socket.counters.sent;
    assert_eq!(world.socket.send(&mut outbox), (sent(0..12), Stop::Done));
    let after = world.socket.counters.sent;
    assert_eq!(after.frames - before.frames, 12);
    assert_eq!(after.calls - before.calls, 3);
}

#[test]
fn what_a_full_interface_does_not_take_stays_in_order() {
    let Some(mut world) = world() else { return };
    // What waits there counts as the socket's, until it leaves at 8 bytes a microsecond.
    let slow = "qdisc replace dev up0 root tbf rate 64mbit burst 3000 limit 1000000";
    let shaper = std::process::Command::new("tc")
        .args(slow.split(' '))
        .status();
    if !shaper.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no shaper here");
        return;
    }
    world.device.set_room(Some(20_000)).unwrap();
    assert!(world.socket.sender.has_bounded_room() && !world.tap.sender.has_bounded_room());
    let frames = frames(64, 1000);
    let mut outbox = Outbox::new(true);
    push(&mut outbox, &frames, 0);
    assert!(outbox.is_full());
    let (mut all, mut waits) = (Vec::new(), 0);
    let start = Instant::now();
    loop {
        let (done, stop) = world.socket.send(&mut outbox);
        all.extend(done);
        if stop == Stop::Done {
            break;
        }
        assert!(start.elapsed() < LIMIT, "{stop:?} without an end");
        assert_eq!(outbox.ids().next(), Some(all.len() as u16));
        waits += u32::from(stop == Stop::Wait);
    }
    assert!(waits > 0);
    let mut got = Vec::new();
    while got.len() < frames.len() {
        assert!(start.elapsed() < LIMIT, "{} frames", got.len());
        got.extend(world.tap.receive_all());
    }
    assert_eq!(all, sent(0..64));
    assert_eq!(got, frames);
}

#[test]
fn what_an_interface_refuses_is_counted_and_nothing_waits_for_it() {
    let Some(mut world) = world() else { return };
    let mut all = frames(3, 60);
    all[1] = frames(1, 9000).remove(0);
    let mut outbox = Outbox::new(true);
    push(&mut outbox, &all, 0);
    let (done, stop) = world.socket.send(&mut outbox);
    assert_eq!(done, [(0, true), (1, false), (2, true)], "one is too long");
    assert_eq!(stop, Stop::Done);
    assert_eq!(world.socket.counters.rejected_by_interface, 1);
    ip("link set up0 down");
    push(&mut outbox, &all, 0);
    let (done, stop) = world.tap.send(&mut outbox);
    assert_eq!(done, [(0, false), (1, false), (2, false)], "it is off");
    assert_eq!(stop, Stop::Done);
    assert_eq!(world.tap.counters.rejected_by_interface, 3);
    push(&mut outbox, &all, 0);
    let Queue {
        sender, counters, ..
    } = &mut world.socket;
    let error = sender.send(&mut outbox, &mut Vec::new(), counters);
    assert!(is_lost(&error.unwrap_err()), "a socket has none then");
}

#[test]
fn an_outbox_has_room_for_a_batch_and_for_as_many_pieces_as_a_call() {
    let bytes = [7u8; 256];
    let push = |outbox: &mut Outbox, head: usize, pieces: usize| {
        let rest = (0..pieces).map(|_| (bytes.as_ptr(), 2));
        // SAFETY: the bytes outlive the outbox.
        unsafe { outbox.push(1, [0; net::LEN], &bytes[..head], rest) }
    };
    let mut outbox = Outbox::new(true);
    assert!(!push(&mut outbox, MAX_HEAD + 1, 0) && !push(&mut outbox, 14, MAX_PIECES + 1));
    assert!(outbox.is_empty());
    let mut count = 0;
    while !outbox.is_full() {
        assert!(push(&mut outbox, 14, MAX_PIECES));
        count += 1;
    }
    assert!(count >= 13 && !push(&mut outbox, 14, 0));
    // What leaves makes room, also while others stay.
    outbox.arrange(false);
    for left in 1..200 {
        outbox.arrange(false);
        outbox.leave(1, true, &mut Vec::new());
        assert!(
            !outbox.is_full() && push(&mut outbox, 14, MAX_PIECES),
            "{left}"
        );
    }
    assert_eq!(outbox.len(), count);
    outbox.clear();
    for _ in 0..BATCH {
        assert!(!outbox.is_full() && push(&mut outbox, MAX_HEAD, 1));
    }
    assert!(outbox.is_full() && !push(&mut outbox, 14, 1));
    // SAFETY: nothing is added.
    assert!(!unsafe { Outbox::new(true).push_whole(0, bytes.as_ptr(), HEADER) });
}
