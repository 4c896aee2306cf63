use std::cell::RefCell;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::JoinHandle;

use sched::{Activity, View};

use super::*;

const A: PortId = PortId(1);
const B: PortId = PortId(2);

fn guests(by: GuestStates) -> Guests {
    let mut guests = Guests::default();
    let threads = Vec::new();
    guests.watch(GuestWatch { by, threads });
    guests
}

/// A thread that sleeps until it is to end.
struct Sleeper {
    id: u32,
    end: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Sleeper {
    fn start() -> Self {
        let (say, hear) = mpsc::channel();
        let (end, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            say.send(id.cast_unsigned()).unwrap();
            let _ = wait.recv();
        });
        let id = hear.recv().unwrap();
        Self { id, end, thread }
    }

    fn end(self) {
        drop(self.end);
        self.thread.join().unwrap();
    }
}

/// Messages that a switch got, and how many more it has room for.
#[derive(Default)]
struct Heard {
    said: RefCell<Vec<Tell>>,
    room: RefCell<usize>,
}

impl Heard {
    /// What a switch with so much room is told.
    fn listen(&self, guests: &mut Guests, switch: u32, room: usize) -> (bool, Vec<Tell>) {
        *self.room.borrow_mut() = room;
        let told = guests.tell(switch, &|tell, fds| {
            let mut room = self.room.borrow_mut();
            *room = room.checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
            assert_eq!(fds.len(), usize::from(*tell == Tell::GuestStates));
            self.said.borrow_mut().push(tell.clone());
            Ok(())
        });
        (told.is_ok(), self.said.take())
    }
}

fn threads_of(port: PortId, slots: &[Slot]) -> Tell {
    let slots = slots.iter().map(|slot| slot.0).collect();
    Tell::GuestThreads { port, slots }
}

#[test]
fn a_switch_is_told_what_is_new_and_its_successor_everything() {
    let mut guests = guests(GuestStates::Proc);
    let heard = Heard::default();
    let (a, b) = (vec![Slot(1), Slot(2)], vec![Slot(3)]);
    guests.slots.insert(A, a.clone());
    assert_eq!(heard.listen(&mut guests, 1, 0), (false, vec![]), "no room");
    assert_eq!(
        heard.listen(&mut guests, 1, 1),
        (false, vec![Tell::GuestStates])
    );
    assert_eq!(
        heard.listen(&mut guests, 1, 9),
        (true, vec![threads_of(A, &a)])
    );
    assert_eq!(heard.listen(&mut guests, 1, 9), (true, vec![]));
    guests.slots.insert(B, b.clone());
    assert_eq!(
        heard.listen(&mut guests, 1, 9),
        (true, vec![threads_of(B, &b)])
    );
    guests.slots.remove(&A);
    let all = vec![Tell::GuestStates, threads_of(B, &b)];
    assert_eq!(heard.listen(&mut guests, 2, 9), (true, all));
    assert_eq!(
        heard.listen(&mut guests, 1, 9),
        (true, vec![threads_of(A, &[])])
    );
    assert_eq!(heard.listen(&mut guests, 1, 9), (true, vec![]));
}

#[test]
fn where_nobody_notes_states_nobody_is_told() {
    let heard = Heard::default();
    for mut guests in [Guests::default(), guests(GuestStates::Off)] {
        assert_eq!(heard.listen(&mut guests, 1, 9), (true, vec![]));
        assert_eq!(guests.due(), None);
        assert_eq!(guests.watched().by, "off");
    }
    let reason = guests(GuestStates::Off).watched().reason;
    assert_eq!(reason.as_deref(), Some("as configured"));
}

#[test]
fn it_is_always_said_why_it_is_not_the_kernel() {
    let words = [GuestStates::Auto, GuestStates::Bpf, GuestStates::Proc];
    for by in words {
        let watched = guests(by).watched();
        let expected = match (by, watched.reason.is_none()) {
            (GuestStates::Proc, _) | (GuestStates::Auto, false) => "proc",
            (GuestStates::Bpf, false) => "off",
            (_, true) | (GuestStates::Off, _) => "bpf",
        };
        assert_eq!(watched.by, expected, "{by:?}: {:?}", watched.reason);
    }
}

#[test]
fn the_first_that_control_says_holds_and_names_may_change() {
    let mut guests = guests(GuestStates::Proc);
    let pattern = "lcore-*".to_owned();
    guests.watch(GuestWatch {
        by: GuestStates::Off,
        threads: vec![(A, pattern.clone())],
    });
    assert_eq!(guests.watched().by, "proc");
    assert_eq!(guests.patterns, BTreeMap::from([(A, pattern)]));
}

#[test]
fn threads_are_followed_while_they_are_wanted_and_there() {
    let mut table = Table::in_memory().unwrap();
    let view = View::map(table.reader()).unwrap();
    let (stays, goes) = (Sleeper::start(), Sleeper::start());
    let wanted = BTreeMap::from([(A, vec![stays.id, goes.id]), (B, vec![stays.id])]);
    let slots = follow(&mut table, &wanted);
    assert_eq!(slots[&A][0], slots[&B][0], "one thread has one place");
    let states: Vec<_> = slots[&A].iter().map(|slot| view.state(*slot)).collect();
    let known = |state: &Option<Vcpu>| state.is_some_and(|state| state.since_ns == 0);
    assert!(states.iter().all(known), "{states:?}");
    assert_eq!(follow(&mut table, &wanted), slots, "they keep their places");
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
fn samples_are_taken_only_of_somebody() {
    let mut guests = guests(GuestStates::Proc);
    let deposits = Deposits::default();
    let sleeper = Sleeper::start();
    let Keeper::Samples(table, _) = &mut guests.keeper else {
        panic!("{:?}", guests.keeper);
    };
    let view = View::map(table.reader()).unwrap();
    guests.look_at = None;
    guests.turn(&deposits);
    assert_eq!(guests.due(), None, "there is nobody");
    let slot = guests
        .keeper
        .table_mut()
        .unwrap()
        .follow(sleeper.id)
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while view.state(slot).map(|state| state.activity) != Some(Activity::Blocked) {
        assert!(guests.due().is_some() && Instant::now() < deadline);
        guests.turn(&deposits);
    }
    sleeper.end();
}

#[test]
fn threads_are_looked_for_again_and_then_less_often() {
    let mut guests = guests(GuestStates::Proc);
    let deposits = Deposits::default();
    for _ in LOOKS {
        assert!(guests.look_at.is_some());
        guests.look_at = Some(Instant::now());
        guests.turn(&deposits);
    }
    assert_eq!(guests.look_at, None, "nobody is connected");
    guests.begin_to_look();
    assert!(guests.look_at.is_some());
}

#[test]
fn our_own_end_of_a_connection_has_no_processors() {
    // A driver's is like that: the supervisor has made both ends.
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert!(threads_behind(ours.as_fd(), None).is_empty());
}
