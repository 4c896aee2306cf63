//! A station that pings a guest and answers its pings, on a thread of its own: numbered, checked
//! traffic both ways with a guest in which nothing needs to run but its kernel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testkit::FakeGuest;
use testkit::packets::{
    ECHO_REPLY, ECHO_REQUEST, Flow, Numbered, SequenceChecker, arp_reply, echo_of, echo_reply,
    echo_request, numbered_payload,
};
use testkit::wait::LIMIT;

/// Between two requests.
const INTERVAL: Duration = Duration::from_millis(2);
/// Least number of requests, also on a busy machine.
const LEAST: usize = 101;
/// Requests behind the last answer that are sent at [`INTERVAL`]: a guest that does not run for a
/// while on a busy machine gets all of them at once, and must be able to answer all. Linux answers
/// through a socket that sends no more while 2 * 64 KiB wait in the ring (`icmp_sk_init` in
/// net/ipv4/icmp.c), where a reply of 1.4 kB counts as 2.3: 57 of them.
const WINDOW: usize = 40;
/// Between two requests behind those, when the guest may have lost all of them: twice as long each
/// time, so that they stay few, however long the guest is away.
const RARELY: Duration = Duration::from_millis(20);
/// Identifier of our requests.
const ID: u16 = 0x1a57;
const ETH_ARP: [u8; 2] = [8, 6];
const ETH_RARP: [u8; 2] = [0x80, 0x35];

/// Requests in a row that were never answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The first of them.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// From the first of them to the next one that was answered.
    pub lasted: Duration,
}

/// Observations of the station.
#[derive(Debug, Default)]
pub struct Report {
    /// Send times of requests, and whether each was answered.
    sent: Vec<(Instant, bool)>,
    /// Time of the guest's last frame: a reply, or a request of its own.
    last_received: Option<Instant>,
    /// The longest time without a frame of the guest, between two frames.
    pub silence: Duration,
    /// The answers: damaged, doubled and reordered ones are in here.
    pub answers: SequenceChecker,
    /// The guest's own requests, by their numbers.
    pub asked: BTreeSet<u16>,
    /// Requests of the guest that came again.
    pub asked_again: u64,
    /// Reverse ARP frames in the guest's name.
    pub announced: u64,
}

impl Report {
    /// How many requests were sent.
    pub fn requests(&self) -> usize {
        self.sent.len()
    }

    /// Returns whether the guest was there at the end.
    pub fn answered_last(&self) -> bool {
        self.sent.last().is_some_and(|(_, answered)| *answered)
    }

    /// Requests behind the last one that was answered.
    fn unanswered(&self) -> usize {
        let behind = self.sent.iter().rev();
        behind.take_while(|(_, answered)| !answered).count()
    }

    /// Leaves out what was sent after the first request from `began` on that was answered.
    fn end_after(&mut self, began: usize) {
        let last = self.sent[began..]
            .iter()
            .position(|(_, answered)| *answered);
        self.sent
            .truncate(last.map_or(self.sent.len(), |last| began + last + 1));
    }

    /// An answer or a request of the guest's own came.
    fn notice(&mut self, now: Instant) {
        if let Some(before) = self.last_received.replace(now) {
            self.silence = self.silence.max(now - before);
        }
    }

    /// Returns the gaps in the replies.
    pub fn gaps(&self) -> Vec<Gap> {
        let mut gaps: Vec<Gap> = Vec::new();
        for (at, (when, answered)) in self.sent.iter().enumerate() {
            let open = gaps.last_mut().filter(|gap| gap.first + gap.count == at);
            match open {
                Some(gap) => {
                    gap.lasted = *when - self.sent[gap.first].0;
                    gap.count += usize::from(!answered);
                }
                None if !answered => gaps.push(Gap {
                    first: at,
                    count: 1,
                    lasted: Duration::ZERO,
                }),
                None => {}
            }
        }
        gaps
    }

    /// Requests of the guest that are missing between the first and the last that came.
    pub fn asked_lost(&self) -> usize {
        match (self.asked.first(), self.asked.last()) {
            (Some(first), Some(last)) => usize::from(last - first) + 1 - self.asked.len(),
            _ => 0,
        }
    }
}

/// Returns how long the next request waits behind so many without an answer.
fn interval_after(unanswered: usize) -> Duration {
    match unanswered.checked_sub(WINDOW) {
        None => INTERVAL,
        Some(beyond) => RARELY * (1 << beyond.min(10)),
    }
}

/// See the module.
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(FakeGuest, Report)>,
}

impl Echo {
    /// Starts to ping from `station` the guest that is at the other end of `flow`, and returns when
    /// it has answered: the switch has flows for both ways.
    pub fn start(station: FakeGuest, flow: Flow) -> Echo {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let mut running = Running {
            station,
            flow,
            report: Report::default(),
        };
        let (answered, first) = channel();
        let thread = std::thread::spawn(move || {
            running.ping_until_answered();
            answered.send(()).expect("the test waits for it");
            running.ping_until(
                |report| ended.load(Ordering::Relaxed) && report.requests() >= LEAST,
                |report| interval_after(report.unanswered()),
            );
            // One that is answered marks the end: whatever is missing before it is lost.
            let began = running.report.requests();
            running.ping_until_answered();
            running.report.end_after(began);
            (running.station, running.report)
        });
        first.recv().expect("the station keeps the rules");
        Echo { stop, thread }
    }

