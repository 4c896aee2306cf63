//! A session goes into its record and comes out of it, wherever its process dies.

use std::time::Duration;

use proptest::prelude::*;
use testkit::memif::{Dialog, MemifClient};
use testkit::wait::LIMIT;
use virtio::queue::Layout;
use virtio::vhost_user::AnswerPipe;

use super::*;
use crate::{Connection, RECORD_VERSION};

/// Moments at which a process dies while it serves a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// The change is not recorded.
    Served,
    /// The change is recorded, the answer is not in the pipe.
    Recorded,
    /// The answer is in the pipe, the message still in the socket.
    Staged,
    /// The message is taken, the answer in the pipe.
    Consumed,
    /// The answer is sent; queues are not started.
    Sent,
    /// The start of the queues is not recorded.
    Started,
}

const DEATHS: [Death; 6] = [
    Death::Served,
    Death::Recorded,
    Death::Staged,
    Death::Consumed,
    Death::Sent,
    Death::Started,
];

/// The things that outlive a process: descriptors, and its last record.
struct Supervisor {
    socket: OwnedFd,
    pipe: [OwnedFd; 2],
    kept: BTreeMap<u64, sys::foreign::ForeignFd>,
    record: (Vec<u8>, Vec<u64>),
    answered: Option<Message>,
}

/// One process.
struct Process {
    connection: Connection,
    session: Session,
    backend: Recorder,
}

impl Supervisor {
    /// A connection with its `HELLO` in the pipe.
    fn new(socket: OwnedFd) -> Self {
        let pipe = AnswerPipe::new().expect("a pipe");
        let ends = pipe
            .ends()
            .map(|end| end.try_clone_to_owned().expect("a pipe"));
        let session = Session::new(offer());
        let mut connection =
            Connection::new(socket.try_clone().expect("a socket"), pipe).expect("a connection");
        connection.stage(&session.hello()).expect("room");
        Self {
            socket,
            pipe: ends,
            kept: BTreeMap::new(),
            record: session.record(),
            answered: None,
        }
    }

    fn process(&self) -> Process {
        let clone = |fd: &OwnedFd| fd.try_clone().expect("a descriptor");
        let [from, to] = [clone(&self.pipe[0]), clone(&self.pipe[1])];
        let pipe = AnswerPipe::again(from, to).expect("a pipe");
        let mut connection = Connection::new(clone(&self.socket), pipe).expect("a connection");
        if let Some(answered) = &self.answered {
            connection.skip_answered(answered).expect("no fault");
        }
        let (record, numbers) = &self.record;
        let kept = numbers.iter().map(|n| (*n, clone(&self.kept[n])));
        let mut backend = Recorder::default();
        let session = Session::restore(
            offer(),
            record,
            kept.map(|(n, fd)| (n, fd.into())).collect(),
            &mut backend,
        );
        Process {
            connection,
            session: session.expect("a sound record"),
            backend,
        }
    }

    /// Serves one message in a new process, which may die. Returns whether there was one.
    fn serve(&mut self, death: Option<Death>) -> bool {
        let mut process = self.process();
        let Process {
            connection,
            session,
            backend,
        } = &mut process;
        let dies = |at| death == Some(at);
        let Some((message, fds)) = connection.peek().expect("no fault") else {
            session.settled();
            if !connection.wants_write() && session.sent(backend) {
                self.record = session.record();
            }
            return false;
        };
        let reply = session
            .handle(message.clone(), fds, backend)
            .expect("a good message");
        session.settled();
        self.kept.append(&mut backend.kept);
        if dies(Death::Served) {
            return true;
        }
        self.answered = Some(message);
        self.record = session.record();
        if dies(Death::Recorded) {
            return true;
        }
        connection.stage(&reply.expect("an answer")).expect("room");
        if dies(Death::Staged) {
            return true;
        }
        connection.consume().expect("taken");
        if dies(Death::Consumed) {
            return true;
        }
        assert!(connection.flush().expect("a client"));
        if dies(Death::Sent) {
            return true;
        }
        let started = session.sent(backend);
        if started && !dies(Death::Started) {
            self.record = session.record();
        }
        true
    }
}

/// A whole dialog, whose server is a new process for each message and dies as `deaths` say, in
/// turn.
fn dialog(deaths: &[Option<Death>]) -> Supervisor {
    let (client, server) = Dialog::pair(LIMIT).expect("a socket pair");
    let mut supervisor = Supervisor::new(server);
    let client = std::thread::spawn(move || {
        let client = MemifClient::over(client, &spec()).expect("connected");
        (client.dialog.receive().map_err(|e| e.kind()), client)
    });
    let (mut deaths, mut rounds) = (deaths.iter().cycle(), 0);
    // Two rounds without a message after CONNECTED: nothing more comes.
    while !supervisor.process().session.is_connected() {
        if !supervisor.serve(*deaths.next().expect("cycles")) {
            std::thread::sleep(Duration::from_micros(100));
        }
        rounds += 1;
        assert!(rounds < 100_000, "no end");
    }
    // The client gets nothing after the one CONNECTED.
    rustix::net::shutdown(&supervisor.socket, rustix::net::Shutdown::Both).expect("a socket");
    let (after, _client) = client.join().expect("a client");
    assert_eq!(after, Ok(None), "a message after CONNECTED");
    supervisor
}

