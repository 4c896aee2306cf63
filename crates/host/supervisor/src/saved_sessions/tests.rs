//! What is stored of the switch, and what its successor gets.

use super::*;
use rustix::fs::MemfdFlags;

const A: PortId = PortId(1);
const B: PortId = PortId(2);

fn fd() -> Vec<ForeignFd> {
    vec![
        rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC)
            .unwrap()
            .into(),
    ]
}

fn killed_by(signal: i32) -> ExitStatus {
    ExitStatus::from_raw(signal)
}

/// Returns thread slots of a switch that serves these ports.
fn thread_slots(ports: &[PortId]) -> OwnedFd {
    let thread_slots = fd().remove(0).vouch();
    rustix::fs::ftruncate(&thread_slots, ipc::keeping::CRASH_RECORD_LEN).unwrap();
    let all = ipc::keeping::ThreadSlots::map(&thread_slots).unwrap();
    for (thread, port) in ports.iter().enumerate() {
        all.of(thread).serve(*port);
    }
    thread_slots
}

#[test]
fn quarantined_connections_are_those_whose_descriptors_stand() {
    let slots = thread_slots(&[A]);
    let all = ipc::keeping::ThreadSlots::map(&slots).unwrap();
    all.note_closing(0, Some(B));
    all.note_closing(1, Some(A));
    all.note_closing(1, None);
    all.note_closing(2, Some(A));
    let slots_now = ipc::keeping::SlotSnapshot::at(&slots).unwrap();
    let culprits = slots_now.closed_by(&[0, 1, sys::closer::THREADS]);
    assert_eq!(
        culprits,
        [B],
        "the third closer was interrupted by the kill"
    );
    let mut saved_sessions = SavedSessions::default();
    // A crash has other suspects: the ports that threads serve.
    saved_sessions.record_crash(killed_by(libc::SIGSEGV), &slots);
    assert!(saved_sessions.crash_counts.keys().eq([&A]));
    saved_sessions.quarantine(culprits);
    assert!(saved_sessions.quarantined.iter().eq([&B]));
}

fn numbers(saved_sessions: &SavedSessions, port: PortId) -> Vec<u64> {
    saved_sessions.ports[&port].fds.keys().copied().collect()
}

#[test]
fn a_record_keeps_its_descriptors_and_no_others() {
    let mut saved_sessions = SavedSessions::default();
    (0..4).for_each(|n| saved_sessions.store_descriptor(A, n, fd()));
    saved_sessions.store_descriptor(B, 0, fd());
    saved_sessions.store_session(A, vec![1], &[1, 3]);
    assert_eq!(numbers(&saved_sessions, A), [1, 3]);
    assert_eq!(numbers(&saved_sessions, B), [0]);
    saved_sessions.store_session(A, vec![2], &[1, 3, 9]);
    assert_eq!(saved_sessions.ports[&A].record, None, "one is missing");
    saved_sessions.store_descriptor(A, 9, fd());
    saved_sessions.store_session(A, vec![2], &[1, 3, 9]);
    assert_eq!(saved_sessions.ports[&A].record, Some(vec![2]));
    saved_sessions.store_session(A, vec![0; MAX_RECORD + 1], &[1, 3, 9]);
    assert_eq!(saved_sessions.ports[&A].record, None, "too long");
    saved_sessions.drop_session(A);
    assert_eq!(
        (saved_sessions.stored(), saved_sessions.ports.len()),
        (1, 1)
    );
}

#[test]
fn ports_that_cannot_be_and_too_many_numbers_are_refused_at_once() {
    let mut saved_sessions = SavedSessions::default();
    for port in [PortId(MAX_PORTS as u32), PortId(u32::MAX)] {
        saved_sessions.store_descriptor(port, 0, fd());
        saved_sessions.store_session(port, vec![1], &[]);
    }
    assert!(saved_sessions.ports.is_empty());
    saved_sessions.store_descriptor(A, 0, fd());
    let many: Vec<u64> = (0..=MAX_SAVED as u64).collect();
    saved_sessions.store_session(A, vec![1], &many);
    assert!(saved_sessions.ports.is_empty(), "an incomplete session");
    saved_sessions.record_crash(
        killed_by(libc::SIGABRT),
        &thread_slots(&[PortId(u32::MAX - 1)]),
    );
    assert!(saved_sessions.crash_counts.is_empty());
}

