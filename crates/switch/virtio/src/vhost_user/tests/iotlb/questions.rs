//! Which question an UPDATE or an answer is for, and questions that wait for others.

use super::*;

/// The miss of a page that is to be read.
fn read(page: u64) -> Miss {
    Miss::new(IOVA + page * PAGE, Access::READ)
}

impl Guest {
    /// Returns the access that the table gives to a page.
    fn access(&self, page: u64) -> u64 {
        let table = self.table();
        let kinds = [Access::READ, Access::WRITE].into_iter();
        let given = kinds.filter(|access| table.look_up(IOVA + page * PAGE, *access).is_some());
        given.map(Access::bits).sum()
    }

    /// The next process continues the session.
    fn restart(&mut self) {
        self.rig.session.iotlb = None;
        let restored = self.rig.session.restore_iotlb(&mut self.rig.backend);
        assert!(restored.is_ok());
    }
}

#[test]
fn an_answer_that_is_late_or_comes_twice_concerns_no_other_question() {
    let mut guest = Guest::new();
    let late = guest.miss(0, Access::READ);
    guest.later(SECOND);
    assert!(guest.table().take_denial(late));
    let other = guest.miss(1, Access::READ);
    guest.answer(1);
    assert!(!guest.table().take_denial(other));
    guest.answer(1);
    assert!(guest.table().take_denial(other));
    // Nothing is owed any more.
    guest.answer(1);
    guest.answer(0);
    let third = guest.miss(2, Access::READ);
    assert!(!guest.table().take_denial(third));
    guest.answer(1);
    assert!(guest.table().take_denial(third));
}

#[test]
fn questions_beyond_64_wait_for_those() {
    let mut guest = Guest::new();
    for _ in 0..2 {
        (0..64).for_each(|page| {
            guest.table().ask(read(page), Need::Now);
        });
        guest.ask();
    }
    (64..100).for_each(|page| {
        guest.miss(page, Access::READ);
    });
    assert_eq!(guest.asked(), (0..64).collect::<Vec<_>>());
    guest.grant(IOVA + 5 * PAGE, 0, 3);
    guest.answer(1);
    assert_eq!(guest.asked(), [64, 65]);
    guest.later(2 * SECOND);
    assert_eq!(guest.asked(), (66..100).collect::<Vec<_>>());
}

/// QEMU grants reads and writes for every question, also where the guest permits reads only.
#[test]
fn an_update_answers_one_question_and_gives_no_more_than_that_asked_for() {
    let mut guest = Guest::new();
    guest.miss(0, Access::READ);
    guest.miss(0, Access::WRITE);
    assert_eq!(guest.asked(), [0, 0]);
    guest.grant(IOVA, 0, 3);
    assert_eq!(guest.access(0), 1);
    // The front end has no mapping for writes.
    guest.answer(0);
    guest.answer(1);
    assert_eq!(guest.access(0), 1);
    assert!(guest.table().take_denial(Miss::new(IOVA, Access::WRITE)));
}

/// QEMU denies the first question on the channel, and answers the second by an UPDATE. Both wait,
/// and the UPDATE is served first.
#[test]
fn an_update_is_not_taken_for_the_answer_to_a_question_that_was_denied() {
    for page in [0, 3] {
        let mut guest = Guest::new();
        guest.miss(page, Access::WRITE);
        guest.miss(0, Access::READ);
        guest.send_answer(1);
        assert_eq!(guest.say(update(IOVA, 4 * PAGE, 0, 3)), 0);
        assert_eq!((guest.access(0), guest.info().denied), (1, 1));
        guest.answer(0);
        assert_eq!([0, page].map(|page| guest.access(page)), [1, 1]);
    }
}

