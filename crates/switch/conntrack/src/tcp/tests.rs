use super::*;
use crate::machine::{self, Context};
use crate::packet::Message;
use crate::segment::Options;
use proptest::prelude::*;

const FIN: u8 = tcp::FIN as u8;
const SYN: u8 = tcp::SYN as u8;
const RST: u8 = tcp::RST as u8;
const ACK: u8 = tcp::ACK as u8;
const PSH: u8 = tcp::PSH as u8;

use Direction::{Original, Reply};

/// A connection with its clock, one millisecond a segment.
struct Connection {
    progress: Progress,
    sides: [Side; 2],
    settings: Settings,
    now: Millis,
}

/// Flags, sequence number, acknowledgement number, window and bytes of payload.
fn segment(flags: u8, seq: u32, ack: u32, window: u16, payload: u32) -> Segment {
    Segment {
        flags,
        seq,
        ack,
        sack: ack,
        window,
        payload,
        options: Options::default(),
    }
}

impl Connection {
    fn open(segment: &Segment, settings: Settings) -> Result<Self, Invalid> {
        let now = u32::MAX - 2;
        let (progress, sides) = machine::open(&Message::Tcp(*segment), now, &settings)?;
        Ok(Self {
            progress,
            sides,
            settings,
            now,
        })
    }

    /// After a handshake: the next bytes are 101 and 501, and each side lets the other send 1000.
    fn established() -> Self {
        let settings = Settings::default();
        let syn = segment(SYN, 100, 0, 1000, 0);
        let mut connection = Self::open(&syn, settings).expect("a SYN opens");
        connection.takes(Reply, segment(SYN | ACK, 500, 101, 1000, 0));
        connection.takes(Original, segment(ACK, 101, 501, 1000, 0));
        assert_eq!(connection.state(), TcpState::Established);
        connection
    }

    fn judge(&mut self, direction: Direction, segment: &Segment) -> Outcome {
        self.now = self.now.wrapping_add(1);
        let known = Context {
            direction,
            progress: self.progress,
            created: 0,
        };
        let (own, other) = match direction {
            Original => (0, 1),
            Reply => (1, 0),
        };
        let message = Message::Tcp(*segment);
        let sides = (&self.sides[own], &self.sides[other]);
        let step = machine::judge(&message, known, sides, self.now, &self.settings);
        self.progress = step.progress;
        self.sides[own] = step.own;
        step.outcome
    }

    #[track_caller]
    fn takes(&mut self, direction: Direction, segment: Segment) {
        assert_eq!(self.judge(direction, &segment), Outcome::Known);
    }

    #[track_caller]
    fn refuses(&mut self, direction: Direction, segment: Segment, why: Invalid) {
        let before = (self.progress, self.sides);
        assert_eq!(self.judge(direction, &segment), Outcome::Invalid(why));
        assert_eq!((self.progress, self.sides), before, "it changes nothing");
    }

    fn state(&self) -> TcpState {
        self.progress.tcp()
    }

    /// Seconds that are left.
    fn left(&self) -> Option<u32> {
        let [a, b] = &self.sides;
        let of = (tcp::PROTOCOL, false);
        let left = machine::remaining(of, self.progress, [a, b], self.now, &self.settings);
        left.map(|left| left.div_ceil(1000))
    }
}

#[test]
fn a_reset_with_a_wrong_sequence_number_ends_nothing() {
    let mut c = Connection::established();
    c.refuses(
        Reply,
        segment(RST, 501 + 90_000, 0, 0, 0),
        Invalid::Sequence,
    );
    c.refuses(Reply, segment(RST, 500, 0, 0, 0), Invalid::Reset);
    // In the window, but not exact: its receiver answers with a challenge.
    c.takes(Reply, segment(RST, 600, 0, 0, 0));
    assert_eq!((c.state(), c.left()), (TcpState::Established, Some(10)));
    c.takes(Original, segment(ACK, 101, 501, 1000, 0));
    assert_eq!(c.left(), Some(300));
    c.takes(Reply, segment(RST, 501, 0, 0, 0));
    assert_eq!((c.state(), c.left()), (TcpState::Close, Some(10)));
}

