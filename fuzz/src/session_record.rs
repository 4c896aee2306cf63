//! Saved sessions for a switch that replaces a crashed one: records of connections and sessions,
//! descriptors under the wrong numbers, tables of translations of another version or with garbage,
//! and a journal and a ring that contradict each other. No panic, no endless loop, no leaked
//! descriptor; a loaded record is saved as the same one; queues touch only their own memory; a
//! table that is not as its writer left it is not used, and after INVALIDATE none has anything.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use arbitrary::Unstructured;
use ipc::keeping::ConnectionRecord;
use memory::GuestMemory;
use memory::iotlb::{Access, IotlbWriter};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use sys::foreign::ForeignFd;
use virtio::queue::{Journal, JournalRegion, Layout, Queue};
use virtio::vhost_user::{Backend, Message, Offer, QueueSetup, Session};
use wire::virtio::features::Features;
use wire::virtio::vhost_user::{IotlbMessage, ProtocolFeatures, code, iotlb_type};

use crate::guarded::PAGE;
use crate::vhost_user::data_path::DataPath;

const GPA: u64 = 0x10_0000;
const SIZE: u64 = 0x4_0000;
const UVA: u64 = 0x7f00_0000_0000;
/// First I/O virtual address of a guest with an IOMMU.
const IOVA: u64 = 0x60_0000;
/// Offset of the slots in a table's file.
const SLOTS: usize = 4096;

/// A data path, and what was kept of its sessions.
#[derive(Default)]
struct Keeper {
    data_path: DataPath,
    kept: BTreeMap<u64, ForeignFd>,
    /// File of the table of translations.
    iotlb: Option<ForeignFd>,
}

/// Record and table that a process left behind.
struct Left {
    record: Vec<u8>,
    kept: BTreeMap<u64, ForeignFd>,
    iotlb: Option<ForeignFd>,
    /// The table's file was written to by another process since.
    spoilt: bool,
}

impl Backend for Keeper {
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>) {
        self.data_path.set_memory(mem);
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String> {
        self.data_path.start_queue(index, setup)
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        self.data_path.stop_queue(index)
    }

    fn enable_queue(&mut self, index: u16, on: bool) {
        self.data_path.enable_queue(index, on);
    }

    fn set_call(&mut self, index: u16, call: Option<ForeignFd>) {
        self.data_path.set_call(index, call);
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        self.data_path.set_mtu(mtu)
    }

    fn keep(&mut self, number: u64, fd: BorrowedFd<'_>) {
        let fd = fd.try_clone_to_owned().expect("a descriptor");
        assert!(
            self.kept.insert(number, fd.into()).is_none(),
            "a number twice"
        );
    }

    fn keep_iotlb(&mut self, fd: BorrowedFd<'_>) {
        self.iotlb = Some(fd.try_clone_to_owned().expect("a descriptor").into());
    }

    fn kept_iotlb(&mut self) -> Option<ForeignFd> {
        self.iotlb.take()
    }
}

/// One byte of options, then edits of a sound record, or a record, or a journal and a ring.
pub fn run(data: &[u8]) {
    let Some((options, rest)) = data.split_first() else {
        return;
    };
    crate::vhost_user::set_signals();
    let before = crate::vhost_user::open_fds();
    match options % 6 {
        0 | 1 => edited(rest, options & 1 != 0, false),
        4 | 5 => edited(rest, options & 1 != 0, true),
        2 => {
            if let Ok(record) = ConnectionRecord::from_bytes(rest) {
                let again = ConnectionRecord::from_bytes(&record.to_bytes());
                assert_eq!(again.as_ref(), Ok(&record));
                let record = record.session;
                restore(Left {
                    record,
                    ..sound(false, false)
                });
            }
            restore(Left {
                record: rest.to_vec(),
                ..sound(false, false)
            });
        }
        _ => journal(rest),
    }
    assert_eq!(
        crate::vhost_user::open_fds(),
        before,
        "descriptors left behind"
    );
}

