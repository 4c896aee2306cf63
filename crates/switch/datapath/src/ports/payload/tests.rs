use super::*;

/// Segments of these lengths, one behind the other in `bytes`.
fn segments(bytes: &[u8], lengths: &[usize]) -> Vec<Segment> {
    let mut at = 0;
    let next = lengths.iter().map(|len| {
        let piece = &bytes[at..at + len];
        at += len;
        Segment {
            ptr: piece.as_ptr().cast_mut(),
            len: *len as u32,
            gpa: 0,
        }
    });
    next.collect()
}

fn bytes_of(payload: &Payload<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    payload.append_to(&mut bytes);
    bytes
}

#[test]
fn parts_are_the_whole_and_none_looks_at_what_lies_before_it() {
    let bytes: Vec<u8> = (0..200).collect();
    for lengths in [
        &[200][..],
        &[1; 200],
        &[7, 0, 93, 100],
        &[0, 0, 199, 1],
        &[50, 50, 50, 50],
    ] {
        let segments = segments(&bytes, lengths);
        for (skip, len) in [(0, 200), (13, 150), (50, 100), (199, 1), (200, 0)] {
            // SAFETY: the segments lie in `bytes`.
            let payload = unsafe { Payload::new(&segments, skip, len) };
            let whole = &bytes[skip as usize..][..len as usize];
            for size in [1, 7, 50, 149, 150, 1000] {
                let parts: Vec<_> = payload.parts(size).collect();
                let expected: Vec<_> = whole.chunks(size as usize).collect();
                let got: Vec<_> = parts.iter().map(bytes_of).collect();
                assert_eq!(got, expected, "{lengths:?} {skip} {len} {size}");
                for part in &parts {
                    let first = part.segments.first().expect("where it begins");
                    assert!(part.skip < first.len, "{lengths:?} {skip} {len} {size}");
                }
            }
        }
    }
}

#[test]
fn parts_of_no_bytes_are_of_one() {
    let bytes = [1, 2, 3];
    let segments = segments(&bytes, &[3]);
    // SAFETY: the segment is `bytes`.
    let payload = unsafe { Payload::new(&segments, 0, 3) };
    assert_eq!(payload.parts(0).count(), 3);
    assert_eq!(Payload::empty().parts(7).count(), 0);
}
