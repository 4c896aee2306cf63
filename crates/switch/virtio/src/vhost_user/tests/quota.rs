//! Quotas of a front end, and refusals that map nothing.

use super::*;

const TIB: u64 = 1 << 40;

/// The most address space that this process has ever had, in bytes.
fn peak() -> u64 {
    let field = procfs::status(std::process::id(), "VmPeak").expect("a peak");
    field
        .trim_end_matches(" kB")
        .parse::<u64>()
        .expect("a number")
        << 10
}

/// Five regions that each would do, and together are more than a port may have.
#[test]
fn a_table_that_is_too_much_is_refused_before_anything_is_mapped() {
    alone(
        "quota::a_table_that_is_too_much_is_refused_before_anything_is_mapped",
        || {
            let mut rig = Rig::ready();
            let before = peak();
            let regions: Vec<_> = (0..5).map(|n| [n * TIB, TIB, n * TIB, 0]).collect();
            let files = regions.iter().map(|_| memfd(TIB)).collect();
            assert_eq!(rig.ack(code::SET_MEM_TABLE, mem_table(&regions), files), 1);
            let reason = rig.session.info().last_refusal.expect("a reason");
            assert!(reason.contains("more than 4 TiB"), "{reason}");
            let one = [8 * TIB, 5 * TIB, 8 * TIB, 0];
            assert_eq!(
                rig.ack(code::ADD_MEM_REG, single(one), vec![memfd(5 * TIB)]),
                1
            );
            assert!(peak() - before < TIB, "{} more", peak() - before);
            assert_eq!(rig.session.info().memory_bytes, MEM, "as before");
        },
    );
}

#[test]
fn memory_is_replaced_by_as_much_as_may_be() {
    let mut rig = Rig::ready();
    for round in 0..3 {
        let regions: Vec<_> = (0..4).map(|n| [n * TIB, TIB, round * n * TIB, 0]).collect();
        let files = regions.iter().map(|_| memfd(TIB)).collect();
        assert_eq!(rig.ack(code::SET_MEM_TABLE, mem_table(&regions), files), 0);
        // Mapped anew in its place, and no more beside it.
        assert_eq!(
            rig.ack(code::ADD_MEM_REG, single(regions[1]), vec![memfd(TIB)]),
            0
        );
        let more = [4 * TIB, 4096, 4 * TIB, 0];
        assert_eq!(
            rig.ack(code::ADD_MEM_REG, single(more), vec![memfd(4096)]),
            1
        );
        assert_eq!(rig.session.quota.in_use().bytes, 4 * TIB);
    }
    rig.session.close(&mut rig.backend);
    assert_eq!(rig.session.quota.in_use(), mapping::Amount::default());
}

#[test]
fn dirty_log_and_inflight_area_count_as_guest_memory_does() {
    let mut rig = Rig::ready();
    let region = [0, 4 * TIB - (64 << 20), 0, 0];
    assert_eq!(
        rig.ack(
            code::SET_MEM_TABLE,
            mem_table(&[region]),
            vec![memfd(4 * TIB)]
        ),
        0
    );
    let fault = rig.fault(
        code::SET_LOG_BASE,
        u64s(&[128 << 20, 0]),
        vec![memfd(128 << 20)],
    );
    assert!(fault.contains("more than 4 TiB"), "{fault}");
    let log = |size| (u64s(&[size, 0]), vec![memfd(size)]);
    let (payload, files) = log((64 << 20) - 4096);
    rig.send(code::SET_LOG_BASE, payload, files).expect("room");
    // One page is left.
    assert_eq!(
        rig.ack(
            code::SET_INFLIGHT_FD,
            inflight(8320, 0, 2, 256),
            vec![memfd(1 << 20)]
        ),
        1
    );
    let (payload, files) = log(32 << 20);
    rig.send(code::SET_LOG_BASE, payload, files)
        .expect("a shorter one in its place");
    assert_eq!(
        rig.ack(
            code::SET_INFLIGHT_FD,
            inflight(8320, 0, 2, 256),
            vec![memfd(1 << 20)]
        ),
        0
    );
}

