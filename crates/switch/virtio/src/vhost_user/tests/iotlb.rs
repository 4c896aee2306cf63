//! Messages about translations, and the questions for them: of front ends that are right, late,
//! wrong or mute.

mod questions;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use memory::iotlb::{Access, Iotlb, Miss, Need};
use wire::virtio::vhost_user::{HEADER_LEN, Header, IotlbMessage, backend_code, iotlb_type};

use super::*;

const PAGE: u64 = 4096;
/// Where this guest's first page is seen by the device.
const IOVA: u64 = 0xffff_0000;
const SECOND: Duration = Duration::from_secs(1);
/// Flags of a request with, and of one without, a request for an answer; and of an answer.
const NEED_REPLY: u32 = 1 | 8;
const PLAIN: u32 = 1;
const REPLY: u32 = 1 | 4;

pub(super) fn iotlb(kind: u8, iova: u64, size: u64, user_addr: u64, permission: u8) -> Vec<u8> {
    let message = IotlbMessage {
        iova,
        size,
        user_addr,
        permission,
        kind,
    };
    message.to_bytes().to_vec()
}

pub(super) fn invalidate(iova: u64, size: u64) -> Vec<u8> {
    iotlb(iotlb_type::INVALIDATE, iova, size, 0, 0)
}

pub(super) fn update(iova: u64, size: u64, offset: u64, permission: u8) -> Vec<u8> {
    iotlb(iotlb_type::UPDATE, iova, size, UVA + offset, permission)
}

/// A session of a guest with an IOMMU, and its front end's end of the back-end channel.
struct Guest {
    rig: Rig,
    channel: UnixStream,
    now: Instant,
}

impl Guest {
    fn new() -> Self {
        Self::with_protocol(ProtocolFeatures::all())
    }

    fn with_protocol(protocol: ProtocolFeatures) -> Self {
        let mut rig = Rig::translated();
        rig.protocol(protocol);
        let channel = Self::connect(&mut rig);
        Self {
            rig,
            channel,
            now: Instant::now(),
        }
    }

