//! Numbered frames between two fake guests: every one that does not arrive is noticed, at host
//! speed.

use std::time::{Duration, Instant};

use testkit::FakeGuest;
use testkit::packets::{
    Flow, Numbered, SequenceChecker, numbered_payload, numbered_read, payload_of, udp,
};
use testkit::wait::{LIMIT, wait_until};

/// Time without an arrival after which all frames on their way seem lost.
const SEEMS_LOST: Duration = Duration::from_millis(100);

/// How long a frame of an introduction is waited for, and what it leaves behind.
const PAUSE: Duration = Duration::from_millis(50);

/// Frames of [`trickle`] on their way at most: fewer than a receiver has buffers.
const WINDOW: u64 = 200;

/// Frames in [`compete`] that have left the senders' queues and not arrived, at most: an interface
/// has that much room.
const BEYOND: u64 = 64;

/// One stream of numbered UDP datagrams.
pub struct Stream {
    id: u16,
    flow: Flow,
    next: u64,
}

impl Stream {
    /// A stream with frames of this flow.
    pub fn new(id: u16, flow: Flow) -> Stream {
        Stream { id, flow, next: 0 }
    }

    /// Its number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// How many frames were sent.
    pub fn sent(&self) -> u64 {
        self.next
    }

    /// Sends the next frame, with `size` bytes of payload.
    pub fn send(&mut self, from: &mut FakeGuest, size: usize) {
        let payload = numbered_payload(
            Numbered {
                stream: self.id,
                seq: self.next,
            },
            size,
        );
        self.next += 1;
        from.send(&udp(&self.flow, &payload))
            .expect("the guest can send");
    }
}

/// Lets `checker` see everything that has arrived, and gives the keys of the sound frames.
pub fn collect(to: &mut FakeGuest, checker: &mut SequenceChecker) -> Vec<Numbered> {
    let received = to.recv_all().expect("the device keeps the rules");
    let payloads = received
        .iter()
        .filter_map(|packet| payload_of(&packet.frame).ok());
    payloads
        .filter_map(|payload| checker.see(payload))
        .collect()
}

/// Collects until `stream` has arrived whole, or `limit` is over. True when it is clean.
pub fn settle(
    to: &mut FakeGuest,
    checker: &mut SequenceChecker,
    stream: &Stream,
    limit: Duration,
) -> bool {
    let end = Instant::now() + limit;
    while checker.next_of(stream.id) < stream.next && Instant::now() < end {
        collect(to, checker);
        std::thread::sleep(Duration::from_millis(1));
    }
    checker.is_clean(stream.id, stream.next)
}

/// A guest and the stream that it sends.
pub struct Competitor<'a> {
    /// The guest.
    pub guest: &'a mut FakeGuest,
    /// Its stream.
    pub stream: &'a mut Stream,
}