/// A front end that does not wait for the answers to its UPDATEs.
#[test]
fn an_answer_that_is_read_before_its_update_is_no_end_of_the_question() {
    for (read_before, given) in [(false, 1), (true, 3)] {
        let mut guest = Guest::new();
        guest.miss(0, Access::READ);
        assert_eq!(guest.say(invalidate(IOVA, PAGE)), 0);
        guest.send_answer(0);
        guest.grant(IOVA + PAGE, 0, 3);
        if read_before {
            // Nothing waits on the socket: there was no UPDATE.
            guest.read_answers();
        }
        guest.grant(IOVA, 0, 3);
        assert_eq!(guest.access(0), given);
    }
}

#[test]
fn an_update_makes_room_for_questions_that_wait() {
    let mut guest = Guest::new();
    (0..65).for_each(|page| {
        guest.miss(page, Access::READ);
    });
    assert_eq!(guest.asked(), (0..64).collect::<Vec<_>>());
    guest.grant(IOVA, 0, 3);
    assert_eq!(guest.asked(), [64]);
}

#[test]
fn an_invalidate_makes_room_for_questions_that_wait() {
    let mut guest = Guest::new();
    (0..65).for_each(|page| {
        guest.miss(page, Access::READ);
    });
    assert_eq!(guest.asked(), (0..64).collect::<Vec<_>>());
    assert_eq!(guest.say(invalidate(IOVA, 64 * PAGE)), 0);
    assert_eq!(guest.asked(), [64]);
}

#[test]
fn an_update_for_each_question_gives_both() {
    let mut guest = Guest::new();
    guest.miss(0, Access::READ);
    guest.miss(0, Access::WRITE);
    guest.grant(IOVA, 0, 3);
    guest.grant(IOVA, 0, 3);
    assert_eq!(guest.access(0), 3);
    assert_eq!(guest.rig.session.next_deadline(), None);
    (0..2).for_each(|_| guest.answer(0));
    assert_eq!(guest.info().denied, 0);
}

#[test]
fn one_update_for_several_questions_holds_for_all_when_all_are_answered() {
    let mut guest = Guest::new();
    guest.miss(0, Access::READ);
    guest.miss(0, Access::WRITE);
    guest.miss(1, Access::WRITE);
    assert_eq!(guest.say(update(IOVA, 2 * PAGE, 0, 3)), 0);
    assert_eq!([0, 1].map(|page| guest.access(page)), [1, 1]);
    guest.answer(0);
    assert_eq!([0, 1].map(|page| guest.access(page)), [1, 1]);
    guest.rig.backend.take();
    guest.answer(0);
    assert_eq!([0, 1].map(|page| guest.access(page)), [3, 1]);
    assert_eq!(guest.rig.backend.take(), ["retry"]);
    guest.answer(0);
    assert_eq!([0, 1].map(|page| guest.access(page)), [3, 3]);
    assert_eq!(guest.rig.session.next_deadline(), None);
    let info = guest.info();
    assert_eq!((info.counts.updates, info.denied), (1, 0));
    let hit = guest.table().look_up(IOVA + PAGE, Access::WRITE);
    assert_eq!(hit.expect("a hit").gpa, GPA + PAGE);
}

/// A front end that reads the second question while it waits for the answer to its UPDATE, and
/// answers that first.
#[test]
fn answers_in_another_order_give_no_more_than_an_update_was_asked_for() {
    let mut guest = Guest::new();
    guest.miss(0, Access::READ);
    guest.miss(0, Access::WRITE);
    guest.grant(IOVA, 0, 3);
    guest.answer(1);
    guest.answer(0);
    assert_eq!(guest.access(0), 1);
}

