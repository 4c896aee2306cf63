//! A session goes into its record and comes out of it; nothing else does.

use super::super::Resume;
use super::super::config::NET_CONFIG_LEN;
use super::super::message::{InflightDesc, LogDesc, RegionDesc, VringAddr};
use super::super::record::{Record, VringRecord};
use super::super::{AnswerPipe, Connection, PeekResult, RECORD_VERSION};
use super::*;
use crate::queue::{Layout, Queue};
use testkit::samples::sample;

/// Keeps descriptors as the supervisor does.
#[derive(Default)]
struct RecordStore {
    recorder: Recorder,
    kept: BTreeMap<u64, sys::foreign::ForeignFd>,
}

impl Backend for RecordStore {
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>) {
        self.recorder.set_memory(mem);
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String> {
        let how = match setup.resume {
            Resume::Yes => "resume",
            Resume::Perhaps => "perhaps",
            Resume::No => "new",
        };
        self.recorder.events.push(how.into());
        self.recorder.start_queue(index, setup)
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        self.recorder.stop_queue(index)
    }

    fn enable_queue(&mut self, index: u16, on: bool) {
        self.recorder.enable_queue(index, on);
    }

    fn set_call(&mut self, index: u16, call: Option<sys::foreign::ForeignFd>) {
        self.recorder.set_call(index, call);
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        self.recorder.set_mtu(mtu)
    }

    fn keep(&mut self, number: u64, fd: std::os::fd::BorrowedFd<'_>) {
        let fd = fd.try_clone_to_owned().expect("a descriptor");
        assert!(
            self.kept.insert(number, fd.into()).is_none(),
            "a number twice"
        );
    }

    fn keep_iotlb(&mut self, fd: BorrowedFd<'_>) {
        self.recorder.keep_iotlb(fd);
    }

    fn kept_iotlb(&mut self) -> Option<sys::foreign::ForeignFd> {
        self.recorder.kept_iotlb()
    }
}

fn offer() -> Offer {
    Offer::new(offered() | Features::ACCESS_PLATFORM, 2)
}

struct SessionRig {
    session: Session,
    store: RecordStore,
}

impl SessionRig {
    fn new() -> Self {
        Self {
            session: Session::new(offer()),
            store: RecordStore::default(),
        }
    }

    fn tell(&mut self, code: u32, payload: impl Into<Vec<u8>>, fds: Vec<OwnedFd>) {
        let message = Message {
            code,
            need_reply: false,
            payload: payload.into(),
        };
        let done = self.session.handle(message, fds, &mut self.store);
        done.expect("no fault");
    }

    /// Everything that a record can hold.
    fn full(packed: bool) -> Self {
        let mut rig = Self::new();
        let protocol = ProtocolFeatures::all().bits();
        rig.tell(code::SET_PROTOCOL_FEATURES, u64s(&[protocol]), vec![]);
        let mut features = Features::VERSION_1;
        features.set(Features::RING_PACKED, packed);
        let acked = features.bits() | F_PROTOCOL_FEATURES | F_LOG_ALL;
        rig.tell(code::SET_FEATURES, u64s(&[acked]), vec![]);
        rig.tell(code::NET_SET_MTU, u64s(&[1400]), vec![]);
        let table = mem_table(&[[GPA, MEM, UVA, 0], [GPA + MEM, MEM, UVA + MEM, 4096]]);
        let files = vec![memfd(MEM), memfd(MEM + 4096)];
        rig.tell(code::SET_MEM_TABLE, table, files);
        rig.tell(code::SET_LOG_BASE, u64s(&[4096, 0]), vec![memfd(4096)]);
        let area = inflight(1 << 20, 0, 4, 256);
        rig.tell(code::SET_INFLIGHT_FD, area, vec![memfd(1 << 20)]);
        rig.tell(code::SET_BACKEND_REQ_FD, vec![], vec![socket()]);
        for index in [0, 1] {
            let at = u64::from(index);
            rig.tell(code::SET_VRING_CALL, u64s(&[at]), vec![event()]);
            rig.tell(code::SET_VRING_ERR, u64s(&[at]), vec![event()]);
            rig.tell(code::SET_VRING_NUM, state(index.into(), 256), vec![]);
            rig.tell(code::SET_VRING_ADDR, addr(index, 0), vec![]);
            rig.tell(code::SET_VRING_KICK, u64s(&[at]), vec![event()]);
        }
        rig.tell(code::SET_VRING_ENABLE, state(0, 1), vec![]);
        rig.tell(code::SET_VRING_NUM, state(2, 64), vec![]);
        rig
    }

