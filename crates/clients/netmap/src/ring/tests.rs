//! Rings on the heap: against a model, against hostile programs and hostile other sides.

use proptest::prelude::*;

use super::*;

/// Memory of a ring, and the other side's hand.
struct Rig {
    ring: Ring,
    memory: Memory,
    kick: OwnedFd,
}

struct Memory {
    header: *mut abi::Ring,
    slots: *mut [Slot],
    lines: [*mut Line; 2],
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the boxes were leaked by `rig`, and the ring is gone: fields are dropped in their
        // order.
        unsafe {
            drop(Box::from_raw(self.header));
            drop(Box::from_raw(self.slots));
            drop(Box::from_raw(self.lines[0]));
            drop(Box::from_raw(self.lines[1]));
        }
    }
}

fn line() -> *mut Line {
    Box::into_raw(Box::new(Line {
        index: 0.into(),
        event: 0.into(),
    }))
}

fn rig(role: Role, slots: u16) -> Rig {
    rig_at(role, slots, 0, 0)
}

fn rig_at(role: Role, slots: u16, mine: u16, theirs: u16) -> Rig {
    // SAFETY: a header of zeros is a valid one.
    let header = Box::into_raw(Box::new(unsafe { std::mem::zeroed::<abi::Ring>() }));
    let memory = Memory {
        header,
        slots: Box::into_raw(vec![Slot::default(); usize::from(slots)].into_boxed_slice()),
        lines: [line(), line()],
    };
    let places = Places {
        header: NonNull::new(header).unwrap(),
        slots: NonNull::new(memory.slots.cast()).unwrap(),
        mine: NonNull::new(memory.lines[0]).unwrap(),
        theirs: NonNull::new(memory.lines[1]).unwrap(),
        frame: None,
        region: None,
        far: None,
    };
    // SAFETY: the lines live as long as the rig.
    unsafe {
        (*memory.lines[0]).index.store(mine, Ordering::Relaxed);
        (*memory.lines[1]).index.store(theirs, Ordering::Relaxed);
    }
    let kick = sys::event::create().unwrap();
    let events = (kick.try_clone().unwrap(), sys::event::create().unwrap());
    Rig {
        ring: Ring::new(places, role, slots, events),
        memory,
        kick,
    }
}

impl Rig {
    fn mine(&self) -> u16 {
        self.ring.mine().index.load(Ordering::Relaxed)
    }

    fn move_theirs(&self, index: u16) {
        self.ring.theirs().index.store(index, Ordering::Relaxed);
    }

    /// Sets `head` and `cur`.
    fn place(&self, head: u32, cur: u32) {
        // SAFETY: the header lives as long as the rig; the test is the only thread.
        unsafe {
            (*self.memory.header).head = head;
            (*self.memory.header).cur = cur;
        }
    }

    fn set_tail(&self, tail: u32) {
        // SAFETY: as in `place`.
        unsafe { (*self.memory.header).tail = tail };
    }

    /// `head`, `cur`, `tail`.
    fn read(&self) -> (u32, u32, u32) {
        // SAFETY: as in `place`.
        let header = unsafe { &*self.memory.header };
        (header.head, header.cur, header.tail)
    }

    fn set_flags(&self, slot: usize, flags: u16) {
        // SAFETY: as in `place`.
        unsafe { (&mut *self.memory.slots)[slot].flags = flags };
    }

    fn was_kicked(&self) -> bool {
        rustix::io::read(&self.kick, &mut [0u8; 8]).is_ok()
    }
}

#[test]
fn a_new_ring_hands_out_all_slots_but_one() {
    let rig = rig(Role::Send, 64);
    assert_eq!((rig.read(), rig.mine()), ((0, 0, 63), 0));
    let rig = self::rig(Role::Receive, 64);
    assert_eq!((rig.read(), rig.mine()), ((0, 0, 0), 63), "63 buffers");
    let rig = self::rig(Role::Consume, 64);
    assert_eq!((rig.read(), rig.mine()), ((0, 0, 0), 0));
}

#[test]
fn frames_go_out_and_their_slots_come_back() {
    let rig = rig(Role::Send, 64);
    rig.place(3, 3);
    assert_eq!(rig.ring.sync(), Ok(SyncResult::Ready));
    assert_eq!((rig.mine(), rig.read()), (3, (3, 3, 63)));
    rig.move_theirs(2);
    rig.place(3, 3);
    rig.ring.sync().unwrap();
    assert_eq!(rig.read(), (3, 3, 1));
    // All room is taken, until something comes back.
    rig.place(1, 1);
    assert_eq!(rig.ring.sync(), Ok(SyncResult::Nothing));
    rig.move_theirs(3);
    assert_eq!(rig.ring.sync(), Ok(SyncResult::Ready));
}

