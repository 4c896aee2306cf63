//! Tables in files: of a process that is gone, of another process, and of none.
#![cfg(not(miri))]

use super::*;

/// Offset of the slots in a file.
const SLOTS_AT: u64 = 4096;

fn write(file: &OwnedFd, at: u64, word: u64) {
    let written = rustix::io::pwrite(file, &word.to_ne_bytes(), at);
    assert_eq!(written, Ok(8));
}

fn word(file: &OwnedFd, at: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(rustix::io::pread(file, &mut bytes, at), Ok(8));
    u64::from_ne_bytes(bytes)
}

/// A file with a page of each class that small memory permits.
fn left_behind() -> (Rig, OwnedFd) {
    let (writer, file) = IotlbWriter::create().unwrap();
    let mut rig = Rig {
        writer,
        memory: memory(),
    };
    rig.grant(update(0x8000, 0x2000, 0x3000, 1), None);
    rig.grant(update(4 * MIB, 2 * MIB, 2 * MIB, 3), None);
    rig.writer.invalidate(0x9000, 1).unwrap();
    (rig, file)
}

#[test]
fn a_successor_continues_the_table() {
    let (rig, file) = left_behind();
    let (counts, generation) = (rig.counts(), rig.writer.table().generation());
    drop(rig);
    let mut rig = Rig {
        writer: IotlbWriter::resume(&file).unwrap(),
        memory: memory(),
    };
    assert_eq!(
        (rig.counts(), rig.writer.table().generation()),
        (counts, generation)
    );
    assert_eq!(rig.found(0x8000, Access::READ), Some((0x3000, 0x1000)));
    assert_eq!(rig.found(0x9000, Access::READ), None);
    assert_eq!(rig.found(5 * MIB, Access::WRITE), Some((3 * MIB, MIB)));
    rig.writer.invalidate(5 * MIB, 1).unwrap();
    rig.writer.invalidate(0x8000, 1).unwrap();
    assert_eq!(rig.entries(), 0);
}

/// Offsets and values of the words of a file that are not zero.
fn used_words(file: &OwnedFd) -> Vec<u8> {
    let words = (0..sys::file::len(file).unwrap()).step_by(8);
    let used = words
        .map(|at| (at, word(file, at)))
        .filter(|(_, word)| *word != 0);
    used.flat_map(|(at, word)| [at, word])
        .flat_map(u64::to_ne_bytes)
        .collect()
}

#[test]
fn sample_of_a_table() {
    let (rig, file) = left_behind();
    let message = std::array::from_fn(|at| at as u8 + 1);
    rig.writer.set_answered(AnsweredMessage::Waits(message));
    let counts = rig.counts();
    drop(rig);
    let here = env!("CARGO_MANIFEST_DIR");
    let sample =
        testkit::samples::sample(here, "iotlb.bin", file::VERSION as u32, &used_words(&file));
    let old = sys::file::fixed("test", sys::file::len(&file).unwrap()).unwrap();
    let numbers = sample.as_chunks::<8>().0.iter();
    let numbers: Vec<u64> = numbers.map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    for &[at, word] in numbers.as_chunks::<2>().0 {
        write(&old, at, word);
    }
    assert_eq!(
        AnsweredMessage::read(&old).unwrap(),
        AnsweredMessage::Waits(message)
    );
    let rig = Rig {
        writer: IotlbWriter::resume(&old).unwrap(),
        memory: memory(),
    };
    assert_eq!(rig.counts(), counts);
    assert_eq!(rig.found(0x8000, Access::READ), Some((0x3000, 0x1000)));
    assert_eq!(rig.found(0x8000, Access::WRITE), None);
    assert_eq!(rig.found(0x9000, Access::READ), None);
    assert_eq!(rig.found(5 * MIB, Access::WRITE), Some((3 * MIB, MIB)));
}

#[test]
fn a_successor_joins_neighbours_that_came_before_it() {
    let (writer, file) = IotlbWriter::create().unwrap();
    let mut rig = Rig {
        writer,
        memory: memory(),
    };
    for n in 0..512 {
        if n == 300 {
            rig.writer = IotlbWriter::resume(&file).unwrap();
        }
        rig.grant(update(n * PAGE, PAGE, n * PAGE, 1), None);
    }
    assert_eq!(rig.found(0, Access::READ), Some((0, 2 * MIB)));
    assert_eq!(rig.entries(), 1);
}

#[test]
fn another_process_reads_what_is_granted_at_the_moment() {
    let (mut rig, file) = left_behind();
    let reader = Iotlb::attach(&file).unwrap();
    let gpa = |iova| reader.look_up(iova, Access::READ).map(|hit| hit.gpa);
    assert_eq!((gpa(0x8000), gpa(0xa000)), (Some(0x3000), None));
    let generation = reader.generation();
    rig.grant(update(0xa000, 0x1000, 0x7000, 1), None);
    rig.writer.invalidate(0x8000, 0x1000).unwrap();
    assert_eq!((gpa(0x8000), gpa(0xa000)), (None, Some(0x7000)));
    assert_ne!(reader.generation(), generation);
    assert_eq!(reader.counts(), rig.counts());
}

