use std::ops::Range;

use memory::Segment;

use super::*;
use crate::counters::{Counters, PortCounts, Traffic};
use crate::decorate::Faulty;
use crate::loopback::LoopbackPort;

fn frame(len: usize) -> Vec<u8> {
    (0..len).map(|i| i as u8).collect()
}

fn take_all(port: &mut impl Port) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    port.take(0, &mut batch);
    let frames = (0..batch.frames().len())
        .map(|i| {
            let (headers, payload, offload) = batch.split(i);
            Outgoing {
                headers: headers.as_slice(),
                payload: &payload,
                offload: *offload,
            }
            .to_vec()
        })
        .collect();
    port.release(0);
    frames
}

#[test]
fn a_frame_comes_out_as_it_went_in_whatever_its_length() {
    for len in [14, 60, 191, 192, 193, 1514, 65_553] {
        let mut port = LoopbackPort::new(true);
        port.waiting.push_back((frame(len), Offload::default()));
        assert_eq!(take_all(&mut port), [frame(len)], "length {len}");
    }
}

#[test]
fn runts_and_giants_are_dropped_by_name() {
    let mut port = LoopbackPort::new(true);
    for len in [13, 14, 65_553, 65_554] {
        port.waiting.push_back((frame(len), Offload::default()));
    }
    let mut batch = Batch::new();
    port.take(0, &mut batch);
    assert_eq!(batch.frames().len(), 2);
    assert_eq!(batch.taken().packets, 4, "drops were taken too");
    let drops: Vec<_> = batch.drops().collect();
    assert_eq!(drops, [(DropReason::Runt, 1), (DropReason::Oversize, 1)]);
}

#[test]
fn a_batch_is_never_longer_than_64() {
    let mut port = LoopbackPort::new(true);
    for _ in 0..100 {
        port.waiting.push_back((frame(60), Offload::default()));
    }
    assert_eq!(take_all(&mut port).len(), BATCH);
    assert_eq!(take_all(&mut port).len(), 100 - BATCH);
}

#[test]
fn names_of_drops_are_unique_and_their_order_is_the_counters() {
    let mut names: Vec<_> = REASONS.iter().map(|r| r.name()).collect();
    for (index, reason) in REASONS.iter().enumerate() {
        assert_eq!(*reason as usize, index);
        assert!(!reason.help().is_empty());
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), REASONS.len());
}

#[test]
fn counters_are_per_port_and_shared_between_mappings() {
    let fd = rustix::fs::memfd_create("counters", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, counters::SIZE).unwrap();
    let (writer, reader) = (Counters::map(&fd).unwrap(), Counters::map(&fd).unwrap());
    let last = PortId(counters::MAX_PORTS as u32 - 1);
    writer.add_from(
        last,
        Traffic {
            packets: 2,
            bytes: 120,
        },
    );
    writer.add_to(
        PortId(0),
        Traffic {
            packets: 1,
            bytes: 60,
        },
    );
    writer.add_drops(last, DropReason::FaultInjected, 3);
    let counts = reader.read(last);
    assert_eq!(
        counts.from_guest,
        Traffic {
            packets: 2,
            bytes: 120
        }
    );
    assert_eq!(counts.to_guest, Traffic::default());
    assert_eq!(counts.dropped(DropReason::FaultInjected), 3);
    assert_eq!(counts.drops.iter().sum::<u64>(), 3);
    assert_eq!(reader.read(PortId(0)).to_guest.bytes, 60);
    writer.clear(last);
    assert_eq!(
        reader.read(last),
        PortCounts {
            drops: vec![0; REASONS.len()],
            ..Default::default()
        }
    );
    assert_eq!(reader.read(PortId(0)).to_guest.packets, 1);
}

