//! Captures whose frames are written here.

use std::future::poll_fn;

use channel::capture::{MIN_RING, Region, Seen, Way, Writer};
use port::Offload;
use tokio::runtime::Builder;

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
fn begin(feeder: &Feeder, count: Option<u64>) -> (Region, Writer, Pieces, threads::Receiver<()>) {
    begin_with(feeder, count, 16 * MIN_RING)
}

/// The same with a ring of so many bytes.
fn begin_with(
    feeder: &Feeder,
    count: Option<u64>,
    ring: u32,
) -> (Region, Writer, Pieces, threads::Receiver<()>) {
    let (region, file) = Region::create(1, ring).unwrap();
    let writer = region.writer(0).unwrap();
    let (tell, told) = threads::channel();
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
    let place = feeder.place().expect("a place");
    (region, writer, feeder.feed(place, feed), told)
}

/// The kinds of blocks in a whole file.
fn kinds(mut pieces: Pieces) -> Vec<u32> {
    let mut file = Vec::new();
    while let Some(piece) = pieces.pieces.blocking_recv() {
        file.extend_from_slice(&piece);
    }
    let (mut rest, mut kinds) = (&file[..], Vec::new());
    while !rest.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
        kinds.push(word(0));
        rest = &rest[word(4) as usize..];
    }
    kinds
}

#[test]
fn a_file_ends_with_its_statistics_when_the_switch_ends_it() {
    let feeder = Feeder::start().unwrap();
    let (region, mut writer, pieces, told) = begin(&feeder, None);
    (0..3).for_each(|_| writer.write(&SEEN, &[0; 60]));
    drop(writer);
    region.end();
    assert_eq!(kinds(pieces), [0x0a0d_0d0a, 1, 6, 6, 6, 5]);
    told.recv().unwrap();
}

#[test]
fn a_file_ends_after_as_many_frames_as_were_wanted() {
    let feeder = Feeder::start().unwrap();
    let (_region, mut writer, pieces, told) = begin(&feeder, Some(2));
    (0..5).for_each(|_| writer.write(&SEEN, &[0; 60]));
    assert_eq!(kinds(pieces), [0x0a0d_0d0a, 1, 6, 6, 5]);
    told.recv().unwrap();
}

#[test]
fn a_client_that_goes_ends_it_and_one_that_does_not_read_holds_nobody_up() {
    let feeder = Feeder::start().unwrap();
    let (_first, mut writer, unread, told) = begin(&feeder, None);
    // More than waits for a client.
    for _ in 0..10_000 {
        writer.write(&SEEN, &[0; 60]);
    }
    let (region, mut other, pieces, _) = begin(&feeder, None);
    other.write(&SEEN, &[0; 60]);
    region.end();
    assert_eq!(kinds(pieces), [0x0a0d_0d0a, 1, 6, 5]);
    assert!(told.try_recv().is_err());
    drop(unread);
    told.recv().unwrap();
}

#[test]
fn a_client_that_reads_late_gets_all_that_waits_for_it() {
    const FRAMES: u32 = 30_000;
    let feeder = Feeder::start().unwrap();
    let (region, mut writer, mut pieces, told) = begin_with(&feeder, None, 4 << 20);
    for n in 0..FRAMES {
        let mut bytes = [0; 60];
        bytes[..4].copy_from_slice(&n.to_ne_bytes());
        writer.write(&SEEN, &bytes);
    }
    drop(writer);
    region.end();
    // As many pieces as may wait do, and the thread waits for room.
    while pieces.pieces.len() < WAITING {
        std::thread::yield_now();
    }
    let (mut file, mut most) = (Vec::new(), 0);
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        // As whoever answers a client asks for them.
        while let Some(piece) = poll_fn(|cx| Pin::new(&mut pieces).poll_frame(cx)).await {
            let piece = piece.unwrap().into_data().unwrap();
            most = most.max(piece.len());
            file.extend_from_slice(&piece);
        }
    });
    told.recv().unwrap();
    assert!(most < ROOM);
    let (mut rest, mut next) = (&file[..], 0);
    while !rest.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
        if word(0) == 6 {
            assert_eq!(word(28), next);
            next += 1;
        }
        rest = &rest[word(4) as usize..];
    }
    assert_eq!(next, FRAMES);
}

#[test]
fn there_are_so_many_places_and_a_place_is_free_again() {
    let feeder = Feeder::start().unwrap();
    let mut open: Vec<_> = (0..MAX_CAPTURES).map(|_| begin(&feeder, None)).collect();
    assert!(feeder.place().is_none());
    let (_, _, pieces, told) = open.pop().unwrap();
    drop(pieces);
    told.recv().unwrap();
    while feeder.place().is_none() {
        std::thread::yield_now();
    }
}
