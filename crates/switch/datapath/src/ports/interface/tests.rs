//! A socket pair is the interface here: as with a TAP device, each call moves a frame with its
//! header.

use std::os::fd::OwnedFd;
use std::time::Duration;

use ipc::driving::{BackEnd, InterfaceStart};
use mapping::Mapping;
use memory::Segment;
use port::{Offload, PartialChecksum};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::*;
use crate::ports::batch::BatchLimit;
use crate::ports::payload::Payload;

const START: InterfaceStart = InterfaceStart {
    back_end: BackEnd::Tap,
    uso: true,
};
const PLAIN: [u8; 12] = [0; 12];
const RETRY_IS_DUE: Nanos = 1_000_000_000;

struct Rig {
    port: InterfacePort,
    queues: InterfaceQueues,
    /// The system's side of the interface.
    system: OwnedFd,
    calls: PendingCalls,
}

impl Rig {
    fn new() -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, system) = pair.unwrap();
        let queues = InterfaceQueues::new(PortId(1), START, vec![ours]).unwrap();
        Self {
            port: queues.port(None),
            queues,
            system,
            calls: PendingCalls::default(),
        }
    }

    /// Has the system send a frame with this virtio header.
    fn arrives(&self, header: [u8; 12], frame: &[u8]) {
        let bytes = [&header, frame].concat();
        assert_eq!(write(&self.system, &bytes), Ok(bytes.len()));
    }

    /// Returns the frames that the system has got, with their virtio headers.
    fn left(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; 70_000];
        while let Ok(len) = read(&self.system, &mut buffer[..]) {
            frames.push(buffer[..len].to_vec());
        }
        frames
    }

    /// Takes a batch; returns the frames. The first `kept` are released, the others left.
    fn take(&mut self, limit: BatchLimit, kept: usize) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        batch.set_limit(limit);
        self.port.take(0, &mut batch);
        let frames = (0..batch.frames().len()).map(|at| {
            let (headers, payload, _) = batch.split(at);
            let mut frame = headers.as_slice().to_vec();
            payload.append_to(&mut frame);
            frame
        });
        let frames = frames.collect();
        if kept < batch.frames().len() {
            let kept = batch.cut(kept);
            self.port.leave(0, kept);
        }
        self.port.release(0, &mut self.calls);
        frames
    }

    /// Delivers a frame; its bytes after the first 64 stay where they lie.
    fn deliver(&mut self, frame: &Mapped) -> Result<(), DropReason> {
        self.deliver_with(frame, Offload::default())
    }

    fn deliver_with(&mut self, frame: &Mapped, offload: Offload) -> Result<(), DropReason> {
        let headers = &frame.head;
        let segments = [frame.rest];
        // SAFETY: the mapping outlives the batch.
        let payload = unsafe { Payload::new(&segments, 0, frame.rest.len) };
        self.port.hold(0, true);
        let payload = &payload;
        let out = Outgoing {
            headers,
            payload,
            offload,
        };
        self.port.deliver(0, &out)
    }

    fn flush(&mut self, now: Nanos) -> (Settlement, Option<Nanos>) {
        let settled = self.port.settle(0, now).unwrap_or_default();
        (settled, self.port.flush(0, now, &mut self.calls))
    }
}

/// A frame in memory that a guest shares.
struct Mapped {
    head: [u8; 64],
    rest: Segment,
    file: OwnedFd,
    _mapping: Mapping,
}

impl Mapped {
    fn new(byte: u8, len: u32) -> Self {
        let file = memfd_create("frame", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 2 << 16).unwrap();
        let mapping = Mapping::shared(&file, 2 << 16, 0).unwrap();
        let ptr = mapping.as_ptr();
        // SAFETY: the mapping is as long, and of this test alone.
        unsafe { ptr.write_bytes(byte, 1 << 16) };
        Self {
            head: [byte; 64],
            rest: Segment {
                ptr,
                len: len - 64,
                gpa: 0x1000,
            },
            file,
            _mapping: mapping,
        }
    }

