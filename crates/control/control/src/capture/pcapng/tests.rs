//! Files parsed by a strict reader.

use port::{DropReason, Gso};

use super::*;

/// A block: type, body.
fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut all = Vec::new();
    while !file.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let (kind, len) = (word(0), word(4) as usize);
        assert!(len.is_multiple_of(4) && (12..=file.len()).contains(&len));
        assert_eq!(
            word(len - 4) as usize,
            len,
            "the length stands at both ends"
        );
        all.push((kind, file[8..len - 4].to_vec()));
        file = &file[len..];
    }
    all
}

fn options(mut rest: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        let half = |at: usize| u16::from_ne_bytes(rest[at..at + 2].try_into().unwrap());
        let (code, len) = (half(0), usize::from(half(2)));
        if code == 0 {
            assert_eq!(rest.len(), 4, "nothing follows the end of options");
            return all;
        }
        all.push((code, rest[4..4 + len].to_vec()));
        rest = &rest[4 + len.next_multiple_of(4)..];
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

const SEEN: FrameMetadata = FrameMetadata {
    at_ns: 0x0123_4567_89ab_cdef,
    len: 5,
    way: Way::Out,
    dropped: None,
    offload: Offload {
        checksum: None,
        gso: None,
    },
};

#[test]
fn a_file_has_its_blocks_in_order() {
    let mut file = Vec::new();
    begin(&mut file, "vm1", "tcp port 80", 96);
    packet(&mut file, &SEEN, &[1, 2, 3, 4, 5]);
    end(&mut file, 9, Counts { meant: 7, lost: 2 }, 5);
    let all = blocks(&file);
    let kinds: Vec<u32> = all.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0x0a0d_0d0a, 1, 6, 5]);

    let section = &all[0].1;
    assert_eq!((word(section, 0), word(section, 4)), (0x1a2b_3c4d, 1));
    assert_eq!(section[8..16], [0xff; 8]);

    let interface = &all[1].1;
    assert_eq!((word(interface, 0), word(interface, 4)), (1, 96));
    let named = options(&interface[8..]);
    assert_eq!(named[0], (2, b"vm1".to_vec()));
    assert_eq!(named[1], (11, b"\0tcp port 80".to_vec()));
    assert_eq!(named[2], (9, vec![9]));

    let frame = &all[2].1;
    let head: Vec<u32> = (0..5).map(|n| word(frame, 4 * n)).collect();
    assert_eq!(head, [0, 0x0123_4567, 0x89ab_cdef, 5, 5]);
    assert_eq!(frame[20..28], [1, 2, 3, 4, 5, 0, 0, 0]);
    assert_eq!(options(&frame[28..]), [(2, 2_u32.to_ne_bytes().to_vec())]);

    let counts = options(&all[3].1[12..]);
    let numbers = [(4, 7_u64), (5, 2), (8, 5)];
    assert_eq!(
        counts,
        numbers.map(|(code, n)| (code, n.to_ne_bytes().to_vec()))
    );
}

#[test]
fn drop_reason_and_offloads_are_comments() {
    let seen = FrameMetadata {
        way: Way::In,
        dropped: Some(DropReason::ReceiverFull),
        offload: Offload {
            checksum: Some(PartialChecksum {
                start: 34,
                offset: 16,
            }),
            gso: Some(Gso {
                kind: GsoKind::Tcp4,
                size: 1448,
                ecn: false,
                header_len: 66,
            }),
        },
        ..SEEN
    };
    let mut file = Vec::new();
    packet(&mut file, &seen, &[]);
    let said = options(&blocks(&file)[0].1[20..]);
    let texts: Vec<_> = said.iter().filter(|(code, _)| *code == 1).collect();
    let text = |at: usize| String::from_utf8(texts[at].1.clone()).unwrap();
    assert_eq!(text(0), "dropped: receiver-full");
    let expected = "offload: checksum of bytes from 34 at 50; tcp4 segments of 1448 bytes";
    assert_eq!(text(1), expected);
    assert_eq!(said[0], (2, 1_u32.to_ne_bytes().to_vec()));
}

#[test]
fn every_length_is_padded() {
    for len in 0..9 {
        let mut file = Vec::new();
        packet(&mut file, &SEEN, &vec![7; len]);
        assert_eq!(word(&blocks(&file)[0].1, 12) as usize, len);
    }
    let mut file = Vec::new();
    begin(&mut file, "vm1", &"x".repeat(100_000), 1);
    assert_eq!(blocks(&file).len(), 2);
}