#[test]
fn a_wrong_reset_of_a_half_closed_connection_ends_nothing() {
    let mut c = Connection::established();
    c.takes(Original, segment(FIN | ACK, 101, 501, 1000, 0));
    c.takes(Reply, segment(ACK, 501, 102, 1000, 0));
    assert_eq!(c.state(), TcpState::CloseWait);
    let before = (c.progress, c.sides);
    for seq in [0, 500, 600, 90_000, 501 + (1 << 31)] {
        c.takes(Reply, segment(RST, seq, 0, 0, 0));
        c.takes(Original, segment(RST | ACK, seq, 0, 0, 0));
        assert_eq!((c.progress, c.sides), before, "{seq}");
    }
    c.takes(Reply, segment(RST, 501, 0, 0, 0));
    assert_eq!(c.state(), TcpState::Close);
}

/// A path that takes such frames for those of an unknown connection lets other rules decide them.
#[test]
fn frames_in_flight_after_a_reset_are_of_the_connection() {
    let mut c = Connection::established();
    c.takes(Original, segment(PSH | ACK, 101, 501, 1000, 100));
    c.takes(Reply, segment(RST, 501, 0, 0, 0));
    for seq in [101, 201, 301] {
        c.takes(Original, segment(PSH | ACK, seq, 501, 1000, 100));
    }
    c.takes(Reply, segment(ACK, 501, 201, 1000, 0));
    c.takes(Reply, segment(RST, 501, 0, 0, 0));
    assert_eq!(c.state(), TcpState::Close);
}

#[test]
fn a_sender_that_overruns_the_window_goes_on() {
    let mut c = Connection::established();
    // Up to 1101 is allowed.
    c.takes(Original, segment(PSH | ACK, 101, 501, 1000, 1000));
    c.takes(Original, segment(PSH | ACK, 1101, 501, 1000, 400));
    c.takes(Original, segment(PSH | ACK, 1501, 501, 1000, 400));
    // Once more, as if the answer was late.
    c.takes(Original, segment(PSH | ACK, 1501, 501, 1000, 400));
    c.takes(Original, segment(PSH | ACK, 1101, 501, 1000, 400));
    // The receiver has taken all of it.
    c.takes(Reply, segment(ACK, 501, 1901, 1000, 0));
    c.takes(Original, segment(PSH | ACK, 1901, 501, 1000, 1000));
    assert_eq!(c.state(), TcpState::Established);
    c.refuses(
        Original,
        segment(PSH | ACK, 9000, 501, 1000, 1),
        Invalid::Sequence,
    );
}

#[test]
fn a_syn_within_a_connection_passes_and_its_answer_decides() {
    let mut c = Connection::established();
    c.takes(Original, segment(SYN, 100_000, 0, 1000, 0));
    assert_eq!(c.state(), TcpState::Established);
    c.refuses(Reply, segment(SYN, 100_000, 0, 1000, 0), Invalid::State);
    // A challenge, and the reset that confirms it (RFC 5961, 4.2).
    c.takes(Reply, segment(ACK, 501, 101, 1000, 0));
    c.takes(Original, segment(RST, 101, 0, 0, 0));
    assert_eq!(c.state(), TcpState::Close);
    let again = segment(SYN, 100_000, 0, 1000, 0);
    assert_eq!(c.judge(Original, &again), Outcome::Reopens);
    assert_eq!(c.judge(Original, &again), Outcome::Reopens);
}

#[test]
fn a_syn_that_is_answered_starts_anew() {
    let mut c = Connection::established();
    let mut syn = segment(SYN, 100_000, 0, 2000, 0);
    syn.options = Options {
        present: true,
        scale: Some(2),
        sack_permitted: true,
    };
    c.takes(Original, syn);
    let mut answer = segment(SYN | ACK, 900_000, 100_001, 1000, 0);
    answer.options = syn.options;
    c.takes(Reply, answer);
    assert_eq!(c.state(), TcpState::SynRecv);
    c.takes(Original, segment(ACK, 100_001, 900_001, 1000, 0));
    assert_eq!(c.state(), TcpState::Established);
    // 4000 bytes by the new scale.
    c.takes(
        Reply,
        segment(PSH | ACK, 900_001 + 3900, 100_001, 1000, 100),
    );
    // Of the old one: late, and without effect.
    c.takes(Original, segment(ACK, 101, 501, 1000, 0));
    assert_eq!(c.sides[0].max_ack, 900_001);
}

