//! Numbered frames between two fake guests: every one that does not arrive is noticed, at host
//! speed.

use std::time::{Duration, Instant};

use testkit::FakeGuest;
use testkit::packets::{
    Flow, Numbered, SequenceChecker, numbered_payload, numbered_read, payload_of, udp,
};

/// Time without an arrival after which all frames on their way seem lost.
const SEEMS_LOST: Duration = Duration::from_millis(100);

/// Limit of a competition.
const COMPETITION: Duration = Duration::from_secs(30);

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
/// on their way, until so many arrived. Returns those of each.
pub fn compete(
    mut senders: [Competitor<'_>; 2],
    to: &mut FakeGuest,
    checker: &mut SequenceChecker,
    (size, window, frames): (usize, u64, u64),
) -> [u64; 2] {
    let end = Instant::now() + COMPETITION;
    let arrived =
        |checker: &SequenceChecker, sender: &Competitor<'_>| checker.next_of(sender.stream.id);
    let before = [0, 1].map(|at| arrived(checker, &senders[at]));
    loop {
        for sender in &mut senders {
            while sender.stream.next < arrived(checker, sender) + window {
                sender.stream.send(sender.guest, size);
            }
        }
        collect(to, checker);
        let got = [0, 1].map(|at| arrived(checker, &senders[at]) - before[at]);
        if got[0] + got[1] >= frames {
            return got;
        }
        assert!(Instant::now() < end, "{got:?} arrived");
    }
}

/// Teaches the switch where two guests are: one frame each way, repeated until it arrives.
pub fn introduce(a: &mut FakeGuest, b: &mut FakeGuest, flow: Flow) {
    for _ in 0..100 {
        let pause = Duration::from_millis(50);
        // One after the other: an answer to a guest that is not known yet would be flooded.
        a.send(&udp(&flow, b"hello")).expect("the guest can send");
        let there = b.recv(pause).expect("the device keeps the rules").is_some();
        b.send(&udp(&flow.reversed(), b"hello"))
            .expect("the guest can send");
        let back = a.recv(pause).expect("the device keeps the rules").is_some();
        if there && back {
            std::thread::sleep(pause);
            a.recv_all().expect("the device keeps the rules");
            b.recv_all().expect("the device keeps the rules");
            return;
        }
    }
    panic!("two guests do not see each other");
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
