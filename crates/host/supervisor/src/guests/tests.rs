use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread::JoinHandle;

use vcpus::View;

use super::*;
use crate::record::{IncomingFds, OutgoingFds};

const A: PortId = PortId(1);
const B: PortId = PortId(2);

fn guests(by: GuestStates) -> Guests {
    let mut guests = Guests::of(by);
    guests.watch(Vec::new());
    guests
}

fn counters() -> OwnedFd {
    sys::file::fixed("test", port::counters::SIZE).unwrap()
}

/// Guests with memory that no program writes.
fn imagined() -> Guests {
    let mut guests = Guests {
        source: StateSource::Programs(Programs::imagined().unwrap()),
        ..Guests::default()
    };
    guests.watch(Vec::new());
    guests
}

/// Thread that sleeps until it is ended.
struct Sleeper {
    id: u32,
    end: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Sleeper {
    fn start() -> Self {
        let (say, receive) = mpsc::channel();
        let (end, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            say.send(id.cast_unsigned()).unwrap();
            let _ = wait.recv();
        });
        let id = receive.recv().unwrap();
        Self { id, end, thread }
    }

    fn end(self) {
        drop(self.end);
        self.thread.join().unwrap();
    }
}

/// Messages that a switch has received, and the number of further ones that fit.
#[derive(Default)]
struct FakeSwitch {
    sent: RefCell<Vec<EventToSwitch>>,
    room: RefCell<usize>,
}

impl FakeSwitch {
    /// Returns the messages for a switch with so much room.
    fn listen(&self, guests: &mut Guests, switch: u32, room: usize) -> (bool, Vec<EventToSwitch>) {
        *self.room.borrow_mut() = room;
        let sent = guests.send(switch, &|event, fds| {
            let mut room = self.room.borrow_mut();
            *room = room.checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
            assert_eq!(
                fds.len(),
                2 * usize::from(*event == EventToSwitch::GuestStates)
            );
            self.sent.borrow_mut().push(event.clone());
            Ok(())
        });
        (sent.is_ok(), self.sent.take())
    }
}

fn threads_of(port: PortId, slots: &[Slot]) -> EventToSwitch {
    let slots = slots.iter().map(|slot| slot.0).collect();
    EventToSwitch::GuestThreads { port, slots }
}

#[test]
fn a_switch_gets_changes_and_its_successor_everything() {
    let mut guests = imagined();
    let ready = FakeSwitch::default();
    let (a, b) = (vec![Slot(1), Slot(2)], vec![Slot(3)]);
    guests.slots.insert(A, a.clone());
    guests.changes += 1;
    assert_eq!(ready.listen(&mut guests, 1, 0), (false, vec![]), "no room");
    assert_eq!(
        ready.listen(&mut guests, 1, 1),
        (false, vec![EventToSwitch::GuestStates])
    );
    assert_eq!(
        ready.listen(&mut guests, 1, 9),
        (true, vec![threads_of(A, &a)])
    );
    assert_eq!(ready.listen(&mut guests, 1, 9), (true, vec![]));
    guests.slots.insert(B, b.clone());
    guests.changes += 1;
    assert_eq!(
        ready.listen(&mut guests, 1, 9),
        (true, vec![threads_of(B, &b)])
    );
    guests.slots.remove(&A);
    guests.changes += 1;
    let all = vec![EventToSwitch::GuestStates, threads_of(B, &b)];
    assert_eq!(ready.listen(&mut guests, 2, 9), (true, all));
    assert_eq!(
        ready.listen(&mut guests, 1, 9),
        (true, vec![threads_of(A, &[])])
    );
    assert_eq!(ready.listen(&mut guests, 1, 9), (true, vec![]));
}

#[test]
fn without_a_source_nothing_is_sent() {
    let ready = FakeSwitch::default();
    for mut guests in [Guests::default(), guests(GuestStates::Off)] {
        assert_eq!(ready.listen(&mut guests, 1, 9), (true, vec![]));
        assert_eq!(guests.due(), None);
        assert_eq!(guests.watched().by, "off");
    }
    let reason = guests(GuestStates::Off).watched().reason;
    assert_eq!(reason.as_deref(), Some("as configured"));
}

#[test]
fn there_is_a_reason_where_there_are_no_states() {
    for by in [GuestStates::Auto, GuestStates::Bpf] {
        let watched = guests(by).watched();
        let expected = if watched.reason.is_none() {
            "bpf"
        } else {
            "off"
        };
        assert_eq!(watched.by, expected, "{by:?}: {:?}", watched.reason);
    }
}

