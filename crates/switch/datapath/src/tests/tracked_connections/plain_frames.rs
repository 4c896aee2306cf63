//! Plain frames are read as parsed ones are, and judged in batches as one by one.

use conntrack::Reading;
use port::Gso;
use wire::segment::GsoKind;

use super::*;
use crate::forward::tracking::plain;
use crate::ports::batch::Batch;
use crate::ports::offload;

/// Returns a batch of one frame, all of it private as far as there is room.
fn batch_of(frame: &mut [u8], offload: Offload) -> Batch {
    let mut batch = Batch::new();
    batch.segments_mut().push(memory::Segment {
        ptr: frame.as_mut_ptr(),
        len: frame.len() as u32,
        gpa: 0,
    });
    // SAFETY: callers keep the frame as long as the batch.
    unsafe { batch.push(0..1, 0, frame.len() as u32, offload) };
    batch.deepen(0);
    batch
}

/// A byte of the headers that is another one.
type Odd = Option<(usize, u8)>;

fn odd() -> impl Strategy<Value = Odd> {
    prop_oneof![3 => Just(None), 2 => (0..70_usize, any::<u8>()).prop_map(Some)]
}

fn with(mut frame: Vec<u8>, odd: Odd) -> Vec<u8> {
    if let Some((at, value)) = odd
        && let Some(byte) = frame.get_mut(at)
    {
        *byte = value;
    }
    frame
}

fn any_frame() -> impl Strategy<Value = (Vec<u8>, Offload)> {
    let flags = prop_oneof![4 => Just(ACK), 2 => Just(ACK | 8), 1 => 0..0x100_u16];
    let kind = prop_oneof![4 => Just(None), 1 => any::<u16>().prop_map(Some)];
    (0..5_u8, flags, 0..3000_usize, kind, odd()).prop_map(|(form, flags, payload, size, odd)| {
        let flow = if form == 1 {
            Flow::v6(1, 2)
        } else {
            Flow::v4(1, 2)
        };
        let payload = vec![1; payload];
        let (frame, offload) = match form {
            0 | 1 => (segment(&flow, (7, 9), flags, &payload), Offload::default()),
            2 => (udp(&flow, &payload), Offload::default()),
            _ => {
                let (frame, header) = tcp_super(&flow, 7, &[&payload[..], &[1]].concat(), 1000);
                (frame, super::super::bench::offload(&header))
            }
        };
        (with(frame, odd), other(offload, size))
    })
}

/// Returns the offload with other segments, or another checksum.
fn other(mut offload: Offload, size: Option<u16>) -> Offload {
    let Some(size) = size else {
        return offload;
    };
    if let Some(gso) = &mut offload.gso {
        let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp4];
        *gso = Gso {
            size,
            kind: kinds[usize::from(size % 3)],
            ..*gso
        };
    }
    if let Some(checksum) = &mut offload.checksum
        && size.is_multiple_of(5)
    {
        checksum.offset = size / 5 % 20;
    }
    offload
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn plain_frames_are_read_as_parsed_ones((frame, offload) in any_frame()) {
        let mut bytes = frame.clone();
        let batch = batch_of(&mut bytes, offload);
        let taken = &batch.frames()[0];
        let (headers, len) = (taken.headers.as_slice(), taken.len());
        let parsed = ParsedHeaders::parse(headers, len as usize);
        let offloaded = !offload.is_nothing();
        let plain = match offloaded {
            false => plain::read(BLUE.0, taken).or_else(|| plain::read_v6(BLUE.0, taken)),
            true => {
                let (mut one, mut other) = (offload, offload);
                let read = plain::read_offloaded(BLUE.0, taken).filter(|(_, header_len)| {
                    offload::is_plain(headers, len, *header_len, &mut one)
                });
                if read.is_some() {
                    prop_assert_eq!(offload::check(headers, len, &parsed, &mut other), Ok(()));
                    prop_assert_eq!(one, other);
                }
                read.map(|(plain, _)| plain)
            }
        };
        if let Some(plain) = plain {
            let expected = conntrack::packet::read(BLUE.0, &parsed, headers, offloaded);
            prop_assert_eq!(Reading::Packet(plain.packet()), expected);
        }
    }
}

