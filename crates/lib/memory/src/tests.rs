use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

#[cfg(not(miri))]
use mapping::Mapping;
use proptest::prelude::*;

use super::*;

fn memory(parts: &[(u64, u64)]) -> GuestMemory {
    let regions = parts
        .iter()
        .map(|&(gpa, size)| Arc::new(Region::heap(gpa, size, 0x7000_0000_0000 + gpa)))
        .collect();
    GuestMemory::new(regions, None).unwrap()
}

#[cfg(not(miri))]
fn memfd(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

#[test]
fn translates_inside_one_region_only() {
    let m = memory(&[(0, 0x1000), (0x2000, 0x1000)]);
    assert!(m.translate(0, 0x1000).is_some());
    assert!(m.translate(0xfff, 1).is_some());
    assert!(m.translate(0xfff, 2).is_none());
    assert!(m.translate(0x1000, 1).is_none());
    assert!(m.translate(0x2fff, 1).is_some());
    assert!(m.translate(0, 0).is_none());
    assert!(m.translate(u64::MAX, 1).is_none());
}

#[test]
fn crosses_adjacent_regions_in_pieces() {
    let m = memory(&[(0x1000, 0x1000), (0, 0x1000), (0x3000, 0x1000)]);
    let mut out = Vec::new();
    assert!(m.translate_into(0xff0, 0x20, &mut out));
    assert_eq!(out.iter().map(|s| s.len).collect::<Vec<_>>(), [0x10, 0x10]);
    assert_eq!(out[1].gpa, 0x1000);
    assert!(!m.translate_into(0x1ff0, 0x20, &mut out), "a hole follows");
    assert_eq!(out.len(), 2, "a refusal leaves nothing behind");
    assert!(!m.translate_into(0, 0, &mut out));
}

/// As many regions as there may be, with gaps, each followed by one that touches it.
#[test]
fn many_regions_translate_as_few_do_from_several_threads() {
    let parts: Vec<_> = (0..MAX_REGIONS as u64)
        .map(|n| (n / 2 * 0x10_000 + n % 2 * 0x1000, 0x1000))
        .collect();
    let m = memory(&parts);
    let check = |n: usize| {
        let (gpa, size) = parts[n];
        for (offset, len) in [(0, 1), (0xfff, 1), (0, 0x1000), (8, 64)] {
            let found = m.translate(gpa + offset, len).expect("mapped");
            let region = &m.regions()[n];
            assert_eq!(found.ptr, region.as_ptr().wrapping_add(offset as usize));
            assert_eq!(found.gpa, gpa + offset);
        }
        assert!(m.translate(gpa + size - 8, 16).is_none());
        let mut pieces = Vec::new();
        let next_touches = n.is_multiple_of(2) && n + 1 < parts.len();
        assert_eq!(
            m.translate_into(gpa + size - 8, 16, &mut pieces),
            next_touches
        );
        assert_eq!(pieces.len(), if next_touches { 2 } else { 0 });
        if n % 2 == 1 {
            assert!(m.translate(gpa + size, 1).is_none(), "a gap");
        }
    };
    std::thread::scope(|scope| {
        for step in [1, 7, 200, 508] {
            let check = &check;
            scope.spawn(move || (0..2000).for_each(|n| check(n * step % MAX_REGIONS)));
        }
    });
    let logged = m.with_log(None);
    assert_eq!(logged.translate(0x10_000, 8).map(|s| s.gpa), Some(0x10_000));
}

#[test]
fn user_addresses_map_to_guest_addresses() {
    let m = memory(&[(0x1000, 0x1000)]);
    assert_eq!(m.user_to_guest(0x7000_0000_1010), Some(0x1010));
    assert_eq!(m.user_to_guest(0x7000_0000_2000), None);
    assert_eq!(m.user_to_guest(0), None);
}

#[test]
fn overlap_is_refused() {
    let a = Arc::new(Region::heap(0, 0x2000, 0));
    let b = Arc::new(Region::heap(0x1000, 0x1000, 0x9000));
    assert!(matches!(
        GuestMemory::new(vec![b, a], None),
        Err(MemoryError::Overlap {
            first: 0,
            second: 0x1000
        })
    ));
}

#[test]
fn too_many_regions_are_refused() {
    let regions = (0..510)
        .map(|i| Arc::new(Region::heap(i * 0x1000, 0x10, i * 0x1000)))
        .collect();
    assert!(matches!(
        GuestMemory::new(regions, None),
        Err(MemoryError::TooMany(510))
    ));
}

#[test]
#[cfg(not(miri))]
fn cve_2026_86561_region_size_is_checked_before_mapping() {
    let too_long = Region::map(memfd(0x1000), 0, 0x2000, 0, 0);
    assert!(matches!(
        too_long,
        Err(MemoryError::Mapping(MappingError::FileTooShort { .. }))
    ));
    let offset = Region::map(memfd(0x2000), 0, 0x1000, 0, u64::MAX - 0xfff);
    assert!(matches!(
        offset,
        Err(MemoryError::Mapping(MappingError::Wraps { .. }))
    ));
    let wraps = Region::map(memfd(0x1000), u64::MAX - 0xfff, 0x1000, 0, 0);
    assert!(matches!(
        wraps,
        Err(MemoryError::Mapping(MappingError::Wraps { .. }))
    ));
    let empty = Region::map(memfd(0x1000), 0, 0, 0, 0);
    assert!(matches!(
        empty,
        Err(MemoryError::Mapping(MappingError::Empty))
    ));
}

#[test]
#[cfg(not(miri))]
fn a_region_starts_at_its_offset() {
    let fd = memfd(0x3000);
    rustix::io::pwrite(&fd, b"here", 0x1004).unwrap();
    let region = Region::map(fd, 0, 0x1000, 0, 0x1000).unwrap();
    let mut got = [0u8; 4];
    // SAFETY: the region is 0x1000 bytes long and no thread writes it.
    unsafe { region.as_ptr().add(4).copy_to(got.as_mut_ptr(), 4) };
    assert_eq!(&got, b"here");
}

#[test]
#[cfg(not(miri))]
fn cve_2026_86563_log_offset_is_applied_once() {
    let fd = memfd(0x3000);
    let dup = fd.try_clone().unwrap();
    let log = DirtyLog::over(Mapping::shared(&fd, 0x1000, 0x1000).unwrap());
    log.mark(0, 1);
    let mut byte = [0u8; 1];
    rustix::io::pread(&dup, &mut byte, 0x1000).unwrap();
    assert_eq!(byte, [1]);
}

#[test]
fn cve_2019_14835_marks_behind_the_log_are_ignored() {
    let log = DirtyLog::heap(2);
    log.mark(0, u64::MAX);
    assert!((0..16).all(|p| log.is_dirty(p)));
    assert!(!log.is_dirty(16));
    log.mark(u64::MAX - 1, 100);
}

proptest! {
    #[test]
    fn marks_exactly_the_pages_touched(gpa in 0u64..100_000, len in 0u64..20_000) {
        let log = DirtyLog::heap(8);
        log.mark(gpa, len);
        for page in 0..64 {
            let touched = len > 0 && gpa < (page + 1) * LOG_PAGE && gpa + len > page * LOG_PAGE;
            prop_assert_eq!(log.is_dirty(page), touched, "page {}", page);
        }
    }

    #[test]
    fn pieces_cover_the_range_once(gpa in 0u64..0x5000, len in 1u32..0x5000) {
        let parts = [(0, 0x1000), (0x1000, 0x800), (0x1800, 0x1800), (0x4000, 0x1000)];
        let m = memory(&parts);
        let mut out = Vec::new();
        let end = gpa + u64::from(len);
        let mapped = end <= 0x3000 || (gpa >= 0x4000 && end <= 0x5000);
        prop_assert_eq!(m.translate_into(gpa, len, &mut out), mapped);
        if mapped {
            prop_assert_eq!(out[0].gpa, gpa);
            prop_assert_eq!(out.iter().map(|s| s.len).sum::<u32>(), len);
        }
    }
}

proptest! {
    #[test]
    fn copies_bytes_in_order_whatever_the_pieces(
        bytes in proptest::collection::vec(any::<u8>(), 1..600),
        cuts_in in proptest::collection::vec(1u32..90, 1..20),
        cuts_out in proptest::collection::vec(1u32..90, 1..20),
        skip in 0u32..100,
    ) {
        let m = memory(&[(0, 0x1000), (0x1000, 0x1000)]);
        let pieces = |base: u64, cuts: &[u32]| {
            let mut segs = Vec::new();
            let (mut at, mut i) = (0u32, 0);
            while (at as usize) < bytes.len() {
                let len = cuts[i % cuts.len()].min(bytes.len() as u32 - at);
                segs.push(m.translate(base + u64::from(at), len).unwrap());
                at += len;
                i += 1;
            }
            segs
        };
        let (source, target) = (pieces(0, &cuts_in), pieces(0x1000, &cuts_out));
        let skip = skip.min(bytes.len() as u32);
        // SAFETY: `m` outlives the cursors.
        unsafe {
            prop_assert_eq!(copy::Cursor::new(&source).write(&bytes), bytes.len());
            let mut from = copy::Cursor::new(&source);
            prop_assert_eq!(from.skip(skip), skip);
            let len = bytes.len() as u32;
            prop_assert_eq!(copy::Cursor::new(&target).copy_from(&mut from, len), len - skip);
            let mut got = vec![0; bytes.len()];
            prop_assert_eq!(copy::Cursor::new(&target).read(&mut got), bytes.len());
            prop_assert_eq!(&got[..bytes.len() - skip as usize], &bytes[skip as usize..]);
        }
    }
}

#[test]
#[cfg(not(miri))]
fn memory_that_is_cut_off_becomes_dummy_pages_and_says_so() {
    mapping::survive_truncation().unwrap();
    let fd = memfd(0x3000);
    let dup = fd.try_clone().unwrap();
    let region = Arc::new(Region::map(fd, 0, 0x3000, 0, 0).unwrap());
    let other = Arc::new(Region::map(memfd(0x1000), 0x3000, 0x1000, 0x3000, 0).unwrap());
    let m = GuestMemory::new(vec![region.clone(), other.clone()], None).unwrap();
    let before = mapping::lost_mappings();
    assert!(!m.is_lost());
    rustix::fs::ftruncate(&dup, 0).unwrap();
    // SAFETY: the address is inside the region; the handler puts memory there again.
    let byte = unsafe {
        region.as_ptr().add(0x2fff).write_volatile(7);
        region.as_ptr().add(0x2fff).read_volatile()
    };
    assert_eq!(byte, 7, "a dummy page is there");
    assert!(m.is_lost() && region.is_lost() && !other.is_lost());
    assert!(mapping::lost_mappings() > before);
}

#[test]
#[cfg(not(miri))]
fn regions_are_made_of_pages() {
    let odd = [
        (0, 4095, 0, 0, "size 0xfff"),
        (1, 4096, 0, 0, "guest address 0x1"),
        (0, 4096, 8, 0, "user address 0x8"),
        (0, 4096, 0, 2048, "mmap offset 0x800"),
    ];
    for (gpa, size, uva, offset, what) in odd {
        let refused = Region::map(memfd(0x4000), gpa, size, uva, offset).unwrap_err();
        let reason = format!("memory region with {what}, which is no multiple of 4096");
        assert_eq!(refused.to_string(), reason);
    }
}

/// Bytes that differ from their neighbours and from zero.
fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 7 + salt) % 251 + 1) as u8).collect()
}

