//! Misses that are noted and denied, and the numbers by which readers look again.

use super::*;

const READ: Miss = Miss::new(0x8000, Access::READ);

#[test]
fn a_denial_is_taken_once() {
    let mut rig = Rig::new();
    assert!(!rig.writer.table().take_denial(READ));
    rig.writer.deny(READ, Need::Now);
    rig.writer.deny(READ, Need::Now);
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
        rig.writer.deny(READ, Need::Now);
        rig.writer.deny(other, Need::Now);
        if revoke {
            rig.writer.invalidate(0x8000, 0x1000).unwrap();
        } else {
            rig.grant(update(0x8000, 0x1000, 0x3000, 1), Some(READ));
        }
        assert!(!rig.writer.table().take_denial(READ));
        assert!(rig.writer.table().take_denial(other));
        rig.writer.deny(READ, Need::Now);
        rig.writer.clear();
        assert!(!rig.writer.table().take_denial(READ));
    }
}

#[test]
fn an_update_that_is_refused_or_grants_nothing_leaves_a_denial() {
    let mut rig = Rig::new();
    rig.writer.deny(READ, Need::Now);
    let before = rig.writer.table().answers();
    rig.refused(update(0x8000, 0x1000, MEMORY, 1));
    rig.refused(update(0x8000, 0x800, 0x3000, 1));
    assert_eq!(rig.grant(update(0x8000, 0x1000, 0x3000, 2), Some(READ)), 0);
    assert_eq!(rig.writer.table().answers(), before);
    assert!(rig.writer.table().take_denial(READ));
}

/// Returns those of these pages whose denials are there, and takes them.
fn denied(rig: &Rig, pages: Range<u64>) -> Vec<u64> {
    let table = rig.writer.table();
    pages.filter(|n| table.take_denial(page(*n))).collect()
}

const fn page(number: u64) -> Miss {
    Miss::new(number * PAGE, Access::READ)
}

#[test]
fn all_that_can_be_denied_before_a_reader_looks_is_found_denied() {
    let mut rig = Rig::new();
    // Those of readers that have gone away.
    (1000..1300).for_each(|n| rig.writer.deny(page(n), Need::Now));
    assert_eq!(denied(&rig, 1200..1250).len(), 50);
    // Open questions, those that wait to be asked, misses.
    let most = 3 * MOST_MISSES as u64;
    (0..most).for_each(|n| rig.writer.deny(page(n), Need::Now));
    // What is denied once more comes last.
    rig.writer.deny(page(0), Need::Now);
    rig.writer.deny(page(most), Need::Now);
    assert_eq!(denied(&rig, 0..most + 1).len() as u64, most);
    assert!(denied(&rig, 1..2).is_empty());
}

#[test]
fn what_was_asked_for_ahead_displaces_no_denial_for_a_reader_that_waits() {
    let mut rig = Rig::new();
    rig.writer.deny(READ, Need::Now);
    (100..500).for_each(|n| rig.writer.deny(page(n), Need::Ahead));
    let left = denied(&rig, 100..500);
    assert_eq!(left, (500 - MOST_MISSES as u64..500).collect::<Vec<_>>());
    assert_eq!(denied(&rig, 8..9), [8]);
}

#[test]
fn denials_end_together() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        rig.writer.deny(page(1), Need::Now);
        rig.writer.deny(page(2), Need::Ahead);
        assert!(rig.writer.table().is_denied(page(1)));
        rig.writer.end_denials();
        assert!(denied(&rig, 0..10).is_empty());
    }
}

#[test]
fn misses_ahead_leave_places_to_others() {
    let rig = Rig::new();
    let table = rig.writer.table();
    let room = (0..)
        .take_while(|n| table.ask(page(*n), Need::Ahead))
        .count();
    assert_eq!(room, MOST_MISSES / 4 * 3);
    let more = (100..)
        .take_while(|n| table.ask(page(*n), Need::Now))
        .count();
    assert_eq!(more, MOST_MISSES / 4);
    // One that is there has its place, whatever it is needed for.
    assert!(table.ask(page(0), Need::Now) && table.ask(page(100), Need::Ahead));
    let mut ahead = 0;
    table.misses().take_some(|_, need| {
        ahead += usize::from(need == Need::Ahead);
        true
    });
    assert_eq!(ahead, room - 1);
}