    fn connect(rig: &mut Rig) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a socket");
        rig.tell(code::SET_BACKEND_REQ_FD, vec![], vec![theirs.into()]);
        rig.backend.take();
        ours
    }

    fn table(&self) -> Arc<Iotlb> {
        self.rig.session.iotlb().expect("a table").clone()
    }

    /// Sends a message about translations, and returns its answer.
    #[track_caller]
    fn say(&mut self, payload: Vec<u8>) -> u64 {
        let answer = self.rig.ask(code::IOTLB_MSG, payload);
        u64::from_ne_bytes(answer.try_into().expect("8 bytes"))
    }

    #[track_caller]
    fn grant(&mut self, iova: u64, offset: u64, permission: u8) {
        assert_eq!(self.say(update(iova, PAGE, offset, permission)), 0);
    }

    fn refusal(&self) -> String {
        self.rig.session.info().last_refusal.expect("a refusal")
    }

    /// A queue lacks a translation.
    fn miss(&mut self, page: u64, access: Access) -> Miss {
        let miss = Miss::new(IOVA + page * PAGE, access);
        self.table().ask(miss, Need::Now);
        self.ask();
        miss
    }

    fn ask(&mut self) {
        self.rig.session.ask(self.now, &mut self.rig.backend);
    }

    fn later(&mut self, time: Duration) {
        self.now += time;
        self.ask();
    }

    /// Returns what has come on the channel: flags, type, address and access of each message.
    fn questions(&mut self) -> Vec<(u32, u8, u64, u8)> {
        let mut all = Vec::new();
        let mut bytes = [0; HEADER_LEN + IotlbMessage::LEN];
        loop {
            match self.channel.read(&mut bytes) {
                Ok(0) => panic!("the channel was closed"),
                Ok(read) => assert_eq!(read, bytes.len()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return all;
                }
            }
            let (head, payload) = bytes.split_first_chunk().expect("a header");
            let header = Header::parse(*head);
            assert_eq!(header.code, backend_code::IOTLB_MSG);
            assert_eq!(header.size as usize, IotlbMessage::LEN);
            let message = IotlbMessage::parse(payload.try_into().expect("32 bytes"));
            let page = (message.iova - IOVA) / PAGE;
            all.push((header.flags, message.kind, page, message.permission));
        }
    }

    /// Returns the pages that were asked for.
    fn asked(&mut self) -> Vec<u64> {
        let questions = self.questions().into_iter();
        let misses = questions.filter(|question| question.1 == iotlb_type::MISS);
        misses.map(|question| question.2).collect()
    }

    /// Fills the channel, so that no question has room in it. Returns the number of bytes.
    fn fill_channel(&self) -> usize {
        let channel = self.rig.session.channel.as_ref().expect("a channel");
        let message = [0; HEADER_LEN + IotlbMessage::LEN];
        let flags = rustix::net::SendFlags::DONTWAIT;
        let fill = || rustix::net::send(channel.0.as_fd(), &message, flags);
        std::iter::from_fn(|| fill().ok()).sum()
    }

    fn drain_channel(&mut self, filled: usize) {
        let read = self.channel.read_exact(&mut vec![0; filled]);
        read.expect("it is there");
    }

    fn put(&mut self, bytes: &[u8]) {
        self.channel.write_all(bytes).expect("room");
        self.read_answers();
    }

    fn read_answers(&mut self) {
        self.rig
            .session
            .read_answers(self.now, &mut self.rig.backend);
    }

    fn answer(&mut self, value: u64) {
        self.send_answer(value);
        self.read_answers();
    }

    /// Sends an answer, which waits in the channel.
    fn send_answer(&mut self, value: u64) {
        let bytes = answer(backend_code::IOTLB_MSG, REPLY, &value.to_ne_bytes());
        self.channel.write_all(&bytes).expect("room");
    }

    /// Sets queue 0 up, with its areas on pages of the device's address space.
    fn set_up(&mut self) {
        self.set_up_with(256, [IOVA, IOVA + 4 * PAGE, IOVA + 2 * PAGE]);
    }

    fn set_up_with(&mut self, size: u32, areas: [u64; 3]) {
        let rig = &mut self.rig;
        rig.call(0);
        rig.tell(code::SET_VRING_NUM, state(0, size), vec![]);
        rig.tell(code::SET_VRING_BASE, state(0, 0), vec![]);
        rig.tell(code::SET_VRING_ADDR, addr_at(0, 0, areas), vec![]);
        rig.kick(0);
        self.ask();
    }

    fn info(&self) -> super::super::IotlbInfo {
        self.rig.session.info().iotlb.expect("figures")
    }
}

fn answer(code: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = payload.len() as u32;
    [&Header { code, flags, size }.to_bytes()[..], payload].concat()
}

#[test]
fn an_update_is_found_until_it_is_revoked_and_both_are_answered() {
    let mut guest = Guest::new();
    let table = guest.table();
    guest.grant(IOVA, 0x5000, 1);
    let hit = table.look_up(IOVA + 7, Access::READ).expect("a hit");
    assert_eq!((hit.gpa, hit.len), (GPA + 0x5007, PAGE - 7));
    assert_eq!(table.look_up(IOVA, Access::WRITE), None);
    assert_eq!(guest.rig.backend.take(), ["retry"]);
    assert_eq!(guest.say(invalidate(IOVA, PAGE)), 0);
    assert_eq!(table.look_up(IOVA, Access::READ), None);
    assert_eq!(guest.rig.backend.take(), ["end access"]);
    let counts = guest.info().counts;
    assert_eq!((counts.updates, counts.invalidations), (1, 1));
    assert!(!guest.rig.session.take_unrecorded());
}

#[test]
fn messages_are_answered_whether_answers_were_agreed_or_not() {
    let mut guest = Guest::with_protocol(ProtocolFeatures::all() - ProtocolFeatures::REPLY_ACK);
    guest.grant(IOVA, 0, 3);
    assert_ne!(guest.say(update(IOVA, PAGE, MEM, 3)), 0);
    assert_eq!(guest.say(invalidate(IOVA, PAGE)), 0);
}

