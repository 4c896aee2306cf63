//! A pair of honest guests, the first of which sends numbered frames to the second.

use std::io;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use super::super::lasthop::Lasthop;
use super::book::{Book, LATE, Schedule, Timeline};
use testkit::guest::GuestError;
use testkit::guest_ram::RegionSpec;
use testkit::packets::{
    Flow, Numbered, SequenceChecker, numbered_payload, payload_of, udp, verify_checksums,
};
use testkit::{FakeGuest, GuestConfig};

/// From one frame to the next.
const FRAME_EVERY: Duration = Duration::from_millis(1);
/// Entries of a queue: room for the frames of a second, so that none is lost when this program does
/// not get a processor.
const QUEUE: u16 = 1024;
/// Bytes of a frame's payload.
const PAYLOAD: usize = 200;

pub(super) struct Pair {
    sender: FakeGuest,
    receiver: FakeGuest,
    flow: Flow,
    stream: u16,
}

impl Pair {
    /// The two guests of a segment, which are also the numbers `stream` of [`Book::frames`].
    pub(super) fn connect(lasthop: &Lasthop, segment: &str, stream: u16) -> io::Result<Self> {
        let number = 10 + 2 * stream as u8;
        let up = |end: u8| {
            let socket = lasthop.socket(&format!("{segment}{end}"));
            let mut guest = FakeGuest::connect(&socket, config(number + end))?;
            guest.wait_link()?;
            Ok::<_, GuestError>(guest)
        };
        Ok(Self {
            sender: up(0).map_err(io::Error::other)?,
            receiver: up(1).map_err(io::Error::other)?,
            flow: Flow::v4(number, number + 1),
            stream,
        })
    }

    /// Sends and receives until the book says stop and everything has come. The sender does not
    /// wait for the receiver.
    pub(super) fn run(self, book: &Book) {
        let (mut guest, flow, stream) = (self.sender, self.flow, self.stream);
        let schedule = Schedule::new(FRAME_EVERY);
        let receiver = Receiver {
            guest: self.receiver,
            stream,
            schedule: &schedule,
            book,
            checker: SequenceChecker::default(),
            late: 0,
        };
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| send(&mut guest, &flow, stream, &schedule, book));
            receiver.run(sending);
        });
    }
}

fn config(number: u8) -> GuestConfig {
    GuestConfig {
        regions: Some(vec![RegionSpec::at(0x10_0000, 16 << 20)]),
        queue_size: QUEUE,
        timeout: LATE,
        ..GuestConfig::default()
    }
    .guest(number)
}

/// Sends each frame when it is due; gives how many were sent.
fn send(guest: &mut FakeGuest, flow: &Flow, stream: u16, schedule: &Schedule, book: &Book) -> u64 {
    for seq in 0.. {
        schedule.wait(seq);
        if !book.on() {
            return seq;
        }
        let payload = numbered_payload(Numbered { stream, seq }, PAYLOAD);
        if let Err(error) = guest.send(&udp(flow, &payload)) {
            book.fault(format!("pair {stream}, frame {seq} is not sent: {error}"));
            return seq;
        }
    }
    0
}

struct Receiver<'a> {
    guest: FakeGuest,
    stream: u16,
    schedule: &'a Schedule,
    book: &'a Book,
    checker: SequenceChecker,
    late: u64,
}

impl Receiver<'_> {
    fn run(mut self, sending: ScopedJoinHandle<'_, u64>) {
        let mut came = Ok(());
        while came.is_ok() && !sending.is_finished() {
            came = self.take();
        }
        let panicked = |_| {
            let text = format!("pair {}: the sender panicked", self.stream);
            self.book.fault(text);
            0
        };
        let sent = sending.join().unwrap_or_else(panicked);
        let end = Instant::now() + LATE;
        while came.is_ok() && !self.has_all(sent) && Instant::now() < end {
            came = self.take();
        }
        if let Err(error) = came {
            let text = format!("pair {}: nothing more is received: {error}", self.stream);
            self.book.fault(text);
        }
        self.timeline().close();
        self.count(sent);
    }

    fn has_all(&self, sent: u64) -> bool {
        self.checker.lost() == 0 && self.checker.next_of(self.stream) >= sent
    }

    /// Takes the next frame, should there be one soon.
    fn take(&mut self) -> Result<(), GuestError> {
        let Some(got) = self.guest.recv(Duration::from_millis(20))? else {
            return Ok(());
        };
        let Ok(payload) = payload_of(&got.frame) else {
            return Ok(()); // not IP: an announcement
        };
        self.checker.damaged += u64::from(verify_checksums(&got.frame).is_err());
        if let Some(key) = self.checker.see(payload) {
            self.came(key);
        }
        self.timeline().set_wrong(self.wrong());
        Ok(())
    }

    fn came(&mut self, key: Numbered) {
        if key.stream != self.stream {
            let (ours, theirs) = (self.stream, key.stream);
            let text = format!("pair {ours} got a frame of pair {theirs}");
            return self.book.fault(text);
        }
        let late = self.timeline().came(self.schedule.due(key.seq));
        self.late += u64::from(late > LATE);
    }

    fn timeline(&self) -> &Timeline {
        &self.book.frames[usize::from(self.stream)]
    }

    fn wrong(&self) -> u64 {
        self.checker.lost() + self.checker.duplicated + self.checker.damaged + self.late
    }

    fn count(&self, sent: u64) {
        let tail = sent.saturating_sub(self.checker.next_of(self.stream));
        self.book.count(|counts| {
            counts.sent += sent;
            counts.lost += self.checker.lost() + self.checker.duplicated + tail;
            counts.damaged += self.checker.damaged;
            counts.late += self.late;
        });
    }
}