/// Has two senders always send frames with `size` bytes of payload, of which at most `window` are
/// on their way, until so many arrived that left while frames of both waited. Returns those of
/// each. On a busy machine this thread may not run for a while, and what one sender has through
/// while the other has nothing left is no share.
pub fn compete(
    mut senders: [Competitor<'_>; 2],
    to: &mut FakeGuest,
    checker: &mut SequenceChecker,
    (size, window, frames): (usize, u64, u64),
) -> [u64; 2] {
    let end = Instant::now() + LIMIT;
    let mut got = [0; 2];
    // Frames on their way that may have left when a sender had none in its queue.
    let mut uncounted = 0;
    while got[0] + got[1] < frames {
        assert!(Instant::now() < end, "{got:?} arrived");
        let mut left = [0; 2];
        for (sender, left) in senders.iter_mut().zip(&mut left) {
            let arrived = checker.next_of(sender.stream.id);
            if sender.stream.next - arrived <= BEYOND {
                uncounted = BEYOND;
            }
            while sender.stream.next < arrived + window {
                sender.stream.send(sender.guest, size);
            }
            *left = sender.stream.next - arrived;
        }
        for key in collect(to, checker) {
            let of = |sender: &Competitor<'_>| sender.stream.id == key.stream;
            let Some(at) = senders.iter().position(of) else {
                continue;
            };
            let both_wait = left.iter().all(|left| *left > BEYOND);
            got[at] += u64::from(both_wait && uncounted == 0);
            uncounted = uncounted.saturating_sub(1);
            left[at] = left[at].saturating_sub(1);
        }
    }
    got
}

/// Sends the next frame, unless so many are on their way that their receiver could run out of
/// buffers, and lets `checker` see everything that has arrived. Returns the keys of that.
pub fn trickle(
    stream: &mut Stream,
    (from, to): (&mut FakeGuest, &mut FakeGuest),
    checker: &mut SequenceChecker,
    size: usize,
) -> Vec<Numbered> {
    if stream.next < checker.next_of(stream.id) + WINDOW {
        stream.send(from, size);
    }
    collect(to, checker)
}

/// Teaches the switch where two guests are: one frame each way, repeated until it arrives. Frames
/// of one flow keep their order: behind the last one nothing is on its way any more.
pub fn introduce(a: &mut FakeGuest, b: &mut FakeGuest, flow: Flow) {
    let mut number = 0_u32;
    wait_until("two guests see each other", || {
        number += 1;
        // One after the other: an answer to a guest that is not known yet would be flooded.
        let there = hello(a, b, &flow, number);
        let back = hello(b, a, &flow.reversed(), number);
        there && back
    });
    // Others may have got copies, and the limits of a port their share.
    std::thread::sleep(PAUSE);
    for guest in [a, b] {
        guest.recv_all().expect("the device keeps the rules");
    }
}

/// Sends a numbered frame, and returns whether it arrives soon. What comes before it is thrown
/// away.
fn hello(from: &mut FakeGuest, to: &mut FakeGuest, flow: &Flow, number: u32) -> bool {
    let payload = [&b"hello"[..], &number.to_be_bytes()].concat();
    from.send(&udp(flow, &payload)).expect("the guest can send");
    let mut next = || to.recv(PAUSE).expect("the device keeps the rules");
    std::iter::from_fn(&mut next).any(|got| payload_of(&got.frame) == Ok(&payload))
}

/// A guest that always has frames waiting: one stream, with a window of frames on their way.
pub struct Sender {
    /// The guest.
    pub guest: FakeGuest,
    /// Its stream.
    pub stream: Stream,
    /// All of the stream that has arrived.
    pub checker: SequenceChecker,
    since: Instant,
}

impl Sender {
    /// A sender with frames of this flow. Its stream has the number `id`.
    pub fn new(guest: FakeGuest, id: u16, flow: Flow) -> Sender {
        Sender {
            guest,
            stream: Stream::new(id, flow),
            checker: SequenceChecker::default(),
            since: Instant::now(),
        }
    }

    /// Sends frames of `size` bytes until `window` of them are on their way. When all of them seem
    /// lost, one more is sent: the first that arrives opens the window.
    pub fn fill(&mut self, window: u64, size: usize) {
        let next = self.checker.next_of(self.stream.id());
        while self.stream.sent() < next + window {
            self.stream.send(&mut self.guest, size);
        }
        if self.since.elapsed() > SEEMS_LOST {
            self.since = Instant::now();
            self.stream.send(&mut self.guest, size);
        }
    }

    /// Takes in a payload that has arrived somewhere. Returns whether it is one of this sender.
    pub fn see(&mut self, payload: &[u8]) -> bool {
        let own = numbered_read(payload).is_some_and(|key| key.stream == self.stream.id());
        if own {
            self.checker.see(payload);
            self.since = Instant::now();
        }
        own
    }

    /// Frames that arrived, each counted once.
    pub fn arrived(&self) -> u64 {
        self.checker.received - self.checker.duplicated
    }

    /// Frames that were sent and have not arrived.
    pub fn missing(&self) -> u64 {
        self.stream.sent() - self.arrived()
    }

    /// Frames that are still in the guest's queue.
    pub fn waiting(&mut self) -> u16 {
        let nic = &mut self.guest.pairs[0].nic;
        nic.reclaim().expect("the device keeps the rules");
        nic.tx.outstanding()
    }
}
