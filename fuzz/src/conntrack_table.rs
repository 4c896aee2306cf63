//! The tracker over the table beside the slow one: frames of both sides and of other ports, in any
//! order, some with bytes of the fuzzer's own; rules that change, flushes, parts of walks, deaths
//! of the switch. Every frame has the same judgement, both have the same connections, and the
//! accounts add up to them.

use std::net::IpAddr;

use arbitrary::{Arbitrary, Result, Unstructured};
use conntrack::judgement::Ingress;
use conntrack::packet::{self, Message, Packet, Piece, Reading};
use conntrack::segment::{Options, Segment};
use conntrack::tracker::pair::{Frame, Pair, Step};
use conntrack::{Invalid, Tuple};
use wire::packet::ParsedHeaders;

/// Steps of a run.
const STEPS: usize = 300;

/// Ends of connections: port 1 of the switch has the first, port 2 the second.
fn tuple(zone: u16, protocol: u8, ports: (u16, u16), v6: bool) -> Tuple {
    let end = |last: u8| match v6 {
        false => IpAddr::from([10, 0, 0, last]),
        true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()]),
    };
    Tuple::new(zone, protocol, (end(1), ports.0), (end(2), ports.1))
}

/// A number near those of the other segments, but for one in sixteen.
fn near(u: &mut Unstructured<'_>) -> Result<u32> {
    let number: u8 = u.arbitrary()?;
    match number >> 4 {
        0 => u.arbitrary(),
        _ => Ok(1000 + u32::from(number & 7)),
    }
}

fn segment(u: &mut Unstructured<'_>) -> Result<Segment> {
    let (seq, ack) = (near(u)?, near(u)?);
    let kind: u8 = u.arbitrary()?;
    let scales = kind & 0x80 != 0;
    let flags = match kind & 7 {
        0 | 1 => 0x10,
        2 => 0x02,
        3 => 0x12,
        4 => 0x11,
        5 => 0x04,
        6 => 0x14,
        _ => u.arbitrary()?,
    };
    Ok(Segment {
        seq,
        ack,
        sack: ack,
        payload: match kind >> 3 & 3 {
            0 | 1 => 0,
            2 => 1,
            _ => u.int_in_range(0..=70_000)?,
        },
        window: u.arbitrary()?,
        flags,
        options: Options {
            present: scales,
            scale: scales.then_some(2),
            sack_permitted: scales,
        },
    })
}

/// A frame of one of a few connections.
fn packet(u: &mut Unstructured<'_>) -> Result<Reading> {
    let place: u8 = u.arbitrary()?;
    let (v6, back) = (place & 1 != 0, place & 2 != 0);
    let (zone, port) = (
        1 + u16::from(place >> 2 & 1),
        40_000 + u16::from(place >> 3 & 1),
    );
    let (protocol, message) = match place >> 4 {
        0..=8 => (6, Message::Tcp(segment(u)?)),
        9..=11 => (17, Message::Udp),
        12 => (47, Message::Other),
        13 => (6, Message::Error),
        14 if v6 => (58, Message::Request),
        14 => (1, Message::Request),
        _ if v6 => (58, Message::Answer),
        _ => (1, Message::Answer),
    };
    let tuple = tuple(zone, protocol, (port, 80), v6);
    Ok(Reading::Packet(Packet {
        tuple: if back { tuple.reversed() } else { tuple },
        message,
        piece: None,
    }))
}

/// A fragment of one of two datagrams.
fn fragment(u: &mut Unstructured<'_>) -> Result<Reading> {
    let place: u8 = u.arbitrary()?;
    let end = if place & 1 == 0 { 1480 } else { 8 };
    let mut piece = Piece {
        datagram: tuple(1, 17, (0, 1 + u16::from(place >> 1 & 1)), false),
        start: 0,
        end,
    };
    Ok(match place >> 2 & 3 {
        0 => Reading::Invalid(Invalid::TinyFragment, Some(piece)),
        1 | 2 => Reading::Packet(Packet {
            tuple: tuple(1, 17, (40_000, 80), false),
            message: Message::Udp,
            piece: Some(piece),
        }),
        _ => {
            (piece.start, piece.end) = (end, 2000);
            Reading::Later(piece)
        }
    })
}

/// A frame with any bytes; fragments of TCP are left out, as the table does not keep their
/// numbers.
fn any(u: &mut Unstructured<'_>) -> Result<Reading> {
    let len = u.int_in_range(14..=128)?;
    let bytes = u.bytes(len.min(u.len()))?;
    let read = packet::read(1, &ParsedHeaders::parse(bytes, bytes.len()), bytes, false);
    Ok(match read {
        Reading::Packet(packet) if packet.piece.is_some() => {
            Reading::Invalid(Invalid::Header, None)
        }
        Reading::Invalid(why, _) => Reading::Invalid(why, None),
        read => read,
    })
}

fn frame(u: &mut Unstructured<'_>) -> Result<Frame> {
    let kind: u8 = u.arbitrary()?;
    let read = match kind & 15 {
        0 => fragment(u)?,
        1 => any(u)?,
        _ => packet(u)?,
    };
    let back = match &read {
        Reading::Packet(packet) => packet.tuple.src() > packet.tuple.dst(),
        _ => false,
    };
    let (own, other) = if back { (2, 1) } else { (1, 2) };
    // One in sixteen comes from elsewhere.
    let (port, is_home) = match kind >> 4 {
        0 => (u16::from(u.arbitrary::<u8>()? & 3), u.arbitrary()?),
        _ => (own, true),
    };
    Ok(Frame {
        from: Ingress {
            port,
            is_home,
            ..Ingress::default()
        },
        read,
        far: (kind & 0x20 != 0 && other != port).then_some(other),
        allowed: kind & 0xc0 != 0,
    })
}

fn step(u: &mut Unstructured<'_>) -> Result<Step> {
    Ok(match u.arbitrary::<u8>()? {
        0..=7 => Step::Wait(u.int_in_range(0..=400_000)?),
        8..=15 => Step::Wait(u.int_in_range(0..=3000)?),
        16 | 17 => Step::Rules,
        18 => Step::Flush(1 + u16::arbitrary(u)? % 2),
        19..=22 => Step::Walk,
        23 => Step::Restart,
        _ => Step::Frame(frame(u)?),
    })
}

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let (Ok(pick_up), Ok(now)) = (u.arbitrary(), u.arbitrary()) else {
        return;
    };
    let mut pair = Pair::new(pick_up, now);
    for _ in 0..STEPS {
        match step(&mut u) {
            Ok(step) if !u.is_empty() => pair.take(&step),
            _ => break,
        }
    }
    pair.check();
}