#[test]
fn what_an_update_permitted_beside_its_question_ends_with_the_mapping() {
    for revoke in [false, true] {
        let mut guest = Guest::new();
        guest.miss(0, Access::READ);
        guest.miss(0, Access::WRITE);
        guest.grant(IOVA, 0, 3);
        if revoke {
            assert_eq!(guest.say(invalidate(IOVA, PAGE)), 0);
        } else {
            // The memory to which it led is removed.
            let memory = single([GPA, MEM, UVA, 0]);
            guest.rig.tell(code::REM_MEM_REG, memory, vec![]);
        }
        (0..2).for_each(|_| guest.answer(0));
        assert_eq!(guest.access(0), u64::from(!revoke));
        let miss = Miss::new(IOVA, Access::WRITE);
        assert_eq!(guest.table().take_denial(miss), !revoke);
        assert_eq!(guest.rig.session.next_deadline().is_some(), !revoke);
    }
}

#[test]
fn the_answer_to_a_question_that_has_ended_gives_no_more_than_that_asked_for() {
    for revoke in [false, true] {
        let mut guest = Guest::new();
        guest.miss(0, Access::READ);
        if revoke {
            assert_eq!(guest.say(invalidate(IOVA, PAGE)), 0);
        } else {
            guest.later(SECOND);
        }
        guest.grant(IOVA, 0, 3);
        assert_eq!(guest.access(0), 1);
        // One that can be no answer holds as it is.
        guest.grant(IOVA, 0, 3);
        assert_eq!(guest.access(0), 3);
    }
}

#[test]
fn an_update_that_comes_unasked_holds_as_it_is() {
    let mut guest = Guest::new();
    guest.grant(IOVA, 0, 3);
    assert_eq!(guest.access(0), 3);
    // A question that was answered.
    guest.miss(1, Access::READ);
    guest.answer(1);
    guest.grant(IOVA + PAGE, PAGE, 3);
    assert_eq!(guest.access(1), 3);
    // One that was not sent.
    guest.questions();
    let filled = guest.fill_channel();
    guest.miss(2, Access::READ);
    guest.grant(IOVA + 2 * PAGE, PAGE, 3);
    assert_eq!(guest.access(2), 3);
    guest.drain_channel(filled);
    guest.ask();
    assert!(guest.asked().is_empty());
}

#[test]
fn without_acknowledgements_an_update_answers_one_question_too() {
    let mut guest = Guest::with_protocol(ProtocolFeatures::all() - ProtocolFeatures::REPLY_ACK);
    guest.miss(0, Access::READ);
    guest.miss(0, Access::WRITE);
    guest.grant(IOVA, 0, 3);
    assert_eq!(guest.access(0), 1);
    guest.grant(IOVA, 0, 3);
    assert_eq!(guest.access(0), 3);
}

#[test]
fn a_front_end_that_owes_many_answers_is_asked_nothing_more_until_some_have_come() {
    let mut guest = Guest::new();
    let mut sent = Vec::new();
    for page in 0..320 {
        guest.miss(page, Access::READ);
        sent.extend(guest.questions());
        if page % 64 == 63 {
            guest.later(SECOND);
        }
    }
    let misses = sent
        .iter()
        .filter(|question| question.1 == iotlb_type::MISS);
    assert_eq!(
        misses.copied().collect::<Vec<_>>(),
        (0..256)
            .map(|page| (NEED_REPLY, iotlb_type::MISS, page, 1))
            .collect::<Vec<_>>()
    );
    // The others end by time as well, and no room in the channel is waited for.
    let unsent = guest.miss(400, Access::READ);
    let wakes = guest.rig.session.wakes().expect("a table");
    assert!(!wakes.channel.expect("a channel").wants_write);
    guest.later(SECOND);
    assert!(guest.table().take_denial(unsent));
    guest.questions();
    // Late UPDATEs and answers make room, and are bound by what was asked for.
    let unsent = guest.miss(401, Access::READ);
    guest.grant(IOVA + 255 * PAGE, 0, 3);
    assert_eq!((guest.access(255), guest.asked()), (1, vec![401]));
    (0..256).for_each(|_| guest.answer(1));
    assert!(!guest.table().take_denial(unsent));
    guest.answer(1);
    assert!(guest.table().take_denial(unsent));
}

