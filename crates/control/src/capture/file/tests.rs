//! Captures whose frames are written here.

use std::future::poll_fn;
use std::sync::mpsc;

use channel::capture::{MIN_RING, Region, Seen, Way, Writer};
use port::Offload;

use super::*;

const SEEN: Seen = Seen {
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
fn begin(places: &Places, count: Option<u64>) -> (Region, Writer, Pieces, mpsc::Receiver<()>) {
    begin_with(places, count, 16 * MIN_RING)
}

/// The same with a ring of so many bytes.
fn begin_with(
    places: &Places,
    count: Option<u64>,
    ring: u32,
) -> (Region, Writer, Pieces, mpsc::Receiver<()>) {
    let (region, file) = Region::create(1, ring).unwrap();
    let writer = region.writer(0).unwrap();
    let (tell, told) = mpsc::channel();
    let feed = Feed {
        reader: Region::map(&file, 1, ring).unwrap().reader().unwrap(),
        port: "vm1".to_owned(),
        filter: String::new(),
        snaplen: 60,
        count,
        ended: Box::new(move || {
            let _ = tell.send(());
        }),
    };
    let place = places.take().expect("a place");
    (region, writer, Pieces::new(place, feed), told)
}

/// What comes next, as whoever answers a client asks for it.
async fn next(pieces: &mut Pieces) -> Option<Bytes> {
    let piece = poll_fn(|context| Pin::new(&mut *pieces).poll_frame(context)).await?;
    Some(piece.unwrap().into_data().unwrap())
}

/// The blocks of a whole file.
async fn blocks(mut pieces: Pieces) -> Vec<Vec<u8>> {
    let mut file = Vec::new();
    while let Some(piece) = next(&mut pieces).await {
        assert!((1..ROOM).contains(&piece.len()), "{}", piece.len());
        file.extend_from_slice(&piece);
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

/// The kinds of blocks in a whole file.
async fn kinds(pieces: Pieces) -> Vec<u32> {
    let blocks = blocks(pieces).await;
    blocks.iter().map(|block| word(block, 0)).collect()
}

#[tokio::test]
async fn a_file_ends_with_its_statistics_when_the_switch_ends_it() {
    let (region, mut writer, pieces, told) = begin(&Places::default(), None);
    (0..3).for_each(|_| writer.write(&SEEN, &[0; 60]));
    drop(writer);
    region.end();
    assert_eq!(kinds(pieces).await, [0x0a0d_0d0a, 1, 6, 6, 6, 5]);
    told.try_recv().unwrap();
}

#[tokio::test]
async fn a_file_ends_after_as_many_frames_as_were_wanted() {
    let (_region, mut writer, pieces, told) = begin(&Places::default(), Some(2));
    (0..5).for_each(|_| writer.write(&SEEN, &[0; 60]));
    assert_eq!(kinds(pieces).await, [0x0a0d_0d0a, 1, 6, 6, 5]);
    told.try_recv().unwrap();
}

#[tokio::test]
async fn a_file_begins_at_once_and_frames_come_as_they_are_copied() {
    let (region, mut writer, mut pieces, _told) = begin(&Places::default(), None);
    assert_eq!(word(&next(&mut pieces).await.unwrap(), 0), 0x0a0d_0d0a);
    for n in 0..3 {
        writer.write(&SEEN, &[n; 60]);
        let piece = next(&mut pieces).await.unwrap();
        assert_eq!((word(&piece, 0), piece[28]), (6, n));
        assert_eq!(piece.len(), word(&piece, 4) as usize);
    }
    region.end();
    assert_eq!(kinds(pieces).await, [5]);
}

#[tokio::test]
async fn a_client_that_goes_ends_it_and_one_that_does_not_read_holds_nobody_up() {
    let places = Places::default();
    let (first, mut writer, mut unread, told) = begin(&places, None);
    assert!(next(&mut unread).await.is_some());
    // More than its ring takes.
    for _ in 0..10_000 {
        writer.write(&SEEN, &[0; 60]);
    }
    let counts = first.reader().unwrap().counts();
    assert_eq!(counts.meant, 10_000);
    assert!(counts.lost > 0);
    let (region, mut other, pieces, _) = begin(&places, None);
    other.write(&SEEN, &[0; 60]);
    region.end();
    assert_eq!(kinds(pieces).await, [0x0a0d_0d0a, 1, 6, 5]);
    assert!(told.try_recv().is_err());
    drop(unread);
    told.try_recv().unwrap();
}

#[tokio::test]
async fn a_client_that_reads_late_gets_all_that_waits_for_it() {
    const FRAMES: u32 = 30_000;
    let (region, mut writer, pieces, told) = begin_with(&Places::default(), None, 4 << 20);
    for n in 0..FRAMES {
        let mut bytes = [0; 60];
        bytes[..4].copy_from_slice(&n.to_ne_bytes());
        writer.write(&SEEN, &bytes);
    }
    drop(writer);
    region.end();
    let blocks = blocks(pieces).await;
    told.try_recv().unwrap();
    let packets = blocks.iter().filter(|block| word(block, 0) == 6);
    assert!(packets.map(|block| word(block, 28)).eq(0..FRAMES));
}

#[tokio::test]
async fn memory_is_used_again_once_it_was_sent() {
    let (_region, mut writer, mut pieces, _told) = begin(&Places::default(), None);
    let mut places = Vec::new();
    for _ in 0..6 {
        writer.write(&SEEN, &[0; 60]);
        let piece = next(&mut pieces).await.unwrap();
        places.push(piece.as_ptr());
    }
    assert_eq!((places[0], places[1]), (places[2], places[3]));
    assert_eq!((places[0], places[1]), (places[4], places[5]));
}

#[tokio::test]
async fn there_are_so_many_places_and_a_place_is_free_again() {
    let places = Places::default();
    let mut open: Vec<_> = (0..MAX_CAPTURES).map(|_| begin(&places, None)).collect();
    assert!(places.take().is_none());
    open.pop();
    assert!(places.take().is_some());
}
