//! Numbered frames between two fake guests: every one that does not arrive is noticed, at host
//! speed.

use std::time::{Duration, Instant};

use testkit::FakeGuest;
use testkit::net::NetHeader;
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

/// Time between two looks of [`compete`], and the longest that counts.
const SPAN: Duration = Duration::from_millis(1);
const LONGEST_SPAN: Duration = Duration::from_millis(5);

/// Frames that the switch takes in a span at most, unless it makes up for a time in which it did
/// not run: an interface that ran empty takes twice as many at once.
const STEADY: u64 = 30;

/// Bits of a sender at once after a pause, where nothing else is configured: two of the longest
/// frames.
const BURST: f64 = 2.0 * 65_553.0 * 8.0;
/// Bits that a sender may have been granted and not used: two quanta.
const GRANTED: f64 = 2.0 * 16_384.0 * 8.0;

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
        let frame = self.next_frame(size);
        from.send(&frame).expect("the guest can send");
    }

    /// Makes the next frame.
    fn next_frame(&mut self, size: usize) -> Vec<u8> {
        let (stream, seq) = (self.id, self.next);
        self.next += 1;
        udp(
            &self.flow,
            &numbered_payload(Numbered { stream, seq }, size),
        )
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

/// Collects until `stream` has arrived whole.
///
/// # Panics
/// A frame does not arrive within `limit`.
#[track_caller]
pub fn settle(to: &mut FakeGuest, checker: &mut SequenceChecker, stream: &Stream, limit: Duration) {
    let is_whole = settles(to, checker, stream, limit);
    assert!(is_whole, "of {} frames: {checker:?}", stream.sent());
}

/// Collects until `stream` has arrived whole, or `limit` is over. True when it is clean.
pub fn settles(
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

impl Competitor<'_> {
    /// Puts frames into the guest's queue until `window` are on their way, unseen by the switch.
    fn stage(&mut self, checker: &SequenceChecker, (size, window): (usize, u64)) {
        while self.stream.next < checker.next_of(self.stream.id) + window {
            let frame = self.stream.next_frame(size);
            let staged = self.guest.pairs[0].stage(&frame, &NetHeader::default());
            assert!(staged.expect("the device keeps the rules"), "a full queue");
        }
    }

    /// Frames that the switch has taken from the guest's queue, and whether there are more.
    fn taken(&mut self) -> (u64, bool) {
        let pair = &mut self.guest.pairs[0];
        pair.nic.reclaim().expect("the device keeps the rules");
        let queued = pair.nic.tx.outstanding();
        (pair.stats.sent - u64::from(queued), queued > 0)
    }
}

/// Frames that each of two senders got through in [`compete`].
#[derive(Debug)]
pub struct Shares {
    /// Frames of each.
    pub frames: [u64; 2],
    /// The time, and more, in which they went.
    pub time: Duration,
}

impl Shares {
    /// The first sender's part of all.
    pub fn part(&self) -> f64 {
        let [first, second] = self.frames;
        first as f64 / (first + second) as f64
    }

    /// The most frames of so many bits that a guarantee of `rate` bits a second brought, with the
    /// usual burst and what a sender may have been granted before. Where the switch did not run for
    /// a while, the rest of the link was less, and the guarantee a larger part.
    pub fn most_by(&self, rate: f64, frame_bits: f64) -> u64 {
        ((rate * self.time.as_secs_f64() + BURST + GRANTED) / frame_bits) as u64
    }
}

/// Has two senders always send frames with `size` bytes of payload, of which at most `window` are
/// on their way, until the switch has taken so many while frames of both waited. It must have one
/// worker.
///
/// On a busy machine neither this thread nor the switch may run for a while. What one sender has
/// through while the other has nothing left is no share, nor is what goes out together because the
/// interface is empty. So frames are counted where the switch chooses, in the senders' queues, in
/// short spans. Those of a span count when both queues still have frames at its end, none were
/// added meanwhile, and so few went that the switch made up for nothing.
pub fn compete(
    mut senders: [Competitor<'_>; 2],
    to: &mut FakeGuest,
    checker: &mut SequenceChecker,
    (size, window, frames): (usize, u64, u64),
) -> Shares {
    let began = Instant::now();
    let mut got = [0; 2];
    while got[0] + got[1] < frames {
        assert!(began.elapsed() < LIMIT, "{got:?} of {frames} taken");
        // One that begins later would get more until it has caught up.
        for sender in &mut senders {
            sender.stage(checker, (size, window));
        }
        for sender in &mut senders {
            sender.guest.pairs[0].flush();
        }
        let (span, before) = (Instant::now(), taken_by_now(&mut senders));
        std::thread::sleep(SPAN);
        collect(to, checker);
        let after = taken_by_now(&mut senders);
        let more = [0, 1].map(|at| after[at].0 - before[at].0);
        let steady = span.elapsed() <= LONGEST_SPAN && more[0] + more[1] <= STEADY;
        if steady && after.iter().all(|(_, waits)| *waits) {
            for at in [0, 1] {
                got[at] += more[at];
            }
        }
    }
    Shares {
        frames: got,
        time: began.elapsed(),
    }
}

/// [`Competitor::taken`] of both at one moment.
fn taken_by_now([first, second]: &mut [Competitor<'_>; 2]) -> [(u64, bool); 2] {
    let mut of_first = first.taken();
    loop {
        let of_second = second.taken();
        let before = std::mem::replace(&mut of_first, first.taken());
        if before == of_first {
            return [of_first, of_second];
        }
    }
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