#[test]
fn updates_that_grant_no_memory_of_the_port_change_nothing() {
    let mut guest = Guest::new();
    // A second region in front of a gap.
    let regions = [[GPA, MEM, UVA, 0], [GPA + 2 * MEM, MEM, UVA + 2 * MEM, 0]];
    let files = vec![memfd(MEM), memfd(MEM)];
    guest
        .rig
        .tell(code::SET_MEM_TABLE, mem_table(&regions), files);
    guest.grant(IOVA, 0, 1);
    let generation = guest.table().generation();
    let wrong = [
        (update(IOVA, PAGE, MEM, 3), "where the guest has no memory"),
        (update(IOVA, 2 * PAGE, MEM - PAGE, 3), "across a gap"),
        (update(IOVA, 3 * MEM, 0, 3), "across a gap"),
        (update(IOVA, PAGE / 2, 0, 3), "no multiple"),
        (update(IOVA + 8, PAGE, 0, 3), "no multiple"),
        (update(IOVA, PAGE, 8, 3), "no multiple"),
        (update(IOVA, 0, 0, 3), "size 0"),
        (update(u64::MAX - PAGE + 1, 2 * PAGE, 0, 3), "wraps around"),
        (update(IOVA, PAGE, 0, 0), "permission 0"),
        (update(IOVA, PAGE, 0, 4), "permission 4"),
        (update(IOVA, PAGE, 0, 255), "permission 255"),
        (invalidate(IOVA, 0), "size 0"),
        (iotlb(iotlb_type::MISS, IOVA, PAGE, UVA, 1), "MISS is a"),
        (
            iotlb(iotlb_type::ACCESS_FAIL, IOVA, PAGE, UVA, 1),
            "ACCESS_FAIL is a",
        ),
        (iotlb(0, IOVA, PAGE, UVA, 1), "type 0"),
        (iotlb(5, IOVA, PAGE, UVA, 1), "type 5"),
        (iotlb(6, IOVA, PAGE, UVA, 1), "type 6"),
        (iotlb(255, IOVA, PAGE, UVA, 1), "type 255"),
    ];
    guest.rig.backend.take();
    for (at, (payload, why)) in wrong.into_iter().enumerate() {
        assert_ne!(guest.say(payload), 0, "{why}");
        let refusal = guest.refusal();
        assert!(
            refusal.starts_with("IOTLB_MSG: ") && refusal.contains(why),
            "{refusal}"
        );
        assert_eq!(guest.rig.session.info().refused_messages, at as u64 + 1);
        assert_eq!(guest.table().generation(), generation);
        assert_eq!(guest.info().counts.entries, 1);
        assert!(guest.rig.backend.take().is_empty());
    }
}

#[test]
fn an_update_before_guest_memory_is_refused() {
    let mut guest = Guest::new();
    guest
        .rig
        .tell(code::REM_MEM_REG, single([GPA, MEM, UVA, 0]), vec![]);
    assert_ne!(guest.say(update(IOVA, PAGE, 0, 3)), 0);
    assert!(guest.refusal().contains("before guest memory"));
}

#[test]
fn an_update_of_everything_is_cut() {
    let mut guest = Guest::new();
    assert_ne!(guest.say(update(0, 1 << 40, 0, 3)), 0);
    assert_eq!(guest.say(update(0, MEM, 0, 3)), 0);
    assert!(guest.info().counts.entries <= 512);
}

#[test]
fn messages_of_another_size_or_with_descriptors_end_the_connection() {
    for size in [0, 31, 33, 64] {
        let fault = Guest::new()
            .rig
            .fault(code::IOTLB_MSG, vec![0; size], vec![]);
        assert!(fault.contains("payload of"), "{fault}");
    }
    let fds = vec![event()];
    let fault = Guest::new()
        .rig
        .fault(code::IOTLB_MSG, invalidate(0, 1), fds);
    assert!(fault.contains("1 file descriptors"), "{fault}");
}

#[test]
fn a_miss_becomes_a_question_that_its_update_answers() {
    let mut guest = Guest::new();
    guest.miss(3, Access::READ);
    let question = (NEED_REPLY, iotlb_type::MISS, 3, 1);
    assert_eq!(guest.questions(), [question]);
    assert_eq!(guest.rig.session.next_deadline(), Some(guest.now + SECOND));
    // Asked for once more while it is open.
    guest.miss(3, Access::READ);
    assert_eq!(guest.questions(), []);
    // QEMU grants reads and writes.
    guest.grant(IOVA + 3 * PAGE, 0x3000, 3);
    let table = guest.table();
    assert!(table.look_up(IOVA + 3 * PAGE, Access::READ).is_some());
    assert!(table.look_up(IOVA + 3 * PAGE, Access::WRITE).is_none());
    assert_eq!(guest.rig.session.next_deadline(), None);
    guest.answer(0);
    guest.later(2 * SECOND);
    assert_eq!((guest.info().misses, guest.info().denied), (1, 0));
    assert!(!table.take_denial(Miss::new(IOVA + 3 * PAGE, Access::READ)));
}