/// A file can be as long as it likes (rust-vmm vhost#63); what no guest memory needs is not mapped.
#[test]
fn a_dirty_log_is_no_longer_than_guest_memory_needs() {
    let mut rig = Rig::ready();
    for size in [TIB, (512 << 20) + 1, 64 * TIB] {
        let fault = rig.fault(code::SET_LOG_BASE, u64s(&[size, 0]), vec![memfd(size)]);
        assert!(
            fault.contains("dirty log") && fault.contains("at most"),
            "{fault}"
        );
    }
    assert!(rig.session.log.is_none());
    rig.send(code::SET_LOG_BASE, u64s(&[512 << 20, 0]), vec![memfd(TIB)])
        .expect("the longest");
}

/// A log that is refused leaves the one of before where it was.
#[test]
fn a_dirty_log_that_covers_too_little_changes_nothing() {
    let mut rig = Rig::ready();
    let file = memfd(4096);
    rig.send(code::SET_LOG_BASE, u64s(&[4096, 0]), vec![file])
        .expect("a log");
    rig.logging(true);
    let before = rig.session.quota.in_use();
    let fault = rig.fault(code::SET_LOG_BASE, u64s(&[8, 0]), vec![memfd(8)]);
    assert!(fault.contains("covers"), "{fault}");
    assert_eq!(rig.session.quota.in_use(), before);
    assert_eq!(rig.session.log_file.expect("the first").size, 4096);
}

/// Huge pages that are mapped for a region count, whatever its length (firecracker#6043).
#[test]
fn a_region_counts_with_all_pages_that_it_lies_in() {
    use rustix::fs::MemfdFlags;
    let mut rig = Rig::ready();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(file) = rustix::fs::memfd_create("test", flags) else {
        return;
    };
    rustix::fs::ftruncate(&file, 4 << 20).expect("its size");
    let before = rig.session.quota.in_use().bytes;
    for _ in 0..100 {
        let region = [1 << 30, 4096, 1 << 30, 0];
        let copy = file.try_clone().expect("a copy");
        assert_eq!(rig.ack(code::ADD_MEM_REG, single(region), vec![copy]), 0);
        assert_eq!(rig.session.quota.in_use().bytes, before + (2 << 20));
        assert_eq!(rig.ack(code::REM_MEM_REG, single(region), vec![]), 0);
        assert_eq!(rig.session.quota.in_use().bytes, before);
    }
}

/// A process may have so many mappings; then the system takes none out of the middle of another.
#[test]
fn memory_that_stays_mapped_ends_the_connection() {
    alone(
        "quota::memory_that_stays_mapped_ends_the_connection",
        || {
            let mut rig = Rig::ready();
            let file = memfd(3 << 30);
            let region = |n: u64| [(n + 1) << 30, 1 << 30, (n + 1) << 30, n << 30];
            // From above to below, as the system places them: neighbours in the file are neighbours
            // here.
            for n in [2, 1, 0] {
                let copy = file.try_clone().expect("a copy");
                assert_eq!(rig.ack(code::ADD_MEM_REG, single(region(n)), vec![copy]), 0);
            }
            exhaust_mappings();
            let fault = rig.fault(code::REM_MEM_REG, single(region(1)), vec![]);
            assert!(fault.contains("does not unmap"), "{fault}");
            rig.session.close(&mut rig.backend);
            // The next connection's: the message itself is fine.
            assert!(
                rig.message(code::GET_FEATURES, false, vec![], vec![])
                    .is_ok()
            );
        },
    );
}

/// Maps pages of which no two neighbours become one, as many as there may be.
fn exhaust_mappings() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let mut kinds = [ProtFlags::empty(), ProtFlags::READ].into_iter().cycle();
    let one_more = |kind| {
        // SAFETY: a new mapping at an address of the system's choice, for as long as this process
        // lives.
        unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, kind, MapFlags::PRIVATE) }.is_ok()
    };
    while kinds.next().is_some_and(one_more) {}
}
