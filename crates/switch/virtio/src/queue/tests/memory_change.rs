//! The memory table and the dirty log change under a running queue.

use std::sync::Arc;

use memory::{DirtyLog, GuestMemory, LOG_PAGE};
use wire::virtio::features::Features;

use super::driver::*;
use crate::queue::QueueFault;

const ONE: Buffer = Buffer {
    gpa: DATA + 8,
    len: 60,
    writable: true,
};

fn log() -> Arc<DirtyLog> {
    Arc::new(DirtyLog::heap((SEAM + DATA_LEN) / LOG_PAGE / 8 + 1))
}

#[test]
fn a_queue_goes_on_in_a_new_snapshot() {
    for features in both(Features::empty()) {
        let mut driver = Driver::new(Guest::new(4, features));
        let mut queue = driver.guest.queue();
        driver.add(&[ONE], false, 0);
        let chain = queue.take_writable(&mut Vec::new()).unwrap().unwrap();
        driver.guest.mem = Arc::new(driver.guest.mem.with_log(None));
        queue.set_memory(driver.guest.mem.clone()).unwrap();
        queue.put(chain, 60);
        queue.publish();
        assert_eq!(driver.reap(), Some((chain.id, 60)));
        driver.add(&[ONE], false, 0);
        assert!(queue.take_writable(&mut Vec::new()).unwrap().is_some());
    }
}

#[test]
fn a_queue_whose_ring_is_gone_stops() {
    for features in both(Features::empty()) {
        let guest = Guest::new(4, features);
        let mut queue = guest.queue();
        let rest = guest.mem.regions()[1..].to_vec();
        let mem = Arc::new(GuestMemory::new(rest, None).unwrap());
        assert_eq!(queue.set_memory(mem), Err(QueueFault::UnmappedRing));
        let taken = queue.take_readable(&mut Vec::new());
        assert_eq!(taken, Err(QueueFault::UnmappedRing));
        assert_eq!(
            queue.set_memory(guest.mem.clone()),
            Err(QueueFault::UnmappedRing)
        );
    }
}

#[test]
fn used_elements_are_logged() {
    for features in both(Features::empty()) {
        let log = log();
        // Large enough that the rings take several pages.
        let mut driver = Driver::new(Guest::with_log(1024, features, Some(log.clone())));
        let mut queue = driver.guest.queue();
        driver.add(&[ONE], false, 0);
        let chain = queue.take_writable(&mut Vec::new()).unwrap().unwrap();
        queue.put(chain, 60);
        let ring = if driver.guest.packed() {
            driver.guest.layout.desc
        } else {
            driver.guest.layout.device
        };
        assert!(!log.is_dirty(ring / LOG_PAGE), "nothing is visible yet");
        queue.publish();
        assert!(log.is_dirty(ring / LOG_PAGE));
        assert!(!log.is_dirty(ring / LOG_PAGE + 1));
        assert!(!log.is_dirty(DATA / LOG_PAGE), "frames are the caller's");
    }
}

#[test]
fn a_batch_across_the_end_is_logged_on_both_sides() {
    if cfg!(miri) {
        // A thousand chains, and nothing that the other tests do not show Miri.
        return;
    }
    for features in both(Features::empty()) {
        let log = log();
        let mut driver = Driver::new(Guest::new(1024, features));
        let mut queue = driver.guest.queue();
        for round in 0..2 {
            let batch = if round == 0 { 1020 } else { 8 };
            if round == 1 {
                let mem = Arc::new(driver.guest.mem.with_log(Some(log.clone())));
                queue.set_memory(mem).unwrap();
            }
            for _ in 0..batch {
                driver.add(&[ONE], false, 0);
                let chain = queue.take_writable(&mut Vec::new()).unwrap().unwrap();
                queue.put(chain, 60);
            }
            queue.publish();
            (0..batch).for_each(|_| assert!(driver.reap().is_some()));
        }
        let (at, each) = if driver.guest.packed() {
            (driver.guest.layout.desc, 16)
        } else {
            (driver.guest.layout.device + 4, 8)
        };
        let page = |slot: u64| (at + each * slot) / LOG_PAGE;
        assert!(log.is_dirty(page(1020)) && log.is_dirty(page(1023)));
        assert!(log.is_dirty(page(0)) && log.is_dirty(page(3)));
        assert!(!log.is_dirty(page(512)));
    }
}

#[test]
fn kick_requests_are_logged() {
    for extra in [Features::empty(), Features::RING_EVENT_IDX] {
        for features in both(extra) {
            let log = log();
            let guest = Guest::with_log(4, features, Some(log.clone()));
            let mut queue = guest.queue();
            queue.set_kicks(true);
            assert!(log.is_dirty(guest.layout.device / LOG_PAGE));
        }
    }
}

#[test]
fn written_bytes_are_logged_on_demand() {
    for features in both(Features::empty()) {
        let log = log();
        let mut driver = Driver::new(Guest::with_log(4, features, Some(log.clone())));
        let mut queue = driver.guest.queue();
        let far = Buffer {
            gpa: SEAM + LOG_PAGE,
            ..ONE
        };
        driver.add(&[ONE, far], false, 0);
        let mut segs = Vec::new();
        let chain = queue.take_writable(&mut segs).unwrap().unwrap();
        queue.mark_written(chain.segs.of(&segs), 60);
        assert!(log.is_dirty(DATA / LOG_PAGE));
        assert!(!log.is_dirty(far.gpa / LOG_PAGE));
        queue.mark_written(chain.segs.of(&segs), 61);
        assert!(log.is_dirty(far.gpa / LOG_PAGE));
    }
}
