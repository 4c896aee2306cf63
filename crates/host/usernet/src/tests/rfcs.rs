//! Scripts of packets for the RFCs of TCP that `packets.rs` and `timers.rs` leave.

use wire::build::TcpFields;
use wire::tcp::{ACK, FIN, SYN, TcpView};

use super::host::Host;
use super::packets::{
    IRS, RST, SERVER, UNTOUCHED, answer, established, fields, host, recorded, tcp,
};
use super::settings;
use crate::{Action, FlowRecord, Nanos, PeekResult, Progress, Secret, SocketEvent, Translator};

const S: Nanos = 1_000_000_000;
const URG: u16 = 0x20;
const AT: u32 = IRS.wrapping_add(1);

fn segment(seq: u32, ack: u32, flags: u16, payload: &[u8]) -> Vec<u8> {
    tcp(SERVER, fields(5000, seq, ack, flags), payload)
}

fn with_window(mut frame: Vec<u8>, window: u16) -> Vec<u8> {
    frame[48..50].copy_from_slice(&window.to_be_bytes());
    frame
}

fn with_options(flags: u16, options: &[u8]) -> Vec<u8> {
    let options = options.to_vec();
    let fields = TcpFields {
        options,
        ..fields(5000, IRS, 0, flags)
    };
    tcp(SERVER, fields, &[])
}

/// The server sends bytes, and those that fit go to the guest; returns their sequence numbers and
/// lengths.
fn serve(host: &mut Host, sent: usize) -> Vec<(u32, usize)> {
    host.socket.script.resize(host.socket.arrived + sent, 7);
    host.step(0, sent);
    host.serve(100);
    let frames = std::mem::take(&mut host.frames);
    let of = |frame: &Vec<u8>| {
        let tcp = TcpView::new_checked(&frame[34..]).unwrap();
        (tcp.seq(), frame.len() - 34 - tcp.header_len())
    };
    frames.iter().map(of).collect()
}

fn pass(host: &mut Host) {
    host.now = host.translator.deadline().unwrap();
    host.step(0, 0);
}

#[test]
fn rfc_9293_a_sequence_number_is_checked_first() {
    let mut host = host();
    host.frame(&segment(IRS, 0, SYN, &[]));
    let next = answer(&mut host).0.wrapping_add(1);
    // Section 3.10.7.4, first: an acknowledgement answers what is out of the window.
    host.frame(&segment(AT.wrapping_add(1 << 31), next, ACK, &[]));
    assert_eq!(answer(&mut host), (next, AT, ACK));
    // Fifth: a reset without acknowledgement answers one of something else.
    host.frame(&segment(AT, next.wrapping_add(1), ACK, &[]));
    assert_eq!(answer(&mut host), (next.wrapping_add(1), 0, RST));
    host.frame(&segment(AT, next, ACK, b"a"));
    assert_eq!(answer(&mut host), (next, AT.wrapping_add(1), ACK));
    // A segment without acknowledgement is dropped.
    host.frame(&segment(AT.wrapping_add(1), next, 0, b"b"));
    assert!(host.frames.is_empty());
    assert_eq!(host.socket.queued.make_contiguous(), b"a");
}

#[test]
fn rfc_9293_urgent_data_of_a_guest_stays_in_the_stream() {
    let mut host = host();
    let next = established(&mut host);
    // RFC 6093, section 3: as received inline.
    let mut frame = segment(AT, next, ACK | URG, b"abc");
    frame[52..54].copy_from_slice(&2u16.to_be_bytes());
    host.frame(&frame);
    assert_eq!(answer(&mut host).1, AT.wrapping_add(3));
    // A pointer far behind the segment, and a flag without bytes.
    frame[52..54].copy_from_slice(&u16::MAX.to_be_bytes());
    host.frame(&frame);
    host.frame(&segment(AT.wrapping_add(3), next, ACK | URG, &[]));
    assert_eq!(host.socket.queued.make_contiguous(), b"abc");
}

#[test]
fn rfc_9293_a_window_that_opens_gets_the_probe_again() {
    let mut host = host();
    let next = established(&mut host);
    host.frame(&with_window(segment(AT, next, ACK, &[]), 0));
    assert_eq!(serve(&mut host, 1000), []);
    for _ in 0..8 {
        pass(&mut host);
        assert_eq!(serve(&mut host, 0), [(next, 1)]);
        // Section 3.8.6.1: a guest that answers lives, however long that takes.
        host.frame(&with_window(segment(AT, next, ACK, &[]), 0));
    }
    // The guest did not take it.
    host.frame(&with_window(segment(AT, next, ACK, &[]), 4000));
    let all = [(next, 536), (next.wrapping_add(536), 464)];
    assert_eq!(serve(&mut host, 0), all);
    assert_eq!(host.translator.deadline(), Some(host.now + S));
}