#[test]
fn frames_come_in_and_their_buffers_go_back() {
    let rig = rig(Role::Receive, 64);
    assert_eq!(rig.ring.sync(), Ok(SyncResult::Nothing));
    rig.move_theirs(5);
    assert_eq!(rig.ring.sync(), Ok(SyncResult::Ready));
    assert_eq!((rig.read(), rig.mine()), ((0, 0, 5), 63));
    // The program keeps two and has seen all.
    rig.place(3, 5);
    assert_eq!(rig.ring.sync(), Ok(SyncResult::Nothing));
    assert_eq!(rig.mine(), 66);
    assert!(!rig.was_kicked(), "the switch needs no kick for buffers");
}

#[test]
fn a_side_that_sleeps_is_notified_and_one_that_is_awake_is_not() {
    let rig = rig(Role::Produce, 64);
    rig.ring.theirs().event.store(1, Ordering::Relaxed);
    for (head, kicked) in [(1, false), (2, true), (3, false)] {
        rig.place(head, head);
        rig.ring.sync().unwrap();
        assert_eq!(rig.was_kicked(), kicked, "{head}");
    }
}

#[test]
fn rules_of_the_prologue() {
    // The window of the program is 2 to 5 of 8 slots, then 6 to 1 over the end.
    for (mine, theirs) in [(18, 22), (22, 26)] {
        for role in [Role::Send, Role::Consume] {
            let theirs = if role == Role::Send {
                theirs - 7
            } else {
                theirs
            };
            for head in 0..10 {
                for cur in 0..10 {
                    let rig = rig_at(role, 8, mine, theirs);
                    let (at, _, tail) = rig.read();
                    assert_eq!((at, tail), (u32::from(mine) % 8, u32::from(mine + 4) % 8));
                    let ahead = |position: u32| (position + 8 - at) % 8;
                    let good = head < 8
                        && cur < 8
                        && ahead(head) <= ahead(cur)
                        && ahead(cur) <= ahead(tail);
                    rig.place(head, cur);
                    assert_eq!(rig.ring.sync().is_ok(), good, "{role:?}: {head} {cur}");
                    if !good {
                        assert_eq!(rig.read(), (at, at, tail), "positions are set back");
                        assert!(rig.ring.sync().is_ok(), "and the ring goes on");
                    }
                }
            }
        }
    }
}

#[test]
fn a_changed_tail_is_repaired() {
    let rig = rig(Role::Send, 64);
    rig.set_tail(7);
    rig.place(20, 20);
    assert!(rig.ring.sync().is_ok());
    assert_eq!(rig.read(), (20, 20, 63));
}

#[test]
fn an_index_outside_its_window_stops_the_ring() {
    for (role, mine, bad) in [
        (Role::Send, 3, 4),
        (Role::Send, 3, 0xffff),
        (Role::Receive, 0, 64),
        (Role::Receive, 0, 0xffff),
        (Role::Consume, 0, 64),
        (Role::Consume, 0, 0xffff),
    ] {
        let rig = rig(role, 64);
        rig.place(mine, mine);
        rig.ring.sync().unwrap();
        rig.move_theirs(bad);
        assert_eq!(rig.ring.sync(), Err(Errno::INVAL), "{role:?} {bad}");
        rig.move_theirs(0);
        assert_eq!(rig.ring.sync(), Err(Errno::INVAL), "it stays so");
        assert!(rig.ring.is_stopped());
    }
}

#[test]
fn of_a_frame_of_several_slots_a_pipe_publishes_all_or_nothing() {
    let rig = rig(Role::Produce, 128);
    for slot in 1..4 {
        rig.set_flags(slot, NS_MOREFRAG);
    }
    for (head, published) in [(1, 1), (3, 1), (4, 1), (5, 5)] {
        rig.place(head, head);
        rig.ring.sync().unwrap();
        assert_eq!(rig.mine(), published, "{head}");
    }
    // Nobody waits for a frame that is too long.
    for slot in 5..80 {
        rig.set_flags(slot, NS_MOREFRAG);
    }
    rig.place(80, 80);
    rig.ring.sync().unwrap();
    assert_eq!(rig.mine(), 80);
}

#[test]
fn flags_of_the_library_are_removed_from_what_a_port_sends() {
    let rig = rig(Role::Send, 64);
    rig.set_flags(0, NS_BUF_CHANGED | NS_MOREFRAG);
    rig.place(1, 1);
    rig.ring.sync().unwrap();
    assert_eq!(rig.ring.flags_of(0), NS_MOREFRAG);
}

#[test]
fn the_time_is_set_on_request() {
    let rig = rig(Role::Receive, 64);
    // SAFETY: as in `place`.
    let header = unsafe { &mut *rig.memory.header };
    rig.ring.sync().unwrap();
    assert_eq!(header.ts, [0, 0]);
    header.flags = NR_TIMESTAMP;
    rig.ring.sync().unwrap();
    assert!(header.ts[0] > 50 * 365 * 86_400);
}