#[test]
fn misses_for_which_the_writer_has_no_room_stay() {
    let rig = Rig::new();
    let table = rig.writer.table();
    table.ask(page(1), Need::Now);
    table.ask(page(2), Need::Ahead);
    let take_now = || {
        let mut seen = Vec::new();
        table.misses().take_some(|miss, need| {
            seen.push(miss);
            need == Need::Now
        });
        seen
    };
    assert_eq!(take_now(), [page(1), page(2)]);
    assert_eq!(take_now(), [page(2)]);
    table.ask(page(2), Need::Now);
    assert_eq!((take_now(), take_now()), (vec![page(2)], vec![]));
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
    rig.writer.deny(READ, Need::Now);
    assert!(changed(&rig));
    rig.writer.invalidate(0x8000, 1).unwrap();
    assert!(changed(&rig));
    rig.writer.clear();
    assert!(changed(&rig));
    rig.writer.table().ask(READ, Need::Now);
    assert!(!changed(&rig));
}

#[test]
fn a_reset_forgets_misses() {
    let mut rig = Rig::new();
    rig.writer.table().ask(READ, Need::Now);
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
        table.ask(READ, Need::Now);
        assert!(is_rung());
        sys::event::clear(asked);
        table.ask(Miss::new(0x9000, Access::READ), Need::Now);
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
    let read = || AnsweredMessage::read(&file).unwrap();
    assert_eq!(read(), AnsweredMessage::Other);
    let message = std::array::from_fn(|at| at as u8);
    for answered in [
        AnsweredMessage::Waits(message),
        AnsweredMessage::Taken,
        AnsweredMessage::Waits([0xff; 32]),
        AnsweredMessage::Other,
    ] {
        writer.set_answered(answered);
        assert_eq!(read(), answered);
    }
    writer.set_answered(AnsweredMessage::Waits(message));
    drop(writer);
    assert_eq!(read(), AnsweredMessage::Waits(message));
    let writer = IotlbWriter::resume(&file).unwrap();
    writer.set_answered(AnsweredMessage::Taken);
    assert_eq!(read(), AnsweredMessage::Taken);
    let other: OwnedFd = sys::file::fixed("test", 4096).unwrap();
    assert!(AnsweredMessage::read(&other).is_err());
}

#[test]
fn an_update_that_may_answer_several_questions_gives_what_all_have_asked_for() {
    let mut rig = Rig::new();
    let asked = [
        READ,
        Miss::new(0x9000, Access::READ_WRITE),
        Miss::new(0xa000, Access::WRITE),
    ];
    let mut given = |size: u64| {
        let update = update(0x8000, size, 0x3000, 3);
        let entered = rig.writer.update(&rig.memory, &update, &asked);
        entered.expect("a valid UPDATE")
    };
    // One for a page that the message has not does not count.
    assert_eq!(given(0x2000), 2);
    assert_eq!(given(0x3000), 0);
    let table = rig.writer.table();
    assert!(table.look_up(0x9000, Access::READ).is_some());
    assert_eq!(table.look_up(0x9000, Access::WRITE), None);
}

#[cfg(not(miri))]
#[test]
fn a_successor_finds_the_questions_whose_answers_are_to_come() {
    let (writer, file) = IotlbWriter::create().unwrap();
    let owed = writer.table().owed();
    (0..4).for_each(|n| owed.add(n, page(n)));
    owed.remove(3);
    owed.remove(0);
    drop(writer);
    let writer = IotlbWriter::resume(&file).unwrap();
    let owed = writer.table().owed();
    assert_eq!((owed.answers(), owed.misses()), (2, vec![page(1), page(2)]));
    owed.forget_one();
    assert_eq!((owed.answers(), owed.misses().len()), (1, 2));
    owed.clear();
    assert_eq!((owed.answers(), owed.misses()), (0, vec![]));
    owed.forget_one();
    assert_eq!(owed.answers(), 0);
    (0..300).for_each(|n| owed.add(n, page(n)));
    (0..100).for_each(|n| owed.remove(n));
    assert_eq!((owed.answers(), owed.misses().len()), (200, 200));
    assert!(!owed.misses().contains(&page(99)));
}
