//! Parts for fuzz targets, without an interface.

use wire::virtio::net;

use crate::{BATCH, HEAD, Outbox};

/// Returns what is written to an interface for a batch of frames, each with its virtio header of 12
/// bytes: one entry for each system call, or for each message of one. `uso`: the interface takes
/// super-frames of UDP, too.
///
/// # Panics
/// With more than [`BATCH`] frames, or one that is not longer than its header.
#[must_use]
pub fn coalesce(frames: &[Vec<u8>], uso: bool) -> Vec<Vec<u8>> {
    assert!(frames.len() <= BATCH);
    let mut outbox = Outbox::new(uso);
    for (id, frame) in (0u16..).zip(frames) {
        // Every other one is in pieces.
        let (header, rest) = frame.split_first_chunk().expect("a header");
        let (head, rest) = rest.split_at(rest.len().min(HEAD));
        let (one, other) = rest.split_at(rest.len() / 2);
        let pieces = [one, other].map(|piece| (piece.as_ptr(), piece.len()));
        // SAFETY: the frames outlive the outbox, and nothing writes them.
        let is_added = unsafe {
            if id.is_multiple_of(2) {
                outbox.push_whole(id, frame.as_ptr(), frame.len() as u32)
            } else {
                outbox.push(id, *header, head, pieces)
            }
        };
        assert!(is_added);
    }
    outbox.arrange(true);
    let groups = outbox.arranged().map(|group| {
        let mut pieces = Vec::new();
        group.describe(net::LEN, &mut pieces);
        let bytes = pieces.iter().map(|piece| {
            let start = piece.iov_base.cast_const().cast::<u8>();
            // SAFETY: a piece is a part of the outbox or of a frame, which both live here and are
            // not written meanwhile.
            unsafe { std::slice::from_raw_parts(start, piece.iov_len) }
        });
        bytes.flatten().copied().collect()
    });
    groups.collect()
}
