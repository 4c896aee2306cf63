//! Files that are cut off, that have no page, and mappings that the system does not undo.

use std::process::Command;

use rustix::fs::MemfdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

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

/// Writes to a region, and reads that back.
fn touch(region: &Region, offset: usize) {
    // SAFETY: callers name an offset in the region; the handler puts memory there where there is
    // none.
    let byte = unsafe {
        let at = region.as_ptr().add(offset);
        at.write_volatile(7);
        at.read_volatile()
    };
    assert_eq!(byte, 7, "a dummy page is there");
}

/// Runs a test of this file again, in a process of its own, whose whole address space and limits it
/// may spoil.
fn alone(name: &str, test: fn()) {
    const CHILD: &str = "LASTHOP_MEMORY_TEST";
    if std::env::var_os(CHILD).is_some() {
        return test();
    }
    let name = format!("tests::lost::{name}");
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

#[test]
fn memory_that_is_cut_off_becomes_dummy_pages_and_says_so() {
    survive_truncation().unwrap();
    let fd = memfd(0x3000);
    let dup = fd.try_clone().unwrap();
    let region = Arc::new(Region::map(fd, 0, 0x3000, 0, 0).unwrap());
    let other = Arc::new(Region::map(memfd(0x1000), 0x3000, 0x1000, 0x3000, 0).unwrap());
    let m = GuestMemory::new(vec![region.clone(), other.clone()], None).unwrap();
    let before = lost_mappings();
    assert!(!m.is_lost());
    rustix::fs::ftruncate(&dup, 0).unwrap();
    // SAFETY: the address is inside the region; the handler puts memory there again.
    let byte = unsafe {
        region.as_ptr().add(0x2fff).write_volatile(7);
        region.as_ptr().add(0x2fff).read_volatile()
    };
    assert_eq!(byte, 7, "a dummy page is there");
    assert!(m.is_lost() && region.is_lost() && !other.is_lost());
    assert!(lost_mappings() > before);
}

/// The system maps, unmaps and replaces whole huge pages only: a region of 4096 bytes of one is
/// mapped as one (firecracker#6043).
#[test]
fn a_region_of_huge_pages_is_unmapped_whatever_its_length() {
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
            let fd = fd.try_clone().unwrap();
            let region = Region::map(fd, 0, size, 0, offset).unwrap();
            assert_eq!((region.size(), mapped(name)), (size, before + 1));
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
        let cut = fd.try_clone().unwrap();
        let region = Region::map(fd, 0, page + 4096, 0, 0).unwrap();
        // Where the host has pages, these are gone as well then.
        rustix::fs::ftruncate(&cut, 0).unwrap();
        let before = lost_mappings();
        for offset in [4095, page + 4095, page - 1] {
            touch(&region, offset as usize);
        }
        assert!(region.is_lost() && lost_mappings() > before);
        drop(region);
        assert_eq!(mapped(&name), 0);
    }
}

/// Private memory is limited here as where the host does not overcommit (`vm.overcommit_memory=2`):
/// a large piece of it is refused as a whole.
#[test]
fn a_large_region_that_is_lost_needs_no_private_memory() {
    alone(
        "a_large_region_that_is_lost_needs_no_private_memory",
        || {
            survive_truncation().unwrap();
            let regions = lost_regions();
            // Not 0, which the kernel takes for no limit (for Valgrind).
            limit(Resource::Data, 1);
            for region in &regions {
                touch(region, region.size() as usize - 1);
                touch(region, 0);
            }
            assert!(regions.iter().all(Region::is_lost));
        },
    );
}

/// No file for dummy pages can be made where no descriptor is left.
#[test]
fn a_region_that_is_lost_needs_no_descriptor() {
    alone("a_region_that_is_lost_needs_no_descriptor", || {
        survive_truncation().unwrap();
        let regions = lost_regions();
        limit(Resource::Nofile, 0);
        for region in &regions {
            for offset in (0..region.size()).step_by(region.size() as usize / 4) {
                touch(region, offset as usize);
            }
        }
        assert!(regions.iter().all(Region::is_lost));
    });
}

/// Regions with nothing behind them: a terabyte of small pages, and huge ones.
fn lost_regions() -> Vec<Region> {
    let large = memfd(1 << 40);
    let copy = large.try_clone().unwrap();
    let mut all = vec![Region::map(large, 0, 1 << 40, 0, 0).unwrap()];
    rustix::fs::ftruncate(&copy, 0).unwrap();
    for (size, page) in [(MemfdFlags::HUGE_2MB, 2 * MIB), (MemfdFlags::HUGE_1GB, GIB)] {
        let Some(fd) = huge("lasthop-lost", size, 4 * page) else {
            continue;
        };
        let copy = fd.try_clone().unwrap();
        all.push(Region::map(fd, 0, 4 * page, 0, 0).unwrap());
        rustix::fs::ftruncate(&copy, 0).unwrap();
    }
    all
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
        let plan = |at| Planned::check(&fd, at, GIB, at, at).unwrap();
        let map = |at| plan(at).map(&fd, Some(&quota)).unwrap();
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