/// All up to more than the longest that is copied in registers; some of them under Miri.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=300).step_by(if cfg!(miri) { 7 } else { 1 })
}

/// Offsets at which a copy starts: aligned, odd, and at the end of a line.
const OFFSETS: [usize; 4] = [0, 1, 13, 63];

#[test]
fn copy_of_every_length_is_that_of_slices_and_writes_nothing_beside() {
    let from = pattern(400, 0);
    for len in lengths() {
        for source in OFFSETS {
            for target in OFFSETS {
                let mut got = pattern(400, 100);
                let mut desired = got.clone();
                desired[target..target + len].copy_from_slice(&from[source..source + len]);
                // SAFETY: both hold 63 + 300 bytes and more.
                unsafe {
                    let (from, to) = (from.as_ptr().add(source), got.as_mut_ptr().add(target));
                    copy::copy_bytes::<copy::SharedMemory>(from, to, len);
                }
                assert_eq!(got, desired, "{len} bytes from {source} to {target}");
            }
        }
    }
}

#[test]
fn copy_between_overlapping_ranges_keeps_to_the_target() {
    for len in lengths() {
        for (source, target) in [(50, 50), (50, 51), (51, 50), (50, 90), (90, 50), (0, 64)] {
            let before = pattern(500, 0);
            let mut bytes = before.clone();
            let base = bytes.as_mut_ptr();
            // SAFETY: the ranges end before 90 + 300.
            unsafe {
                copy::copy_bytes::<copy::SharedMemory>(base.add(source), base.add(target), len)
            };
            let end = target + len;
            assert_eq!(bytes[..target], before[..target]);
            assert_eq!(bytes[end..], before[end..]);
            if source == target || len > 256 {
                assert_eq!(bytes[target..end], before[source..source + len]);
            }
        }
    }
}