#[test]
fn every_message_survives_a_death_at_every_point() {
    for death in DEATHS {
        // Each message is served by one process that dies and one that does not.
        let supervisor = dialog(&[Some(death), None]);
        let process = supervisor.process();
        assert_eq!(process.backend.running.len(), 2, "{death:?}");
        let Process { session, .. } = &process;
        assert_eq!((session.regions.all.len(), session.rings[0].len()), (1, 1));
        assert_eq!(session.program(), "dpdk 22.11");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn deaths_in_any_order_lose_nothing(
        which in proptest::collection::vec(0..=DEATHS.len(), 1..20),
    ) {
        let mut deaths: Vec<_> = which.iter().map(|at| DEATHS.get(*at).copied()).collect();
        deaths.push(None);
        let process = dialog(&deaths).process();
        prop_assert_eq!(process.backend.running.len(), 2);
        prop_assert_eq!(process.session.record().1.len(), 3);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A record of corrupted state is refused, or is one that messages could have caused.
    #[test]
    fn changed_records_start_nothing_that_was_not_checked(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let rig = Rig::connected();
        let (mut record, _) = rig.session.record();
        for (at, byte) in changes {
            let at = at.index(record.len());
            record[at] = byte;
        }
        let mut backend = Recorder::default();
        let restored = Session::restore(offer(), &record, clones(&rig.backend.kept), &mut backend);
        match restored {
            Ok(session) => {
                let running = session.info().queues.into_iter().filter(|q| q.running);
                let running = running.map(|q| q.index);
                prop_assert!(running.eq(backend.running.keys().copied()));
                let memory = |setup: &QueueSetup| {
                    let Layout { desc, size, .. } = setup.layout;
                    setup.mem.translate(desc, 16 * u32::from(size)).is_some()
                };
                prop_assert!(backend.running.values().all(memory));
            }
            Err(reason) => prop_assert!(!reason.is_empty() && backend.running.is_empty()),
        }
    }
}

#[test]
fn a_restored_session_goes_on_at_its_rings() {
    let rig = Rig::connected();
    let (record, _) = rig.session.record();
    let kept = rig.backend.kept;
    let mut backend = Recorder::default();
    let session = Session::restore(offer(), &record, kept, &mut backend).expect("a record");
    assert_eq!(session.record().0, record);
    let started = [
        "memory: 1 regions",
        "start 0 with call",
        "start 1 with kick",
    ];
    assert_eq!(backend.take(), started);
}

#[test]
fn a_stopped_queue_stays_stopped() {
    let mut rig = Rig::connected();
    rig.session.queue_failed(1, "a reason", &mut rig.backend);
    let (record, _) = rig.session.record();
    let mut backend = Recorder::default();
    let restored = Session::restore(offer(), &record, rig.backend.kept, &mut backend);
    assert!(!backend.running.contains_key(&1));
    let queues = restored.expect("a record").info().queues;
    assert_eq!(queues[1].fault.as_deref(), Some("a reason"));
}

fn clones(kept: &BTreeMap<u64, sys::foreign::ForeignFd>) -> BTreeMap<u64, sys::foreign::ForeignFd> {
    let clone =
        |(n, fd): (&u64, &sys::foreign::ForeignFd)| (*n, fd.try_clone().expect("a descriptor"));
    kept.iter().map(clone).collect()
}

#[test]
fn other_records_are_refused_and_leave_nothing_running() {
    let rig = Rig::connected();
    let (record, _) = rig.session.record();
    let refused = |bytes: &[u8], kept| {
        let mut backend = Recorder::default();
        let restored = Session::restore(offer(), bytes, kept, &mut backend);
        assert!(backend.running.is_empty());
        restored.expect_err("refused")
    };
    let kept = || clones(&rig.backend.kept);
    for len in 0..record.len() {
        refused(&record[..len], kept());
    }
    refused(&[&record[..], &[0]].concat(), kept());
    let other = [&[RECORD_VERSION + 1], &record[1..]].concat();
    assert_eq!(refused(&other, kept()), "a record of version 11");
    assert_eq!(
        refused(&record, BTreeMap::new()),
        "descriptor 0 was not kept"
    );
    let mut swapped = kept();
    let (file, interrupt) = (swapped.remove(&0), swapped.remove(&1));
    swapped.extend([(0, interrupt.expect("one")), (1, file.expect("one"))]);
    assert!(refused(&record, swapped).contains("must be a memfd"));
    // A port with fewer queues than the record.
    let offer = Offer {
        queue_pairs: 1,
        ..offer()
    };
    let mut more = Rig::after(4);
    let add = AddRing {
        index: 1,
        ..ring(true)
    };
    let sent = more.send(code::ADD_RING, add.payload(), Some(event()));
    assert!(sent.is_ok());
    let (record, _) = more.session.record();
    let kept = clones(&more.backend.kept);
    let restored = Session::restore(offer, &record, kept, &mut Recorder::default());
    assert_eq!(
        restored.expect_err("refused"),
        "this port has 1 queue pairs"
    );
}

#[test]
fn the_committed_sample_is_read() {
    let rig = Rig::connected();
    let (here, name) = (env!("CARGO_MANIFEST_DIR"), "memif-session.bin");
    let record = rig.session.record().0;
    let sample = testkit::samples::sample(here, name, RECORD_VERSION.into(), &record);
    let mut backend = Recorder::default();
    let kept = clones(&rig.backend.kept);
    let session = Session::restore(offer(), &sample, kept, &mut backend).expect("a record");
    assert_eq!(session.record().0, sample);
}
