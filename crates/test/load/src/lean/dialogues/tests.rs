//! The client's frames, judged by the reference tracker in the place of a switch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use conntrack::reference::Tracker;
use conntrack::{Ingress, Judgement, TcpState, packet};
use testkit::features::IN_ORDER;
use testkit::net::HEADER_LEN;
use testkit::packets::verify_checksums;
use testkit::wait::LIMIT;
use wire::ParsedHeaders;

use super::*;
use crate::lean::Until;
use crate::lean::frames::Frames;
use crate::lean::null::{Device, SplitDevice};
use crate::lean::split::Split;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A switch between two ports: frames are tracked, and those of no connection dropped.
#[derive(Default)]
struct Tracking {
    tracker: Tracker,
    new: u64,
    known: u64,
    invalid: u64,
    /// The new frame with this number is dropped.
    drops: Option<u64>,
}

impl Tracking {
    /// Returns whether a frame passes.
    fn takes(&mut self, port: u16, bytes: &[u8]) -> bool {
        verify_checksums(bytes).expect("right checksums");
        let headers = &bytes[..bytes.len().min(wire::SNAPSHOT)];
        let parsed = ParsedHeaders::parse(headers, bytes.len());
        let read = packet::read(1, &parsed, headers, false);
        let from = Ingress {
            port,
            is_home: true,
            ..Ingress::default()
        };
        match self.tracker.judge(&read, from, 0) {
            Judgement::New => {
                self.new += 1;
                self.tracker.commit(&read, from, Some(1 - port), 0);
                self.drops != Some(self.new)
            }
            Judgement::Known { refused: false, .. } => {
                self.known += 1;
                true
            }
            other => {
                println!("{other:?}: {bytes:02x?}");
                self.invalid += 1;
                false
            }
        }
    }

    /// How many connections are in this state, of all of a protocol.
    fn count(&self, protocol: u8, state: TcpState) -> [usize; 2] {
        let all = self.tracker.entries(0);
        let of: Vec<_> = all
            .filter(|entry| entry.tuple.protocol() == protocol)
            .collect();
        let in_state = of.iter().filter(|entry| entry.progress.tcp() == state);
        [in_state.count(), of.len()]
    }
}

/// One direction: the transmit and the receive ring, and their buffers.
struct Wire([SplitDevice; 2], [Frames; 2]);

impl Wire {
    fn carry(&mut self, port: u16, len: usize, tracking: &mut Tracking) {
        let Self([from, to], [source, target]) = self;
        let slot = |device: &SplitDevice| device.position & (device.size - 1);
        while from.waiting(1) > 0 {
            let (sent, received) = (slot(from), slot(to));
            let halves = (0..len / 2).map(|at| source.half(sent, HEADER_LEN + 2 * at));
            let bytes: Vec<u8> = halves.flat_map(u16::to_ne_bytes).collect();
            if tracking.takes(port, &bytes) {
                assert_eq!(to.waiting(1), 1, "a receive buffer");
                for (at, pair) in bytes.chunks_exact(2).enumerate() {
                    let half = u16::from_ne_bytes([pair[0], pair[1]]);
                    target.set_half(received, HEADER_LEN + 2 * at, half);
                }
                to.give(1, Some((HEADER_LEN + len) as u32));
            }
            from.give(1, None);
        }
    }
}

/// A client of two ports, and the thread of the switch between them, which ends with the flag.
fn world(tracking: Tracking) -> (Lean, impl FnOnce(Lean) -> Tracking) {
    let config = LeanConfig {
        queue_size: 128,
        batch: 8,
        window: Some(32),
        patience: LIMIT,
        ..LeanConfig::default()
    };
    let ports: Vec<Port<Split>> = (0..2)
        .map(|index| Port::new(index, &config, IN_ORDER).expect("memory"))
        .collect();
    let wire = |from: usize, to: usize| {
        let (from, to): (&Port<Split>, &Port<Split>) = (&ports[from], &ports[to]);
        let [_, sent] = from.buffers();
        let [received, _] = to.buffers();
        Wire(
            [from.tx.device(), to.rx.device()],
            [sent.clone(), received.clone()],
        )
    };
    let (mut wires, len) = ([wire(0, 1), wire(1, 0)], usize::from(config.frame_len));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let switch: JoinHandle<Tracking> = std::thread::spawn(move || {
        let mut tracking = tracking;
        while !stopped.load(Relaxed) {
            for (port, wire) in (0..).zip(&mut wires) {
                wire.carry(port, len, &mut tracking);
            }
            std::thread::yield_now();
        }
        tracking
    });
    let mut lean = Lean::new(config, Ports::Split(ports));
    let Ports::Split(ports) = &mut lean.ports else {
        panic!("split rings")
    };
    for port in ports {
        port.begin().expect("buffers are offered");
    }
    let end = move |lean: Lean| {
        stop.store(true, Relaxed);
        drop(lean);
        switch.join().expect("frames without a fault")
    };
    (lean, end)
}

