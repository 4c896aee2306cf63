//! Every interleaving of threads that look addresses up and one that changes the table, by loom.
//!
//! The slots and the misses are the crate's own, with loom's atomics; the file is left out.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use iotlb::access::{Access, Miss, Need};
use iotlb::misses::{Misses, NoteResult};
use iotlb::slot::Slot;

#[path = "../src/iotlb"]
mod iotlb {
    #![allow(dead_code, unreachable_pub)] // each file is here for what is modelled of it

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    }

    pub(crate) mod access;
    pub(crate) mod misses;
    pub(crate) mod slot;

    use access::{Miss, Need};

    const MOST_MISSES: usize = 2;
}

/// Keys have bit 63.
const KEY: u64 = 1 << 63;
/// An entry.
const OLD: (u64, u64) = (KEY | 0x50, 0x1000);
/// The one that replaces it.
const NEW: (u64, u64) = (KEY | 0x90, 0x2000);
/// The keys to which one's check and the other's value would fit.
const TORN: [u64; 2] = [OLD.0 ^ OLD.1 ^ NEW.1, NEW.0 ^ NEW.1 ^ OLD.1];

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

fn slot() -> Slot {
    Slot {
        check: AtomicU64::new(0),
        value: AtomicU64::new(0),
    }
}

/// A slot in which another thread replaces an entry.
fn replaced() -> (Arc<Slot>, thread::JoinHandle<()>) {
    let shared = Arc::new(slot());
    shared.write(OLD.0, OLD.1);
    let theirs = Arc::clone(&shared);
    assert_eq!(shared.entry(), Some(OLD));
    // The writer only stores: loom explores what a store does to a load of another thread, unless
    // the storing thread has loaded the same word in between.
    let writer = thread::spawn(move || theirs.write(NEW.0, NEW.1));
    (shared, writer)
}

/// A reader finds an entry as it was written, or none; and the new one once it is there.
#[test]
fn an_entry_is_found_whole_or_not_at_all() {
    for (key, value) in [OLD, NEW] {
        model(move || {
            let (slot, writer) = replaced();
            assert!([None, Some(value)].contains(&slot.find(key)));
            writer.join().expect("no panic");
            assert_eq!(slot.find(OLD.0), None);
            assert_eq!(slot.find(NEW.0), Some(NEW.1));
        });
    }
}

/// The words of two entries are never taken for a third, not even for the one that they resemble.
#[test]
fn a_torn_pair_never_matches() {
    for key in TORN {
        model(move || {
            let (slot, writer) = replaced();
            assert_eq!(slot.find(key), None);
            writer.join().expect("no panic");
        });
    }
}

/// Neither a value alone nor a zero is an entry.
#[test]
fn a_removed_entry_leaves_nothing_that_matches() {
    model(|| {
        let (slot, writer) = replaced();
        for key in [NEW.1 | KEY, KEY] {
            assert_eq!(slot.find(key), None);
        }
        writer.join().expect("no panic");
        slot.clear();
        assert_eq!((slot.find(NEW.0), slot.entry()), (None, None));
    });
}

/// A page that is granted, and a reader that marks itself as busy while it uses the page.
struct Granted {
    slot: Slot,
    /// Odd: busy.
    turn: AtomicU64,
    page: UnsafeCell<u64>,
}

/// The owner of a page removes its entry, and writes the page when no reader is busy. The fences of
/// the two sides decide: the reader misses, or the owner sees that it is busy. Loom reports an
/// access to the page from both sides.
#[test]
fn a_revoked_page_is_not_read_any_more() {
    model(|| {
        let granted = Arc::new(Granted {
            slot: slot(),
            turn: AtomicU64::new(0),
            page: UnsafeCell::new(0),
        });
        granted.slot.write(OLD.0, OLD.1);
        let theirs = Arc::clone(&granted);
        let reader = thread::spawn(move || {
            theirs.turn.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if theirs.slot.find(OLD.0).is_some() {
                // SAFETY: the owner does not write while this reader is busy; loom checks it.
                theirs.page.with(|page| assert_eq!(unsafe { *page }, 0));
            }
            theirs.turn.store(2, Ordering::Release);
        });
        granted.slot.clear();
        fence(Ordering::SeqCst);
        if granted.turn.load(Ordering::Acquire) != 1 {
            // SAFETY: the reader is done, or finds no entry; loom checks it.
            granted.page.with_mut(|page| unsafe { *page = 1 });
        }
        reader.join().expect("no panic");
    });
}

