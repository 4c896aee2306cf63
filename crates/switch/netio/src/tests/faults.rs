//! Memory that the system cannot read.

use std::ffi::c_void;
use std::ptr;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::*;
use wire::MacAddr;
use wire::build::PacketBuilder;

/// Bytes of a frame in private memory.
const PRIVATE: usize = 64;
const PAGE: usize = 4096;

/// A page of a file that has become shorter.
struct Missing(*mut c_void);

impl Missing {
    fn new() -> Self {
        let file = memfd_create("netio-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, PAGE as u64).unwrap();
        let how = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the place is the system's choice.
        let page = unsafe { mmap(ptr::null_mut(), PAGE, how.0, how.1, &file, 0) }.unwrap();
        // SAFETY: the page is mapped, and has no other user.
        unsafe { page.write_bytes(0x77, PAGE) };
        ftruncate(&file, 0).unwrap();
        Self(page)
    }

    /// Another page takes its place.
    fn mend(&self) {
        let how = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the place is a mapping of the test's own that nothing refers to.
        unsafe { mmap_anonymous(self.0, PAGE, how.0, how.1 | MapFlags::FIXED) }.unwrap();
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        // SAFETY: the mapping is the test's own.
        unsafe { munmap(self.0, PAGE) }.unwrap();
    }
}

/// Datagram number `n` of a flow, which is left to be checksummed, with its virtio header.
fn datagram(n: u16) -> Vec<u8> {
    let packet = PacketBuilder::new(MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]));
    let packet = packet.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2);
    let packet = packet.ip_id(n).payload(&[n as u8; 200]).partial_checksum();
    let header = NetHeader {
        flags: net::FLAG_NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 6,
        ..NetHeader::default()
    };
    [&header.encode()[..], &packet.build()].concat()
}

/// A frame of no flow.
fn frame(n: u16) -> Vec<u8> {
    let frame = [&ADDRESSES[..], &[0x88, 0xb5], &[n as u8; 200]];
    [&[0; net::LEN][..], &frame.concat()].concat()
}

/// Adds the frames; those in `missing` have their rest in such a page.
fn push(outbox: &mut Outbox, frames: &[Vec<u8>], head: usize, missing: &[(usize, &Missing)]) {
    for (id, bytes) in frames.iter().enumerate() {
        let (header, frame) = bytes.split_first_chunk().unwrap();
        let (head, rest) = frame.split_at(head);
        let page = missing.iter().find(|(at, _)| *at == id);
        let start = page.map_or(rest.as_ptr(), |(_, page)| page.0.cast_const().cast());
        // SAFETY: the frames and the pages outlive the outbox's use of them.
        assert!(unsafe { outbox.push(id as u16, *header, head, [(start, rest.len())]) });
    }
}

/// Checks that what left is these of the frames, which may have come as a super-frame.
fn check(mut got: Vec<Vec<u8>>, frames: &[Vec<u8>], sent: &[usize]) {
    let payload = |frame: &[u8]| frame[net::LEN + 14..].to_vec();
    got.iter_mut().for_each(|frame| *frame = payload(frame));
    let expected: Vec<_> = sent.iter().map(|at| payload(&frames[*at])).collect();
    assert_eq!(got, expected);
}

/// Runs a test with each kind of interface: the queue that sends, and the one that receives.
fn with_both(test: impl Fn(&mut Queue, &mut Queue)) {
    let Some(mut world) = world() else { return };
    test(&mut world.tap, &mut world.socket);
    world.tap.receive_all();
    test(&mut world.socket, &mut world.tap);
}