fn offer() -> Offer {
    let features = Features::VERSION_1 | Features::RING_PACKED | Features::ACCESS_PLATFORM;
    Offer::new(features, 1)
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn halves(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn file(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&fd, size).expect("room");
    fd
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("an event")
}

/// Record of a session with everything in it, whose process died.
fn sound(packed: bool, translated: bool) -> Left {
    let (mut session, mut keeper) = (Session::new(offer()), Keeper::default());
    let mut tell = |code, payload, fds| {
        let told = session.handle(message(code, payload), fds, &mut keeper);
        told.expect("a sound message");
    };
    let mut features = Features::VERSION_1;
    features.set(Features::RING_PACKED, packed);
    features.set(Features::ACCESS_PLATFORM, translated);
    let acked = features.bits() | 1 << 26 | 1 << 30;
    let protocol = ProtocolFeatures::all().bits();
    tell(code::SET_PROTOCOL_FEATURES, words(&[protocol]), vec![]);
    tell(code::SET_FEATURES, words(&[acked]), vec![]);
    let table = [halves(&[1, 0]), words(&[GPA, SIZE, UVA, 0])].concat();
    tell(code::SET_MEM_TABLE, table, vec![file(SIZE)]);
    tell(code::SET_LOG_BASE, words(&[4096, 0]), vec![file(4096)]);
    let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
    tell(code::SET_BACKEND_REQ_FD, vec![], vec![socket.into()]);
    let start = if translated { IOVA } else { UVA };
    if translated {
        // The last page of the memory comes first.
        for page in 0..SIZE / PAGE {
            let update = IotlbMessage {
                iova: IOVA + page * PAGE,
                size: PAGE,
                user_addr: UVA + SIZE - (page + 1) * PAGE,
                permission: 3,
                kind: iotlb_type::UPDATE,
            };
            tell(code::IOTLB_MSG, update.to_bytes().to_vec(), vec![]);
        }
    }
    for at in 0..2u32 {
        let base = start + 0x8000 * u64::from(at);
        let addr = [
            halves(&[at, 0]),
            words(&[base, base + 0x4000, base + 0x2000, 0]),
        ]
        .concat();
        tell(code::SET_VRING_CALL, words(&[at.into()]), vec![event()]);
        tell(code::SET_VRING_NUM, halves(&[at, 64]), vec![]);
        tell(code::SET_VRING_ADDR, addr, vec![]);
        tell(code::SET_VRING_KICK, words(&[at.into()]), vec![event()]);
    }
    assert_eq!(keeper.data_path.running.len(), 2);
    let (record, numbers) = session.record();
    let mut kept = std::mem::take(&mut keeper.kept);
    kept.retain(|number, _| numbers.contains(number));
    let iotlb = keeper.iotlb.take();
    Left {
        record,
        kept,
        iotlb,
        spoilt: false,
    }
}

fn message(code: u32, payload: Vec<u8>) -> Message {
    Message {
        code,
        need_reply: true,
        payload,
    }
}

/// A sound record in which some bytes are others, or some of the table.
fn edited(data: &[u8], packed: bool, translated: bool) {
    let mut left = sound(packed, translated);
    let mut used = None;
    let mut u = Unstructured::new(data);
    while let (Ok(at), Ok(value)) = (u.arbitrary::<u16>(), u.arbitrary::<u8>()) {
        let iotlb = left.iotlb.as_ref().filter(|_| at & 0x8000 != 0);
        if let Some(file) = iotlb {
            let slots = used.get_or_insert_with(|| slots(file));
            let at = usize::from(at & 0x7fff);
            let place = match at >> 13 {
                // The head, the slots that are in use, any slot.
                0 => at % 256,
                1 | 2 => slots[(at >> 4) % slots.len()] + at % 16,
                _ => SLOTS + at * 61 % (1 << 20),
            };
            rustix::io::pwrite(file, &[value], place as u64).expect("room");
            left.spoilt = true;
        } else {
            let at = usize::from(at) % left.record.len();
            left.record[at] = value;
        }
        if u.is_empty() {
            break;
        }
    }
    restore(left);
}

/// Returns the offsets of the slots in use.
fn slots(file: &OwnedFd) -> Vec<usize> {
    let mut bytes = vec![0; 1 << 20];
    rustix::io::pread(file, &mut bytes, SLOTS as u64).expect("a file");
    let slots = bytes.as_chunks::<16>().0.iter().enumerate();
    let used = slots.filter(|(_, slot)| **slot != [0; 16]);
    used.map(|(at, _)| SLOTS + 16 * at).collect()
}

fn restore(left: Left) {
    let table = left.iotlb.as_ref().filter(|_| left.spoilt);
    let is_usable = table.is_none_or(|file| IotlbWriter::resume(file).is_ok());
    let mut keeper = Keeper {
        iotlb: left.iotlb,
        ..Keeper::default()
    };
    keeper.data_path.spoilt = true;
    match Session::restore(offer(), &left.record, left.kept, &mut keeper) {
        Ok(mut session) => {
            let entries = session.iotlb().map(|table| table.counts().entries);
            assert!(is_usable || entries.is_none_or(|entries| entries == 0));
            serve(&mut session, &mut keeper);
            revoke_all(&mut session, &mut keeper);
            serve(&mut session, &mut keeper);
            let (bytes, numbers) = session.record();
            assert!(numbers.len() <= 16 && !bytes.is_empty());
            session.close(&mut keeper);
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
    assert!(keeper.data_path.running.is_empty());
}

fn serve(session: &mut Session, keeper: &mut Keeper) {
    for (index, fault) in keeper.data_path.serve() {
        session.queue_failed(index, &fault.to_string(), keeper);
    }
}

/// The front end revokes everything.
fn revoke_all(session: &mut Session, keeper: &mut Keeper) {
    if session.iotlb().is_none() {
        return;
    }
    let invalidate = IotlbMessage {
        iova: 0,
        size: u64::MAX,
        user_addr: 0,
        permission: 0,
        kind: iotlb_type::INVALIDATE,
    };
    let message = message(code::IOTLB_MSG, invalidate.to_bytes().to_vec());
    let answer = session.handle(message, Vec::<OwnedFd>::new(), keeper);
    assert!(answer.is_ok_and(|answer| answer.is_some()));
    let table = session.iotlb().expect("it is still there");
    assert_eq!(table.counts().entries, 0);
    for page in 0..SIZE / PAGE {
        assert_eq!(table.look_up(IOVA + page * PAGE, Access::READ), None);
    }
}

/// A journal and a ring, both of any bytes.
fn journal(data: &[u8]) {
    let (Some((size, rest)), features) = (
        data.split_first(),
        Features::VERSION_1 | Features::RING_PACKED,
    ) else {
        return;
    };
    let size = u16::from(size % 16) + 1;
    let (words, ring) = rest.split_at(rest.len().min(192));
    let journal = file(JournalRegion::size(1));
    rustix::io::pwrite(&journal, words, 0).expect("room");
    // The start of the queue is right, so that the rest counts.
    rustix::io::pwrite(&journal, &7u32.to_ne_bytes(), 4).expect("room");
    let memory = file(SIZE);
    rustix::io::pwrite(&memory, ring, 0).expect("room");
    let region = memory::Region::map(memory, GPA, SIZE, UVA, 0).expect("memory");
    let mem = Arc::new(GuestMemory::new(vec![Arc::new(region)], None).expect("memory"));
    let region = Arc::new(JournalRegion::map(&journal, 1).expect("memory"));
    let layout = Layout {
        size,
        desc: GPA,
        driver: GPA + 0x2000,
        device: GPA + 0x3000,
        slots: None,
    };
    for _ in 0..2 {
        let part = Journal::new(Arc::clone(&region), 0, 7);
        let resumed = Queue::resume(Arc::clone(&mem), layout, features, 0x8000_8000, part);
        let Ok(mut queue) = resumed else {
            return;
        };
        let mut taken = 0;
        let mut segs = Vec::new();
        while let Ok(Some(chain)) = queue.take_readable(&mut segs) {
            assert!(chain.id < size);
            taken += chain.count;
            assert!(taken <= size, "more than there is");
            queue.put(chain, 0);
            if taken % 3 == 0 {
                queue.publish();
                taken = 0;
                segs.clear();
                if queue.position() & 7 == 0 {
                    break;
                }
            }
        }
        // It dies with what is staged.
    }
}