#[test]
fn words_are_read_and_written_wherever_they_lie() {
    let (low, high) = (0x8877_6655_4433_2211, 0xccbb_aa99);
    for at in 0..16 {
        for cut in 1..24 {
            let mut bytes = pattern(48, 0);
            let before = bytes.clone();
            let base = bytes.as_mut_ptr();
            let segments = [(0, cut), (cut, 48 - cut)].map(|(start, len)| Segment {
                ptr: base.wrapping_add(start as usize),
                len,
                gpa: 0,
            });
            // SAFETY: `bytes` outlives the cursors and is not touched meanwhile.
            let (wrote, read) = unsafe {
                let mut cursor = copy::Cursor::new(&segments);
                cursor.skip(at);
                let wrote = cursor.write_words(low, high, 12);
                let mut cursor = copy::Cursor::new(&segments);
                cursor.skip(at);
                (wrote, cursor.read_words(12))
            };
            let at = at as usize;
            assert_eq!((wrote, read), (12, Some((low, high))));
            let desired: Vec<u8> = (1..=12).map(|i| i * 0x11).collect();
            assert_eq!(bytes[at..at + 12], desired);
            assert_eq!(bytes[..at], before[..at]);
            assert_eq!(bytes[at + 12..], before[at + 12..]);
        }
    }
}