    fn on_the_wire(&self) -> Vec<u8> {
        let byte = self.head[0];
        [&PLAIN[..], &vec![byte; self.rest.len as usize + 64]].concat()
    }
}

#[test]
fn each_frame_is_read_once_and_a_queue_rests_when_there_is_none() {
    let mut rig = Rig::new();
    assert!(rig.port.has_frames(0), "none was looked for");
    assert!(rig.take(BatchLimit::MOST, 64).is_empty());
    assert!(!rig.port.has_frames(0));
    rig.arrives(PLAIN, &[7; 60]);
    assert!(rig.take(BatchLimit::MOST, 64).is_empty(), "it rests");
    rig.port.note_edge(0);
    assert!(rig.port.has_frames(0));
    assert_eq!(rig.take(BatchLimit::MOST, 64), [[7; 60]]);
    assert!(!rig.port.has_frames(0));
    let counts = rig.port.counts();
    assert_eq!((counts[1].1.frames, counts[1].1.bytes), (1, 60));
    assert_eq!(rig.port.interface_counters().received.frames, 1);
}

#[test]
fn frames_that_are_left_come_again_in_their_order() {
    let mut rig = Rig::new();
    let numbered: Vec<Vec<u8>> = (0..10).map(|n| vec![n; 60 + usize::from(n)]).collect();
    numbered.iter().for_each(|frame| rig.arrives(PLAIN, frame));
    assert_eq!(rig.take(BatchLimit::MOST, 3), numbered);
    let two = BatchLimit {
        frames: 2,
        bytes: u64::MAX,
    };
    assert_eq!(rig.take(two, 64), numbered[3..5]);
    assert_eq!(rig.take(two, 0), numbered[5..7]);
    rig.arrives(PLAIN, &[10; 70]);
    rig.port.note_edge(0);
    assert!(rig.port.stop_reading(0), "some were read");
    assert_eq!(rig.take(BatchLimit::MOST, 64), numbered[5..]);
    assert!(!rig.port.stop_reading(0));
    rig.port.note_edge(0);
    assert_eq!(rig.take(BatchLimit::MOST, 64), [[10; 70]]);
    assert_eq!(rig.port.counts()[1].1.frames, 11);
}

#[test]
fn frames_that_are_too_long_are_lost_alone() {
    let mut rig = Rig::new();
    sockopt::set_socket_send_buffer_size(&rig.system, 4 << 20).unwrap();
    let (short, long) = (|n: u8| vec![n; 60], vec![9; 69_700]);
    // Lost frames before, between and behind the others, more of them than the next batch takes.
    for frame in [
        &long,
        &short(0),
        &long,
        &long,
        &long,
        &short(1),
        &long,
        &short(2),
        &long,
    ] {
        rig.arrives(PLAIN, frame);
    }
    let mut seen = Vec::new();
    let one = BatchLimit {
        frames: 1,
        bytes: u64::MAX,
    };
    for (limit, kept) in [
        (BatchLimit::MOST, 0),
        (one, 64),
        (BatchLimit::MOST, 0),
        (one, 64),
    ] {
        let frames = rig.take(limit, kept);
        seen.extend(frames.into_iter().filter(|_| kept > 0));
    }
    while rig.port.has_frames(0) {
        seen.extend(rig.take(one, 64));
    }
    assert_eq!(seen, [short(0), short(1), short(2)]);
    assert_eq!(rig.port.counts()[1].1.frames, 3);
    assert_eq!(rig.port.interface_counters().oversized_frames, 6);
}