#[test]
fn a_permission_that_is_added_later_is_asked_for_and_joined() {
    let mut guest = Guest::new();
    guest.miss(0, Access::READ);
    guest.grant(IOVA, 0, 3);
    guest.miss(0, Access::READ_WRITE);
    let read_write = (NEED_REPLY, iotlb_type::MISS, 0, 3);
    assert_eq!(guest.questions()[1..], [read_write]);
    guest.grant(IOVA, 0, 3);
    let table = guest.table();
    assert!(table.look_up(IOVA, Access::READ_WRITE).is_some());
    assert_eq!(guest.rig.session.next_deadline(), None);
}

#[test]
fn a_question_is_not_answered_by_an_update_of_other_pages_or_another_access() {
    let mut guest = Guest::new();
    guest.miss(0, Access::WRITE);
    guest.grant(IOVA + PAGE, 0, 3);
    guest.grant(IOVA, 0, 1);
    assert_eq!(guest.rig.session.next_deadline(), Some(guest.now + SECOND));
    let miss = Miss::new(IOVA, Access::WRITE);
    guest.later(SECOND);
    assert!(guest.table().take_denial(miss));
}

#[test]
fn a_question_that_the_front_end_refuses_is_denied_and_asked_again_later() {
    let mut guest = Guest::new();
    let miss = guest.miss(0, Access::READ);
    guest.questions();
    let before = guest.table().answers();
    guest.answer(1);
    assert_ne!(guest.table().answers(), before);
    assert_eq!(guest.rig.backend.take(), ["retry"]);
    // The report of the access comes once a second at most.
    let failed = (PLAIN, iotlb_type::ACCESS_FAIL, 0, 1);
    assert_eq!(guest.questions(), [failed]);
    assert!(guest.table().take_denial(miss));
    // The guest maps the page, and the queue asks again.
    guest.miss(0, Access::READ);
    assert_eq!(guest.asked(), [0]);
    guest.answer(1);
    assert_eq!(guest.questions(), []);
    guest.later(SECOND);
    guest.miss(0, Access::READ);
    guest.grant(IOVA, 0, 3);
    guest.answer(0);
    assert!(guest.table().look_up(IOVA, Access::READ).is_some());
    assert!(!guest.table().take_denial(miss));
    let info = guest.info();
    assert_eq!((info.misses, info.denied, info.unanswered), (3, 2, 0));
}

#[test]
fn a_front_end_that_never_answers_costs_a_second_for_each_question() {
    let mut guest = Guest::new();
    let miss = guest.miss(0, Access::READ);
    guest.later(SECOND / 2);
    let other = guest.miss(1, Access::READ);
    assert!(!guest.table().take_denial(miss));
    guest.later(SECOND / 2);
    assert!(guest.table().take_denial(miss));
    assert!(!guest.table().take_denial(other));
    guest.later(SECOND / 2);
    assert!(guest.table().take_denial(other));
    assert_eq!(guest.asked(), [0, 1]);
    assert_eq!(guest.info().unanswered, 2);
    guest.miss(0, Access::READ);
    assert_eq!(guest.asked(), [0]);
}

/// QEMU serves questions one by one, on a busy host few of them in a second.
#[test]
fn a_front_end_that_answers_slowly_is_waited_for() {
    let mut guest = Guest::new();
    let misses: Vec<_> = (0..8).map(|page| guest.miss(page, Access::READ)).collect();
    for miss in misses {
        guest.later(SECOND * 3 / 4);
        assert!(!guest.table().take_denial(miss));
        guest.answer(1);
        assert!(guest.table().take_denial(miss));
    }
    // The same of an UPDATE, which has a clock of its own.
    guest.now = Instant::now() - SECOND * 3 / 4;
    let [_, second] = [8, 9].map(|page| guest.miss(page, Access::READ));
    guest.grant(IOVA + 8 * PAGE, 0, 3);
    guest.later(SECOND);
    assert!(!guest.table().take_denial(second));
    guest.later(2 * SECOND);
    assert!(guest.table().take_denial(second));
    assert_eq!(guest.info().unanswered, 1);
}