#[test]
fn a_syn_in_time_wait_opens_a_new_connection() {
    let mut c = Connection::established();
    c.takes(Original, segment(FIN | ACK, 101, 501, 1000, 0));
    c.takes(Reply, segment(FIN | ACK, 501, 102, 1000, 0));
    c.takes(Original, segment(ACK, 102, 502, 1000, 0));
    assert_eq!((c.state(), c.left()), (TcpState::TimeWait, Some(120)));
    for direction in [Original, Reply] {
        let syn = segment(SYN, 90_000, 0, 1000, 0);
        assert_eq!(c.judge(direction, &syn), Outcome::Reopens);
    }
    c.takes(Reply, segment(ACK, 502, 102, 1000, 0));
}

#[test]
fn a_fin_that_is_sent_again_is_one_fin() {
    let mut c = Connection::established();
    let fin = segment(FIN | ACK, 101, 501, 1000, 0);
    c.takes(Original, fin);
    c.takes(Original, fin);
    assert_eq!((c.state(), c.left()), (TcpState::FinWait, Some(120)));
    c.takes(Reply, segment(ACK, 501, 102, 1000, 0));
    c.takes(Original, fin);
    assert_eq!((c.state(), c.left()), (TcpState::CloseWait, Some(60)));
    c.takes(Reply, segment(FIN | ACK, 501, 102, 1000, 0));
    assert_eq!((c.state(), c.left()), (TcpState::LastAck, Some(30)));
}

#[test]
fn a_refused_syn_leaves_nothing() {
    let syn = segment(SYN, 100, 0, 1000, 0);
    let mut c = Connection::open(&syn, Settings::default()).expect("a SYN opens");
    let reset = segment(RST | ACK, 0, 101, 0, 0);
    assert_eq!(c.judge(Reply, &reset), Outcome::Refused);
    assert_eq!(
        c.judge(Reply, &reset),
        Outcome::Refused,
        "until it is forgotten"
    );
    c.refuses(
        Reply,
        segment(RST | ACK, 0, 90_000_000, 0, 0),
        Invalid::Acknowledgement,
    );
}

#[test]
fn a_wrong_answer_to_a_syn_does_not_exclude_the_right_one() {
    let syn = segment(SYN, 100, 0, 1000, 0);
    let mut c = Connection::open(&syn, Settings::default()).expect("a SYN opens");
    let wrong = segment(SYN | ACK, 1 << 31, 90_000_000, 1000, 0);
    c.refuses(Reply, wrong, Invalid::Acknowledgement);
    c.takes(Reply, segment(SYN | ACK, 500, 101, 1000, 0));
    c.takes(Original, segment(ACK, 101, 501, 1000, 0));
    assert_eq!(c.state(), TcpState::Established);
}

/// Sequence numbers wrap, and compare over half of their range alone.
#[test]
fn a_connection_may_send_more_than_sequence_numbers_count() {
    let mut syn = segment(SYN, 100, 0, 65_535, 0);
    syn.options.present = true;
    syn.options.scale = Some(10);
    let mut c = Connection::open(&syn, Settings::default()).expect("a SYN opens");
    let mut answer = segment(SYN | ACK, 500, 101, 65_535, 0);
    answer.options = syn.options;
    c.takes(Reply, answer);
    c.takes(Original, segment(ACK, 101, 501, 65_535, 0));
    let (mut seq, len) = (101u32, 60_000_000);
    for _ in 0..200 {
        c.takes(Original, segment(PSH | ACK, seq, 501, 65_535, len));
        seq = seq.wrapping_add(len);
        c.takes(Reply, segment(ACK, 501, seq, 65_535, 0));
        assert_eq!(c.left(), Some(24 * 3600), "{seq}");
        let far = segment(PSH | ACK, seq.wrapping_add(1 << 30), 501, 1000, 1);
        c.refuses(Original, far, Invalid::Sequence);
        let old = segment(RST, 501 - 1, 0, 0, 0);
        c.refuses(Reply, old, Invalid::Reset);
    }
    // The side that has sent nothing all the time.
    c.takes(Reply, segment(PSH | ACK, 501, seq, 1000, 100));
    c.refuses(
        Original,
        segment(ACK, seq, 602, 1000, 0),
        Invalid::Acknowledgement,
    );
}

