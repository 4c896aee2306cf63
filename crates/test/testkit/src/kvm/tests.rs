use std::time::{Duration, Instant};

use super::*;
use crate::frontend::Event;
use crate::skip::skipped;
use crate::wait::{LIMIT, wait_until};

/// So long nothing happens that could.
const QUIET: Duration = Duration::from_millis(5);
const COUNTED: u32 = 20;
const ORDERED: Task = Task::Orders {
    iterations: COUNTED,
};

fn start(config: KvmGuestConfig) -> Option<KvmGuest> {
    match KvmGuest::unconnected(config) {
        Ok(guest) => Some(guest),
        Err(error) => {
            skipped(error);
            None
        }
    }
}

fn with(task: Task) -> KvmGuestConfig {
    KvmGuestConfig {
        task,
        ..KvmGuestConfig::default()
    }
}

/// Interrupts a guest so many times; each is answered once.
fn is_answered(guest: &KvmGuest, times: u32) {
    let before = guest.interrupts();
    for _ in 0..times {
        guest.interrupt();
        assert_eq!(guest.answered().wait(LIMIT), 1);
    }
    assert_eq!(guest.interrupts() - before, times);
}

/// Orders, and waits until the guest has obeyed.
fn order(guest: &KvmGuest, obeyed: impl Fn() -> bool) {
    guest.order();
    let begin = Instant::now();
    while !obeyed() {
        assert!(begin.elapsed() < LIMIT, "the order is not obeyed");
        std::thread::yield_now();
    }
}

#[test]
fn each_interrupt_is_answered_once() {
    for vcpus in [1, 2, 4] {
        let Some(guest) = start(KvmGuestConfig {
            vcpus,
            ..with(Task::Halt)
        }) else {
            return;
        };
        is_answered(&guest, 100);
        assert_eq!(guest.answered().wait(QUIET), 0);
        assert_eq!((guest.work(), guest.others_work(), guest.sent()), (0, 0, 0));
    }
}

#[test]
fn a_working_guest_answers_and_all_its_vcpus_work() {
    let Some(guest) = start(KvmGuestConfig {
        vcpus: 2,
        others: Others::Work,
        ..with(Task::Work)
    }) else {
        return;
    };
    for _ in 0..3 {
        let (work, others) = (guest.work(), guest.others_work());
        is_answered(&guest, 5);
        wait_until("both work", || {
            guest.work() > work && guest.others_work() > others
        });
    }
}

#[test]
fn an_order_makes_the_guest_count_and_halt() {
    let Some(guest) = start(with(ORDERED)) else {
        return;
    };
    for orders in 1..=20 {
        let total = orders * u64::from(COUNTED);
        order(&guest, || guest.work() == total);
        if orders % 10 == 0 {
            std::thread::sleep(QUIET);
        }
        is_answered(&guest, 1);
        assert_eq!(guest.work(), total);
    }
    assert_eq!(guest.sent(), 0);
}

#[test]
fn counts_have_more_than_32_bits() {
    let Some(guest) = start(with(ORDERED)) else {
        return;
    };
    for before_end in [COUNTED, COUNTED - 1, 5, 0] {
        guest.set_work(u32::MAX - before_end);
        let before = guest.work();
        order(&guest, || guest.work() == before + u64::from(COUNTED));
        std::thread::sleep(QUIET);
        assert_eq!(guest.work(), before + u64::from(COUNTED));
    }
}

#[test]
fn used_buffers_are_given_back() {
    for event_idx in [true, false] {
        let Some(guest) = start(KvmGuestConfig {
            event_idx,
            ..with(Task::Halt)
        }) else {
            return;
        };
        for used in [1, 2, 200, 256, 300, 555, u16::MAX, 0, 5] {
            guest.rx.poke_used_idx(used.wrapping_sub(1));
            is_answered(&guest, 1);
            assert_eq!(guest.rx.peek_avail_idx(), used.wrapping_add(256));
            assert_eq!(guest.rx.peek_used_event(), used);
            assert_eq!(guest.received(), used);
        }
        guest.events().frames.signal();
        assert_eq!(guest.answered().wait(QUIET), 0, "nothing is received");
        wait_until("it is noticed", || guest.interrupts() == 10);
    }
}

