//! Every interleaving of a SIGBUS handler that looks for a mapping and of a thread that maps and
//! unmaps others, by loom.
//!
//! The table is the crate's own, with loom's atomics in the place of the real ones; nothing is
//! mapped.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::thread;

use sigbus::table::{Place, Slot, enter, find};

#[path = "../src/sigbus"]
mod sigbus {
    mod sync {
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    }

    pub(crate) mod table;
}

fn slot() -> Slot {
    Slot {
        version: AtomicUsize::new(0),
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        block: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
        replaced: AtomicBool::new(false),
    }
}

/// A small mapping, below everything else.
const SMALL: Place = Place {
    base: 0x1000,
    len: 0x1000,
    block: 0x1000,
};
/// A large one that is mapped when the small one is gone, and gets its slot.
const LARGE: Place = Place {
    base: 0x80_0000,
    len: 0x40_0000,
    block: 0x20_0000,
};
/// The one that a thread uses and that is lost: not in any of the two, but within the small one's
/// base and the large one's length.
const LOST: Place = Place {
    base: 0x20_0000,
    len: 0x20_0000,
    block: 0x20_0000,
};

/// `replace` reads the fields of one mapping, the one that the address lies in: a slot that changes
/// from one mapping to another meanwhile is never taken for it.
#[test]
fn a_slot_that_changes_is_never_taken_for_another_mapping() {
    loom::model(|| {
        let slots = Arc::new([slot(), slot()]);
        assert_eq!(enter(&*slots, SMALL), Some(0));
        assert_eq!(enter(&*slots, LOST), Some(1));
        let table = Arc::clone(&slots);
        let other = thread::spawn(move || {
            table[0].release();
            assert_eq!(enter(&*table, LARGE), Some(0));
        });
        let found = find(&*slots, LOST.base + 0x800).map(|(_, place)| place);
        assert_eq!(found, Some(LOST));
        other.join().expect("no panic");
    });
}

/// Two threads never get the same slot.
#[test]
fn a_slot_has_one_mapping_at_a_time() {
    loom::model(|| {
        let slots = Arc::new([slot(), slot()]);
        assert_eq!(enter(&*slots, SMALL), Some(0));
        let table = Arc::clone(&slots);
        let other = thread::spawn(move || {
            table[0].release();
            enter(&*table, LARGE).expect("a slot")
        });
        let mine = enter(&*slots, LOST).expect("a slot");
        assert_ne!(other.join().expect("no panic"), mine);
        for place in [LARGE, LOST] {
            let found = find(&*slots, place.base).map(|(_, place)| place);
            assert_eq!(found, Some(place));
        }
    });
}
