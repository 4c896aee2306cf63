use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use testkit::samples::sample;

use super::*;

/// Bytes of the sample: the cursors and the first two slots.
const SAMPLE: usize = AT_SLOTS + 16;

/// A file of one queue that begins with these bytes.
fn file(bytes: &[u8]) -> OwnedFd {
    let fd = memfd_create("journal", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, JournalRegion::size(1)).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, bytes, 0), Ok(bytes.len()));
    fd
}

fn journal(fd: &OwnedFd) -> Journal {
    let region = Arc::new(JournalRegion::map(fd, 1).unwrap());
    assert!(matches!(region.last_start(0), 0 | 3));
    Journal::new(region, 0, 3).unwrap()
}

// The number in the name is the version of the format "journal" in `ipc::formats`.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memory files")]
fn sample_of_a_journal() {
    let fd = file(&[]);
    let writer = journal(&fd);
    let (from, to) = (Cursor::from_bits(5), Cursor::from_bits(0x8002));
    writer.keep(0, 0x0080_0007_0000_05ea);
    writer.keep(1, 0x8080_0008_0000_0040);
    writer.moves(from, to);
    let mut bytes = [0; SAMPLE];
    assert_eq!(rustix::io::pread(&fd, &mut bytes[..], 0), Ok(SAMPLE));
    let sample = sample(env!("CARGO_MANIFEST_DIR"), "journal.bin", 10, &bytes);
    let reader = journal(&file(&sample));
    assert_eq!(reader.last_move(8), Ok(Some((from, to))));
    let kept = [reader.kept(0), reader.kept(1)];
    assert_eq!(kept, [0x0080_0007_0000_05ea, 0x8080_0008_0000_0040]);
}
