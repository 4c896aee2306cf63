//! Streams both ways through loss, duplicates, reordering and small windows, in virtual time.

use proptest::prelude::*;
use smoltcp::socket::tcp::State;
use wire::Sum;
use wire::hash::SplitMix64;
use wire::tcp::{SYN, TcpView};

use super::guest::Guest;
use super::host::{Host, Socket};
use super::settings;
use crate::Translator;

/// A way that frames take, and how fast the ends are.
#[derive(Clone, Debug)]
struct Way {
    seed: u64,
    /// Of a hundred frames, so many are lost, doubled, or late by up to 20 ms.
    lost: u64,
    doubled: u64,
    late: u64,
    /// Bytes that a program reads in a millisecond, and its buffer.
    guest_reads: usize,
    guest_window: usize,
    server_reads: usize,
    send_buffer: usize,
    to_server: usize,
    to_guest: usize,
    super_frames: bool,
    /// Sequence numbers to the guest begin so far in front of zero.
    to_wrap: u32,
    /// Those of the guest do too, if they are set.
    from_wrap: Option<u32>,
    /// Place of an urgent byte to the guest.
    urgent: Option<usize>,
    /// The server closes when it has sent all, whatever it has read.
    closes_first: bool,
    /// Segments that arrive in a millisecond leave by one call.
    batches: bool,
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut numbers = SplitMix64(seed);
    (0..len).map(|_| numbers.number() as u8).collect()
}

/// Frames on their way, with the millisecond of their arrival.
#[derive(Default)]
struct Link(Vec<(u64, Vec<u8>)>);

impl Link {
    fn put(&mut self, way: &Way, numbers: &mut SplitMix64, now: u64, frame: Vec<u8>) {
        let copies = if numbers.below(100) < way.doubled {
            2
        } else {
            1
        };
        for _ in 0..copies {
            if numbers.below(100) < way.lost {
                continue;
            }
            let late = numbers.below(100) < way.late;
            let delay = if late { numbers.below(20) } else { 0 };
            self.0.push((now + 1 + delay, frame.clone()));
        }
    }

    fn take(&mut self, now: u64) -> Vec<Vec<u8>> {
        let (due, rest) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.0 = rest;
        let due: Vec<(u64, Vec<u8>)> = due;
        due.into_iter().map(|(_, frame)| frame).collect()
    }
}

/// The time at which the flow's initial sequence number is `to_wrap` in front of zero.
fn start(way: &Way) -> u64 {
    let guest: std::net::SocketAddr = "10.0.2.15:40000".parse().unwrap();
    let peer: std::net::SocketAddr = "93.184.216.34:80".parse().unwrap();
    let at_zero = settings().secret.initial(&(guest, peer), 0);
    u64::from(0u32.wrapping_sub(way.to_wrap).wrapping_sub(at_zero)) << 12
}

/// Moves the sequence numbers of the guest, whose first one smoltcp chooses.
#[derive(Default)]
struct Shift(u32);

impl Shift {
    /// A frame of the guest; the SYN says how far it is to zero.
    fn of_guest(&mut self, way: &Way, frame: &mut [u8]) {
        let Some(to_zero) = way.from_wrap else { return };
        let Ok(tcp) = TcpView::new_checked(frame.get(34..).unwrap_or_default()) else {
            return;
        };
        if tcp.flags() & SYN != 0 {
            self.0 = 0u32.wrapping_sub(to_zero).wrapping_sub(tcp.seq());
        }
        let seq = tcp.seq().wrapping_add(self.0);
        frame[38..42].copy_from_slice(&seq.to_be_bytes());
    }