#[test]
#[cfg(not(miri))] // Miri maps no files
fn frames_of_established_connections_are_in_their_windows() {
    // 64 connections are as many frames of a ring each; 100 are written as they go.
    for count in [1, 64, 100] {
        let (mut lean, end) = world(Tracking::default());
        lean.establish(Dialogue::Handshake, count)
            .expect("a switch");
        let report = lean.run(Until::Sent(500)).expect("a switch");
        assert_eq!((report.received, report.lost), (1000, 0), "{count}");
        let tracking = end(lean);
        let known = 2 * u64::from(count) + 1000;
        assert_eq!(
            (tracking.new, tracking.known, tracking.invalid),
            (count.into(), known, 0)
        );
        let all = count as usize;
        assert_eq!(tracking.count(TCP, TcpState::Established), [all, all]);
    }
}

#[test]
#[cfg(not(miri))]
fn datagrams_are_answered() {
    let (mut lean, end) = world(Tracking::default());
    lean.establish(Dialogue::Datagrams, 20).expect("a switch");
    lean.run(Until::Sent(100)).expect("a switch");
    let tracking = end(lean);
    assert_eq!((tracking.new, tracking.known), (20, 20 + 200));
    assert_eq!(tracking.count(UDP, TcpState::None)[1], 20);
    let replied = |entry: &conntrack::reference::Entry| entry.progress.is_replied();
    assert!(tracking.tracker.entries(0).all(replied));
}

#[test]
#[cfg(not(miri))]
fn whole_connections_have_seven_frames_each() {
    let (mut lean, end) = world(Tracking::default());
    for _ in 0..2 {
        let time = Duration::from_millis(5);
        let report = lean.dialogues(Dialogue::Whole, time).expect("a switch");
        assert!(report.whole > 0 && report.elapsed >= time, "{report:?}");
        assert_eq!(report.lost, 0);
    }
    let tracking = end(lean);
    let (new, per_connection) = (tracking.new, Dialogue::Whole.frames());
    assert_eq!(tracking.new + tracking.known, new * per_connection);
    let all = new as usize;
    assert_eq!(tracking.count(TCP, TcpState::TimeWait), [all, all]);
}

#[test]
#[cfg(not(miri))]
fn each_unanswered_datagram_is_new() {
    let (mut lean, end) = world(Tracking::default());
    lean.unanswered().expect("a switch");
    let report = lean.run(Until::Sent(300)).expect("a switch");
    assert_eq!((report.sent, report.received), (300, 300));
    let tracking = end(lean);
    assert_eq!(
        (tracking.new, tracking.known, tracking.invalid),
        (300, 0, 0)
    );
}

#[test]
#[cfg(not(miri))]
fn a_lost_frame_is_sent_again() {
    let (mut lean, end) = world(Tracking {
        drops: Some(3),
        ..Tracking::default()
    });
    lean.config.patience = Duration::from_millis(100);
    lean.establish(Dialogue::Handshake, 40).expect("a switch");
    let tracking = end(lean);
    assert_eq!((tracking.new, tracking.invalid), (40, 0));
    assert_eq!(tracking.count(TCP, TcpState::Established), [40, 40]);
}

#[test]
#[cfg(not(miri))]
fn a_silent_switch_opens_nothing() {
    let (mut lean, _back) = Lean::null(LeanConfig::default(), 2, None).expect("ports");
    lean.config.patience = Duration::from_millis(1);
    let refused = lean.establish(Dialogue::Handshake, 5);
    assert!(matches!(refused, Err(LeanError::Device(_))), "{refused:?}");
    let time = Duration::from_millis(3);
    let report = lean.dialogues(Dialogue::Whole, time).expect("no device");
    assert!(report.whole == 0 && report.lost > 0, "{report:?}");
}

#[test]
#[cfg(not(miri))]
fn connections_need_two_ports_and_room_for_headers() {
    let short = LeanConfig {
        frame_len: 53,
        ..LeanConfig::default()
    };
    for (config, ports) in [(short, 2), (LeanConfig::default(), 4)] {
        let (mut lean, _back) = Lean::null(config, ports, None).expect("ports");
        let refused = lean.establish(Dialogue::Handshake, 1);
        assert!(matches!(refused, Err(LeanError::Config(_))), "{refused:?}");
        let refused = lean.unanswered();
        assert!(matches!(refused, Err(LeanError::Config(_))), "{refused:?}");
    }
}