#[test]
fn words_end_with_the_memory() {
    for len in 0..12u32 {
        let mut bytes = [0; 12];
        let segments = [Segment {
            ptr: bytes.as_mut_ptr(),
            len,
            gpa: 0,
        }];
        let segments = if len == 0 { &[][..] } else { &segments[..] };
        // SAFETY: `bytes` outlives the cursors.
        unsafe {
            assert_eq!(copy::Cursor::new(segments).read_words(12), None);
            let least = copy::Cursor::new(segments).read_words(10);
            assert_eq!(least, (len >= 10).then_some((0, 0)));
            let wrote = copy::Cursor::new(segments).write_words(u64::MAX, u32::MAX, 12);
            assert_eq!(wrote, len as usize);
        }
        assert!(bytes[len as usize..].iter().all(|b| *b == 0));
    }
}

#[test]
fn words_end_where_the_writer_says() {
    for cut in 1..12 {
        let mut bytes = [0; 12];
        let base = bytes.as_mut_ptr();
        let segments = [(0, cut), (cut, 12 - cut)].map(|(start, len)| Segment {
            ptr: base.wrapping_add(start as usize),
            len,
            gpa: 0,
        });
        // SAFETY: `bytes` outlives the cursors and is not touched meanwhile.
        let (wrote, then) = unsafe {
            let mut cursor = copy::Cursor::new(&segments);
            (
                cursor.write_words(u64::MAX, u32::MAX, 10),
                cursor.write(&[1, 2, 3]),
            )
        };
        assert_eq!((wrote, then), (10, 2));
        assert_eq!(
            bytes,
            [255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 2]
        );
    }
}

