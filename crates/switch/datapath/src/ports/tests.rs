use std::ops::Range;

use memory::Segment;
use port::{DropReason, Gso, MAX_FRAME, Offload, PartialChecksum};
use wire::segment::GsoKind;

use super::batch::{BATCH, Batch, FramePlace, Piece, SHALLOW};
use super::calls::PendingCalls;
use super::loopback::LoopbackPort;
use super::payload::Outgoing;
use super::port::{Accepts, Port};

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
    port.release(0, &mut PendingCalls::default());
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
            let found = FramePlace {
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
        found.push(FramePlace {
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
    let one = FramePlace {
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