#[test]
fn segments_with_an_offload_are_plain() {
    let (mut frame, header) = tcp_super(&Flow::v4(1, 2), 7, &[1; 4000], 1000);
    let offload = super::super::bench::offload(&header);
    let batch = batch_of(&mut frame, offload);
    let taken = &batch.frames()[0];
    let (_, header_len) = plain::read_offloaded(BLUE.0, taken).expect("plain");
    let mut offload = offload;
    let headers = taken.headers.as_slice();
    assert!(offload::is_plain(
        headers,
        taken.len(),
        header_len,
        &mut offload
    ));
}

/// A frame of the opening side, which neither opens nor closes a connection of TCP.
fn sent() -> impl Strategy<Value = (Vec<u8>, Offload)> {
    let datagram = |(port, service, len): (u16, u16, usize)| {
        let flow = Flow::v4(1, 2).ports(100 + port, 53 + service);
        (udp(&flow, &vec![1; len]), Offload::default())
    };
    let data = |(seq, ack, len): (u32, u32, usize)| {
        let flow = Flow::v4(1, 2).ports(9, 80);
        let frame = segment(&flow, (seq, ack), ACK, &vec![1; len]);
        (frame, Offload::default())
    };
    let long = |(seq, len): (u32, usize)| {
        let flow = Flow::v4(1, 2).ports(9, 80);
        let (frame, header) = tcp_super(&flow, seq, &vec![1; len], 1000);
        (frame, super::super::bench::offload(&header))
    };
    prop_oneof![
        6 => (0..4_u16, 0..2_u16, 0..100_usize).prop_map(datagram),
        4 => (95..400_u32, 490..510_u32, 0..100_usize).prop_map(data),
        2 => (95..400_u32, 1..5000_usize).prop_map(long),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_tracked_batch_is_as_its_frames_one_by_one(
        frames in prop::collection::vec((sent(), 1..4_usize), 1..40),
    ) {
        let [mut together, mut single] = [(); 2].map(|()| {
            let mut workers = Workers::new(OUT);
            handshake(&mut workers, &Flow::v4(1, 2).ports(9, 80));
            // The flows of new connections and of known ones.
            for _ in 0..2 {
                workers.send(1, &datagram(1, 2));
            }
            workers
        });
        let before = conntracked(&single).len();
        for ((frame, offload), times) in &frames {
            for _ in 0..*times {
                together.of(1).port(1).push(frame, *offload);
                single.of(1).port(1).push(frame, *offload);
                single.of(1).serve(1);
            }
        }
        together.of(1).serve(1);
        prop_assert_eq!(together.of(1).reading(), single.of(1).reading());
        let [got, expected] = [&mut together, &mut single].map(|w| w.of(1).port(2).delivered());
        prop_assert_eq!(got, expected);
        let [got, expected] = [&together, &single].map(conntracked);
        prop_assert!(expected.len() >= before);
        prop_assert_eq!(got, expected);
    }
}

/// Returns all connections, by tuple.
fn conntracked(workers: &Workers) -> Vec<conntrack::table::Connection> {
    let mut all = Vec::new();
    let mut walker = workers.table.walker().expect("few threads");
    let time = (&Settings::default(), workers.benches[0].now as u32);
    walker.walk(&mut Walk::default(), usize::MAX, time, |connection| {
        all.push(*connection);
        true
    });
    all.sort_by_key(|connection| *connection.tuple.words());
    all
}

#[test]
fn datagrams_of_new_connections_share_a_flow_batch_if_no_flow_tells_them_apart() {
    let mut workers = Workers::new(OUT);
    workers.send(1, &datagram(1, 2));
    workers.send(1, &datagram(1, 2));
    let bench = workers.of(1);
    for port in [1, 2, 1, 3, 1] {
        let flow = Flow::v4(1, 2).ports(2000 + port, 53);
        bench
            .port(1)
            .push(&udp(&flow, &[7; 58]), Offload::default());
    }
    bench.serve(1);
    assert_eq!(bench.switch.lookup.flow_batches.len(), 1);
    assert_eq!(bench.port(2).delivered().len(), 5);
    assert_eq!(counted(&workers), [1, 1, 2, 3]);
}
