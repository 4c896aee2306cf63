//! Time of tracking a frame: `cargo run --release -p lasthop-conntrack --example tracked_frames --
//! CONNECTIONS ROUNDS [new|udp]`. Batches of 64 frames; established TCP connections, else UDP, or a
//! new one of UDP for each frame.

use std::net::IpAddr;
use std::time::Instant;

use conntrack::judgement::Ingress;
use conntrack::packet::{Message, Packet, Reading};
use conntrack::segment::Segment;
use conntrack::table::{DEFAULT_CAPACITY, Layout, Rule, Table};
use conntrack::tracker::{Probe, Tracker};
use conntrack::{Settings, Tuple};

const BATCH: usize = 64;

fn tuple(number: u32, protocol: u8) -> Tuple {
    let end = |high: u8, low: u32| IpAddr::from([10, high, (low >> 8) as u8, low as u8]);
    let (src, dst) = (end(1, number >> 16), end(2, 7));
    Tuple::new(1, protocol, (src, number as u16), (dst, 80))
}

fn read(tuple: Tuple, message: Message) -> Reading {
    Reading::Packet(Packet {
        tuple,
        message,
        piece: None,
    })
}

fn segment(flags: u8, seq: u32, ack: u32) -> Message {
    Message::Tcp(Segment {
        seq,
        ack,
        sack: ack,
        window: 1000,
        flags,
        ..Segment::default()
    })
}

fn from(port: u16) -> Ingress {
    Ingress {
        port,
        is_home: true,
        ..Ingress::default()
    }
}

/// Judges a batch in three passes; commits what is new, if so.
// A function of its own in profiles: `valgrind --tool=callgrind --toggle-collect='*::serve'`.
#[inline(never)]
fn serve(tracker: &mut Tracker, settings: &Settings, frames: &[Reading], commit: bool) -> u32 {
    let mut tracking = tracker.begin(settings, 1000);
    let mut probes = [None::<Probe>; BATCH];
    for (frame, probe) in frames.iter().zip(&mut probes) {
        if let Reading::Packet(packet) = frame {
            *probe = Some(tracking.prepare(&packet.tuple));
        }
    }
    for probe in probes.iter_mut().flatten() {
        *probe = tracking.approach(*probe);
    }
    let mut states = 0;
    for (frame, probe) in frames.iter().zip(probes) {
        let Some(probe) = probe else { continue };
        let judged = tracking.judge(frame, probe, from(1), 0);
        states += u32::from(judged.ct().bits());
        if commit {
            tracking.commit(frame, probe, (from(1), Some(2)), Rule::default());
        }
    }
    states
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| {
        arguments
            .next()
            .map_or(default, |n| n.parse().unwrap_or(default))
    };
    let (connections, rounds): (u32, u32) = (number(1024), number(10_000));
    let kind = arguments.next().unwrap_or_default();
    let capacity = DEFAULT_CAPACITY.max(connections.saturating_mul(4));
    let table = Table::heap(Layout::new(capacity), 1);
    let mut tracker = Tracker::new(&table).expect("a slot");
    let settings = Settings::default();
    let udp = !kind.is_empty();
    let frame = |number: u32| match udp {
        true => read(tuple(number, 17), Message::Udp),
        false => read(tuple(number, 6), segment(0x10, 101, 201)),
    };
    if kind != "new" {
        for number in 0..connections {
            let steps = [(1, 0x02, 100, 0), (2, 0x12, 200, 101), (1, 0x10, 101, 201)];
            for (port, flags, seq, ack) in steps {
                let tuple = tuple(number, if udp { 17 } else { 6 });
                let tuple = if port == 2 { tuple.reversed() } else { tuple };
                let message = if udp {
                    Message::Udp
                } else {
                    segment(flags, seq, ack)
                };
                let read = read(tuple, message);
                let mut tracking = tracker.begin(&settings, 1000);
                let probe = tracking.probe(&read);
                tracking.judge(&read, probe, from(port), 0);
                let far = Some(3 - port);
                tracking.commit(&read, probe, (from(port), far), Rule::default());
            }
        }
    }
    let mut frames: Vec<Reading> = Vec::with_capacity(BATCH);
    let (mut next, mut states, start) = (0_u32, 0_u32, Instant::now());
    for _ in 0..rounds {
        frames.clear();
        for _ in 0..BATCH {
            frames.push(frame(next));
            next = next.wrapping_add(1);
            if kind != "new" && next >= connections {
                next = 0;
            }
        }
        states = states.wrapping_add(serve(&mut tracker, &settings, &frames, kind == "new"));
    }
    let each = start.elapsed().as_nanos() / u128::from(rounds) / BATCH as u128;
    println!("{each} ns a frame, {} connections, {states}", table.len());
}