    /// The session dies and comes back.
    fn die(self) -> (Result<Session, String>, RecordStore) {
        let (bytes, numbers) = self.session.record();
        restore(&bytes, &numbers, self.store.kept)
    }
}

fn clones(kept: &BTreeMap<u64, sys::foreign::ForeignFd>) -> BTreeMap<u64, sys::foreign::ForeignFd> {
    let copies = kept.iter();
    let copies = copies.map(|(number, fd)| (*number, fd.try_clone().expect("a descriptor")));
    copies.collect()
}

/// As [`restore`], with the file of translations or without it.
fn restore_translated(mut rig: SessionRig, with_table: bool) -> SessionRig {
    let (bytes, numbers) = rig.session.record();
    rig.store.kept.retain(|number, _| numbers.contains(number));
    let mut store = RecordStore::default();
    store.recorder.iotlb = rig.store.recorder.iotlb.filter(|_| with_table);
    let session = Session::restore(offer(), &bytes, clones(&rig.store.kept), &mut store);
    store.kept = rig.store.kept;
    SessionRig {
        session: session.expect("a sound record"),
        store,
    }
}

fn restore(
    bytes: &[u8],
    numbers: &[u64],
    mut kept: BTreeMap<u64, sys::foreign::ForeignFd>,
) -> (Result<Session, String>, RecordStore) {
    kept.retain(|number, _| numbers.contains(number));
    let mut store = RecordStore::default();
    let session = Session::restore(offer(), bytes, kept, &mut store);
    (session, store)
}

#[test]
fn a_session_comes_out_as_it_went_in() {
    for packed in [false, true] {
        let mut rig = SessionRig::full(packed);
        let before = rig.session.as_record();
        assert!(before.vrings[0].running && before.vrings[1].running);
        let first = rig.store.recorder.take();
        assert!(first.contains(&"new".to_owned()), "{first:?}");
        let (session, mut store) = rig.die();
        let mut session = session.expect("a sound record");
        assert_eq!(session.as_record(), before);
        let events = store.recorder.take();
        let resumed = events.iter().filter(|event| *event == "resume");
        assert_eq!(resumed.count(), 2, "{events:?}");
        assert!(events.contains(&"mtu 1400".to_owned()), "{events:?}");
        assert!(
            events.iter().any(|e| e.contains("2 regions, logged")),
            "{events:?}"
        );
        let setup = &store.recorder.running[&0];
        assert!(setup.enabled && setup.inflight.is_some() && setup.call.is_some());
        // Descriptors that come now get numbers of their own, and a queue that starts anew does not
        // resume.
        for how in ["perhaps", "new"] {
            let message = Message {
                code: code::SET_VRING_KICK,
                need_reply: false,
                payload: u64s(&[1]),
            };
            let done = session.handle(message, vec![event()], &mut store);
            done.expect("no fault");
            assert!(session.record().1.iter().max() > before.numbers().iter().max());
            let events = store.recorder.take();
            assert!(events.contains(&how.to_owned()), "{events:?}");
            session.settled();
        }
    }
}

#[test]
fn a_queue_of_a_legacy_driver_goes_on_as_one() {
    let mut rig = SessionRig::full(false);
    rig.tell(code::RESET_DEVICE, vec![], vec![]);
    rig.tell(code::SET_FEATURES, u64s(&[F_PROTOCOL_FEATURES]), vec![]);
    rig.tell(code::SET_VRING_NUM, state(0, 256), vec![]);
    rig.tell(code::SET_VRING_ADDR, addr(0, 0), vec![]);
    rig.tell(code::SET_VRING_KICK, u64s(&[0]), vec![event()]);
    let (session, store) = rig.die();
    assert!(session.is_ok());
    assert_eq!(store.recorder.running[&0].features, Features::empty());
}

