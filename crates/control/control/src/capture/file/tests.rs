//! Captures of frames that these tests write.

use std::future::poll_fn;
use std::sync::mpsc;

use ipc::capture::{FrameMetadata, MIN_RING, Region, Way, Writer};
use port::Offload;

use super::*;

const SEEN: FrameMetadata = FrameMetadata {
    at_ns: 1,
    len: 60,
    way: Way::In,
    dropped: None,
    offload: Offload {
        checksum: None,
        gso: None,
    },
};

/// A capture, and a message when it has ended.
fn begin(
    slots: &CaptureSlots,
    count: Option<u64>,
) -> (Region, Writer, CaptureBody, mpsc::Receiver<()>) {
    begin_with(slots, count, 16 * MIN_RING)
}

/// A capture with a ring of this many bytes.
fn begin_with(
    slots: &CaptureSlots,
    count: Option<u64>,
    ring: u32,
) -> (Region, Writer, CaptureBody, mpsc::Receiver<()>) {
    let (region, file) = Region::create(1, ring).unwrap();
    let writer = region.writer(0).unwrap();
    let (ended, has_ended) = mpsc::channel();
    let source = CaptureSource {
        reader: Region::map(&file, 1, ring).unwrap().reader().unwrap(),
        port: "vm1".to_owned(),
        filter: String::new(),
        snaplen: 60,
        count,
        ended: Box::new(move || {
            let _ = ended.send(());
        }),
    };
    let slot = slots.acquire().expect("a slot");
    (region, writer, CaptureBody::new(slot, source), has_ended)
}

/// Returns the next chunk, as polled by the HTTP server.
async fn next(body: &mut CaptureBody) -> Option<Bytes> {
    let chunk = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
    Some(chunk.unwrap().into_data().unwrap())
}

/// Returns the blocks of a whole file.
async fn blocks(mut body: CaptureBody) -> Vec<Vec<u8>> {
    let mut file = Vec::new();
    while let Some(chunk) = next(&mut body).await {
        assert!(
            (1..CHUNK_CAPACITY).contains(&chunk.len()),
            "{}",
            chunk.len()
        );
        file.extend_from_slice(&chunk);
    }
    let (mut rest, mut blocks) = (&file[..], Vec::new());
    while !rest.is_empty() {
        let (block, behind) = rest.split_at(word(rest, 4) as usize);
        blocks.push(block.to_vec());
        rest = behind;
    }
    blocks
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Returns the types of the blocks in a whole file.
async fn kinds(body: CaptureBody) -> Vec<u32> {
    let blocks = blocks(body).await;
    blocks.iter().map(|block| word(block, 0)).collect()
}

#[tokio::test]
async fn a_file_ends_with_its_statistics_when_the_switch_ends_it() {
    let (region, mut writer, body, has_ended) = begin(&CaptureSlots::default(), None);
    (0..3).for_each(|_| writer.write(&SEEN, &[0; 60]));
    drop(writer);
    region.end();
    assert_eq!(kinds(body).await, [0x0a0d_0d0a, 1, 6, 6, 6, 5]);
    has_ended.try_recv().unwrap();
}

#[tokio::test]
async fn a_file_ends_after_the_requested_number_of_frames() {
    let (_region, mut writer, body, has_ended) = begin(&CaptureSlots::default(), Some(2));
    (0..5).for_each(|_| writer.write(&SEEN, &[0; 60]));
    assert_eq!(kinds(body).await, [0x0a0d_0d0a, 1, 6, 6, 5]);
    has_ended.try_recv().unwrap();
}

#[tokio::test]
async fn a_file_begins_at_once_and_frames_come_as_they_are_copied() {
    let (region, mut writer, mut body, _told) = begin(&CaptureSlots::default(), None);
    assert_eq!(word(&next(&mut body).await.unwrap(), 0), 0x0a0d_0d0a);
    for n in 0..3 {
        writer.write(&SEEN, &[n; 60]);
        let chunk = next(&mut body).await.unwrap();
        assert_eq!((word(&chunk, 0), chunk[28]), (6, n));
        assert_eq!(chunk.len(), word(&chunk, 4) as usize);
    }
    region.end();
    assert_eq!(kinds(body).await, [5]);
}

#[tokio::test]
async fn a_capture_ends_with_its_client_and_a_slow_client_delays_no_other() {
    let slots = CaptureSlots::default();
    let (first, mut writer, mut unread, has_ended) = begin(&slots, None);
    assert!(next(&mut unread).await.is_some());
    // More than its ring holds.
    for _ in 0..10_000 {
        writer.write(&SEEN, &[0; 60]);
    }
    let counts = first.reader().unwrap().counts();
    assert_eq!(counts.meant, 10_000);
    assert!(counts.lost > 0);
    let (region, mut other, body, _) = begin(&slots, None);
    other.write(&SEEN, &[0; 60]);
    region.end();
    assert_eq!(kinds(body).await, [0x0a0d_0d0a, 1, 6, 5]);
    assert!(has_ended.try_recv().is_err());
    drop(unread);
    has_ended.try_recv().unwrap();
}

#[tokio::test]
async fn a_client_that_reads_late_gets_all_that_waits_for_it() {
    const FRAMES: u32 = 30_000;
    let (region, mut writer, body, has_ended) = begin_with(&CaptureSlots::default(), None, 4 << 20);
    for n in 0..FRAMES {
        let mut bytes = [0; 60];
        bytes[..4].copy_from_slice(&n.to_ne_bytes());
        writer.write(&SEEN, &bytes);
    }
    drop(writer);
    region.end();
    let blocks = blocks(body).await;
    has_ended.try_recv().unwrap();
    let packets = blocks.iter().filter(|block| word(block, 0) == 6);
    assert!(packets.map(|block| word(block, 28)).eq(0..FRAMES));
}

#[tokio::test]
async fn memory_is_used_again_once_it_was_sent() {
    let (_region, mut writer, mut body, _told) = begin(&CaptureSlots::default(), None);
    let mut slots = Vec::new();
    for _ in 0..6 {
        writer.write(&SEEN, &[0; 60]);
        let chunk = next(&mut body).await.unwrap();
        slots.push(chunk.as_ptr());
    }
    assert_eq!((slots[0], slots[1]), (slots[2], slots[3]));
    assert_eq!((slots[0], slots[1]), (slots[4], slots[5]));
}

#[tokio::test]
async fn captures_are_bounded_and_a_slot_is_reused() {
    let slots = CaptureSlots::default();
    let mut open: Vec<_> = (0..MAX_CAPTURES).map(|_| begin(&slots, None)).collect();
    assert!(slots.acquire().is_none());
    open.pop();
    assert!(slots.acquire().is_some());
}