/// The device's side of the transmit queue: an order is a frame, and a kick when asked for.
fn sends(guest: &KvmGuest, kick: &Event, asks: impl Fn(&KvmGuest, bool)) {
    let mut kicks = 0;
    for sent in 1..=300u16 {
        let asked = sent % 3 == 0;
        asks(guest, asked);
        order(guest, || guest.sent() == sent);
        // Interrupts wait for each other: the order is over.
        is_answered(guest, 1);
        if asked {
            kicks += 1;
            assert_eq!(kick.wait(LIMIT), 1);
            assert_eq!(guest.kicks(), kicks);
        } else if sent % 100 == 1 {
            assert_eq!(kick.wait(QUIET), 0);
        }
    }
    assert_eq!((kick.take(), guest.kicks()), (0, kicks));
}

#[test]
fn an_order_sends_a_frame_and_kicks_when_asked() {
    let Some(guest) = start(with(Task::Halt)) else {
        return;
    };
    sends(&guest, &guest.events().tx_kick, |guest, asked| {
        let next = guest.sent();
        let event = if asked { next } else { next.wrapping_sub(1) };
        guest.tx.poke_avail_event(event);
    });
    let Some(guest) = start(KvmGuestConfig {
        event_idx: false,
        ..with(Task::Work)
    }) else {
        return;
    };
    sends(&guest, &guest.events().tx_kick, |guest, asked| {
        guest.tx.poke_used_flags(u16::from(!asked));
    });
}

#[test]
fn a_reply_is_a_frame_too() {
    let Some(guest) = start(KvmGuestConfig {
        replies: true,
        frame: vec![7; 60],
        ..with(Task::Halt)
    }) else {
        return;
    };
    is_answered(&guest, 3);
    wait_until("all are sent", || guest.sent() == 3);
    let sent = guest.tx.peek_desc(2);
    assert_eq!((sent.len, sent.flags), (12 + 60, 0));
    let mut packet = vec![1; 72];
    guest.ram().read(sent.gpa, &mut packet);
    assert_eq!(packet, [vec![0; 12], vec![7; 60]].concat());
}

#[test]
fn threads_have_names_and_are_replaced() {
    let Some(mut guest) = start(KvmGuestConfig {
        vcpus: 2,
        others: Others::Work,
        ..with(ORDERED)
    }) else {
        return;
    };
    let name = |id: u32| std::fs::read_to_string(format!("/proc/self/task/{id}/comm"));
    let before = guest.vcpu_threads();
    guest.replace_vcpu(0).unwrap();
    guest.replace_vcpu(1).unwrap();
    let after = guest.vcpu_threads();
    assert!(after.iter().all(|id| !before.contains(id)));
    assert!(before.iter().all(|id| name(*id).is_err()));
    for (number, id) in after.iter().enumerate() {
        assert_eq!(name(*id).unwrap(), format!("CPU {number}/KVM\n"));
        guest.set_affinity(number, 0).unwrap();
    }
    is_answered(&guest, 10);
    order(&guest, || guest.work() == u64::from(COUNTED));
    let others = guest.others_work();
    wait_until("the other one works", || guest.others_work() > others);
}

#[test]
fn a_guest_ends_at_once() {
    for task in [Task::Halt, Task::Work, ORDERED] {
        for others in [Others::Halt, Others::Work] {
            let Some(guest) = start(KvmGuestConfig {
                vcpus: 4,
                others,
                halt_poll_ns: Some(0),
                thread_name: "worker".to_owned(),
                ..with(task)
            }) else {
                return;
            };
            let threads = guest.vcpu_threads();
            let begin = Instant::now();
            drop(guest);
            crate::wait::assert_faster(begin.elapsed(), Duration::from_millis(100));
            let is_there = |id: &u32| std::fs::exists(format!("/proc/self/task/{id}")).unwrap();
            assert!(!threads.iter().any(is_there));
        }
    }
}