#[test]
fn a_session_in_which_nothing_was_said_can_be_kept() {
    let (session, store) = SessionRig::new().die();
    assert_eq!(session.expect("a record").as_record().numbers(), [0_u64; 0]);
    assert!(store.recorder.events.is_empty());
}

#[test]
fn every_shorter_record_is_refused_and_so_is_a_longer_one() {
    let (bytes, _) = SessionRig::full(false).session.record();
    assert!(Record::from_bytes(&bytes).is_ok());
    for len in 0..bytes.len() {
        assert!(Record::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
    }
    assert!(Record::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn a_queue_resumes_with_the_inflight_area_that_it_had() {
    let area = || (inflight(1 << 20, 0, 4, 256), vec![memfd(1 << 20)]);
    let resumed = |rig: SessionRig| {
        let (session, store) = rig.die();
        session.expect("a sound record");
        let with = |setup: &QueueSetup| setup.inflight.is_some();
        store.recorder.running.get(&0).map(with)
    };
    let (payload, fds) = area();
    let mut rig = SessionRig::full(true);
    rig.tell(code::SET_INFLIGHT_FD, payload, fds);
    assert_eq!(resumed(rig), None, "its own is gone");

    let mut rig = SessionRig::full(true);
    rig.tell(code::RESET_DEVICE, vec![], vec![]);
    let features = Features::VERSION_1.bits() | F_PROTOCOL_FEATURES;
    rig.tell(code::SET_FEATURES, u64s(&[features]), vec![]);
    rig.tell(code::SET_VRING_NUM, state(0, 256), vec![]);
    rig.tell(code::SET_VRING_ADDR, addr(0, 0), vec![]);
    rig.tell(code::SET_VRING_KICK, u64s(&[0]), vec![event()]);
    let (payload, fds) = area();
    rig.tell(code::SET_INFLIGHT_FD, payload, fds);
    assert_eq!(resumed(rig), Some(false), "it started without");
    assert_eq!(resumed(SessionRig::full(true)), Some(true));
}

#[test]
fn another_version_is_refused() {
    let (mut bytes, _) = SessionRig::full(false).session.record();
    let next = RECORD_VERSION + 1;
    bytes[..2].copy_from_slice(&next.to_le_bytes());
    let refused = Record::from_bytes(&bytes).expect_err("a reason");
    assert!(refused.contains(&next.to_string()), "{refused}");
}

#[test]
fn what_no_front_end_could_have_brought_about_is_refused() {
    type Spoil = fn(&mut Record);
    let table: [(&str, Spoil); 13] = [
        ("not offered", |r| r.acked = Some(u64::MAX)),
        ("not offered", |r| r.protocol = Some(u64::MAX)),
        ("port has 4", |r| r.vrings.truncate(2)),
        ("impossible size", |r| r.vrings[0].size = Some(5000)),
        ("was not kept", |r| r.vrings[0].kick = Some(4711)),
        ("was not kept", |r| r.vrings[1].kick = r.vrings[0].kick),
        ("no eventfd", |r| {
            r.vrings[0].kick = r.regions.pop().map(|r| r.1)
        }),
        ("its numbers", |r| r.channel = Some(u64::MAX)),
        ("no Unix socket", |r| r.channel = r.vrings[0].call.take()),
        ("", |r| r.regions[0].0.size = u64::MAX),
        ("", |r| r.regions[1].0.gpa = r.regions[0].0.gpa),
        ("", |r| r.inflight.as_mut().expect("set").0.queues = 999),
        ("", |r| r.log.as_mut().expect("set").0.size = 1 << 30),
    ];
    for (words, spoil) in table {
        let rig = SessionRig::full(false);
        let mut record = rig.session.as_record();
        spoil(&mut record);
        let numbers: Vec<u64> = rig.store.kept.keys().copied().collect();
        let (session, store) = restore(&record.to_bytes(), &numbers, rig.store.kept);
        let reason = session.expect_err("it is refused");
        assert!(reason.contains(words), "{words}: {reason}");
        assert!(store.recorder.running.is_empty(), "{words}");
    }
}

#[test]
fn nothing_is_kept_of_which_nobody_knows_what_it_is() {
    let region = [GPA, MEM, UVA, 0];
    let messages = [
        (code::SET_MEM_TABLE, mem_table(&[region])),
        (code::ADD_MEM_REG, single(region)),
        (code::SET_LOG_BASE, u64s(&[4096, 0])),
        (code::SET_LOG_FD, vec![]),
        (code::SET_INFLIGHT_FD, inflight(1 << 20, 0, 4, 256)),
        (code::SET_BACKEND_REQ_FD, vec![]),
        (code::SET_VRING_KICK, u64s(&[0])),
        (code::SET_VRING_CALL, u64s(&[0])),
        (code::SET_VRING_ERR, u64s(&[0])),
    ];
    for (code, payload) in messages {
        let mut rig = SessionRig::new();
        let protocol = ProtocolFeatures::all().bits();
        rig.tell(code::SET_PROTOCOL_FEATURES, u64s(&[protocol]), vec![]);
        let features = Features::VERSION_1.bits() | F_PROTOCOL_FEATURES;
        rig.tell(code::SET_FEATURES, u64s(&[features]), vec![]);
        let message = Message {
            code,
            need_reply: false,
            payload,
        };
        let (pipe, watch) = watched();
        let done = rig.session.handle(message, vec![pipe], &mut rig.store);
        assert!(done.is_err() || code == code::SET_LOG_FD, "message {code}");
        assert!(rig.store.kept.is_empty(), "message {code}");
        assert!(is_closed(&watch), "message {code}");
    }
}

proptest::proptest! {
    #[test]
    fn no_record_does_harm(
        at in proptest::collection::vec((0..1000usize, proptest::prelude::any::<u8>()), 1..6),
    ) {
        let rig = SessionRig::full(true);
        let (mut bytes, numbers) = rig.session.record();
        for (at, value) in at {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let (session, mut store) = restore(&bytes, &numbers, rig.store.kept);
        if let Ok(mut session) = session {
            session.close(&mut store);
        }
        assert!(store.recorder.running.is_empty());
    }
}

/// A packed queue that was served; the front end knows nothing of that.
fn served(layout: Layout, memory: &Arc<GuestMemory>) {
    let slot = memory.translate(layout.desc, 16).expect("mapped").ptr;
    // SAFETY: the slot is mapped, and no other thread accesses it.
    unsafe { slot.add(14).cast::<u16>().write(0x8080) };
    assert!(Queue::was_served(&memory.clone().into(), layout));
}

#[test]
fn a_packed_queue_goes_on_after_its_connection_broke() {
    let table = mem_table(&[[GPA, MEM, UVA, 0]]);
    let (file, other) = (memfd(MEM), memfd(MEM));
    let start = |session: &mut Session, backend: &mut Recorder, file: &OwnedFd, base: u32| {
        let file = file.try_clone().expect("a descriptor");
        let features = Features::VERSION_1 | Features::RING_PACKED;
        let messages: [(u32, Vec<u8>, Vec<OwnedFd>); 6] = [
            (code::SET_FEATURES, u64s(&[features.bits()]), vec![]),
            (code::SET_MEM_TABLE, table.clone(), vec![file]),
            (code::SET_VRING_NUM, state(0, 256), vec![]),
            (code::SET_VRING_BASE, state(0, base), vec![]),
            (code::SET_VRING_ADDR, addr(0, 0), vec![]),
            (code::SET_VRING_KICK, u64s(&[0]), vec![event()]),
        ];
        for (code, payload, fds) in messages {
            let message = Message {
                code,
                need_reply: false,
                payload,
            };
            session.handle(message, fds, backend).expect("no fault");
        }
        let setup = &backend.running[&0];
        (setup.position, setup.layout, Arc::clone(&setup.mem))
    };
    let stood = 0x8011_8011;
    let mut backend = Recorder {
        position: Some(stood),
        ..Recorder::default()
    };
    let mut first = Session::new(offer());
    let (position, layout, memory) = start(&mut first, &mut backend, &file, 0x8000_8000);
    assert_eq!(position, 0x8000_8000);
    let left = first.detach(&mut backend);
    assert_eq!(left.len(), 1);
    let mut backend = Recorder {
        position: Some(stood),
        ..Recorder::default()
    };
    let mut elsewhere = Session::new(offer());
    start(&mut elsewhere, &mut backend, &other, 0x8000_8000);
    let of_other = elsewhere.detach(&mut backend);
    assert!(!left[0].is_of_same_queue(&of_other[0]));
    assert!(left[0].is_of_same_queue(&left[0]));
    let again = |file: &OwnedFd, base: u32| {
        let (mut next, mut backend) = (Session::new(offer()), Recorder::default());
        next.restore_snapshots(left.clone());
        start(&mut next, &mut backend, file, base).0
    };
    assert_eq!(
        again(&file, 0x8000_8000),
        0x8000_8000,
        "a ring that was set up anew"
    );
    served(layout, &memory);
    assert_eq!(again(&file, 0x8000_8000), stood);
    assert_eq!(again(&file, 0x8007_8007), 0x8007_8007, "it knows better");
    assert_eq!(again(&other, 0x8000_8000), 0x8000_8000, "another guest");
}

#[test]
fn an_answer_in_the_pipe_is_sent_by_the_successor() {
    use std::io::Read as _;
    let (mut theirs, ours) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let pipe = AnswerPipe::new().expect("a pipe");
    let [from, to] = pipe
        .ends()
        .map(|end| end.try_clone_to_owned().expect("an end"));
    let socket = ours.try_clone().expect("a socket");
    let mut first = Connection::with_pipe(socket, pipe).expect("a connection");
    first.stage(Reply::new(1, u64s(&[7]))).expect("room");
    assert!(first.has_piped_reply());
    drop(first);
    let pipe = AnswerPipe::again(from, to).expect("a pipe");
    let mut next = Connection::with_pipe(ours, pipe).expect("a connection");
    assert!(next.has_piped_reply() && next.wants_write());
    assert!(next.flush().expect("a front end"));
    assert!(!next.has_piped_reply());
    let mut bytes = [0; 20];
    theirs.read_exact(&mut bytes).expect("an answer");
    assert_eq!(bytes, Reply::new(1, u64s(&[7])).to_bytes()[..]);
    theirs.set_nonblocking(true).expect("a socket");
    assert!(theirs.read(&mut bytes).is_err(), "once");
}

#[test]
fn a_message_whose_answer_waits_is_not_served_again() {
    use std::io::Write as _;
    let asked = |payload: &[u8]| {
        let head = wire::virtio::vhost_user::Header {
            code: code::GET_VRING_BASE,
            flags: 1,
            size: payload.len() as u32,
        };
        [&head.to_bytes()[..], payload].concat()
    };
    let answered = Message {
        code: code::GET_VRING_BASE,
        need_reply: false,
        payload: state(1, 0),
    };
    for (in_socket, left) in [
        (Some(state(1, 0)), false),
        (Some(state(0, 0)), true),
        (None, false),
    ] {
        let (mut theirs, ours) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let pipe = AnswerPipe::new().expect("a pipe");
        let mut ours = Connection::with_pipe(ours, pipe).expect("a connection");
        if let Some(payload) = in_socket {
            theirs.write_all(&asked(&payload)).expect("sent");
            ours.skip_answered(&answered).expect("no fault");
            assert!(
                matches!(ours.peek(), Ok(PeekResult::Whole(..))),
                "no answer waits"
            );
        }
        ours.stage(Reply::new(answered.code, state(1, 7)))
            .expect("room");
        ours.skip_answered(&answered).expect("no fault");
        let next = ours.peek().expect("no fault");
        assert_eq!(matches!(next, PeekResult::Whole(..)), left);
    }
}

#[test]
fn sample_of_a_session() {
    let region = RegionDesc {
        gpa: 0x1000,
        size: 1 << 20,
        uva: 0x7f00_0000_0000,
        offset: 4096,
    };
    let addr = VringAddr {
        index: 1,
        flags: 1,
        desc: 0x7f00_0000_1000,
        used: 0x7f00_0000_2000,
        avail: 0x7f00_0000_3000,
        log: 0x9000,
    };
    let vring = VringRecord {
        size: Some(256),
        addr: Some(addr),
        base: Some(7),
        last_position: Some(8),
        kick: Some(4),
        call: Some(5),
        err: Some(6),
        enabled: Some(true),
        running: true,
        area: Some(2),
        problem: Some("it lies".to_owned()),
    };
    let log = LogDesc {
        size: 4096,
        offset: 64,
    };
    let area = InflightDesc {
        size: 1 << 16,
        offset: 128,
        queues: 2,
        queue_size: 256,
    };
    let mut config = [0; NET_CONFIG_LEN];
    config[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    let record = Record {
        acked: Some(1 << 32),
        protocol: Some(0x8b),
        status: 15,
        mtu: Some(1400),
        config,
        regions: vec![(region, 0)],
        log: Some((log, 1)),
        inflight: Some((area, 2)),
        channel: Some(3),
        vrings: vec![vring],
    };
    let (here, name) = (env!("CARGO_MANIFEST_DIR"), "vhost-user-session.bin");
    let sample = sample(here, name, RECORD_VERSION.into(), &record.to_bytes());
    assert_eq!(Record::from_bytes(&sample), Ok(record));
}

/// A session of a guest with an IOMMU, with queue 0 on pages 0, 2 and 4.
fn translated(packed: bool) -> SessionRig {
    let mut rig = SessionRig::new();
    let protocol = ProtocolFeatures::all().bits();
    rig.tell(code::SET_PROTOCOL_FEATURES, u64s(&[protocol]), vec![]);
    let mut features = Features::VERSION_1 | Features::ACCESS_PLATFORM;
    features.set(Features::RING_PACKED, packed);
    let acked = features.bits() | F_PROTOCOL_FEATURES;
    rig.tell(code::SET_FEATURES, u64s(&[acked]), vec![]);
    let table = mem_table(&[[GPA, MEM, UVA, 0]]);
    rig.tell(code::SET_MEM_TABLE, table, vec![memfd(MEM)]);
    rig.tell(code::SET_BACKEND_REQ_FD, vec![], vec![socket()]);
    rig.tell(code::SET_VRING_NUM, state(0, 256), vec![]);
    rig.tell(
        code::SET_VRING_ADDR,
        addr_at(0, 0, [0, 0x4000, 0x2000]),
        vec![],
    );
    rig.tell(code::SET_VRING_KICK, u64s(&[0]), vec![event()]);
    rig
}

fn grant_rings(rig: &mut SessionRig) {
    for page in [0, 0x2000, 0x4000] {
        rig.tell(
            code::IOTLB_MSG,
            super::iotlb::update(page, 0x1000, page, 3),
            vec![],
        );
    }
}

#[test]
fn a_queue_with_translations_resumes_when_they_are_there() {
    for (packed, with_table) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut rig = translated(packed);
        grant_rings(&mut rig);
        let before = rig.session.as_record();
        assert!(before.vrings[0].running);
        let mut next = restore_translated(rig, with_table);
        assert!(next.session.has_iotlb());
        let events = next.store.recorder.take();
        assert_eq!(
            events.contains(&"resume".to_owned()),
            with_table,
            "{events:?}"
        );
        // It is to be resumed by any successor, be its table there or not.
        assert_eq!(next.session.as_record(), before);
        let mut last = restore_translated(next, true);
        grant_rings(&mut last);
        let events = last.store.recorder.take();
        assert!(events.contains(&"resume".to_owned()), "{events:?}");
        assert!(last.store.recorder.running.contains_key(&0));
        assert_eq!(last.session.as_record(), before);
    }
}

/// The process died after an UPDATE had started a queue, and before that was recorded.
#[test]
fn a_queue_that_lacked_translations_only_may_have_been_started() {
    let mut rig = translated(false);
    let (bytes, _) = rig.session.record();
    grant_rings(&mut rig);
    let mut store = RecordStore::default();
    store.recorder.iotlb = rig.store.recorder.iotlb.take();
    let session = Session::restore(offer(), &bytes, clones(&rig.store.kept), &mut store);
    session.expect("a sound record");
    let events = store.recorder.take();
    assert!(events.contains(&"perhaps".to_owned()), "{events:?}");
}
