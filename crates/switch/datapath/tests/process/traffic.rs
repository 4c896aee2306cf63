//! Numbered traffic between two guests.

use std::time::Duration;

use testkit::FakeGuest;
use testkit::packets::{
    Flow, Numbered, SequenceChecker, numbered_payload, numbered_read, payload_of, udp,
};

use crate::host::LIMIT;

const STRAY: u16 = 0xffff;

/// A datagram of test guest `a` to test guest `b` that no check expects.
pub(crate) fn stray(a: u8, b: u8, len: usize) -> Vec<u8> {
    let key = Numbered {
        stream: STRAY,
        seq: 0,
    };
    udp(&Flow::v4(a, b), &numbered_payload(key, len))
}

/// A numbered datagram of test guest `a` to test guest `b`.
pub(crate) fn numbered(a: u8, b: u8, seq: u64, len: usize) -> Vec<u8> {
    let key = Numbered {
        stream: u16::from(a),
        seq,
    };
    udp(&Flow::v4(a, b), &numbered_payload(key, len))
}

/// Takes a guest's frames until none comes for a while.
pub(crate) fn drain(guest: &mut FakeGuest) {
    let pause = Duration::from_millis(20);
    while guest.recv(pause).expect("correct").is_some() {}
}

/// Ends the guests' sessions in order.
pub(crate) fn disconnect<const N: usize>(guests: [FakeGuest; N]) {
    for mut guest in guests {
        guest.disconnect().expect("a good end");
    }
}

fn number(guest: &FakeGuest) -> u8 {
    guest.mac()[5]
}

/// Sends `count` frames and checks that exactly these arrive, in order.
#[track_caller]
pub(crate) fn one_way(from: &mut FakeGuest, to: &mut FakeGuest, count: u64) {
    lengths(from, to, count, &[16, 200, 1400]);
}

/// As [`one_way`], with payloads of these lengths in turn.
#[track_caller]
pub(crate) fn lengths(from: &mut FakeGuest, to: &mut FakeGuest, count: u64, lens: &[usize]) {
    let (a, b) = (number(from), number(to));
    let window = u64::from(to.pairs[0].nic.options().queue_size / 2).clamp(1, 64);
    let mut checker = SequenceChecker::default();
    for seq in 0..count {
        let frame = numbered(a, b, seq, lens[seq as usize % lens.len()]);
        from.send(&frame).expect("room");
        if seq % window == window - 1 || seq + 1 == count {
            while checker.next_of(a.into()) <= seq {
                let got = to.recv(LIMIT).expect("a correct device");
                let got = got.unwrap_or_else(|| panic!("frame {} of {count}", checker.received));
                let payload = payload_of(&got.frame).expect("a datagram");
                // Earlier frames are not part of this.
                if numbered_read(payload).is_none_or(|n| n.stream != STRAY) {
                    checker.see(payload);
                }
            }
        }
    }
    assert!(checker.is_clean(a.into(), count), "{checker:?}");
}

/// Both ways.
#[track_caller]
pub(crate) fn talk(a: &mut FakeGuest, b: &mut FakeGuest, count: u64) {
    one_way(a, b, count);
    one_way(b, a, count);
}