#[test]
fn long_frames_are_read_as_far_as_the_batch_goes() {
    let mut rig = Rig::new();
    sockopt::set_socket_send_buffer_size(&rig.system, 4 << 20).unwrap();
    let limit = BatchLimit {
        frames: 64,
        bytes: 48 << 10,
    };
    for n in 0..8 {
        rig.arrives(PLAIN, &vec![n; 40_000]);
    }
    let mut seen = Vec::new();
    while rig.port.has_frames(0) {
        let frames = rig.take(limit, 64);
        assert!(frames.len() <= 2, "{}", frames.len());
        seen.extend(frames.iter().map(|frame| frame[39_999]));
    }
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn malformed_frames_are_dropped_by_name() {
    let mut rig = Rig::new();
    let mut header = PLAIN;
    header[1] = 9;
    rig.arrives(header, &[1; 60]);
    rig.arrives(PLAIN, &[2; 13]);
    rig.arrives(PLAIN, &[3; 60]);
    let mut batch = Batch::new();
    rig.port.take(0, &mut batch);
    let drops: Vec<_> = batch.drops().collect();
    assert_eq!(drops, [(DropReason::BadHeader, 1), (DropReason::Runt, 1)]);
    assert_eq!(batch.frames().len(), 1);
    rig.port.release(0, &mut rig.calls);
}

#[test]
fn a_batch_is_written_at_its_end_with_the_bytes_that_were_checked() {
    let mut rig = Rig::new();
    let mut frames: Vec<_> = (1..4).map(|n| Mapped::new(n, 1000)).collect();
    for frame in &frames {
        assert_eq!(rig.deliver(frame), Ok(()));
    }
    assert!(rig.left().is_empty(), "not before the end of the batch");
    let expected: Vec<_> = frames.iter().map(Mapped::on_the_wire).collect();
    frames[1].head = [0xff; 64];
    let (settled, due) = rig.flush(0);
    assert_eq!((settled.kept, due), (Traffic::default(), None));
    assert!(rig.left() == expected);
    // A checksum that is left to the system is described to it.
    let checksum = Some(PartialChecksum {
        start: 34,
        offset: 16,
    });
    let offload = Offload {
        checksum,
        gso: None,
    };
    rig.deliver_with(&frames[0], offload).unwrap();
    rig.flush(0);
    let left = rig.left();
    assert_eq!((left[0][0], &left[0][6..10]), (1, &[34, 0, 16, 0][..]));
    assert_eq!(rig.port.counts()[0].1.frames, 4);
}

#[test]
fn more_frames_than_a_batch_has_room_for_are_written_before() {
    let mut rig = Rig::new();
    let frame = Mapped::new(1, 100);
    for _ in 0..150 {
        assert_eq!(rig.deliver(&frame), Ok(()));
    }
    rig.flush(0);
    assert_eq!(rig.left().len(), 150);
}

#[test]
fn memory_that_no_sender_leases_may_end_before_the_batch() {
    let mut rig = Rig::new();
    rig.port.hold(0, true);
    for byte in [5, 6] {
        let mut own = vec![byte; 500];
        let segments = [Segment {
            ptr: own.as_mut_ptr(),
            len: 500,
            gpa: Segment::PRIVATE,
        }];
        // SAFETY: the segment lives as long as the payload.
        let payload = unsafe { Payload::new(&segments, 0, 500) };
        let out = Outgoing {
            headers: &[byte; 64],
            payload: &payload,
            offload: Offload::default(),
        };
        assert_eq!(rig.port.deliver(0, &out), Ok(()));
        own.fill(0xff);
    }
    rig.flush(0);
    let expected = [5, 6].map(|byte| [&PLAIN[..], &[byte; 564]].concat());
    assert!(rig.left() == expected);
}

#[test]
fn what_an_interface_does_not_take_waits_bounded_and_in_order() {
    let mut rig = Rig::new();
    let frames: Vec<_> = (0..200).map(|n| Mapped::new(n, 4000)).collect();
    let (mut taken, mut refused) = (Traffic::default(), 0);
    let mut settled = Settlement::default();
    let mut due = None;
    for (at, frame) in frames.iter().cycle().take(2000).enumerate() {
        match rig.deliver(frame) {
            Ok(()) => {
                taken.packets += 1;
                taken.bytes += 4000;
            }
            Err(reason) => {
                assert_eq!(reason, DropReason::ReceiverFull);
                refused += 1;
            }
        }
        if at % 8 == 7 {
            let (part, new) = rig.flush(5);
            assert!(due.is_none() || new.is_none(), "one deferral");
            due = due.or(new);
            settled.add(part);
        }
    }
    assert!(refused > 0);
    let due = due.expect("a retry");
    let buffers = rig.port.buffers().unwrap();
    assert_eq!(buffers.used as u64, settled.kept.packets, "{settled:?}");
    assert!((200..=256).contains(&buffers.used), "{buffers:?}");
    assert_eq!(buffers.free, 256 - buffers.used);
    assert_eq!(rig.port.notify(0, due - 1, &mut rig.calls), Some(due));
    let mut left = rig.left();
    let mut next = Some(due);
    while let Some(now) = next {
        next = rig.port.notify(0, now, &mut rig.calls);
        left.extend(rig.left());
        settled.add(rig.port.settle_deferred(0).unwrap_or_default());
    }
    assert_eq!(left.len() as u64, taken.packets);
    let order: Vec<u8> = left.iter().map(|frame| frame[12]).collect();
    let expected: Vec<u8> = (0..200).cycle().take(left.len()).collect();
    assert_eq!(order, expected);
    assert_eq!(settled.delivered, settled.kept);
    assert!(settled.dropped.is_empty());
    assert_eq!(rig.port.buffers().unwrap().used, 0);
}

/// The worker that has tried again knows what became of frames, even if another has the queue then.
#[test]
fn what_a_retry_has_done_is_counted_beside_another_worker() {
    let mut rig = Rig::new();
    let frame = Mapped::new(1, 4000);
    let mut taken = 0;
    while rig.port.buffers().unwrap().used == 0 {
        rig.deliver(&frame).unwrap();
        taken += 1;
        if taken % 8 == 0 {
            rig.flush(0);
        }
    }
    rig.flush(0);
    let waiting = rig.port.buffers().unwrap().used as u64;
    let written = rig.left().len() as u64;
    assert_eq!(written + waiting, taken);
    let mut other = rig.queues.port(None);
    assert_eq!(rig.port.notify(0, RETRY_IS_DUE, &mut rig.calls), None);
    assert!(other.hold(0, true));
    let settled = rig.port.settle_deferred(0).unwrap();
    assert_eq!(settled.delivered.packets, waiting);
    assert!(other.settle(0, RETRY_IS_DUE).is_none(), "once");
    other.flush(0, RETRY_IS_DUE, &mut rig.calls);
    assert_eq!(rig.left().len() as u64, waiting);
}

/// A port that holds its senders loses nothing, also of the longest frames: of those that were in
/// the hands of workers when the last buffer was taken.
#[test]
fn what_is_sent_while_there_are_buffers_is_not_dropped() {
    let mut rig = Rig::new();
    let frame = Mapped::new(1, 65_000);
    let mut taken = 0;
    while rig.port.buffers().unwrap().free > 0 {
        assert!(taken < 64, "there is room for few");
        rig.deliver(&frame).unwrap();
        taken += 1;
        rig.flush(0);
    }
    // A batch of each of two workers.
    let in_hand = 2 * (BatchLimit::MOST.bytes / 65_000) + 2;
    let sent = (0..in_hand).all(|_| rig.deliver(&frame).is_ok());
    let (settled, _) = rig.flush(0);
    assert!(sent && settled.dropped.is_empty());
}

/// A revocation of memory waits for the batch that reads it.
#[test]
fn frames_for_which_a_batch_has_no_time_wait_in_private_memory() {
    let mut rig = Rig::new();
    let frames: Vec<_> = (1..6).map(|n| Mapped::new(n, 1000)).collect();
    for frame in &frames {
        assert_eq!(rig.deliver(frame), Ok(()));
    }
    rig.port.pairs[0].send.get().unwrap().write(Duration::ZERO);
    let (settled, due) = rig.flush(0);
    assert_eq!((settled.kept.packets, settled.dropped.len()), (4, 0));
    let expected: Vec<_> = frames.iter().map(Mapped::on_the_wire).collect();
    drop(frames);
    assert!(rig.left() == expected[..1]);
    // One that comes meanwhile goes after them.
    let last = Mapped::new(6, 1000);
    rig.deliver(&last).unwrap();
    rig.flush(0);
    assert_eq!(rig.port.notify(0, due.unwrap(), &mut rig.calls), None);
    let settled = rig.port.settle_deferred(0).unwrap();
    assert_eq!(settled.delivered.packets, 5);
    assert!(rig.left() == [&expected[1..], &[last.on_the_wire()]].concat());
}

#[test]
fn what_waits_at_the_end_is_dropped_and_counted() {
    let mut rig = Rig::new();
    let frame = Mapped::new(1, 4000);
    let mut taken = 0;
    while rig.deliver(&frame).is_ok() {
        taken += 1;
    }
    let (mut settled, due) = rig.flush(0);
    assert!(due.is_some());
    settled.add(rig.port.end());
    let written = rig.left().len() as u64;
    let dropped: u64 = settled.dropped.iter().map(|(_, frames)| frames).sum();
    assert_eq!(
        taken + settled.delivered.packets - settled.kept.packets,
        written
    );
    assert_eq!(taken, written + dropped);
}

#[test]
fn a_frame_in_memory_that_was_taken_away_harms_no_other() {
    mapping::survive_truncation().unwrap();
    let mut rig = Rig::new();
    let frames: Vec<_> = (1..6).map(|n| Mapped::new(n, 9000)).collect();
    for frame in &frames {
        assert_eq!(rig.deliver(frame), Ok(()));
    }
    let before = mapping::lost_mappings();
    ftruncate(&frames[2].file, 0).unwrap();
    rig.flush(0);
    assert!(mapping::lost_mappings() > before, "its port ends");
    let left = rig.left();
    assert_eq!(left.len(), 5);
    for (at, frame) in frames.iter().enumerate() {
        let expected = frame.on_the_wire();
        if at == 2 {
            // The head was copied before; the rest is the dummy page's.
            assert_eq!(left[at].len(), expected.len());
            assert!(left[at][1000..].iter().all(|byte| *byte == 0));
        } else {
            assert!(left[at] == expected, "frame {at}");
        }
    }
}

#[test]
fn a_lost_interface_is_reported_once_and_takes_no_more() {
    let mut rig = Rig::new();
    let frame = Mapped::new(1, 100);
    let gone = std::mem::replace(&mut rig.system, Rig::new().system);
    drop(gone);
    let before = crate::ports::faults::faults();
    rig.port.note_edge(0);
    assert!(rig.take(BatchLimit::MOST, 64).is_empty());
    assert!(!rig.port.has_frames(0));
    assert_ne!(crate::ports::faults::faults(), before);
    let mut all = true;
    let (queue, fault) = rig.port.take_fault(&mut all).unwrap();
    assert!(all && queue == 0 && fault.is_device_lost(), "{fault}");
    assert_eq!(rig.port.take_fault(&mut all), None);
    // A refusal by the interface is one of the frame: it is named.
    assert_eq!(rig.deliver(&frame), Ok(()));
    let (settled, _) = rig.flush(0);
    assert_eq!(settled.kept.packets, 1);
    assert_eq!(settled.dropped, [(DropReason::InterfaceRefused, 1)]);
    let drops: Vec<_> = rig.port.drops().collect();
    assert_eq!(drops, [(0, DropReason::InterfaceRefused, 1)]);
}

#[test]
fn many_small_frames_are_followed_by_one_pause_and_long_ones_by_none() {
    let mut rig = Rig::new();
    let mut all = |len: usize, frames: usize| {
        (0..frames).for_each(|_| rig.arrives(PLAIN, &vec![7; len]));
        rig.port.note_edge(0);
        let taken = rig.take(BatchLimit::MOST, 64);
        assert_eq!(taken.len(), frames);
        rig.take(BatchLimit::MOST, 64);
        assert!(!rig.port.has_frames(0), "all were read");
        [(); 2].map(|()| rig.port.end_burst(0))
    };
    assert_eq!(all(60, 10), [true, false]);
    assert_eq!(all(60, 3), [false, false], "a request and its answer");
    assert_eq!(all(9000, 3), [false, false]);
}