#[test]
fn copies_of_mirrors_are_counted_beside_ports_and_for_each() {
    let counters = Counters::heap();
    let last = (counters::MAX_MIRRORS - 1) as u8;
    counters.add_copy(0, 100, None);
    counters.add_copy(last, 60, None);
    counters.add_copy(last, 70, None);
    for reason in counters::COPY_LOSSES {
        counters.add_copy(last, 1000, Some(reason));
    }
    counters.add_copy(last, 1000, Some(counters::COPY_LOSSES[4]));
    let copied = |packets, bytes| Traffic { packets, bytes };
    assert_eq!(counters.read_mirror(0).copied, copied(1, 100));
    let counts = counters.read_mirror(last);
    assert_eq!(
        (counts.copied, counts.lost),
        (copied(2, 130), [1, 1, 1, 1, 2])
    );
    assert_eq!(counters.read(PortId(0)), Counters::heap().read(PortId(0)));
    assert_eq!(counters.ticks_per_second(), None);
    counters.clear_mirror(last);
    assert_eq!(
        counters.read_mirror(last),
        counters::MirrorCounts::default()
    );
    assert_eq!(counters.read_mirror(0).copied, copied(1, 100));
}

#[test]
fn offloads_are_taken_only_whole() {
    let checksum = Some(PartialChecksum {
        start: 34,
        offset: 16,
    });
    let tso = |kind, ecn| Offload {
        checksum,
        gso: Some(Gso {
            kind,
            size: 1448,
            ecn,
            header_len: 0,
        }),
    };
    let plain = Accepts {
        checksum: true,
        tso4: true,
        ..Accepts::default()
    };
    assert!(plain.takes(&Offload::default()));
    assert!(plain.takes(&Offload {
        checksum,
        gso: None
    }));
    assert!(plain.takes(&tso(GsoKind::Tcp4, false)));
    assert!(!plain.takes(&tso(GsoKind::Tcp4, true)), "CWR needs ECN");
    assert!(!plain.takes(&tso(GsoKind::Tcp6, false)));
    assert!(!plain.takes(&tso(GsoKind::Udp4, false)));
    assert!(!Accepts::default().takes(&Offload {
        checksum,
        gso: None
    }));
    let no_checksum = Accepts {
        checksum: false,
        ..Accepts::ALL
    };
    assert!(
        !no_checksum.takes(&tso(GsoKind::Tcp4, false)),
        "segments carry checksums"
    );
}

#[test]
fn a_faulty_port_loses_every_nth_frame() {
    let mut port = Faulty::new(LoopbackPort::new(false), 3);
    let bytes = frame(60);
    let out = Outgoing {
        headers: &bytes,
        payload: &Payload::empty(),
        offload: Offload::default(),
    };
    let lost = (0..9)
        .filter(|_| port.deliver(0, &out) == Err(DropReason::FaultInjected))
        .count();
    assert_eq!(lost, 3);
    assert_eq!(port.into_inner().delivered.len(), 6);
}

/// Bytes before a frame in its buffer.
const SKIP: u32 = 12;
/// Bytes of a piece of a frame that is in several.
const PIECE: usize = 33;

fn whole(batch: &mut Batch, index: usize) -> Vec<u8> {
    let (headers, payload, offload) = batch.split(index);
    Outgoing {
        headers: headers.as_slice(),
        payload: &payload,
        offload: *offload,
    }
    .to_vec()
}

/// Appends `bytes` to the arena in pieces of at most `piece` bytes; their range.
fn in_pieces(batch: &mut Batch, bytes: &mut [u8], piece: usize) -> Range<u32> {
    let start = batch.segments_mut().len() as u32;
    batch
        .segments_mut()
        .extend(bytes.chunks_mut(piece).map(|chunk| Segment {
            ptr: chunk.as_mut_ptr(),
            len: chunk.len() as u32,
            gpa: 0,
        }));
    start..batch.segments_mut().len() as u32
}