/// A reader notes a miss while the writer looks: it is taken at once, or at the next look, for
/// which there is a notification.
#[test]
fn no_miss_is_left_without_a_notification() {
    model(|| {
        let misses = Arc::new(Misses::default());
        let theirs = Arc::clone(&misses);
        let other = thread::spawn(move || theirs.note(Miss::new(0x5000, Access::READ), Need::Now));
        let mut taken = 0;
        misses.take(|_| taken += 1);
        assert_eq!(other.join().expect("no panic"), NoteResult::Notify);
        misses.take(|_| taken += 1);
        assert_eq!(taken, 1);
    });
}

/// Two readers miss one page at the same time.
#[test]
fn a_page_that_two_readers_miss_is_asked_for_once() {
    model(|| {
        let misses = Arc::new(Misses::default());
        let miss = Miss::new(0x5000, Access::WRITE);
        let theirs = Arc::clone(&misses);
        let other = thread::spawn(move || theirs.note(miss, Need::Now));
        let noted = [
            misses.note(miss, Need::Now),
            other.join().expect("no panic"),
        ];
        assert!(noted.contains(&NoteResult::Notify) && noted.contains(&NoteResult::Pending));
        let mut taken = Vec::new();
        misses.take(|miss| taken.push(miss));
        assert_eq!(taken, [miss]);
        assert_eq!((miss.iova(), miss.access()), (0x5000, Access::WRITE));
    });
}

/// A second reader notes a page while the writer takes the first's: it is taken, or notified.
#[test]
fn a_miss_beside_one_that_is_taken_is_not_lost() {
    model(|| {
        let misses = Arc::new(Misses::default());
        let first = Miss::new(0x5000, Access::READ);
        let second = Miss::new(0x6000, Access::READ);
        assert_eq!(misses.note(first, Need::Now), NoteResult::Notify);
        let theirs = Arc::clone(&misses);
        let other = thread::spawn(move || theirs.note(second, Need::Now));
        let mut taken = Vec::new();
        misses.take(|miss| taken.push(miss));
        let noted = other.join().expect("no panic");
        assert!(
            taken.contains(&second) || noted == NoteResult::Notify,
            "{taken:?} {noted:?}"
        );
        misses.take(|miss| taken.push(miss));
        taken.sort_by_key(|miss| miss.iova());
        assert_eq!(taken, [first, second]);
    });
}

/// A frame needs a page that was asked for ahead, while the writer looks and has room for what is
/// needed now only: it is taken at once, or at the next look, for which there is a notification.
#[test]
fn a_miss_that_is_needed_now_is_not_left_as_one_ahead() {
    model(|| {
        let misses = Arc::new(Misses::default());
        let miss = Miss::new(0x5000, Access::READ);
        assert_eq!(misses.note(miss, Need::Ahead), NoteResult::Notify);
        let theirs = Arc::clone(&misses);
        let other = thread::spawn(move || theirs.note(miss, Need::Now));
        let mut taken = 0;
        let mut look = || {
            misses.take_some(|_, need| {
                let take = need == Need::Now;
                taken += usize::from(take);
                take
            });
            taken
        };
        let at_once = look();
        let noted = other.join().expect("no panic");
        assert!(at_once == 1 || noted == NoteResult::Notify);
        assert_eq!(look(), 1);
    });
}

/// A frame needs a page that was asked for ahead, while the writer takes it: it is handed over as
/// one that is needed now, at once or at the next look, for which there is a notification.
#[test]
fn a_miss_that_is_needed_now_is_not_taken_as_one_ahead() {
    model(|| {
        let misses = Arc::new(Misses::default());
        let miss = Miss::new(0x5000, Access::READ);
        assert_eq!(misses.note(miss, Need::Ahead), NoteResult::Notify);
        let theirs = Arc::clone(&misses);
        let other = thread::spawn(move || theirs.note(miss, Need::Now));
        let mut taken = Vec::new();
        let mut look = || {
            misses.take_some(|_, need| {
                taken.push(need);
                true
            });
            taken.contains(&Need::Now)
        };
        let at_once = look();
        let noted = other.join().expect("no panic");
        assert!(at_once || noted == NoteResult::Notify);
        assert!(look());
    });
}
