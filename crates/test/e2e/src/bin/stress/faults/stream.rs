//! Numbered frames in one direction at a steady rate: which arrived, and how long nothing did.

use std::time::{Duration, Instant};

use testkit::packets::{Numbered, SequenceChecker};

/// Frames that are sent in one go when the client was late. What is due beyond that is sent the
/// next time.
const MOST: u64 = 64;

/// One direction.
#[derive(Debug)]
pub(crate) struct Stream {
    id: u16,
    rate: f64,
    began: Instant,
    /// Frames whose time has come, whether they could be sent or not.
    due: u64,
    sent: u64,
    checker: SequenceChecker,
    /// Time of the last received frame.
    last: Instant,
    killed: Option<Instant>,
    /// The first number that was sent after the death.
    mark: Option<u64>,
    /// Longest times without a frame, before and after the kill.
    gaps: [Duration; 2],
}

impl Stream {
    /// Begins `now`, with so many frames a second.
    pub(crate) fn new(id: u16, rate: f64, now: Instant) -> Self {
        Self {
            id,
            rate,
            began: now,
            due: 0,
            sent: 0,
            checker: SequenceChecker::default(),
            last: now,
            killed: None,
            mark: None,
            gaps: [Duration::ZERO; 2],
        }
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// How many frames are to be sent now. Each is either sent or left out, and not asked for
    /// again.
    pub(crate) fn take_due(&mut self, now: Instant) -> u64 {
        let until_now = now.saturating_duration_since(self.began).as_secs_f64() * self.rate;
        // Truncated: what is due in part is not due.
        let due = (until_now as u64).saturating_sub(self.due).min(MOST);
        self.due += due;
        due
    }

    /// Returns the contents of the next frame.
    pub(crate) fn next(&self) -> Numbered {
        Numbered {
            stream: self.id,
            seq: self.sent,
        }
    }

    /// The next frame has been sent.
    pub(crate) fn was_sent(&mut self) {
        self.sent += 1;
    }

    /// A sound payload of this stream has arrived.
    pub(crate) fn see(&mut self, payload: &[u8], now: Instant) {
        self.checker.see(payload);
        let gap = now.saturating_duration_since(self.last);
        let side = usize::from(self.killed.is_some_and(|killed| now >= killed));
        self.gaps[side] = self.gaps[side].max(gap);
        self.last = now;
    }

    /// Marks the kill: a gap that ends later is around the kill.
    pub(crate) fn kill(&mut self, now: Instant) {
        self.killed = Some(now);
    }

    /// Marks the death: later frames are carried by others.
    pub(crate) fn dead(&mut self) {
        self.mark = Some(self.sent);
    }

    /// Returns whether a frame has arrived that was sent after the death.
    pub(crate) fn resumed(&self) -> bool {
        self.mark
            .is_some_and(|mark| self.checker.next_of(self.id) > mark)
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Frames whose time came while they could not be sent: no connection, or no room in the queue.
    pub(crate) fn left_out(&self) -> u64 {
        self.due - self.sent
    }

    /// Frames that arrived, each counted once.
    pub(crate) fn received(&self) -> u64 {
        self.checker.received - self.checker.duplicated
    }

    /// Frames that arrived a second time.
    pub(crate) fn twice(&self) -> u64 {
        self.checker.duplicated
    }

    pub(crate) fn gap_before(&self) -> Duration {
        self.gaps[0]
    }

    pub(crate) fn gap_around(&self) -> Duration {
        self.gaps[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::packets::numbered_payload;

    const MS: Duration = Duration::from_millis(1);

    fn send(stream: &mut Stream) -> Vec<u8> {
        let payload = numbered_payload(stream.next(), 32);
        stream.was_sent();
        payload
    }

    #[test]
    fn frames_are_due_at_their_rate_and_once() {
        let begin = Instant::now();
        let mut stream = Stream::new(1, 1000.0, begin);
        assert_eq!(stream.take_due(begin), 0);
        assert_eq!(stream.take_due(begin + MS * 5 / 2), 2);
        assert_eq!(stream.take_due(begin + MS * 5 / 2), 0);
        assert_eq!(stream.take_due(begin + MS * 7 / 2), 1);
        // Late by more than is sent in one go: the rest follows.
        assert_eq!(stream.take_due(begin + MS * 1000), MOST);
        assert_eq!(stream.take_due(begin + MS * 1000), MOST);
        assert_eq!((stream.sent(), stream.left_out()), (0, 3 + 2 * MOST));
    }

    #[test]
    fn a_gap_belongs_to_the_side_of_the_kill_on_which_it_ends() {
        let begin = Instant::now();
        let mut stream = Stream::new(1, 1000.0, begin);
        for at in [2, 7, 9] {
            let payload = send(&mut stream);
            stream.see(&payload, begin + MS * at);
        }
        assert_eq!(
            (stream.gap_before(), stream.gap_around()),
            (MS * 5, Duration::ZERO)
        );
        stream.kill(begin + MS * 12);
        for at in [49, 50] {
            let payload = send(&mut stream);
            stream.see(&payload, begin + MS * at);
        }
        assert_eq!(
            (stream.gap_before(), stream.gap_around()),
            (MS * 5, MS * 40)
        );
    }

    #[test]
    fn a_stream_resumes_with_a_frame_sent_after_the_death() {
        let now = Instant::now();
        let mut stream = Stream::new(1, 1000.0, now);
        let (first, before) = (send(&mut stream), send(&mut stream));
        stream.see(&first, now);
        assert!(!stream.resumed(), "no kill yet");
        stream.kill(now);
        stream.dead();
        stream.see(&before, now);
        assert!(!stream.resumed(), "it was on its way before");
        let after = send(&mut stream);
        stream.see(&after, now);
        assert!(stream.resumed());
    }

    #[test]
    fn frames_that_arrive_twice_count_once() {
        let now = Instant::now();
        let mut stream = Stream::new(7, 1000.0, now);
        let frames = [send(&mut stream), send(&mut stream), send(&mut stream)];
        for frame in [&frames[0], &frames[2], &frames[2]] {
            stream.see(frame, now);
        }
        assert_eq!(
            (stream.sent(), stream.received(), stream.twice()),
            (3, 2, 1)
        );
    }
}