#[test]
fn a_frame_is_the_same_however_it_is_pushed_and_however_deep() {
    let lens = (14..300).chain([1514, 9014, MAX_FRAME as usize]);
    for len in lens {
        let mut bytes: Vec<u8> = (0..SKIP as usize + len).map(|i| (i * 7) as u8).collect();
        let desired = bytes[SKIP as usize..].to_vec();
        let head = &desired[..len.min(wire::vlan::CAP)];
        {
            let mut batch = Batch::new();
            let at = in_pieces(&mut batch, &mut bytes, usize::MAX).start;
            let cut = in_pieces(&mut batch, &mut bytes, PIECE);
            let found = Whole {
                at,
                from: batch.segments_mut()[0].ptr.wrapping_add(SKIP as usize),
                skip: SKIP,
                len: len as u32,
            };
            // SAFETY: `bytes` holds SKIP + len bytes and outlives the batch.
            unsafe {
                assert_eq!(batch.push_wholes(|_| std::iter::once(found)), 1);
                batch.push(at..at + 1, SKIP, len as u32, Offload::default());
                batch.push(cut, SKIP, len as u32, Offload::default());
            }
            assert_eq!(batch.taken().bytes, 3 * len as u64);
            let in_one = if SKIP as usize + len > PIECE { 2 } else { 3 };
            for index in 0..3 {
                let held = batch.frames()[index].headers.len();
                assert_eq!(held, len.min(SHALLOW), "frame {index} of {len} bytes");
                assert_eq!(whole(&mut batch, index), desired);
                assert_eq!(pieces(&batch, 0..3), vec![desired.as_slice(); in_one]);
                batch.deepen(index);
                assert_eq!(pieces(&batch, 0..3), vec![desired.as_slice(); in_one]);
                assert_eq!(batch.frames()[index].headers.as_slice(), head);
                assert_eq!(batch.frames()[index].len() as usize, len);
                assert_eq!(whole(&mut batch, index), desired);
                batch.deepen(index);
                assert_eq!(
                    whole(&mut batch, index),
                    desired,
                    "once more changes nothing"
                );
            }
        }
    }
}

/// The bytes of the frames that go out as they are.
fn pieces(batch: &Batch, frames: Range<usize>) -> Vec<Vec<u8>> {
    let joined = |piece: Piece<'_>| {
        // SAFETY: the callers' batches are of bytes that they hold.
        let rest = unsafe { std::slice::from_raw_parts(piece.rest, piece.rest_len as usize) };
        [piece.head, rest].concat()
    };
    batch.pieces(frames, MAX_FRAME).map(joined).collect()
}

#[test]
fn frames_go_out_as_they_are_up_to_the_first_that_cannot() {
    let mut frames = [frame(60), frame(900), frame(200), frame(70)];
    let mut batch = Batch::new();
    let mut found = Vec::new();
    for bytes in &mut frames {
        let at = in_pieces(&mut batch, bytes, usize::MAX).start;
        let (from, len) = (bytes.as_ptr(), bytes.len() as u32);
        let skip = 0;
        found.push(Whole {
            at,
            from,
            skip,
            len,
        });
    }
    // SAFETY: `frames` outlives the batch.
    assert_eq!(unsafe { batch.push_wholes(|_| found.into_iter()) }, 4);
    assert_eq!(batch.taken().packets, 4);
    assert_eq!(batch.taken().bytes, 60 + 900 + 200 + 70);
    assert_eq!(pieces(&batch, 0..4), frames);
    assert_eq!(
        pieces(&batch, 1..9),
        [[0; 0]; 0],
        "there are no nine frames"
    );
    let lens = |longest| -> Vec<u32> { batch.pieces(0..4, longest).map(|p| p.len()).collect() };
    assert_eq!(lens(900), [60, 900, 200, 70]);
    assert_eq!(lens(899), [60]);
    // SAFETY: as above.
    unsafe { batch.push(0..2, 0, 100, Offload::default()) };
    assert_eq!(pieces(&batch, 3..5), frames[3..], "the last one is in two");
    assert_eq!(batch.retag(2..5, Some(5)), 2);
    assert_eq!(
        pieces(&batch, 2..4)[0][..18],
        [&frames[2][..12], &[0x81, 0, 0, 5, 12, 13]].concat()
    );
    assert_eq!(batch.retag(2..5, None), 2);
    assert_eq!(pieces(&batch, 0..4), frames);
}

#[test]
fn a_full_batch_takes_no_more() {
    let mut bytes = frame(64);
    let mut batch = Batch::new();
    let at = in_pieces(&mut batch, &mut bytes, usize::MAX).start;
    let (from, skip, len) = (bytes.as_ptr(), 0, 64);
    let one = Whole {
        at,
        from,
        skip,
        len,
    };
    // SAFETY: `bytes` outlives the batch.
    let pushed = unsafe { batch.push_wholes(|_| std::iter::repeat(one)) };
    assert_eq!((pushed, batch.is_full()), (BATCH, true));
}