/// Where answers were not agreed on, no UPDATE means no: it costs a second, whatever else is asked.
#[test]
fn answers_to_later_questions_are_no_reason_to_wait() {
    let mut guest = Guest::new();
    guest.now = Instant::now() - SECOND * 3 / 4;
    let [silent, _] = [0, 1].map(|page| guest.miss(page, Access::READ));
    guest.grant(IOVA + PAGE, 0, 3);
    guest.later(SECOND);
    assert!(guest.table().take_denial(silent));
    assert_eq!(guest.info().unanswered, 1);
}

#[test]
fn a_question_for_a_page_that_is_revoked_ends_neither_granted_nor_denied() {
    let mut guest = Guest::new();
    let miss = guest.miss(0, Access::READ);
    let before = guest.table().answers();
    assert_eq!(guest.say(invalidate(IOVA - PAGE, 2 * PAGE)), 0);
    assert_ne!(guest.table().answers(), before);
    assert_eq!(guest.rig.session.next_deadline(), None);
    guest.miss(0, Access::READ);
    assert_eq!(guest.asked(), [0, 0]);
    // The answer to the first question.
    guest.answer(1);
    assert!(!guest.table().take_denial(miss));
    guest.answer(1);
    assert!(guest.table().take_denial(miss));
}

/// DPDK 1aadb2f6b1: a back end that waited for room in the channel, while the front end waited for
/// its answer.
#[test]
fn dpdk_1aadb2f6b1_a_full_channel_holds_up_nothing() {
    let mut guest = Guest::new();
    let filled = guest.fill_channel();
    let miss = guest.miss(0, Access::READ);
    let wakes = guest.rig.session.wakes().expect("a table");
    assert!(wakes.channel.expect("a channel").wants_write);
    // Messages are answered, and the question ends as any other.
    guest.grant(IOVA + PAGE, 0, 3);
    assert_eq!(guest.say(invalidate(IOVA + PAGE, PAGE)), 0);
    guest.later(SECOND);
    assert!(guest.table().take_denial(miss));
    // When there is room again, what is missing still is asked for.
    guest.miss(1, Access::READ);
    guest.drain_channel(filled);
    guest.ask();
    assert_eq!(guest.asked(), [1]);
    let wakes = guest.rig.session.wakes().expect("a table");
    assert!(!wakes.channel.expect("a channel").wants_write);
}

#[test]
fn a_channel_that_speaks_nonsense_is_closed_and_the_session_goes_on() {
    let wrong = [
        answer(backend_code::IOTLB_MSG, PLAIN, &[0; 8]),
        answer(backend_code::IOTLB_MSG, REPLY & !1, &[0; 8]),
        answer(backend_code::CONFIG_CHANGE_MSG, REPLY, &[0; 8]),
        answer(backend_code::IOTLB_MSG, REPLY, &[0; 32]),
        vec![0xff; 4096],
    ];
    for bytes in wrong {
        let mut guest = Guest::new();
        let miss = guest.miss(0, Access::READ);
        guest.questions();
        guest.put(&bytes);
        assert!(
            guest.refusal().contains("back-end channel"),
            "{}",
            guest.refusal()
        );
        let end = guest
            .channel
            .read(&mut [0; 8])
            .map_err(|error| error.kind());
        assert!(
            matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)),
            "{end:?}"
        );
        assert!(guest.rig.session.take_unrecorded());
        let wakes = guest.rig.session.wakes().expect("a table");
        assert!(wakes.channel.is_none());
        // What was asked ends after its second, and more is denied at once.
        assert!(!guest.table().take_denial(miss));
        let other = guest.miss(1, Access::READ);
        assert!(guest.table().take_denial(other));
        guest.later(SECOND);
        assert!(guest.table().take_denial(miss));
        guest.grant(IOVA, 0, 3);
        // A new channel is as good as the first.
        guest.channel = Guest::connect(&mut guest.rig);
        guest.miss(2, Access::READ);
        assert_eq!(guest.asked(), [2]);
    }
}

#[test]
fn an_answer_may_come_in_pieces() {
    let mut guest = Guest::new();
    let miss = guest.miss(0, Access::READ);
    let bytes = answer(backend_code::IOTLB_MSG, REPLY, &1u64.to_ne_bytes());
    for byte in bytes {
        assert!(!guest.table().take_denial(miss));
        guest.put(&[byte]);
    }
    assert!(guest.table().take_denial(miss));
}