#[test]
fn rfc_9293_a_reset_is_where_the_guest_expects_it() {
    let mut host = host();
    let next = established(&mut host);
    assert_eq!(serve(&mut host, 100), [(next, 100)]);
    // The timeout leads back to the first byte, the reset does not.
    pass(&mut host);
    host.event(SocketEvent::Reset);
    let after = next.wrapping_add(100);
    assert_eq!(answer(&mut host), (after, AT, RST | ACK));

    let mut host = super::packets::host();
    let next = established(&mut host);
    host.frame(&with_window(segment(AT, next, ACK, &[]), 0));
    serve(&mut host, 100);
    pass(&mut host);
    assert_eq!(serve(&mut host, 0), [(next, 1)]);
    host.event(SocketEvent::Reset);
    assert_eq!(answer(&mut host), (next, AT, RST | ACK));
}

#[test]
fn rfc_9293_the_other_half_stays_open() {
    let mut host = host();
    let next = established(&mut host);
    host.frame(&segment(AT, next, ACK | FIN, b"a"));
    let (_, end, _) = answer(&mut host);
    assert_eq!(end, AT.wrapping_add(2));
    assert!(host.socket.shut);
    // Bytes behind the end are none.
    host.frame(&segment(end, next, ACK, b"b"));
    assert_eq!(answer(&mut host).1, end);
    assert_eq!(
        serve(&mut host, 600),
        [(next, 536), (next.wrapping_add(536), 64)]
    );
    host.frame(&segment(end, next.wrapping_add(600), ACK, &[]));
    host.socket.closes_after = 0;
    host.step(0, 0);
    host.serve(1);
    let fin = next.wrapping_add(600);
    assert_eq!(answer(&mut host), (fin, end, FIN | ACK));
    // It was lost.
    pass(&mut host);
    assert_eq!(answer(&mut host), (fin, end, FIN | ACK));
    host.frame(&segment(end, fin.wrapping_add(1), ACK, &[]));
    assert_eq!(host.socket.closed, Some(false));
}

#[test]
fn rfc_5961_answers_to_what_is_out_of_the_window_are_bounded() {
    let mut host = host();
    let next = established(&mut host);
    // Section 7; else two ends that disagree would answer each other without end.
    let far = segment(AT.wrapping_add(1 << 31), next, ACK, &[]);
    let probe = segment(AT.wrapping_sub(1), next, ACK, &[]);
    for frame in [&far, &probe] {
        (0..20).for_each(|_| host.frame(frame));
    }
    assert_eq!(std::mem::take(&mut host.frames).len(), 10);
    // One with payload tells a loss.
    let gap = segment(AT.wrapping_add(100), next, ACK, b"late");
    (0..20).for_each(|_| host.frame(&gap));
    assert_eq!(host.frames.len(), 20);
}

#[test]
fn rfc_5681_and_6582_losses_are_sent_again_without_a_timeout() {
    let mut host = host();
    let next = established(&mut host);
    let nth = |n: u32| next.wrapping_add(536 * n);
    assert_eq!(serve(&mut host, 5 * 536).len(), 5);
    let duplicate = segment(AT, next, ACK, &[]);
    host.frame(&duplicate);
    host.frame(&duplicate);
    assert_eq!(serve(&mut host, 0), []);
    host.frame(&duplicate);
    assert_eq!(serve(&mut host, 0), [(next, 536)]);
    // More duplicates tell nothing new.
    (0..3).for_each(|_| host.frame(&duplicate));
    assert_eq!(serve(&mut host, 0), []);
    // RFC 6582, section 3.2: a partial acknowledgement tells the next loss.
    host.frame(&segment(AT, nth(2), ACK, &[]));
    assert_eq!(serve(&mut host, 0), [(nth(2), 536)]);
    host.frame(&segment(AT, nth(5), ACK, &[]));
    assert_eq!(serve(&mut host, 0), []);
    assert_eq!(host.socket.discarded, 5 * 536);
}

