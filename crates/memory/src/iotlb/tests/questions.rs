//! Misses that are noted and denied, and the numbers by which readers look again.

use super::*;

const READ: Miss = Miss::new(0x8000, Access::READ);

#[test]
fn a_denial_is_taken_once() {
    let mut rig = Rig::new();
    assert!(!rig.writer.table().take_denial(READ));
    rig.writer.deny(READ);
    rig.writer.deny(READ);
    let table = rig.writer.table();
    assert!(!table.take_denial(Miss::new(0x8000, Access::WRITE)));
    assert!(!table.take_denial(Miss::new(0x9000, Access::READ)));
    assert!(table.take_denial(Miss::new(0x8fff, Access::READ)));
    assert!(!table.take_denial(READ));
}

#[test]
fn what_is_granted_or_revoked_is_not_denied_any_more() {
    let other = Miss::new(0x9000, Access::READ);
    for revoke in [false, true] {
        let mut rig = Rig::new();
        rig.writer.deny(READ);
        rig.writer.deny(other);
        if revoke {
            rig.writer.invalidate(0x8000, 0x1000).unwrap();
        } else {
            rig.grant(update(0x8000, 0x1000, 0x3000, 1), Some(READ));
        }
        assert!(!rig.writer.table().take_denial(READ));
        assert!(rig.writer.table().take_denial(other));
        rig.writer.deny(READ);
        rig.writer.clear();
        assert!(!rig.writer.table().take_denial(READ));
    }
}

#[test]
fn an_update_that_is_refused_or_grants_nothing_leaves_a_denial() {
    let mut rig = Rig::new();
    rig.writer.deny(READ);
    let before = rig.writer.table().answers();
    rig.refused(update(0x8000, 0x1000, MEMORY, 1));
    rig.refused(update(0x8000, 0x800, 0x3000, 1));
    assert_eq!(rig.grant(update(0x8000, 0x1000, 0x3000, 2), Some(READ)), 0);
    assert_eq!(rig.writer.table().answers(), before);
    assert!(rig.writer.table().take_denial(READ));
}

#[test]
fn there_is_room_for_64_denials_and_the_oldest_go() {
    let mut rig = Rig::new();
    let miss = |page: usize| Miss::new(page as u64 * PAGE, Access::READ);
    (0..2 * MOST_MISSES).for_each(|page| rig.writer.deny(miss(page)));
    let left: Vec<_> = (0..2 * MOST_MISSES)
        .filter(|page| rig.writer.table().take_denial(miss(*page)))
        .collect();
    assert_eq!(left, (MOST_MISSES..2 * MOST_MISSES).collect::<Vec<_>>());
}

#[test]
fn whatever_answers_a_miss_lets_readers_look_again() {
    let mut rig = Rig::new();
    let mut before = rig.writer.table().answers();
    let mut changed = |rig: &Rig| {
        let now = rig.writer.table().answers();
        std::mem::replace(&mut before, now) != now
    };
    rig.grant(update(0x8000, 0x1000, 0x3000, 1), None);
    assert!(changed(&rig));
    rig.writer.deny(READ);
    assert!(changed(&rig));
    rig.writer.invalidate(0x8000, 1).unwrap();
    assert!(changed(&rig));
    rig.writer.clear();
    assert!(changed(&rig));
    rig.writer.table().ask(READ);
    assert!(!changed(&rig));
}

#[test]
fn a_reset_forgets_misses() {
    let mut rig = Rig::new();
    rig.writer.table().ask(READ);
    rig.writer.clear();
    rig.writer.table().misses().take(|miss| panic!("{miss:?}"));
}

#[cfg(not(miri))]
#[test]
fn the_first_miss_since_they_were_taken_notifies_the_writer() {
    use rustix::event::PollFlags;

    let rig = Rig::new();
    let table = rig.writer.table();
    let asked = table.asked().unwrap();
    let is_rung = || {
        let ready = sys::wait::ready(asked, PollFlags::IN, Some(std::time::Instant::now()));
        ready.unwrap() == PollFlags::IN
    };
    for _ in 0..2 {
        assert!(!is_rung());
        table.ask(READ);
        assert!(is_rung());
        sys::event::clear(asked);
        table.ask(Miss::new(0x9000, Access::READ));
        assert!(!is_rung());
        let mut taken = 0;
        table.misses().take(|_| taken += 1);
        assert_eq!(taken, 2);
    }
}

#[cfg(not(miri))]
#[test]
fn a_successor_finds_the_message_that_was_answered_last() {
    let (writer, file) = IotlbWriter::create().unwrap();
    let read = || Answered::read(&file).unwrap();
    assert_eq!(read(), Answered::Other);
    let message = std::array::from_fn(|at| at as u8);
    for answered in [
        Answered::Waits(message),
        Answered::Taken,
        Answered::Waits([0xff; 32]),
        Answered::Other,
    ] {
        writer.set_answered(answered);
        assert_eq!(read(), answered);
    }
    writer.set_answered(Answered::Waits(message));
    drop(writer);
    assert_eq!(read(), Answered::Waits(message));
    let writer = IotlbWriter::resume(&file).unwrap();
    writer.set_answered(Answered::Taken);
    assert_eq!(read(), Answered::Taken);
    let other: OwnedFd = sys::file::fixed("test", 4096).unwrap();
    assert!(Answered::read(&other).is_err());
}