#[test]
fn a_ring_goes_on_where_its_lines_are() {
    let rig = rig_at(Role::Send, 64, 0xfffe, 0xfff0);
    assert_eq!(rig.read(), (62, 62, 47));
    let rig = rig_at(Role::Receive, 64, 100, 50);
    assert_eq!(rig.read(), (37, 37, 50));
    let rig = rig_at(Role::Consume, 64, 100, 110);
    assert_eq!(rig.read(), (36, 36, 46));
}

#[test]
fn a_sender_waits_for_as_many_slots_as_come_free_while_it_wakes() {
    let rig = rig(Role::Send, 256);
    rig.place(255, 255);
    rig.ring.sync().unwrap();
    let mut theirs: u16 = 0;
    for _ in 0..50 {
        let slots = rig.ring.request(true).unwrap();
        // The other side passes the event, and moves on by 40 until the sender runs.
        theirs = theirs.wrapping_add(slots + 40);
        rig.move_theirs(theirs);
        rig.ring.sync().unwrap();
        let (_, _, tail) = rig.read();
        rig.place(tail, tail);
        rig.ring.sync().unwrap();
    }
    let slots = rig.ring.request(true).unwrap();
    assert!((35..=40).contains(&slots), "{slots}");
    assert_eq!(rig.ring.request(false), Some(1), "one that is not patient");
    rig.move_theirs(theirs + 1);
    assert_eq!(rig.ring.request(false), None, "it came meanwhile");
}

#[test]
fn one_thread_at_a_time() {
    let rig = rig(Role::Send, 64);
    let held = rig.ring.hold().unwrap();
    assert_eq!(rig.ring.sync(), Ok(SyncResult::Busy));
    drop(held);
    assert_eq!(rig.ring.sync(), Ok(SyncResult::Ready));
}

/// One step of a program and its other side.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// `head` moves on by a part of the window, `cur` further.
    Program(u8, u8),
    /// The other side's index moves on by a part of what it may.
    Other(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<u8>(), any::<u8>()).prop_map(|(head, cur)| Step::Program(head, cur)),
        any::<u8>().prop_map(Step::Other),
    ]
}

proptest! {
    /// Counting in whole numbers that never wrap, the ring shows the same.
    #[test]
    fn a_ring_counts_as_its_model(
        role in prop::sample::select(vec![Role::Send, Role::Produce, Role::Receive, Role::Consume]),
        power in 1u32..8,
        start in any::<u16>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let n = 1u64 << power;
        let base = u64::from(start / n as u16 * n as u16) + (1 << 20);
        let given = if role == Role::Receive { n - 1 } else { 0 };
        let rig = rig_at(role, n as u16, (base + given) as u16, base as u16);
        // Free-running positions of program and other side.
        let (mut user, mut theirs) = (base, base);
        // A line at zero is one that nobody has used.
        prop_assume!(role != Role::Receive || (base + given) as u16 != 0);
        for step in steps {
            let tail = if role.sends() { theirs + n - 1 } else { theirs };
            match step {
                Step::Program(head, cur) => {
                    user += u64::from(head) * (tail - user) / 255;
                    let cur = user + u64::from(cur) * (tail - user) / 255;
                    rig.place((user % n) as u32, (cur % n) as u32);
                    let found = rig.ring.sync().unwrap();
                    prop_assert_eq!(found == SyncResult::Ready, cur != tail);
                    prop_assert_eq!(rig.mine(), (user + given) as u16);
                }
                Step::Other(part) => {
                    let most = match role {
                        Role::Consume => user + n - 1,
                        _ => user + given,
                    };
                    theirs += u64::from(part) * (most - theirs) / 255;
                    rig.move_theirs(theirs as u16);
                    rig.place((user % n) as u32, (user % n) as u32);
                    rig.ring.sync().unwrap();
                    let tail = if role.sends() { theirs + n - 1 } else { theirs };
                    prop_assert_eq!(rig.read().2, (tail % n) as u32);
                }
            }
        }
    }

    /// Whatever anyone writes, a sync ends, and the program keeps positions inside the ring.
    #[test]
    fn nothing_that_is_written_leads_out_of_the_ring(
        role in prop::sample::select(vec![Role::Send, Role::Produce, Role::Receive, Role::Consume]),
        words in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u16>()), 1..20),
    ) {
        let rig = rig(role, 8);
        for (head, cur, theirs) in words {
            rig.place(head % 12, cur % 12);
            rig.move_theirs(theirs % 12);
            if rig.ring.sync().is_ok() {
                let (head, cur, tail) = rig.read();
                prop_assert!(head < 8 && cur < 8 && tail < 8);
            }
        }
    }
}