    /// A frame to the guest, which checks the checksum (RFC 1624).
    fn for_guest(&self, frame: &mut [u8]) {
        let Ok(tcp) = TcpView::new_checked(frame.get(34..).unwrap_or_default()) else {
            return;
        };
        let ack = tcp.ack().wrapping_sub(self.0);
        frame[42..46].copy_from_slice(&ack.to_be_bytes());
        frame[50..52].fill(0);
        let address = |at: usize| std::net::Ipv4Addr::from([0, 1, 2, 3].map(|i| frame[at + i]));
        let len = frame.len() as u32 - 34;
        let mut sum = Sum::pseudo_v4(address(26), address(30), wire::tcp::PROTOCOL, len);
        sum.add_bytes(&frame[34..]);
        let sum = sum.finish();
        frame[50..52].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Runs both streams to their ends.
fn run(way: &Way) {
    assert!(has_ended(way), "the guest has stopped its timer");
}

/// Runs both streams, and returns whether they came to their ends: a guest without a timer does
/// nothing more.
fn has_ended(way: &Way) -> bool {
    let mut numbers = SplitMix64(way.seed);
    let (up, down) = (bytes(way.to_server, 1), bytes(way.to_guest, 2));
    let mut guest = Guest::new(way.seed, up.clone(), way.guest_window);
    let mut with = settings();
    with.super_frames = way.super_frames;
    let socket = Socket {
        buffer: way.send_buffer,
        script: down.clone(),
        closes_after: if way.closes_first { 0 } else { way.to_server },
        urgent: way.urgent,
        ..Socket::default()
    };
    let begin = start(way);
    let mut host = Host::new(Translator::new(with), begin, socket);
    host.waiting = way.batches.then(Vec::new);
    let mut shift = Shift::default();
    let (mut to_host, mut to_guest) = (Link::default(), Link::default());
    for millis in 0..3_000_000u64 {
        host.now = begin + millis * 1_000_000;
        guest.queues.to_guest.extend(to_guest.take(millis));
        guest.step(millis as i64, way.guest_reads);
        for mut frame in std::mem::take(&mut guest.queues.from_guest) {
            shift.of_guest(way, &mut frame);
            to_host.put(way, &mut numbers, millis, frame);
        }
        for frame in to_host.take(millis) {
            host.frame(&frame);
        }
        host.flush();
        host.step(way.server_reads, 20_000);
        host.serve(16);
        for mut frame in std::mem::take(&mut host.frames) {
            shift.for_guest(&mut frame);
            to_guest.put(way, &mut numbers, millis, frame);
        }
        let is_over = matches!(guest.state(), State::Closed | State::TimeWait);
        let is_read = guest.read.len() == down.len();
        if is_over && is_read && host.socket.closed.is_some() {
            break;
        }
        let is_quiet = to_host.0.is_empty() && to_guest.0.is_empty();
        if is_quiet && guest.has_stopped_its_timer(millis as i64) {
            return false;
        }
    }
    // A closed socket still sends what it has taken.
    let socket = &mut host.socket;
    socket.read.extend(socket.queued.drain(..));
    assert_eq!(host.socket.read.len(), up.len(), "bytes at the server");
    assert!(host.socket.read == up);
    assert_eq!(guest.read.len(), down.len(), "bytes at the guest");
    assert!(guest.read == down);
    assert_eq!(host.socket.closed, Some(false));
    assert!(host.socket.shut && host.socket.discarded == down.len());
    true
}

fn usual() -> Way {
    Way {
        seed: 1,
        lost: 0,
        doubled: 0,
        late: 0,
        guest_reads: 100_000,
        guest_window: 65_536,
        server_reads: 100_000,
        send_buffer: 100_000,
        to_server: 300_000,
        to_guest: 300_000,
        super_frames: false,
        to_wrap: 100_000,
        from_wrap: None,
        urgent: None,
        closes_first: false,
        batches: false,
    }
}

#[test]
fn streams_arrive_whole() {
    run(&usual());
    run(&Way {
        super_frames: true,
        batches: true,
        ..usual()
    });
}

#[test]
fn a_slow_server_closes_the_guests_window() {
    run(&Way {
        server_reads: 700,
        send_buffer: 5000,
        ..usual()
    });
}

#[test]
fn a_slow_guest_closes_its_window() {
    run(&Way {
        guest_reads: 300,
        guest_window: 2000,
        to_guest: 50_000,
        ..usual()
    });
}

#[test]
fn sequence_numbers_of_the_guest_wrap() {
    for from_wrap in [0, 1, 2, 1000, 200_000] {
        let from_wrap = Some(from_wrap);
        run(&Way {
            lost: 1,
            from_wrap,
            ..usual()
        });
    }
}

#[test]
fn either_end_closes_its_half_at_any_byte() {
    for len in (0..6).chain([535, 536, 537, 1460, 5000]) {
        for (closes_first, batches) in [(true, false), (false, true)] {
            for (to_server, to_guest) in [(len, 3000), (3000, len), (len, len)] {
                run(&Way {
                    to_server,
                    to_guest,
                    closes_first,
                    batches,
                    lost: 3,
                    seed: len as u64,
                    ..usual()
                });
            }
        }
    }
}

#[test]
fn urgent_data_stays_in_its_place() {
    for urgent in (0..4).chain([999, 1459, 1460, 1461, 20_000, 39_999]) {
        for (seed, super_frames) in [(1, false), (2, true)] {
            run(&Way {
                seed,
                super_frames,
                lost: 2,
                to_server: 100,
                to_guest: 40_000,
                closes_first: true,
                urgent: Some(urgent),
                ..usual()
            });
        }
    }
}

#[test]
fn lost_frames_are_sent_again() {
    run(&Way { lost: 5, ..usual() });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn streams_survive_a_bad_way(
        seed: u64,
        rates in (0u64..15, 0u64..15, 0u64..30),
        reads in (200usize..20_000, 200usize..20_000),
        buffers in (1500usize..40_000, 1500usize..40_000),
        lens in (0usize..60_000, 0usize..60_000),
        super_frames: bool,
        (closes_first, batches) in any::<(bool, bool)>(),
        to_wrap in 0u32..70_000,
    ) {
        prop_assume!(has_ended(&Way {
            seed,
            lost: rates.0,
            doubled: rates.1,
            late: rates.2,
            guest_reads: reads.0,
            server_reads: reads.1,
            guest_window: buffers.0,
            send_buffer: buffers.1,
            to_server: lens.0,
            to_guest: lens.1,
            super_frames,
            to_wrap,
            from_wrap: None,
            urgent: Some(lens.1 / 2),
            closes_first,
            batches,
        }));
    }
}