#[test]
fn stored_words_differ_only_where_they_should() {
    // A page that cannot be written shows a store of what is there already.
    #[cfg(not(miri))]
    {
        let fd = memfd(4096);
        let words: [u8; 12] = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0];
        rustix::io::pwrite(&fd, &words, 0).unwrap();
        let flags = rustix::mm::MapFlags::SHARED;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ,
                flags,
                &fd,
                0,
            )
        }
        .unwrap();
        // SAFETY: the page is mapped; nothing is written to it, or this process ends by a signal.
        unsafe { copy::store_words(at.cast(), 1, 2) };
        // SAFETY: mapped above, used no more.
        unsafe { rustix::mm::munmap(at, 4096) }.unwrap();
    }
    for (low, high) in [(1, 2), (9, 2), (1, 9), (9, 9)] {
        let mut bytes = [0; 13];
        // SAFETY: twelve bytes from 1 on.
        let got = unsafe {
            let at = bytes.as_mut_ptr().add(1);
            copy::store_words(at, 1, 2);
            copy::store_words(at, low, high);
            copy::load_words(at)
        };
        assert_eq!((got, bytes[0]), ((low, high), 0));
    }
}

/// A guest writes while every function of the crate reads and writes the same bytes: each byte is
/// one that was written. Miri finds accesses that race, see the crate's section on concurrency.
#[test]
fn a_guest_may_write_while_its_memory_is_copied() {
    const SIZE: u32 = 320;
    const LENGTHS: [usize; 15] = [1, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 65, 256, 257, 300];
    let rounds = if cfg!(miri) { 1 } else { 3000 };
    let memory = memory(&[(0, 4096)]);
    let (one, other) = (memory.translate(0, SIZE), memory.translate(0x800, SIZE));
    let (one, other) = (one.unwrap(), other.unwrap());
    std::thread::scope(|scope| {
        let switch = scope.spawn(move || {
            let one = [one.slice(5, 315)];
            let other = [other.slice(3, 317)];
            for len in LENGTHS.repeat(rounds) {
                copy_all_ways(&one, &other, len);
            }
        });
        for value in [0, 0xff].into_iter().cycle() {
            for at in (0..SIZE as usize)
                .flat_map(|at| [one.ptr.wrapping_add(at), other.ptr.wrapping_add(at)])
            {
                // SAFETY: the regions outlive the scope.
                unsafe { AtomicU8::from_ptr(at) }.store(value, Ordering::Relaxed);
            }
            if switch.is_finished() {
                break;
            }
        }
    });
}

/// Reads and writes `len` bytes by every function; all are bytes of the guest.
fn copy_all_ways(one: &[Segment], other: &[Segment], len: usize) {
    let written = |bytes: &[u8]| bytes.iter().all(|byte| [0, 0xff].contains(byte));
    let mut got = vec![1; len];
    // SAFETY: the caller keeps the segments mapped.
    unsafe {
        assert_eq!(copy::Cursor::new(one).read(&mut got), len);
        assert!(written(&got), "{len}: {got:x?}");
        let (low, high) = copy::Cursor::new(one).read_words(12).unwrap();
        assert!(written(&low.to_le_bytes()) && written(&high.to_le_bytes()));
        copy::Cursor::new(other).copy_from(&mut copy::Cursor::new(one), len as u32);
        copy::Cursor::new(other).write(&got);
        copy::Cursor::new(other).write_words(0, u32::MAX, 12);
    }
}