#[test]
fn memory_that_is_gone_stops_at_its_frame_alone() {
    with_both(|from, to| {
        let (page, other) = (Missing::new(), Missing::new());
        let frames: Vec<_> = (0..6).map(frame).collect();
        let mut outbox = Outbox::new(true);
        push(&mut outbox, &frames, PRIVATE, &[(1, &page), (4, &other)]);
        let before = from.counters;
        let (done, stop) = from.send(&mut outbox);
        assert_eq!((done, stop), (vec![(0, true)], Stop::Fault));
        let rest = frames[1].len() - net::LEN - PRIVATE;
        let at_fault: Vec<_> = outbox.first_group().collect();
        assert_eq!(at_fault, [(page.0.cast_const().cast(), rest)]);
        // It is the caller's decision: one is dropped, and the other gets memory.
        let mut done = Vec::new();
        assert_eq!(outbox.drop_first_group(&mut done), 1);
        assert_eq!(done, [(1, false)]);
        assert_eq!(
            from.send(&mut outbox),
            (vec![(2, true), (3, true)], Stop::Fault)
        );
        assert_eq!(from.send(&mut outbox), (vec![], Stop::Fault), "as before");
        other.mend();
        assert_eq!(
            from.send(&mut outbox),
            (vec![(4, true), (5, true)], Stop::Done)
        );
        let mut sent = frames.clone();
        sent[4][net::LEN + PRIVATE..].fill(0);
        check(to.receive_all(), &sent, &[0, 2, 3, 4, 5]);
        let counters = from.counters;
        assert_eq!(counters.sent.frames - before.sent.frames, 5);
        assert_eq!(
            counters.rejected_by_interface, before.rejected_by_interface,
            "by the interface"
        );
    });
}

#[test]
fn memory_that_is_gone_takes_no_other_frame_of_a_super_frame_with_it() {
    with_both(|from, to| {
        let page = Missing::new();
        let frames: Vec<_> = (0..5).map(datagram).collect();
        let mut outbox = Outbox::new(true);
        push(&mut outbox, &frames, HEAD, &[(2, &page)]);
        let (mut done, stop) = from.send(&mut outbox);
        assert_eq!(
            (&done[..], stop),
            (&[(0, true), (1, true)][..], Stop::Fault)
        );
        assert_eq!(outbox.drop_first_group(&mut done), 1);
        let (rest, stop) = from.send(&mut outbox);
        assert_eq!(rest, [(3, true), (4, true)]);
        assert_eq!(stop, Stop::Done);
        check(to.receive_all(), &frames, &[0, 1, 3, 4]);
        // The kind is not refused because of it.
        let calls = from.counters.sent.calls;
        push(&mut outbox, &frames, HEAD, &[]);
        assert_eq!(from.send(&mut outbox).0.len(), 5);
        assert_eq!(from.counters.sent.calls, calls + 1);
        let got = to.receive_all();
        assert_eq!(got.len(), 1, "one super-frame");
        assert_eq!(got[0][1], net::GSO_UDP_L4);
    });
}

#[test]
fn a_frame_is_copied_whole_and_goes_from_the_copy() {
    with_both(|from, to| {
        let frames: Vec<_> = (0..3).map(frame).collect();
        let mut outbox = Outbox::new(true);
        push(&mut outbox, &frames, PRIVATE, &[]);
        let mut copies = vec![vec![0; 2048]; 3];
        for (at, (copy, frame)) in copies.iter_mut().zip(&frames).enumerate() {
            assert_eq!(outbox.copy(at, &mut copy[..frame.len() - 1]), None);
            assert_eq!(outbox.copy(at, copy), Some(frame.len()));
            assert_eq!(copy[..frame.len()], frame[..]);
        }
        assert_eq!(outbox.copy(3, &mut copies[0]), None);
        assert!(outbox.ids().eq(0..3) && outbox.lens().all(|len| len as usize == frames[0].len()));
        outbox.clear();
        assert!(outbox.is_empty());
        for (id, copy) in (0..).zip(&copies) {
            // SAFETY: the copies outlive the outbox's use of them.
            assert!(unsafe { outbox.push_whole(id, copy.as_ptr(), frames[0].len() as u32) });
        }
        from.send(&mut outbox);
        check(to.receive_all(), &frames, &[0, 1, 2]);
    });
}