    /// Ends it, and gives the station back for others.
    pub fn end(self) -> (FakeGuest, Report) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the station keeps the rules")
    }
}

struct Running {
    station: FakeGuest,
    flow: Flow,
    report: Report,
}

impl Running {
    fn ping_until(
        &mut self,
        is_over: impl Fn(&Report) -> bool,
        interval: impl Fn(&Report) -> Duration,
    ) {
        while !is_over(&self.report) {
            let sent = Instant::now();
            self.ping();
            // An answer makes it shorter.
            while let Some(left) = interval(&self.report).checked_sub(sent.elapsed()) {
                let got = self.station.recv(left);
                if let Some(got) = got.expect("the device keeps the rules") {
                    self.hear(&got.frame);
                }
            }
        }
    }

    /// Pings until a request from here on is answered, for [`LIMIT`] at most.
    fn ping_until_answered(&mut self) {
        let end = Instant::now() + LIMIT;
        let began = self.report.requests();
        self.ping_until(
            |report| {
                let late = Instant::now() >= end;
                late || report.sent[began..].iter().any(|(_, answered)| *answered)
            },
            |report| interval_after(report.unanswered()).max(10 * INTERVAL),
        );
    }

    fn ping(&mut self) {
        let number = self.report.sent.len();
        let key = Numbered {
            stream: 0,
            seq: number as u64,
        };
        let payload = numbered_payload(key, 16 + number * 37 % 1400);
        let request = echo_request(&self.flow, ID, number as u16, &payload);
        self.report.sent.push((Instant::now(), false));
        self.station.send(&request).expect("the station can send");
    }

    fn hear(&mut self, frame: &[u8]) {
        match (frame.get(12..14), echo_of(frame)) {
            (_, Some((ECHO_REPLY, _, payload))) => {
                self.report.notice(Instant::now());
                if let Some(key) = self.report.answers.see(payload)
                    && let Some(request) = self.report.sent.get_mut(key.seq as usize)
                {
                    request.1 = true;
                }
            }
            (_, Some((ECHO_REQUEST, [_, _, high, low], _))) => {
                self.report.notice(Instant::now());
                let new = self.report.asked.insert(u16::from_be_bytes([high, low]));
                self.report.asked_again += u64::from(!new);
                let answer = echo_reply(frame).expect("a request has an answer");
                self.station.send(&answer).expect("the station can send");
            }
            (Some(kind), _) if kind == ETH_ARP => self.answer_arp(frame),
            (Some(kind), _) if kind == ETH_RARP && frame[6..12] == self.flow.dst_mac => {
                self.report.announced += 1;
            }
            _ => {}
        }
    }

    /// Says where the station is to a guest that asks for it (RFC 826: sender at 22 and 28, target
    /// at 38).
    fn answer_arp(&mut self, frame: &[u8]) {
        let std::net::IpAddr::V4(ours) = self.flow.src else {
            return;
        };
        let (Some([_, _, _, _, _, _, _, 1, mac @ .., a, b, c, d]), Some(target)) =
            (frame.get(14..32), frame.get(38..42))
        else {
            return;
        };
        if target == ours.octets() {
            let asker = mac.try_into().expect("six bytes");
            let reply = arp_reply((self.flow.src_mac, ours), (asker, [*a, *b, *c, *d].into()));
            self.station.send(&reply).expect("the station can send");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_found() {
        let began = Instant::now();
        let at = |n: u64| began + Duration::from_millis(n);
        let answered = [true, false, false, true, true, false, true];
        let sent = (0..).map(at).zip(answered).collect();
        let report = Report {
            sent,
            asked: [7, 8, 10].into(),
            ..Report::default()
        };
        let gap = |first, count, millis| Gap {
            first,
            count,
            lasted: Duration::from_millis(millis),
        };
        assert_eq!(report.gaps(), [gap(1, 2, 2), gap(5, 1, 1)]);
        assert_eq!(report.asked_lost(), 1);
        assert!(report.answered_last());
        assert_eq!(report.unanswered(), 0);
    }

    #[test]
    fn the_end_is_the_first_answer_that_was_waited_for() {
        let answered = [true, false, false, true, false];
        let report = |began| {
            let mut report = Report {
                sent: answered.map(|answered| (Instant::now(), answered)).into(),
                ..Report::default()
            };
            report.end_after(began);
            let unanswered = report.unanswered();
            (report.requests(), report.answered_last(), unanswered)
        };
        assert_eq!(report(2), (4, true, 0));
        assert_eq!(report(4), (5, false, 1), "no more replies");
    }

    #[test]
    fn a_guest_can_answer_all_that_comes_while_it_does_not_run() {
        let waited = |unanswered: usize| (0..unanswered).map(interval_after).sum::<Duration>();
        let most = (0..).find(|sent| waited(*sent) >= LIMIT).expect("a bound");
        // As many replies as the socket of the guest's kernel sends without one that is taken.
        assert!(most <= 57, "{most} requests in {LIMIT:?}");
    }

    #[test]
    fn the_longest_silence_is_found() {
        let began = Instant::now();
        let mut report = Report::default();
        assert!(!report.answered_last());
        for millis in [50, 53, 60, 61] {
            report.notice(began + Duration::from_millis(millis));
        }
        assert_eq!(report.silence, Duration::from_millis(7));
    }
}
