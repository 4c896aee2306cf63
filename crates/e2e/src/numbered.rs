//! Numbered frames between two fake guests: every one that does not arrive is noticed, at host
//! speed.

use std::time::{Duration, Instant};

use testkit::FakeGuest;
use testkit::packets::{Flow, Numbered, SequenceChecker, numbered_payload, payload_of, udp};

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
