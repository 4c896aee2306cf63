//! Work that is left to the interface: checksums and segmentation.

use std::os::fd::{AsFd, AsRawFd};

use super::*;
use wire::build::{PacketBuilder, TcpFields};
use wire::checksum::complete_partial;
use wire::{MacAddr, ParsedHeaders, Sum, VlanTci, tcp};

/// `TUNSETOFFLOAD` of `linux/if_tun.h`.
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;

/// The checksums that may be left to the interface: protocols, with the place of the checksum in
/// the transport header. Each over IPv4 and IPv6, with and without a tag.
fn packets() -> Vec<(NetHeader, Vec<u8>)> {
    let mut all = Vec::new();
    for (is_tcp, is_v6, is_tagged) in (0..8).map(|n| (n & 1 > 0, n & 2 > 0, n & 4 > 0)) {
        let mut packet =
            PacketBuilder::new(MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]));
        if is_tagged {
            packet = packet.vlan(VlanTci::new(5));
        }
        packet = if is_v6 {
            packet.ipv6([0xfd; 16], [0xfc; 16])
        } else {
            packet.ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        };
        packet = if is_tcp {
            packet.tcp(TcpFields {
                flags: tcp::ACK,
                ..TcpFields::default()
            })
        } else {
            packet.udp(1, 2)
        };
        let frame = packet.payload(&[7; 301]).partial_checksum().build();
        let parsed = ParsedHeaders::parse(&frame, frame.len());
        let header = NetHeader {
            flags: net::FLAG_NEEDS_CSUM,
            csum_start: parsed.l4_offset.unwrap(),
            csum_offset: if is_tcp { 16 } else { 6 },
            ..NetHeader::default()
        };
        all.push((header, frame));
    }
    all
}

/// The frame as the last receiver sees it.
fn completed(header: &NetHeader, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if header.needs_csum() {
        let NetHeader {
            csum_start,
            csum_offset,
            ..
        } = *header;
        complete_partial(&mut frame, csum_start, csum_offset, Sum::new()).expect("a checksum");
    }
    frame
}

fn push(outbox: &mut Outbox, packets: &[(NetHeader, Vec<u8>)]) {
    for (id, (header, frame)) in (0..).zip(packets) {
        let (head, rest) = frame.split_at(frame.len().min(MAX_HEAD));
        // SAFETY: the frames outlive the outbox's use of them, and nothing writes them.
        assert!(unsafe { outbox.push(id, header.encode(), head, [(rest.as_ptr(), rest.len())]) });
    }
}

/// Sends the packets from one queue to the other; what arrives, with its header.
fn cross(
    from: &mut Queue,
    to: &mut Queue,
    packets: &[(NetHeader, Vec<u8>)],
) -> Vec<(NetHeader, Vec<u8>)> {
    let mut outbox = Outbox::new(true);
    push(&mut outbox, packets);
    let (done, stop) = from.send(&mut outbox);
    assert_eq!(stop, Stop::Done);
    assert!(done.iter().all(|(_, is_sent)| *is_sent), "{done:?}");
    let got = to.receive_all().into_iter();
    let split = got.map(|bytes| {
        let (header, frame) = bytes.split_first_chunk().unwrap();
        (NetHeader::decode(header), frame.to_vec())
    });
    split.collect()
}

#[test]
fn checksums_that_are_left_to_the_interface_are_completed_or_left_to_the_next() {
    let Some(mut world) = world() else { return };
    let sent = packets();
    let expected: Vec<_> = sent
        .iter()
        .map(|(of, frame)| completed(of, frame))
        .collect();
    let World { tap, socket, .. } = &mut world;
    let finish = |got: Vec<(NetHeader, Vec<u8>)>| -> Vec<Vec<u8>> {
        got.iter().map(|(of, frame)| completed(of, frame)).collect()
    };
    // Each is of another flow: none is coalesced.
    assert_eq!(
        finish(cross(tap, socket, &sent)),
        expected,
        "from a TAP device"
    );
    assert_eq!(
        finish(cross(socket, tap, &sent)),
        expected,
        "from a packet socket"
    );
    // A receiver that takes no unfinished checksum gets none: the kernel completes each.
    let queue = tap.receiver.as_fd().as_raw_fd();
    // SAFETY: the request takes a number.
    let done = unsafe { libc::ioctl(queue, TUNSETOFFLOAD, 0) };
    assert_eq!(done, 0);
    let got = cross(socket, tap, &sent);
    assert!(got.iter().all(|(header, _)| !header.needs_csum()));
    let frames: Vec<_> = got.into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(frames, expected, "by the kernel");
}

#[test]
fn a_header_that_the_system_cannot_use_costs_its_frame() {
    let Some(mut world) = world() else { return };
    let mut sent = packets();
    sent.truncate(4);
    sent[1].0.csum_start = 60_000;
    (sent[2].0.gso_type, sent[2].0.gso_size) = (77, 100);
    let check = |from: &mut Queue, to: &mut Queue| {
        let mut outbox = Outbox::new(true);
        push(&mut outbox, &sent);
        let (done, stop) = from.send(&mut outbox);
        assert_eq!(done, [(0, true), (1, false), (2, false), (3, true)]);
        assert_eq!(stop, Stop::Done);
        assert_eq!(from.counters.rejected_by_interface, 2);
        assert_eq!(to.receive_all().len(), 2);
    };
    check(&mut world.tap, &mut world.socket);
    check(&mut world.socket, &mut world.tap);
}