#[test]
fn a_head_that_lost_its_tag_grows_without_a_gap() {
    let mut bytes = frame(400);
    bytes[12..14].copy_from_slice(&[0x81, 0]);
    let mut desired = bytes.clone();
    desired.drain(12..16);
    let mut batch = Batch::new();
    let range = in_pieces(&mut batch, &mut bytes, 100);
    // SAFETY: `bytes` outlives the batch.
    unsafe { batch.push(range, 0, 400, Offload::default()) };
    assert!(batch.split(0).0.pop_vlan().is_some());
    batch.deepen(0);
    assert_eq!(whole(&mut batch, 0), desired);
}

#[test]
fn frames_with_one_ethernet_header_have_the_same_words() {
    let mut frames = [60, 1000, 64, 15, 64].map(|len| {
        let mut bytes = frame(len);
        bytes[14..].fill(len as u8);
        bytes
    });
    frames[4][0] = 0xff;
    let mut batch = Batch::new();
    for bytes in &mut frames {
        let range = in_pieces(&mut batch, bytes, usize::MAX);
        // SAFETY: the frames outlive the batch.
        unsafe { batch.push(range, 0, bytes.len() as u32, Offload::default()) };
    }
    let words = |index: usize| batch.frames()[index].ethernet_words();
    assert!(words(0).is_some() && words(0) == words(1) && words(0) == words(2));
    assert_eq!(words(3), None, "too short");
    assert_ne!(words(4), words(0), "another destination");
}

#[test]
fn frames_with_something_left_undone_are_looked_at() {
    let mut bytes = frame(100);
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes[14..24].copy_from_slice(&[0x45, 0, 0, 80, 0, 0, 0, 0, 64, 17]);
    let mut batch = Batch::new();
    let range = in_pieces(&mut batch, &mut bytes, usize::MAX);
    let undone = Offload {
        checksum: Some(PartialChecksum {
            start: 34,
            offset: 6,
        }),
        gso: None,
    };
    for (len, offload) in [(100, Offload::default()), (100, undone), (47, undone)] {
        // SAFETY: `bytes` outlives the batch.
        unsafe { batch.push(range.clone(), 0, len, offload) };
    }
    let heads = batch.frames().iter().map(|frame| frame.plain_head());
    let seen = heads.map(|head| head.is_some());
    assert_eq!(seen.collect::<Vec<_>>(), [true, false, false]);
}

/// The header with the mirrors, and the slot of port 0.
#[test]
fn sample_of_counters() {
    let file = |bytes: &[u8]| {
        let fd = rustix::fs::memfd_create("counters", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, counters::SIZE).unwrap();
        assert_eq!(rustix::io::pwrite(&fd, bytes, 0), Ok(bytes.len()));
        fd
    };
    let (fd, port) = (file(&[]), PortId(0));
    let writer = Counters::map(&fd).unwrap();
    writer.set_ticks_per_second(1 << 30);
    let traffic = |packets, bytes| Traffic { packets, bytes };
    writer.add_from(port, traffic(1, 60));
    writer.add_to(port, traffic(2, 120));
    for (count, reason) in (1..).zip(REASONS) {
        writer.add_drops(port, *reason, count);
    }
    let (switching, copying) = (100, 200);
    writer.add_ticks(port, counters::Ticks { switching, copying });
    writer.add_masked(port);
    writer.add_copy(1, 60, None);
    for reason in counters::COPY_LOSSES {
        writer.add_copy(1, 60, Some(reason));
    }
    let mut bytes = [0; 4096 + 512];
    assert_eq!(rustix::io::pread(&fd, &mut bytes[..], 0), Ok(bytes.len()));
    let here = env!("CARGO_MANIFEST_DIR");
    let sample = testkit::samples::sample(here, "counters-10.bin", &bytes);
    let reader = Counters::map(&file(&sample)).unwrap();
    assert_eq!(reader.ticks_per_second(), Some(1 << 30));
    assert_eq!(reader.read(port), writer.read(port));
    assert_eq!(reader.read(port).dropped(REASONS[1]), 2);
    assert_eq!(reader.read_mirror(1), writer.read_mirror(1));
}