#[test]
fn rfc_6582_a_lost_fin_is_sent_again_without_a_timeout() {
    let mut host = host();
    let next = established(&mut host);
    host.socket.closes_after = 0;
    assert_eq!(serve(&mut host, 2 * 536).len(), 3);
    let duplicate = segment(AT, next, ACK, &[]);
    (0..3).for_each(|_| host.frame(&duplicate));
    assert_eq!(serve(&mut host, 0), [(next, 536)]);
    let fin = next.wrapping_add(2 * 536);
    host.frame(&segment(AT, fin, ACK, &[]));
    assert_eq!(answer(&mut host), (fin, AT, FIN | ACK));
}

#[test]
fn rfc_6298_a_lost_syn_makes_the_first_timeout_longer() {
    let mut host = host();
    host.frame(&segment(IRS, 0, SYN, &[]));
    let next = answer(&mut host).0.wrapping_add(1);
    pass(&mut host);
    host.frames.clear();
    host.frame(&segment(AT, next, ACK, &[]));
    serve(&mut host, 100);
    // Section 5.7.
    assert_eq!(host.translator.deadline(), Some(host.now + 3 * S));
}

#[test]
fn rfc_6528_initial_numbers_depend_on_secret_addresses_and_time() {
    let of = |secret, key: u32, now| Secret(secret).initial(&key, now);
    let first = of([1, 2], 3, 0);
    for other in [of([1, 3], 3, 0), of([2, 2], 3, 0), of([1, 2], 4, 0)] {
        assert_ne!(first, other);
    }
    // Section 3: about 4 us a number.
    assert_eq!(of([1, 2], 3, S).wrapping_sub(first), (S >> 12) as u32);
}

#[test]
fn rfc_7323_windows_are_scaled_if_both_ends_say_so() {
    let mss = [2, 4, 5, 0xb4];
    let scaled = |shift: u8| [&mss[..], &[1, 3, 3, shift]].concat();
    for (options, scale, len) in [
        (vec![], None, 536),
        (mss.to_vec(), None, 1000),
        (scaled(0), Some((0, 8)), 1000),
        (scaled(7), Some((7, 8)), 1460),
        // Section 2.3: a longer one counts as 14.
        (scaled(15), Some((14, 8)), 1460),
        // What contradicts itself is not read.
        (vec![2, 1, 5, 0xb4], None, 536),
        (vec![3, 3, 7, 2, 9, 1, 1, 1], Some((7, 8)), 536),
    ] {
        let mut host = host();
        host.socket.buffer = 100_000;
        host.frame(&with_options(SYN, &options));
        let [syn] = &host.frames[..] else {
            panic!("no answer to {options:?}");
        };
        // Section 2.2: the window of a SYN is never scaled, and no shift answers none.
        assert_eq!(syn[48..50], u16::MAX.to_be_bytes());
        let own = [2, 4, 5, 0xb4, 1, 3, 3, 8];
        let expected = if scale.is_some() { 8 } else { 4 };
        assert_eq!(syn[54..], own[..expected]);
        let next = answer(&mut host).0.wrapping_add(1);
        host.frame(&with_window(segment(AT, next, ACK, &[]), 1000));
        let record = host.translator.record(host.flow.unwrap());
        assert!(matches!(record, Some(FlowRecord::Flow(record)) if record.scale == scale));
        assert_eq!(serve(&mut host, 5000)[0], (next, len), "{options:?}");
    }
}

#[test]
fn acknowledgements_behind_the_window_count_after_a_restart() {
    let (record, next) = recorded();
    let mut second = Translator::new(settings());
    // The predecessor had more room than there is now, and the guest has filled its window.
    let progress = Progress {
        unread: 30,
        room: 100,
        ..UNTOUCHED
    };
    let mut out = Vec::new();
    second.restore(0, &record, &progress, &mut out).unwrap();
    out.clear();
    let ack = segment(AT.wrapping_add(9000), next.wrapping_add(30), ACK, &[]);
    let net = wire::virtio::net::NetHeader::default();
    second.frame(0, &ack, ack.len(), &net, &mut out);
    assert!(matches!(out[..], [Action::Discard(_, 30), ..]), "{out:?}");
}