/// A writer that dies while it replaces an entry leaves none in that slot.
#[test]
fn a_slot_that_was_left_half_written_is_free() {
    let (rig, file) = left_behind();
    let entries = rig.entries();
    drop(rig);
    let slots = (0..SLOTS as u64).map(|n| SLOTS_AT + 16 * n);
    let of_page = |at: &u64| word(&file, *at) ^ word(&file, at + 8) == Class::Small.key(8);
    let at = slots.into_iter().find(of_page).expect("the entry");
    write(&file, at, 0);
    write(&file, at + 8, 0x7771);
    let writer = IotlbWriter::resume(&file).unwrap();
    assert_eq!(writer.table().look_up(0x8000, Access::READ), None);
    assert_eq!(writer.table().counts().entries, entries - 1);
}

#[test]
fn a_small_table_takes_little_memory() {
    let (rig, file) = left_behind();
    drop(rig);
    let mut rig = Rig {
        writer: IotlbWriter::resume(&file).unwrap(),
        memory: memory(),
    };
    rig.writer.invalidate(0, u64::MAX).unwrap();
    let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
    assert!(blocks * 512 <= 8 * 4096, "{blocks} blocks of 512 bytes");
}

#[test]
fn files_that_are_no_tables_are_refused() {
    let refused = |file: &OwnedFd| {
        let reader = Iotlb::attach(file).expect_err("refused").to_string();
        let writer = IotlbWriter::resume(file).expect_err("refused").to_string();
        assert_eq!(reader, writer);
        reader
    };
    let empty = |size| sys::file::fixed("test", size).unwrap();
    let text = refused(&empty(file::LEN));
    assert!(text.contains("no table of translations"), "{text}");
    for size in [0, 4096, file::LEN - 4096, file::LEN + 1] {
        let text = refused(&empty(size));
        assert!(text.contains(&format!("{size} bytes")), "{text}");
    }
    let disk = std::fs::File::open("/dev/null").unwrap().into();
    let text = refused(&disk);
    assert!(text.contains("cannot read"), "{text}");
    for (at, says) in [(0, "no table"), (8, "version 9"), (16, "9 slots")] {
        let (_, file) = left_behind();
        write(&file, at, 9);
        let text = refused(&file);
        assert!(text.contains(says), "{text}");
    }
}

/// The creator of the file could truncate it under a mapping.
#[test]
fn a_file_without_seals_is_refused() {
    let (_, file) = left_behind();
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let copy = rustix::fs::memfd_create("test", flags).unwrap();
    let mut bytes = vec![0; file::LEN as usize];
    assert_eq!(rustix::io::pread(&file, &mut bytes, 0), Ok(bytes.len()));
    assert_eq!(rustix::io::pwrite(&copy, &bytes, 0), Ok(bytes.len()));
    let refused = Iotlb::attach(&copy).expect_err("refused");
    assert!(matches!(refused, AttachError::NotSealed), "{refused}");
    let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW;
    rustix::fs::fcntl_add_seals(&copy, seals).unwrap();
    assert!(IotlbWriter::resume(&copy).is_ok());
}

#[test]
fn a_table_with_garbage_is_refused() {
    let block = Block {
        class: Class::Small,
        page: 77,
        frame: 5,
        access: Access::READ,
    };
    let (key, value) = (block.key(), block.value());
    let set = file::set_of(Class::Small, 77) as u64;
    let slot = SLOTS_AT + 64 * set;
    let cases = [
        ("no key", slot, 1, value),
        ("another class", slot, (key + 3) ^ value, value),
        (
            "an address of more than 64 bits",
            slot,
            (key | 1 << 60) ^ value,
            value,
        ),
        ("no access", slot, key ^ 0x50, 0x50),
        ("more than an access", slot, key ^ 0x57, 0x57),
        (
            "memory behind 64 bits",
            slot,
            key ^ (1 << 62 | 1),
            1 << 62 | 1,
        ),
        ("another set", slot + 64, key ^ value, value),
        (
            "a large block that is not aligned",
            slot,
            (key + 1) ^ value,
            value,
        ),
    ];
    for (name, at, check, value) in cases {
        let (_, file) = left_behind();
        write(&file, at, check);
        write(&file, at + 8, value);
        let refused = IotlbWriter::resume(&file);
        let slot = ((at - SLOTS_AT) / 16) as usize;
        let found = refused.as_ref().map(|_| ()).map_err(ToString::to_string);
        let expected = AttachError::Garbage(slot).to_string();
        assert_eq!(found, Err(expected), "{name}");
        // A reader stands it: whatever it finds is checked as a guest's address.
        let reader = Iotlb::attach(&file).unwrap();
        let _ = reader.look_up(77 * PAGE, Access::READ);
    }
    let (_, file) = left_behind();
    for at in [slot, slot + 16] {
        write(&file, at, key ^ value);
        write(&file, at + 8, value);
    }
    assert!(
        IotlbWriter::resume(&file).is_err(),
        "an entry that is there twice"
    );
    write(&file, slot + 16, 0);
    assert!(IotlbWriter::resume(&file).is_ok());
}

/// Any bytes in any place: neither a reader nor a successor fails by them.
#[test]
fn random_bytes_do_no_harm() {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (_, file) = left_behind();
    for n in 0..SLOTS as u64 * 2 {
        write(&file, SLOTS_AT + 8 * n, next());
    }
    write(&file, 64, u64::MAX);
    let reader = Iotlb::attach(&file).unwrap();
    for _ in 0..10_000 {
        let _ = reader.look_up(next(), Access::READ);
    }
    assert!(IotlbWriter::resume(&file).is_err());
}