#[test]
fn a_front_end_that_answers_by_updates_alone_is_served_for_good() {
    let mut guest = Guest::new();
    for page in 0..600 {
        guest.miss(page, Access::READ);
        guest.grant(IOVA + page * PAGE, 0, 3);
        guest.miss(page, Access::WRITE);
        guest.grant(IOVA + page * PAGE, 0, 3);
        assert_eq!(guest.access(page), 3);
        guest.questions();
    }
    let info = guest.info();
    assert_eq!((info.misses, info.denied), (1200, 0));
}

#[test]
fn a_successor_asks_when_the_answers_to_the_former_process_have_come() {
    for answers in [2, 1] {
        let mut guest = Guest::new();
        guest.miss(0, Access::READ);
        guest.miss(1, Access::READ);
        assert_eq!(guest.asked(), [0, 1]);
        guest.restart();
        let miss = guest.miss(2, Access::READ);
        (0..answers).for_each(|_| {
            assert_eq!(guest.questions(), []);
            guest.answer(1);
        });
        assert!(!guest.table().take_denial(miss));
        if answers < 2 {
            // One was taken by the process that died, or does not come.
            assert_eq!(guest.questions(), []);
            assert!(guest.rig.session.next_deadline().is_some());
            guest.later(2 * SECOND);
        }
        assert_eq!(guest.questions(), [(NEED_REPLY, iotlb_type::MISS, 2, 1)]);
        guest.answer(1);
        assert!(guest.table().take_denial(miss));
    }
}

/// A front end that is slow, and answers, is waited for.
#[test]
fn each_answer_to_the_former_process_has_the_successor_wait_longer() {
    let silence = SECOND / 4;
    let mut guest = Guest::new();
    (0..8).for_each(|page| _ = guest.miss(page, Access::READ));
    guest.asked();
    guest.restart();
    guest.miss(9, Access::READ);
    for _ in 0..7 {
        guest.later(silence * 9 / 10);
        guest.answer(1);
        assert!(guest.asked().is_empty());
        let deadline = guest.rig.session.next_deadline();
        assert_eq!(deadline, Some(guest.now + silence));
    }
    guest.later(silence);
    assert_eq!(guest.asked(), [9]);
}

#[test]
fn a_successor_to_which_nothing_is_owed_asks_at_once() {
    let mut guest = Guest::new();
    for page in 0..2 {
        guest.miss(page, Access::READ);
        guest.grant(IOVA + page * PAGE, 0, 3);
        guest.answer(0);
    }
    guest.miss(2, Access::READ);
    guest.answer(1);
    guest.questions();
    guest.restart();
    assert_eq!(guest.rig.session.next_deadline(), None);
    guest.miss(2, Access::READ);
    assert_eq!(guest.questions(), [(NEED_REPLY, iotlb_type::MISS, 2, 1)]);
    guest.grant(IOVA, 0, 3);
    assert_eq!(guest.access(0), 3);
}

#[test]
fn an_update_for_a_former_process_gives_no_more_than_that_has_asked_for() {
    let mut guest = Guest::new();
    guest.miss(0, Access::READ);
    guest.miss(1, Access::READ);
    guest.miss(1, Access::WRITE);
    // Ended, and owed all the same.
    guest.later(SECOND);
    guest.restart();
    guest.grant(IOVA, 0, 3);
    assert_eq!(guest.access(0), 1);
    // Which of the two it answers cannot be known.
    guest.grant(IOVA + PAGE, PAGE, 3);
    assert_eq!(guest.access(1), 0);
    // What was not asked for holds as it is: the front end may never send it again.
    guest.grant(IOVA + 2 * PAGE, 2 * PAGE, 3);
    assert_eq!(guest.access(2), 3);
    // The same goes for the process after that one.
    guest.restart();
    guest.grant(IOVA + PAGE, PAGE, 3);
    assert_eq!(guest.access(1), 0);
    guest.questions();
    (0..3).for_each(|_| guest.answer(0));
    guest.miss(1, Access::WRITE);
    assert_eq!(guest.asked(), [1]);
    guest.grant(IOVA + PAGE, PAGE, 3);
    assert_eq!(guest.access(1), 2);
}