#[test]
fn a_channel_that_is_closed_is_not_written_again() {
    let mut guest = Guest::new();
    guest
        .channel
        .shutdown(std::net::Shutdown::Both)
        .expect("a socket");
    let miss = guest.miss(0, Access::READ);
    assert!(
        guest
            .rig
            .session
            .wakes()
            .expect("a table")
            .channel
            .is_none()
    );
    guest.later(SECOND);
    assert!(guest.table().take_denial(miss));
}

#[test]
fn without_acknowledgements_questions_request_no_answer() {
    let mut guest = Guest::with_protocol(ProtocolFeatures::all() - ProtocolFeatures::REPLY_ACK);
    guest.miss(0, Access::READ);
    assert_eq!(guest.questions(), [(PLAIN, iotlb_type::MISS, 0, 1)]);
}

#[test]
fn without_a_channel_misses_are_denied_at_once_and_the_status_says_why() {
    let mut rig = Rig::translated();
    let table = rig.session.iotlb().expect("a table").clone();
    let miss = Miss::new(IOVA, Access::READ);
    table.ask(miss, Need::Now);
    rig.session.ask(Instant::now(), &mut rig.backend);
    assert!(table.take_denial(miss));
    rig.set_up(0);
    assert_eq!(
        rig.state_of(0),
        "waits for a back-end channel (SET_BACKEND_REQ_FD), which ACCESS_PLATFORM needs"
    );
}

#[test]
fn a_queue_waits_for_the_translation_of_its_rings() {
    let mut guest = Guest::new();
    guest.set_up();
    assert!(guest.rig.backend.running.is_empty());
    assert_eq!(
        guest.rig.state_of(0),
        "waits for the translation of its rings"
    );
    // 256 entries: a page of descriptors, one of the available ring, one of the used ring.
    let questions = guest.questions();
    let miss = |page, access| (NEED_REPLY, iotlb_type::MISS, page, access);
    assert_eq!(questions, [miss(0, 1), miss(2, 1), miss(4, 3)]);
    guest.rig.backend.take();
    guest.grant(IOVA, 0x7000, 3);
    guest.grant(IOVA + 4 * PAGE, 0x3000, 1);
    guest.grant(IOVA + 2 * PAGE, 0x9000, 3);
    assert!(guest.rig.backend.running.is_empty() && !guest.rig.session.take_unrecorded());
    guest.grant(IOVA + 4 * PAGE, 0x3000, 3);
    assert!(guest.rig.session.take_unrecorded());
    let setup = &guest.rig.backend.running[&0];
    assert!(setup.iotlb.is_some());
    let layout = setup.layout;
    let areas = (layout.desc, layout.driver, layout.device);
    assert_eq!(areas, (IOVA, IOVA + 2 * PAGE, IOVA + 4 * PAGE));
    // What is revoked later is the data path's business.
    assert_eq!(guest.say(invalidate(0, u64::MAX)), 0);
    assert!(guest.rig.backend.running.contains_key(&0));
}

#[test]
fn rings_that_were_denied_are_asked_for_again_after_a_second() {
    let mut guest = Guest::new();
    guest.set_up();
    assert_eq!(guest.asked(), [0, 2, 4]);
    (0..3).for_each(|_| guest.answer(1));
    assert!(guest.asked().is_empty());
    assert_eq!(guest.rig.session.next_deadline(), Some(guest.now + SECOND));
    guest.later(SECOND);
    assert_eq!(guest.asked(), [0, 2, 4]);
    for page in [0, 2, 4] {
        guest.grant(IOVA + page * PAGE, page * PAGE, 3);
    }
    assert!(guest.rig.backend.running.contains_key(&0));
}

#[test]
fn rings_of_several_pages_are_asked_for_page_by_page() {
    let mut guest = Guest::new();
    guest.set_up_with(1024, [IOVA, IOVA + 16 * PAGE, IOVA + 8 * PAGE]);
    // Descriptors 16 KiB; available ring 2052, used ring 8196 bytes, without event fields.
    assert_eq!(guest.asked(), [0, 1, 2, 3, 8, 16, 17, 18]);
    // Anywhere in memory, in any order.
    for (at, page) in [18, 3, 0, 17, 8, 2, 16, 1].into_iter().enumerate() {
        assert!(guest.rig.backend.running.is_empty());
        guest.grant(IOVA + page * PAGE, (2 * at as u64 + 1) * PAGE, 3);
    }
    assert!(guest.rig.backend.running.contains_key(&0));
}

