//! A guest against a back end that sends every frame back on the pair it came from.

use super::*;
use crate::driver::Shape;
use crate::echo::connection;
use crate::features::{EVENT_IDX, MRG_RXBUF};
use crate::net::{Cuts, RxBuffers};
use crate::packets::{
    Flow, Numbered, SequenceChecker, numbered_payload, payload_of, tcp_super, udp,
};
use crate::wait::LIMIT;

fn configs() -> Vec<GuestConfig> {
    let base = || GuestConfig {
        rx_buffers: Some(RxBuffers::Of(8192)),
        ..GuestConfig::default()
    };
    vec![
        base(),
        base().packed().pairs(2),
        base().without(EVENT_IDX | MRG_RXBUF),
        base().packed().without(EVENT_IDX),
        GuestConfig {
            memory_slots: true,
            ..base().in_order()
        },
        GuestConfig {
            shape: Shape::Indirect,
            tx_cuts: Cuts::Every(100),
            ..base().packed().in_order()
        },
        GuestConfig {
            busy: true,
            rx_cuts: Cuts::HeaderApart,
            ..base()
        },
    ]
}

fn ping(guest: &mut FakeGuest, from: u64, count: u64, checker: &mut SequenceChecker) {
    for seq in from..from + count {
        let frame = udp(
            &Flow::v4(1, 2),
            &numbered_payload(Numbered { stream: 1, seq }, 200),
        );
        guest.send(&frame).expect("room");
        if seq % 16 == 15 || seq + 1 == from + count {
            while checker.next_of(1) <= seq {
                let got = guest
                    .recv(LIMIT)
                    .expect("a correct device")
                    .expect("an echo");
                checker.see(payload_of(&got.frame).expect("udp"));
            }
        }
    }
}

#[test]
fn a_guest_receives_its_echo_in_every_configuration() {
    for config in configs() {
        let (front, backend) = connection();
        let mut guest = FakeGuest::over(front, config.clone()).expect("a session");
        guest.wait_link().expect("a link");
        let mut checker = SequenceChecker::default();
        ping(&mut guest, 0, 1000, &mut checker);
        assert!(checker.is_clean(1, 1000), "{config:?}: {checker:?}");
        let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[3; 6000], 1448);
        let last = guest.pairs.len() - 1;
        guest.send_on(last, &frame, &header).expect("room");
        let got = guest
            .recv(LIMIT)
            .expect("a correct device")
            .expect("an echo");
        assert_eq!(
            (got.frame, got.header),
            (
                frame,
                NetHeader {
                    num_buffers: 1,
                    ..header
                }
            )
        );
        assert_eq!(guest.stats().received, 1001);
        assert!(guest.recv_all().expect("fine").is_empty());
        guest.pairs[0].drain().expect("all frames come back");
        drop(guest);
        backend.join().expect("a back end without complaints");
    }
}

#[test]
fn a_guest_survives_reset_reconnect_and_crash() {
    for config in configs() {
        let (front, first) = connection();
        let mut guest = FakeGuest::over(front, config).expect("a session");
        let mut checker = SequenceChecker::default();
        ping(&mut guest, 0, 300, &mut checker);
        guest.reset().expect("a reset");
        ping(&mut guest, 300, 300, &mut checker);
        guest.disconnect().expect("a good end");
        assert!(matches!(guest.wait_link(), Err(GuestError::Disconnected)));
        // A back end that still runs would write to rings that are its successor's by then.
        let gone = "a back end without complaints";
        first.join().expect(gone);
        let (front, second) = connection();
        guest.reconnect_over(front).expect("a session");
        ping(&mut guest, 600, 300, &mut checker);
        guest.crash();
        second.join().expect(gone);
        let (front, third) = connection();
        guest.reconnect_over(front).expect("a session");
        ping(&mut guest, 900, 300, &mut checker);
        guest
            .plug(RegionSpec::at(0x9_0000_0000, 4 << 20))
            .expect("more memory");
        guest.reset().expect("a reset");
        ping(&mut guest, 1200, 100, &mut checker);
        assert!(checker.is_clean(1, 1300), "{checker:?}");
        drop(guest);
        third.join().expect(gone);
    }
}

#[test]
fn what_is_missing_is_named() {
    let (front, backend) = connection();
    let config = GuestConfig::default().requiring(1 << 60);
    assert!(matches!(FakeGuest::over(front, config), Err(GuestError::Missing(m)) if m == 1 << 60));
    backend.join().expect("a back end without complaints");
}

#[test]
fn logging_starts_in_order() {
    let (front, backend) = connection();
    let mut guest = FakeGuest::over(front, GuestConfig::default()).expect("a session");
    let log = guest.start_log().expect("a log");
    assert!(log.dirty_pages().is_empty() && !log.is_dirty(0x1000));
    assert_ne!(guest.front().expect("a session").features & LOG_ALL, 0);
    drop(guest);
    backend.join().expect("a back end without complaints");
}