#[test]
fn stored_descriptors_are_counted() {
    let mut saved_sessions = SavedSessions::default();
    for number in [0, 1, 1, 2] {
        saved_sessions.store_descriptor(A, number, fd());
        saved_sessions.store_descriptor(B, number, fd());
    }
    assert_eq!(saved_sessions.stored(), 6);
    saved_sessions.store_session(A, vec![1], &[2]);
    assert_eq!(saved_sessions.stored(), 4);
    saved_sessions.store_descriptor(B, 7, Vec::new());
    assert_eq!(saved_sessions.stored(), 1);
    saved_sessions.drop_session(A);
    saved_sessions.drop_session(A);
    assert_eq!(saved_sessions.stored(), 0);
}

/// Returns what a switch gets that takes so many messages, with the number of descriptors of
/// each; the rest stays queued.
fn sent(saved_sessions: &mut SavedSessions, most: usize) -> Vec<(Vec<SavedPart>, usize)> {
    let got = std::cell::RefCell::new(Vec::new());
    let send = |event: &EventToSwitch, fds: &[BorrowedFd<'_>]| {
        let EventToSwitch::SavedSessions(parts) = event else {
            panic!("{event:?}");
        };
        if got.borrow().len() == most {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        got.borrow_mut().push((parts.clone(), fds.len()));
        Ok(())
    };
    saved_sessions.send_queued(send).unwrap();
    got.into_inner()
}

fn store(saved_sessions: &mut SavedSessions, port: PortId, record: u8, fds: u64) {
    (0..fds).for_each(|n| saved_sessions.store_descriptor(port, n, fd()));
    saved_sessions.store_session(port, vec![record], &(0..fds).collect::<Vec<_>>());
}

/// Returns the parts of a session with so many descriptors.
fn parts(port: PortId, record: u8, fds: u64) -> [SavedPart; 2] {
    let numbers = (0..fds).collect();
    let descriptors = SavedPart::Descriptors { port, numbers };
    let record = SavedPart::Record {
        port,
        record: vec![record],
        quarantined: false,
    };
    [descriptors, record]
}

#[test]
fn a_new_switch_gets_many_sessions_in_a_message_and_as_fast_as_it_reads() {
    let mut saved_sessions = SavedSessions::default();
    for port in 0..50 {
        store(&mut saved_sessions, PortId(port), port as u8, 9);
    }
    // An incomplete session is not sent.
    saved_sessions.store_descriptor(PortId(50), 0, fd());
    saved_sessions.queue_all();
    let mut got = sent(&mut saved_sessions, 1);
    assert!(saved_sessions.has_queued(), "only what fits");
    got.extend(sent(&mut saved_sessions, 9));
    assert!(!saved_sessions.has_queued());
    assert_eq!(got.len(), 3, "450 descriptors");
    for (parts, fds) in &got {
        let numbers = parts.iter().map(|part| match part {
            SavedPart::Descriptors { numbers, .. } => numbers.len(),
            _ => 0,
        });
        assert_eq!(numbers.sum::<usize>(), *fds);
        assert!(*fds < MANY_FDS);
    }
    let all = got.into_iter().flat_map(|(parts, _)| parts);
    assert!(all.eq((0..50).flat_map(|port| parts(PortId(port), port as u8, 9))));
    saved_sessions.queue_all();
    let gone = saved_sessions.send_queued(|_, _| Err(io::ErrorKind::BrokenPipe.into()));
    assert!(gone.is_err() && saved_sessions.has_queued());
}

#[test]
fn long_sessions_are_sent_in_pieces() {
    let mut saved_sessions = SavedSessions::default();
    let fds = (3 * MANY_FDS) as u64;
    store(&mut saved_sessions, A, 1, fds);
    let long = vec![2; MAX_PART_BYTES];
    saved_sessions.store_descriptor(B, 0, fd());
    saved_sessions.store_session(B, long.clone(), &[0]);
    store(&mut saved_sessions, PortId(3), 3, 1);
    saved_sessions.queue_all();
    let got = sent(&mut saved_sessions, usize::MAX);
    assert!(got.iter().all(|(_, fds)| *fds < MANY_FDS));
    let numbers = got.iter().flat_map(|(parts, _)| parts);
    let numbers = numbers.flat_map(|part| match part {
        SavedPart::Descriptors { port, numbers } if *port == A => numbers.clone(),
        _ => Vec::new(),
    });
    assert!(numbers.eq(0..fds));
    let is_long =
        |part: &SavedPart| matches!(part, SavedPart::Record { record, .. } if *record == long);
    let of_long = got.iter().position(|(parts, _)| parts.iter().any(is_long));
    assert_eq!(of_long, Some(got.len() - 2), "it fills its message");
}

#[test]
fn a_switch_that_prepares_gets_what_changes_once_more() {
    let mut saved_sessions = SavedSessions::default();
    let over = |port| SavedPart::Over { port };
    let all = |saved_sessions: &mut SavedSessions| {
        saved_sessions.queue_changes();
        let got = sent(saved_sessions, usize::MAX).into_iter();
        got.flat_map(|(parts, _)| parts).collect::<Vec<_>>()
    };
    for port in [A, B, PortId(3)] {
        store(&mut saved_sessions, port, 1, 2);
    }
    assert_eq!(all(&mut saved_sessions).len(), 6);
    assert_eq!(all(&mut saved_sessions), []);
    // A memory table, a guest that has left, another in its place, and a new one.
    store(&mut saved_sessions, A, 2, 3);
    saved_sessions.drop_session(B);
    saved_sessions.drop_session(PortId(3));
    store(&mut saved_sessions, PortId(3), 1, 2);
    store(&mut saved_sessions, PortId(4), 1, 1);
    let changed = [
        parts(A, 2, 3),
        parts(PortId(3), 1, 2),
        parts(PortId(4), 1, 1),
    ];
    let changed = changed.concat().into_iter().chain([over(B)]);
    assert_eq!(all(&mut saved_sessions), changed.collect::<Vec<_>>());
    // One that has lost a descriptor cannot be continued.
    saved_sessions.store_descriptor(A, 7, Vec::new());
    assert_eq!(all(&mut saved_sessions), [over(A)]);
    // One that ends after it was queued.
    store(&mut saved_sessions, A, 1, 1);
    saved_sessions.queue_changes();
    saved_sessions.drop_session(A);
    let got = sent(&mut saved_sessions, usize::MAX).remove(0).0;
    assert_eq!(got, [over(A), over(A)]);
    saved_sessions.clear_queue();
    assert_eq!(all(&mut saved_sessions).len(), 4, "another switch gets all");
}

#[test]
fn a_hang_counts_for_ports_without_progress() {
    let mut saved_sessions = SavedSessions::default();
    let file = thread_slots(&[]);
    let all = ipc::keeping::ThreadSlots::map(&file).unwrap();
    for (thread, port) in [(1, A), (2, B)] {
        all.of(thread).serve(port);
    }
    assert!(
        !saved_sessions.session_thread_progressed(&file),
        "nothing to compare with"
    );
    all.of(0).rest();
    assert!(
        saved_sessions.session_thread_progressed(&file),
        "the session thread"
    );
    all.of(2).serve(B);
    saved_sessions.record_hang(&file);
    let crash_counts: Vec<_> = saved_sessions.crash_counts.keys().copied().collect();
    assert_eq!(crash_counts, [A], "the other one made progress");
    saved_sessions.record_hang(&file);
    assert_eq!(
        saved_sessions.crash_counts[&A].crashes, 1,
        "no earlier check, and slots are cleared"
    );
}

#[test]
fn crash_counts_pass_to_the_next_supervisor() {
    let mut before = SavedSessions::default();
    let dies = |saved_sessions: &mut SavedSessions, port| {
        saved_sessions.record_crash(killed_by(libc::SIGABRT), &thread_slots(&[port]));
    };
    (0..2).for_each(|_| dies(&mut before, B));
    (0..3).for_each(|_| dies(&mut before, A));
    let passed = before.pass(&mut OutgoingFds::default());
    let mut fds = IncomingFds::new(Vec::new()).unwrap();
    let mut saved_sessions = SavedSessions::take(passed, &mut fds).unwrap();
    assert!(saved_sessions.quarantined.iter().eq([&A]));
    let now = Instant::now();
    let quarantined = [(A, now), (B, now), (A, now + CRASH_WINDOW)];
    let quarantined = quarantined.map(|(port, at)| saved_sessions.is_quarantined(port, at));
    assert_eq!(quarantined, [true, false, false]);
    dies(&mut saved_sessions, B);
    assert!(
        saved_sessions.quarantined.iter().eq([&B]),
        "for the third time"
    );
    for (_, _, ago) in &mut saved_sessions.pass_crash_counts().ports {
        assert!(u128::from(*ago) < CRASH_WINDOW.as_millis());
    }
    let long_ago = PassedCrashCounts {
        ports: vec![
            (A, 2, 2 * CRASH_WINDOW.as_millis() as u64),
            (B, 2, u64::MAX),
        ],
        quarantined: Vec::new(),
    };
    saved_sessions.take_crash_counts(long_ago);
    dies(&mut saved_sessions, A);
    dies(&mut saved_sessions, B);
    assert!(
        saved_sessions.quarantined.is_empty(),
        "outside of the window"
    );
}

#[test]
fn complete_sessions_are_connections_and_change_the_generation() {
    let mut saved_sessions = SavedSessions::default();
    let ports = |d: &SavedSessions| d.connections().map(|(port, _)| port).collect::<Vec<_>>();
    let mut seen = BTreeSet::from([saved_sessions.generation()]);
    let mut changed = |saved_sessions: &SavedSessions| seen.insert(saved_sessions.generation());
    saved_sessions.store_descriptor(A, SOCKET, fd());
    assert_eq!(
        (ports(&saved_sessions), changed(&saved_sessions)),
        (vec![], false)
    );
    saved_sessions.store_session(A, vec![1], &[SOCKET]);
    assert_eq!(
        (ports(&saved_sessions), changed(&saved_sessions)),
        (vec![A], true)
    );
    saved_sessions.store_session(A, vec![2], &[SOCKET]);
    assert_eq!(
        (ports(&saved_sessions), changed(&saved_sessions)),
        (vec![A], false)
    );
    saved_sessions.drop_session(A);
    assert_eq!(
        (ports(&saved_sessions), changed(&saved_sessions)),
        (vec![], true)
    );
}

#[test]
fn a_missing_descriptor_invalidates_the_session() {
    let mut saved_sessions = SavedSessions::default();
    saved_sessions.store_descriptor(A, 0, fd());
    saved_sessions.store_session(A, vec![1], &[0]);
    saved_sessions.store_descriptor(A, 1, Vec::new());
    assert_eq!(saved_sessions.ports[&A].record, None);
}

#[test]
fn crashes_count_for_served_ports_unless_the_kill_came_from_outside() {
    let mut saved_sessions = SavedSessions::default();
    let crashes = |saved_sessions: &SavedSessions| {
        [A, B].map(|port| {
            saved_sessions
                .crash_counts
                .get(&port)
                .map_or(0, |count| count.crashes)
        })
    };
    let quarantined = |saved_sessions: &SavedSessions| {
        saved_sessions
            .quarantined
            .iter()
            .copied()
            .collect::<Vec<_>>()
    };
    saved_sessions.record_crash(killed_by(libc::SIGKILL), &thread_slots(&[A]));
    assert_eq!(crashes(&saved_sessions), [0, 0]);
    let thread_slots = thread_slots(&[A]);
    saved_sessions.record_crash(killed_by(libc::SIGSEGV), &thread_slots);
    assert_eq!(crashes(&saved_sessions), [1, 0]);
    saved_sessions.record_crash(killed_by(libc::SIGABRT), &thread_slots);
    assert_eq!(crashes(&saved_sessions), [1, 0], "slots count once");
    saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[B, A]));
    assert_eq!(crashes(&saved_sessions), [2, 1]);
    assert_eq!(quarantined(&saved_sessions), []);
    saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[A]));
    assert_eq!(
        (crashes(&saved_sessions), quarantined(&saved_sessions)),
        ([3, 1], vec![A])
    );
    saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[B]));
    assert_eq!(
        (crashes(&saved_sessions), quarantined(&saved_sessions)),
        ([3, 2], vec![])
    );
    saved_sessions.drop_session(A);
    saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[A]));
    assert_eq!(
        (crashes(&saved_sessions), quarantined(&saved_sessions)),
        ([4, 2], vec![A])
    );
    if let Some(long_ago) = Instant::now().checked_sub(2 * CRASH_WINDOW) {
        saved_sessions.crash_counts.get_mut(&A).unwrap().last = long_ago;
        saved_sessions.record_crash(killed_by(libc::SIGABRT), &self::thread_slots(&[A]));
        assert_eq!(
            (crashes(&saved_sessions), quarantined(&saved_sessions)),
            ([1, 2], vec![])
        );
    }
}