#[test]
fn a_zero_window_is_probed() {
    let mut c = Connection::established();
    c.takes(Reply, segment(ACK, 501, 101, 0, 0));
    assert_eq!(c.left(), Some(300));
    // The limit is what was allowed before.
    c.takes(Original, segment(ACK, 100, 501, 1000, 0));
    assert_eq!(c.left(), Some(24 * 3600));
    c.takes(Original, segment(PSH | ACK, 101, 501, 1000, 1));
    assert_eq!(c.left(), Some(300), "a byte is not acknowledged");
}

#[test]
fn windows_are_scaled_if_both_sides_scale() {
    for (both, outcome) in [
        (true, Outcome::Known),
        (false, Outcome::Invalid(Invalid::Sequence)),
    ] {
        let mut syn = segment(SYN, 100, 0, 1000, 0);
        syn.options.present = true;
        syn.options.scale = Some(7);
        let mut c = Connection::open(&syn, Settings::default()).expect("a SYN opens");
        let mut answer = segment(SYN | ACK, 500, 101, 1000, 0);
        answer.options.present = true;
        answer.options.scale = both.then_some(3);
        c.takes(Reply, answer);
        c.takes(Original, segment(ACK, 101, 501, 1000, 0));
        let far = segment(PSH | ACK, 501 + 100_000, 101, 1000, 100);
        assert_eq!(c.judge(Reply, &far), outcome);
    }
}

#[test]
fn what_is_met_in_its_middle_is_a_setting() {
    let middle = segment(ACK, 7000, 9000, 1000, 0);
    let refused = Settings {
        pick_up: false,
        ..Settings::default()
    };
    let open = |settings| Connection::open(&middle, settings);
    assert_eq!(open(refused).err(), Some(Invalid::PickUp));
    let mut c = open(Settings::default()).expect("it is picked up");
    assert_eq!(c.left(), Some(300));
    // Scales are not known, so that windows are not checked.
    c.takes(Reply, segment(PSH | ACK, 9000 + 500_000, 7000, 1000, 100));
    assert!(!c.progress.is_assured());
    c.takes(Original, segment(ACK, 7000, 509_100, 1000, 0));
    assert!(c.progress.is_assured());
    for flags in [SYN | ACK, FIN | ACK, RST, RST | ACK] {
        let lone = segment(flags, 1, 1, 1000, 0);
        let opened = Connection::open(&lone, Settings::default()).err();
        assert_eq!(opened, Some(Invalid::NoConnection), "{flags}");
    }
}

#[test]
fn windows_are_not_checked_where_they_are_off() {
    let mut c = Connection::established();
    c.settings.strict = false;
    c.takes(Original, segment(PSH | ACK, 5_000_000, 501, 1000, 1));
    c.takes(Reply, segment(ACK, 501, 9_000_000, 1000, 0));
    c.refuses(
        Original,
        segment(SYN | FIN, 101, 501, 1000, 0),
        Invalid::Flags,
    );
    c.refuses(Reply, segment(RST, 400, 0, 0, 0), Invalid::Reset);
}

/// The state of a connection is in memory that a dead process, or a bug, may have written.
fn any_segment() -> impl Strategy<Value = Segment> {
    let numbers = any::<(u32, u32, u32, u32, u16, u8)>();
    let options = (any::<bool>(), proptest::option::of(0..=14u8), any::<bool>());
    (numbers, options).prop_map(
        |((seq, ack, sack, payload, window, flags), options)| Segment {
            seq,
            ack,
            sack,
            payload,
            window,
            flags,
            options: Options {
                present: options.0,
                scale: options.1,
                sack_permitted: options.2,
            },
        },
    )
}

proptest! {
    #[test]
    fn any_words_are_judged(
        segments in proptest::collection::vec((any_segment(), any::<bool>()), 1..20),
        words: [[u32; crate::progress::SIDE_WORDS]; 2],
        progress: u16,
        strict: bool,
    ) {
        let mut c = Connection {
            progress: Progress::from_bits(progress),
            sides: words.map(Side::from_words),
            settings: Settings { strict, ..Settings::default() },
            now: 0,
        };
        for (segment, reply) in segments {
            let direction = if reply { Reply } else { Original };
            let before = (c.progress, c.sides);
            let outcome = c.judge(direction, &segment);
            if outcome != Outcome::Known {
                prop_assert_eq!((c.progress, c.sides), before);
            }
            let _ = c.left();
        }
    }
}