#[test]
fn patterns_may_change() {
    let mut guests = imagined();
    let pattern = "lcore-*".to_owned();
    guests.watch(vec![(A, pattern.clone())]);
    assert_eq!(guests.patterns, BTreeMap::from([(A, pattern)]));
}

/// Returns the guests of a successor to which these were handed over.
fn successor(guests: &Guests) -> Guests {
    let mut outgoing = OutgoingFds::default();
    let passed = guests.pass(&mut outgoing);
    let mut incoming = IncomingFds::new(outgoing.numbers()).unwrap();
    Guests::take(passed, &mut incoming).unwrap()
}

#[test]
fn a_successor_adopts_programs_and_settings() {
    let mut guests = imagined();
    guests.by = GuestStates::Bpf;
    guests.patterns.insert(A, "lcore-*".to_owned());
    let slot = guests.source.table_mut().unwrap().follow(4711);
    let mut next = successor(&guests);
    assert_eq!(next.watched().by, "bpf");
    assert_eq!(next.source.table_mut().unwrap().follow(4711), slot);
    assert_eq!((next.by, &next.patterns), (guests.by, &guests.patterns));
    assert!(
        next.due().unwrap() <= Instant::now(),
        "it asks for the connections"
    );
    let reason = Some("no right".to_owned());
    let (source, by) = (StateSource::Off, GuestStates::Auto);
    let without = Guests {
        source,
        by,
        reason: reason.clone(),
        ..Guests::default()
    };
    let next = successor(&without);
    assert_eq!((next.watched().by.as_str(), next.reason), ("off", reason));
}

#[test]
fn programs_of_another_layout_are_kept_for_a_rollback_only() {
    let guests = imagined();
    let set_version = |version: u8| {
        let memory = guests.source.table().unwrap().reader();
        rustix::io::pwrite(memory, &[version], 4).unwrap();
    };
    let mut version = [0];
    rustix::io::pread(guests.source.table().unwrap().reader(), &mut version, 4).unwrap();
    set_version(99);
    let mut next = successor(&guests);
    assert_eq!(next.watched().by, "off");
    let reason = next.watched().reason.unwrap();
    assert!(reason.ends_with("restart to have them"), "{reason}");
    set_version(version[0]);
    assert_eq!(successor(&next).watched().by, "bpf", "the version before");
    next.forget_others();
    let later = successor(&next).watched();
    assert_eq!((later.by.as_str(), later.reason), ("off", Some(reason)));
}

#[test]
fn a_successor_knows_whether_halts_are_counted() {
    let guests = imagined();
    let reason = successor(&guests).watched().no_halts.unwrap();
    assert!(reason.contains("restart Lasthop"), "{reason}");
    guests.source.table().unwrap().set_counts_halts();
    assert_eq!(successor(&guests).watched().no_halts, None);
}

#[test]
fn threads_are_followed_while_desired_and_alive() {
    let mut table = Table::in_memory().unwrap();
    let view = View::map(table.reader()).unwrap();
    let (stays, goes) = (Sleeper::start(), Sleeper::start());
    let desired = BTreeMap::from([(A, vec![stays.id, goes.id]), (B, vec![stays.id])]);
    let slots = follow(&mut table, &desired);
    assert_eq!(slots[&A][0], slots[&B][0], "one thread has one slot");
    let states: Vec<_> = slots[&A].iter().map(|slot| view.state(*slot)).collect();
    let known = |state: &Option<Vcpu>| state.is_some_and(|state| state.since_ns == 0);
    assert!(states.iter().all(known), "{states:?}");
    assert_eq!(follow(&mut table, &desired), slots, "slots stay");
    let gone = goes.id;
    goes.end();
    let fewer = BTreeMap::from([(A, vec![stays.id]), (B, vec![])]);
    let left = follow(&mut table, &fewer);
    assert_eq!(left, BTreeMap::from([(A, slots[&A][..1].to_vec())]));
    assert!(table.threads().all(|(thread, _)| thread != gone));
    assert!(follow(&mut table, &BTreeMap::new()).is_empty());
    assert_eq!(table.threads().count(), 0);
    stays.end();
}

#[test]
fn without_connections_there_is_nothing_to_do() {
    let mut guests = imagined();
    let saved_sessions = SavedSessions::default();
    guests.poll(&saved_sessions, &counters());
    assert_eq!(guests.due(), None);
    guests.watch(vec![(A, "lcore-*".to_owned())]);
    assert_eq!(guests.due(), None, "no port has these names yet");
}

#[test]
fn what_did_not_fit_is_sent_later() {
    let mut guests = imagined();
    guests.poll(&SavedSessions::default(), &counters());
    guests.send_at = Some(Instant::now());
    assert!(guests.due().is_some());
    guests.send_to(&[]);
    assert_eq!(guests.due(), None);
}