#[test]
fn a_successor_has_the_guest_send_at_once_what_was_lost() {
    let (record, next) = recorded();
    let progress = Progress {
        taken: 100,
        room: 1 << 20,
        ..UNTOUCHED
    };
    let nxt = AT.wrapping_add(100);
    let mut second = Translator::new(settings());
    let mut out = Vec::new();
    let flow = second.restore(0, &record, &progress, &mut out).unwrap();
    let acks = |out: &mut Vec<Action>| {
        let acks = out.drain(..).filter_map(|action| match action {
            Action::Frame(headers) => {
                let tcp = TcpView::new_checked(&headers.bytes()[34..]).unwrap();
                Some((tcp.ack().wrapping_sub(nxt), tcp.flags()))
            }
            _ => None,
        });
        acks.collect::<Vec<_>>()
    };
    out.clear();
    let frame = |second: &mut Translator, at: u32, len: usize, out: &mut Vec<Action>| {
        let frame = segment(nxt.wrapping_add(at), next, ACK, &vec![1; len]);
        let net = wire::virtio::net::NetHeader::default();
        second.frame(0, &frame, frame.len(), &net, out);
        if out.iter().any(|action| matches!(action, Action::Send(..))) {
            let (taken, room) = (len as u32, 1 << 20);
            second.socket(0, flow, SocketEvent::Sent { taken, room }, out);
        }
    };
    // The answer to the probe says how far the guest is.
    frame(&mut second, 3000, 0, &mut out);
    assert_eq!(acks(&mut out), [(0, ACK); 4]);
    // What follows the gap is lost, too.
    frame(&mut second, 3000, 500, &mut out);
    assert_eq!(acks(&mut out), [(0, ACK)]);
    frame(&mut second, 0, 1400, &mut out);
    assert_eq!(acks(&mut out), [(1400, ACK); 4]);
    frame(&mut second, 1400, 1600, &mut out);
    assert_eq!(acks(&mut out), [(3000, ACK); 4]);
    frame(&mut second, 3000, 500, &mut out);
    assert_eq!(acks(&mut out), [(3500, ACK)]);
}

#[test]
fn a_successor_does_not_ask_without_end_for_what_is_behind_urgent_data() {
    let (record, next) = recorded();
    let progress = Progress {
        unread: 30,
        ..UNTOUCHED
    };
    let mut second = Translator::new(settings());
    let mut out = Vec::new();
    let flow = second.restore(0, &record, &progress, &mut out).unwrap();
    let net = wire::virtio::net::NetHeader::default();
    let ack = segment(AT, next, ACK, &[]);
    second.frame(0, &ack, ack.len(), &net, &mut out);
    let first = second.peek(0, flow).unwrap();
    assert_eq!(first.offset, 0);
    let ten = second.peeked(0, flow, first, PeekResult::Bytes(10), &mut out);
    assert!(ten.is_some());
    // A system without a peek offset for TCP stops in front of an urgent byte.
    let behind = second.peek(0, flow).unwrap();
    assert_eq!(behind.offset, 10);
    second.peeked(0, flow, behind, PeekResult::Empty, &mut out);
    assert_eq!(second.peek(0, flow), None);
    second.socket(0, flow, SocketEvent::Readable, &mut out);
    assert_eq!(second.peek(0, flow), Some(behind));
    second.peeked(0, flow, behind, PeekResult::Empty, &mut out);
    let ack = segment(AT, next.wrapping_add(10), ACK, &[]);
    second.frame(0, &ack, ack.len(), &net, &mut out);
    let rest = second.peek(0, flow).unwrap();
    assert_eq!(rest.offset, 0);
}

#[test]
fn an_end_behind_urgent_data_counts_when_all_before_is_acknowledged() {
    let mut host = host();
    let next = established(&mut host);
    let flow = host.flow.unwrap();
    host.socket.script = vec![7; 10];
    host.socket.urgent = Some(5);
    host.socket.closes_after = 0;
    host.step(0, 10);
    host.serve(9);
    // Five bytes, and no FIN behind them.
    let [frame] = &std::mem::take(&mut host.frames)[..] else {
        panic!("more than what is in front of the urgent byte");
    };
    assert_eq!(frame.len(), 54 + 5);
    assert_eq!(host.translator.peek(host.now, flow), None);
    host.frame(&segment(AT, next.wrapping_add(5), ACK, &[]));
    assert_eq!(serve(&mut host, 0), [(next.wrapping_add(5), 5)]);
    let end = next.wrapping_add(10);
    host.frame(&segment(AT, end, ACK, &[]));
    host.serve(9);
    assert_eq!(answer(&mut host), (end, AT, FIN | ACK));
}