#[test]
fn an_update_that_is_no_answer_to_a_former_process_holds_after_a_silence() {
    let mut guest = Guest::new();
    guest.miss(0, Access::READ);
    guest.restart();
    guest.later(2 * SECOND);
    guest.grant(IOVA, 0, 3);
    assert_eq!(guest.access(0), 3);
    guest.restart();
    assert_eq!(guest.rig.session.next_deadline(), None);
}

#[test]
fn questions_ahead_leave_room_for_those_that_a_frame_waits_for() {
    let mut guest = Guest::new();
    for page in 0..48 {
        guest.table().ask(read(page), Need::Ahead);
    }
    guest.ask();
    for page in 48..96 {
        guest.table().ask(read(page), Need::Ahead);
    }
    guest.ask();
    assert_eq!(guest.asked(), (0..48).collect::<Vec<_>>());
    let miss = guest.miss(200, Access::READ);
    assert_eq!(guest.asked(), [200]);
    // One of those that wait is needed now. It is asked for once.
    guest.miss(95, Access::READ);
    assert_eq!(guest.asked(), [95]);
    guest.later(SECOND);
    assert!(guest.table().take_denial(miss));
    assert_eq!(guest.asked(), (48..95).collect::<Vec<_>>());
    guest.later(SECOND);
    assert!(guest.asked().is_empty());
    let info = guest.info();
    assert_eq!((info.misses, info.unanswered), (97, 97));
}

#[test]
fn what_was_asked_for_ahead_in_vain_is_asked_for_again_when_the_front_end_answers() {
    let mut guest = Guest::new();
    let table = guest.table();
    let waits = guest.miss(0, Access::READ);
    table.ask(read(1), Need::Ahead);
    guest.ask();
    guest.later(SECOND);
    assert!(table.is_denied(waits) && table.is_denied(read(1)));
    let flushes = table.flushes();
    // What comes unasked shows nothing.
    guest.grant(IOVA + 2 * PAGE, 0, 3);
    assert!(table.is_denied(read(1)) && table.flushes() == flushes);
    guest.miss(3, Access::READ);
    guest.grant(IOVA + 3 * PAGE, 0, 3);
    assert!(!table.is_denied(read(1)) && table.flushes() != flushes);
    assert!(table.is_denied(waits), "a chain waits for this denial");
    // Refusals last their second.
    table.ask(read(4), Need::Ahead);
    guest.ask();
    (0..4).for_each(|_| guest.answer(1));
    guest.miss(5, Access::READ);
    guest.grant(IOVA + 5 * PAGE, 0, 3);
    assert!(table.is_denied(read(4)));
}

#[test]
fn all_questions_end_when_a_channel_is_closed() {
    let mut guest = Guest::new();
    for start in [0, 64, 128] {
        for page in start..start + 64 {
            assert!(guest.table().ask(read(page), Need::Now));
        }
        if start < 128 {
            guest.ask();
        }
    }
    guest.questions();
    guest.put(&[0xff; 4096]);
    let table = guest.table();
    let denied = |pages: std::ops::Range<u64>| {
        let mut misses = pages.map(read);
        misses.all(|miss| table.take_denial(miss))
    };
    assert!(denied(64..192), "those that were not asked");
    guest.later(SECOND);
    assert!(denied(0..64));
    // And without one, all at once, also beside those that a queue has asked for ahead.
    for _ in 0..4 {
        for page in 300..364 {
            let need = if page % 4 == 0 {
                Need::Now
            } else {
                Need::Ahead
            };
            table.ask(read(page), need);
        }
        guest.ask();
        let waiting = (300..364).step_by(4);
        assert!(waiting.map(read).all(|miss| table.is_denied(miss)));
    }
}