#[test]
fn ring_addresses_that_are_misaligned_or_wrap_around_are_refused() {
    for (areas, why) in [
        ([IOVA + 8, IOVA, IOVA], "not aligned to 16"),
        ([IOVA, IOVA, IOVA + 1], "not aligned to 2"),
        ([IOVA, u64::MAX - 3, IOVA], "wraps around"),
    ] {
        let mut guest = Guest::new();
        guest.set_up();
        let addr = addr_at(0, 0, areas);
        assert_ne!(guest.rig.ack(code::SET_VRING_ADDR, addr, vec![]), 0);
        assert!(guest.refusal().contains(why), "{}", guest.refusal());
    }
}

#[test]
fn a_new_memory_table_leaves_translated_queues_running() {
    let mut guest = Guest::new();
    guest.set_up();
    for page in [0, 2, 4] {
        guest.grant(IOVA + page * PAGE, page * PAGE, 3);
    }
    let regions = [[GPA, MEM, UVA + 2 * MEM, 0]];
    let table = mem_table(&regions);
    guest.rig.tell(code::SET_MEM_TABLE, table, vec![memfd(MEM)]);
    assert!(guest.rig.backend.running.contains_key(&0));
    guest
        .rig
        .tell(code::REM_MEM_REG, single(regions[0]), vec![]);
    assert!(guest.rig.backend.running.is_empty());
}

/// DPDK e7cb7fdf54: entries of a guest's former driver stayed behind.
#[test]
fn dpdk_e7cb7fdf54_another_driver_finds_no_entries() {
    let translated = Features::VERSION_1 | Features::ACCESS_PLATFORM;
    type Change = fn(&mut Rig);
    let changes: [(&str, Change); 4] = [
        ("reset", |rig| rig.tell(code::RESET_DEVICE, vec![], vec![])),
        ("status", |rig| {
            rig.tell(code::SET_STATUS, u64s(&[0]), vec![])
        }),
        ("features", |rig| {
            rig.ask(code::GET_VRING_BASE, state(0, 0));
            rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
        }),
        ("the same features", |rig| {
            rig.ask(code::GET_VRING_BASE, state(0, 0));
        }),
    ];
    for (how, change) in changes {
        let mut guest = Guest::new();
        guest.set_up();
        for page in [0, 2, 4] {
            guest.grant(IOVA + page * PAGE, page * PAGE, 3);
        }
        guest.miss(7, Access::READ);
        let table = guest.table();
        change(&mut guest.rig);
        guest.rig.features(translated, F_PROTOCOL_FEATURES);
        assert_eq!(table.counts().entries, 0, "{how}");
        assert_eq!(guest.rig.session.next_deadline(), None, "{how}");
        assert!(Arc::ptr_eq(&table, &guest.table()), "{how}");
    }
}

#[test]
fn the_features_of_further_queue_pairs_leave_what_a_running_queue_uses() {
    let mut guest = Guest::new();
    guest.set_up();
    for page in [0, 2, 4] {
        guest.grant(IOVA + page * PAGE, page * PAGE, 3);
    }
    let features = Features::VERSION_1 | Features::ACCESS_PLATFORM;
    guest.rig.features(features, F_PROTOCOL_FEATURES);
    assert_eq!(guest.info().counts.entries, 3);
}

#[test]
fn a_session_without_the_feature_has_no_table() {
    let mut rig = Rig::ready();
    assert!(!rig.session.has_iotlb() && rig.session.wakes().is_none());
    rig.set_up(0);
    assert!(rig.backend.running[&0].iotlb.is_none());
    assert!(rig.session.info().iotlb.is_none());
}

#[test]
fn the_end_of_a_session_empties_its_table() {
    let mut guest = Guest::new();
    guest.grant(IOVA, 0, 3);
    let table = guest.table();
    guest.rig.session.close(&mut guest.rig.backend);
    assert!(table.look_up(IOVA, Access::READ).is_none());
    assert!(!guest.rig.session.has_iotlb());
}
