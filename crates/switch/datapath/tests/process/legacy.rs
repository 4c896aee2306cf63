//! Guests without VERSION_1, hostile ones among them: their header has 10 bytes (virtio 1.3,
//! 5.1.6.1). Those that follow the rules are among the shapes of `guests`, `dirty` and `migration`.

use ipc::switching::PortPhase;
use port::DropReason;
use testkit::GuestConfig;
use testkit::driver::{DESC_WRITE, Piece, RawDesc, Shape};
use testkit::features::{MRG_RXBUF, VERSION_1};
use testkit::net::{Cuts, NetHeader, RxBuffers, SHORT_HEADER_LEN};

use crate::host::{Host, LIMIT, wait_for};
use crate::threats::send_pieces;
use crate::traffic::{disconnect, numbered, talk};

/// A driver with the short header.
fn legacy() -> GuestConfig {
    GuestConfig::default().legacy().without(MRG_RXBUF)
}

#[test]
fn frames_begin_behind_ten_bytes() {
    let host = Host::with_ports([1, 2]);
    let mut a = host.guest(1, legacy());
    let mut b = host.guest(2, GuestConfig::default());
    assert_eq!(a.features() & VERSION_1, 0);
    for len in [16, 700, 1400] {
        let frame = numbered(1, 2, 1, len);
        let bytes = [&NetHeader::default().to_bytes()[..SHORT_HEADER_LEN], &frame].concat();
        let at = a.ram().alloc(4096, 64);
        let pieces = [Piece::new(at, bytes.len() as u32)];
        send_pieces(&mut a, &pieces, Shape::Direct, &bytes);
        let got = b.recv(LIMIT).expect("correct").expect("a frame");
        assert_eq!(got.frame, frame);

        let frame = numbered(2, 1, 1, len);
        b.send(&frame).expect("room");
        wait_for("a frame", || a.pairs[0].nic.rx.has_used());
        let used = a.pairs[0].nic.rx.poll().expect("sound").expect("a buffer");
        assert_eq!(used.len as usize, SHORT_HEADER_LEN + frame.len());
    }
}

#[test]
fn cve_2022_2132_a_short_header_in_ten_pieces_is_a_header() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, legacy());
    let mut b = host.guest(2, GuestConfig::default());
    let mut c = host.guest(3, legacy());
    for shape in [Shape::Direct, Shape::Indirect, Shape::Mixed(5)] {
        let frame = numbered(1, 2, 3, 500);
        let bytes = [&NetHeader::default().to_bytes()[..SHORT_HEADER_LEN], &frame].concat();
        let at = a.ram().alloc(4096, 64);
        let mut pieces: Vec<_> = (0..12).map(|n| Piece::new(at + 3 * n, 1)).collect();
        pieces.push(Piece::new(at + 100, bytes.len() as u32 - 12));
        send_pieces(&mut a, &pieces, shape, &bytes);
        let got = b.recv(LIMIT).expect("correct").expect("a frame");
        assert_eq!(got.frame, frame);
    }
    // A header without a frame is a runt, and so is one with what would be the rest of a longer
    // header.
    let at = a.ram().alloc(64, 64);
    for (n, len) in [10, 11, 12, 23].into_iter().enumerate() {
        let pieces = [Piece::new(at, len)];
        send_pieces(&mut a, &pieces, Shape::Direct, &vec![0; len as usize]);
        wait_for("a runt", || {
            host.counts(1).dropped(DropReason::Runt) == n as u64 + 1
        });
    }
    a.pairs[0].drain().expect("buffers come back");
    talk(&mut a, &mut b, 20);
    send_pieces(&mut a, &[Piece::new(at, 9)], Shape::Direct, &[0; 9]);
    assert!(host.wait_fault(1, 1).contains("too short"));
    talk(&mut b, &mut c, 20);
}

#[test]
fn cve_2026_86566_runt_receive_buffers() {
    let mut host = Host::with_ports([1, 2, 3]);
    for len in [1, 9, 10, 11, 23] {
        let config = GuestConfig {
            queue_size: 8,
            rx_buffers: Some(RxBuffers::Of(2048)),
            ..legacy()
        };
        let mut victim = host.guest(1, config);
        let mut b = host.guest(2, GuestConfig::default());
        let mut c = host.guest(3, legacy());
        victim.pairs[0].nic.auto_refill = false;
        talk(&mut b, &mut victim, 1);
        let at = victim.ram().alloc(4096, 64);
        let runt = RawDesc {
            gpa: at,
            len,
            flags: DESC_WRITE,
        };
        victim.pairs[0].nic.rx.add_raw(&[runt], 0).expect("room");
        victim.pairs[0].nic.rx.publish();
        let small = host.counts(1).dropped(DropReason::BufferTooSmall);
        for n in 0..8 {
            b.send(&numbered(2, 1, n, 100)).expect("room");
        }
        if len < 10 {
            assert!(host.wait_fault(1, 0).contains("too short"));
        } else {
            wait_for("a drop", || {
                host.counts(1).dropped(DropReason::BufferTooSmall) > small
            });
        }
        let mut memory = [0; 64];
        victim.ram().read(at, &mut memory);
        assert_eq!(memory, [0; 64], "written, {len}");
        talk(&mut b, &mut c, 10);
        host.gone((victim, b, c), 3);
    }
}

/// A frame may end with the last byte of a buffer, or fill one that holds it without the longer
/// header.
#[test]
fn buffers_that_are_exactly_long_enough() {
    let host = Host::with_ports([1, 2]);
    for room in 0..3 {
        for rx_cuts in [Cuts::Together, Cuts::At(vec![10])] {
            let frame = numbered(2, 1, 7, 500);
            let config = GuestConfig {
                rx_buffers: Some(RxBuffers::Of((10 + frame.len() + room) as u32)),
                rx_cuts,
                ..legacy()
            };
            let mut a = host.guest(1, config);
            let mut b = host.guest(2, GuestConfig::default());
            b.send(&frame).expect("room");
            let got = a.recv(LIMIT).expect("correct").expect("a frame");
            assert_eq!(got.frame, frame);
            disconnect([a, b]);
        }
    }
}

#[test]
fn the_next_driver_on_a_port_has_a_header_of_its_own_length() {
    let mut host = Host::with_ports([1, 2]);
    let mut b = host.guest(2, legacy());
    let modern = GuestConfig::default;
    for config in [
        legacy(),
        modern(),
        modern().legacy(),
        modern().packed(),
        legacy(),
    ] {
        let mut a = host.guest(1, config);
        talk(&mut a, &mut b, 50);
        a.disconnect().expect("a good end");
        host.wait_phase(1, PortPhase::Waiting);
    }
}
