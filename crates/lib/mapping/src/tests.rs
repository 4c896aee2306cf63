//! Files that are cut off, that have no page, and mappings that the system does not undo.

use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::fs::MemfdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn memfd(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

/// A file of huge pages, none of which need exist.
fn huge(name: &str, size: MemfdFlags, len: u64) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | size;
    // A system may have no huge pages of this size.
    let fd = rustix::fs::memfd_create(name, flags).ok()?;
    rustix::fs::ftruncate(&fd, len).unwrap();
    Some(fd)
}

/// Returns the number of mappings of a file of this name.
fn mapped(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

/// Writes to a mapping, and reads that back.
fn touch(mapping: &Mapping, offset: usize) {
    // SAFETY: callers name an offset in the mapping; the handler puts memory there where there is
    // none.
    let byte = unsafe {
        let at = mapping.as_ptr().add(offset);
        at.write_volatile(7);
        at.read_volatile()
    };
    assert_eq!(byte, 7, "a dummy page is there");
}

/// Runs a test of this file again, in a process of its own, whose whole address space and limits it
/// may spoil.
fn alone(name: &str, test: fn()) {
    const CHILD: &str = "LASTHOP_MAPPING_TEST";
    if std::env::var_os(CHILD).is_some() {
        return test();
    }
    let name = format!("tests::{name}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn limit(resource: Resource, to: u64) {
    let maximum = getrlimit(resource).maximum;
    let current = Some(to);
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

/// The system maps, unmaps and replaces whole huge pages only: 4096 bytes of one are mapped as one
/// (firecracker#6043).
#[test]
fn a_piece_of_huge_pages_is_unmapped_whatever_its_length() {
    let name = "lasthop-unmapped";
    let Some(fd) = huge(name, MemfdFlags::HUGE_2MB, 4 * MIB) else {
        return;
    };
    let before = mapped(name);
    for _ in 0..100 {
        for (size, offset) in [
            (4096, 0),
            (2 * MIB + 4096, 0),
            (4096, 4096),
            (8192, 2 * MIB - 4096),
        ] {
            let piece = Mapping::shared(&fd, size, offset).unwrap();
            assert_eq!((piece.len() as u64, mapped(name)), (size, before + 1));
        }
        assert_eq!(mapped(name), before);
    }
}

#[test]
fn huge_pages_that_do_not_exist_become_dummy_pages() {
    survive_truncation().unwrap();
    for (size, page) in [(MemfdFlags::HUGE_2MB, 2 * MIB), (MemfdFlags::HUGE_1GB, GIB)] {
        let name = format!("lasthop-huge-{page}");
        let Some(fd) = huge(&name, size, 2 * page) else {
            continue;
        };
        let piece = Mapping::shared(&fd, page + 4096, 0).unwrap();
        // Where the host has pages, these are gone as well then.
        rustix::fs::ftruncate(&fd, 0).unwrap();
        let before = lost_mappings();
        for offset in [4095, page + 4095, page - 1] {
            touch(&piece, offset as usize);
        }
        assert!(piece.is_lost() && lost_mappings() > before);
        drop(piece);
        assert_eq!(mapped(&name), 0);
    }
}

/// Private memory is limited here as where the host does not overcommit (`vm.overcommit_memory=2`):
/// a large piece of it is refused as a whole.
#[test]
fn a_large_mapping_that_is_lost_needs_no_private_memory() {
    alone(
        "a_large_mapping_that_is_lost_needs_no_private_memory",
        || {
            survive_truncation().unwrap();
            let all = lost();
            // Not 0, which the kernel takes for no limit (for Valgrind).
            limit(Resource::Data, 1);
            for mapping in &all {
                touch(mapping, mapping.len() - 1);
                touch(mapping, 0);
            }
            assert!(all.iter().all(Mapping::is_lost));
        },
    );
}

/// No file for dummy pages can be made where no descriptor is left.
#[test]
fn a_mapping_that_is_lost_needs_no_descriptor() {
    alone("a_mapping_that_is_lost_needs_no_descriptor", || {
        survive_truncation().unwrap();
        let all = lost();
        limit(Resource::Nofile, 0);
        for mapping in &all {
            for offset in (0..mapping.len()).step_by(mapping.len() / 4) {
                touch(mapping, offset);
            }
        }
        assert!(all.iter().all(Mapping::is_lost));
    });
}

/// Mappings with nothing behind them: a terabyte of small pages, and huge ones.
fn lost() -> Vec<Mapping> {
    let large = memfd(1 << 40);
    let mut all = vec![Mapping::shared(&large, 1 << 40, 0).unwrap()];
    rustix::fs::ftruncate(&large, 0).unwrap();
    for (size, page) in [(MemfdFlags::HUGE_2MB, 2 * MIB), (MemfdFlags::HUGE_1GB, GIB)] {
        let Some(fd) = huge("lasthop-lost", size, 4 * page) else {
            continue;
        };
        all.push(Mapping::shared(&fd, 4 * page, 0).unwrap());
        rustix::fs::ftruncate(&fd, 0).unwrap();
    }
    all
}

/// The thread that drops memory of a front end does not wait until it is unmapped.
#[test]
fn memory_is_unmapped_by_the_closer() {
    alone("memory_is_unmapped_by_the_closer", || {
        sys::closer::start(|_| (), None).unwrap();
        let quota = Quota::new();
        let fd = memfd(GIB);
        let mapping = quota.map(&fd, GIB, 0, Amount::default()).unwrap();
        let start = format!("{:x}-", mapping.as_ptr() as usize);
        let is_mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().any(|line| line.starts_with(&start))
        };
        let (end, ended) = std::sync::mpsc::channel::<()>();
        sys::closer::run(quota.author(), move || {
            let _ = ended.recv();
        });
        drop(mapping);
        assert!(is_mapped());
        assert_eq!(quota.in_use(), Amount::default());
        drop(end);
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
        assert!(sys::closer::settle(limit));
        assert!(!is_mapped());
    });
}

/// With as many mappings as a process may have, one cannot be taken out of the middle of what the
/// system has made one.
#[test]
fn memory_that_cannot_be_unmapped_counts_permanently() {
    alone("memory_that_cannot_be_unmapped_counts_permanently", || {
        let quota = Quota::new();
        let fd = memfd(3 * GIB);
        // From above to below, as the system places them: neighbours in the file are neighbours
        // here.
        let map = |at| quota.map(&fd, GIB, at, Amount::default()).unwrap();
        let (above, middle, below) = (map(2 * GIB), map(GIB), map(0));
        assert_eq!(
            below.as_ptr().wrapping_add(2 * GIB as usize),
            above.as_ptr()
        );
        let three = Amount {
            bytes: 3 * GIB,
            mappings: 3,
        };
        assert_eq!(quota.in_use(), three);
        // Two neighbours of different kinds never become one.
        let mut kinds = [libc::PROT_NONE, libc::PROT_READ].into_iter().cycle();
        let one_more = |kind| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address of the system's choice, for as long as this
            // process lives.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, kind, flags, -1, 0) };
            at != libc::MAP_FAILED
        };
        while kinds.next().is_some_and(one_more) {}
        drop(middle);
        assert!(quota.is_stuck());
        drop((above, below));
        let one = Amount {
            bytes: GIB,
            mappings: 1,
        };
        assert_eq!(quota.in_use(), one);
    });
}

#[test]
fn cve_2020_10722_size_and_offset_cannot_overflow() {
    let refused = |size, offset| Mapping::shared(&memfd(0x3000), size, offset).unwrap_err();
    assert!(matches!(refused(0, 0), MappingError::Empty));
    for (size, offset) in [(0x1000, u64::MAX - 0x800), (u64::MAX, 1)] {
        assert!(matches!(refused(size, offset), MappingError::Wraps { .. }));
    }
    for (size, offset) in [(0x4000, 0), (0x2000, 0x2000)] {
        let refused = refused(size, offset);
        assert!(matches!(refused, MappingError::FileTooShort { .. }));
    }
}

#[test]
fn a_file_that_is_not_in_memory_is_refused() {
    let fd = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let refused = Mapping::shared(&fd, 0x1000, 0);
    assert!(matches!(refused, Err(MappingError::NotMemory)));
}

/// A name of a file, which cannot be read: another reason.
#[test]
fn a_descriptor_that_is_no_open_file_is_refused() {
    let flags = rustix::fs::OFlags::PATH;
    let fd = rustix::fs::open("/dev/shm", flags, rustix::fs::Mode::empty()).unwrap();
    let refused = Mapping::shared(&fd, 0x1000, 0);
    assert!(matches!(refused, Err(MappingError::Map(_))), "{refused:?}");
}
