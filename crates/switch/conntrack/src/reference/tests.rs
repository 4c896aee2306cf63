use super::*;
use crate::packet;
use crate::timeouts::Timeout;
use wire::build::{PacketBuilder, TcpFields};
use wire::flow::Ct;
use wire::{MacAddr, ParsedHeaders};

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];
const ZONE: u16 = 3;

fn read(frame: &PacketBuilder) -> Reading {
    let bytes = frame.build();
    let headers = &bytes[..bytes.len().min(wire::SNAPSHOT)];
    packet::read(
        ZONE,
        &ParsedHeaders::parse(headers, bytes.len()),
        headers,
        false,
    )
}

fn frame() -> PacketBuilder {
    PacketBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]))
}

/// The question of port 1, and the answer of port 2.
fn asks() -> Reading {
    read(&frame().ipv4(A, B).udp(5000, 53))
}

fn answers() -> Reading {
    read(&frame().ipv4(B, A).udp(53, 5000))
}

/// The station of a port has its number.
fn at(port: Port) -> Ingress {
    Ingress {
        port,
        is_home: false,
        stations: Stations {
            source: Station(port),
            destination: Station(if port == 2 { 1 } else { 2 }),
        },
    }
}

fn tracker() -> Tracker {
    Tracker::new(Settings::default())
}

/// A tracker that knows the question of port 1 to port 2.
fn asked() -> Tracker {
    let mut tracker = tracker();
    assert_eq!(tracker.judge(&asks(), at(1), 0), Judgement::New);
    tracker.commit(&asks(), at(1), Some(2), 0);
    tracker
}

#[track_caller]
fn known(judgement: Judgement) -> Connection {
    match judgement {
        Judgement::Known { connection, .. } => connection,
        other => panic!("{other:?}"),
    }
}

fn text(judgement: Judgement) -> String {
    Ct::new(judgement.state(), 0).to_string()
}

#[test]
fn frames_of_both_directions_are_known_after_the_commit() {
    let mut tracker = tracker();
    assert_eq!(text(tracker.judge(&asks(), at(1), 0)), "trk|new");
    assert_eq!(
        text(tracker.judge(&asks(), at(1), 0)),
        "trk|new",
        "it is not committed"
    );
    assert_eq!(text(tracker.judge(&answers(), at(2), 0)), "trk|new");
    tracker.commit(&asks(), at(1), Some(2), 0);
    assert_eq!(text(tracker.judge(&asks(), at(1), 1)), "trk|est");
    assert_eq!(text(tracker.judge(&answers(), at(2), 2)), "trk|est|rpl");
    let connection = known(tracker.judge(&asks(), at(1), 3));
    assert_eq!((connection.replied, connection.far), (true, Some(2)));
    assert_eq!(tracker.entries(3).count(), 1);
    // Another zone is another connection.
    let bytes = frame().ipv4(A, B).udp(5000, 53).build();
    let other = packet::read(
        ZONE + 1,
        &ParsedHeaders::parse(&bytes, bytes.len()),
        &bytes,
        false,
    );
    assert_eq!(tracker.judge(&other, at(1), 3), Judgement::New);
}

#[test]
fn a_tuple_of_a_third_port_is_another_connection() {
    let mut tracker = asked();
    for read in [asks(), answers()] {
        assert_eq!(tracker.judge(&read, at(3), 1), Judgement::New);
    }
    assert_eq!(tracker.judge(&answers(), at(1), 1), Judgement::New);
    // It may have a connection of its own, which takes nothing from the first.
    tracker.commit(&asks(), at(3), Some(2), 1);
    assert_eq!(known(tracker.judge(&asks(), at(3), 2)).far, Some(2));
    assert_eq!(known(tracker.judge(&asks(), at(1), 2)).far, Some(2));
    assert_eq!(known(tracker.judge(&answers(), at(2), 2)).far, Some(1));
}

#[test]
fn a_station_that_moves_takes_its_connections_along() {
    let mut tracker = asked();
    let moved = Ingress {
        port: 4,
        is_home: true,
        ..at(2)
    };
    let stations = Stations {
        source: Station(3),
        ..moved.stations
    };
    let another = Ingress { stations, ..moved };
    assert_eq!(tracker.judge(&answers(), another, 1), Judgement::New);
    assert_eq!(
        text(tracker.judge(&answers(), moved, 1)),
        "trk|est|rpl|moved"
    );
    assert_eq!(
        known(tracker.judge(&answers(), at(2), 1)).far,
        Some(1),
        "not committed"
    );
    assert_eq!(
        text(tracker.judge(&answers(), moved, 1)),
        "trk|est|rpl|moved"
    );
    // The side that answers does not say where the other one is.
    for elsewhere in [None, Some(9)] {
        tracker.commit(&answers(), moved, elsewhere, 1);
        let again = tracker.judge(&answers(), moved, 1);
        assert_eq!(text(again), "trk|est|rpl|moved");
    }
    tracker.commit(&answers(), moved, Some(1), 1);
    assert_eq!(text(tracker.judge(&answers(), moved, 2)), "trk|est|rpl");
    assert_eq!(known(tracker.judge(&asks(), at(1), 2)).far, Some(4));
    assert_eq!(
        tracker.judge(&answers(), at(2), 2),
        Judgement::New,
        "where it was"
    );
}

#[test]
fn the_first_answer_to_a_flood_that_is_committed_binds_its_port() {
    let mut tracker = tracker();
    tracker.commit(&asks(), at(1), None, 0);
    assert_eq!(
        tracker.judge(&answers(), at(1), 1),
        Judgement::New,
        "its own port"
    );
    assert_eq!(text(tracker.judge(&asks(), at(1), 1)), "trk|est|moved");
    for port in [3, 2] {
        let connection = known(tracker.judge(&answers(), at(port), 1));
        assert_eq!((connection.far, connection.moved), (Some(1), true));
        assert!(!connection.replied, "it changes nothing");
    }
    // Denied at another port than its own: that ends nothing.
    tracker.forget(&answers(), at(3), 1);
    tracker.commit(&answers(), at(2), Some(1), 1);
    let connection = known(tracker.judge(&answers(), at(2), 1));
    assert!(connection.replied && !connection.moved);
    assert_eq!(tracker.judge(&answers(), at(3), 2), Judgement::New);
    assert_eq!(known(tracker.judge(&asks(), at(1), 2)).far, Some(2));
}

#[test]
fn a_connection_goes_on_where_its_opener_sends_its_frames() {
    let mut tracker = tracker();
    tracker.commit(&asks(), at(1), None, 0);
    tracker.commit(&asks(), at(1), Some(2), 1);
    assert_eq!(known(tracker.judge(&answers(), at(2), 1)).far, Some(1));
    tracker.commit(&asks(), at(1), None, 1);
    assert_eq!(known(tracker.judge(&asks(), at(1), 1)).far, Some(2));
    tracker.commit(&asks(), at(1), Some(3), 2);
    assert_eq!(tracker.judge(&answers(), at(2), 2), Judgement::New);
    assert_eq!(text(tracker.judge(&answers(), at(3), 2)), "trk|est|rpl");
}

#[test]
fn a_change_of_rules_has_each_connection_decided_again() {
    let mut tracker = asked();
    tracker.epoch += 1;
    assert_eq!(
        text(tracker.judge(&answers(), at(2), 1)),
        "trk|est|rpl|stale"
    );
    assert_eq!(text(tracker.judge(&asks(), at(1), 1)), "trk|est|stale");
    tracker.commit(&answers(), at(2), Some(1), 1);
    assert_eq!(text(tracker.judge(&asks(), at(1), 2)), "trk|est");
}

#[test]
fn a_denied_connection_stays_for_its_time_and_goes_on_if_rules_let_it_in() {
    let mut tracker = asked();
    tracker.judge(&answers(), at(2), 1);
    tracker.epoch += 1;
    tracker.deny(&asks(), at(1), 2);
    let left = |tracker: &Tracker, now| {
        let entry = tracker.entries(now).next()?;
        entry.remaining(now, &tracker.settings)
    };
    let before = left(&tracker, 2);
    assert_eq!(
        text(tracker.judge(&answers(), at(2), 3)),
        "trk|est|rpl|stale"
    );
    assert_eq!(text(tracker.judge(&asks(), at(1), 4)), "trk|est|stale");
    assert_eq!(left(&tracker, 4), before.map(|left| left - 2));
    tracker.commit(&answers(), at(2), Some(1), 5);
    assert_eq!(text(tracker.judge(&asks(), at(1), 6)), "trk|est");
    tracker.epoch += 1;
    tracker.deny(&asks(), at(1), 7);
    let over = 7 + before.expect("it is there");
    assert_eq!(tracker.judge(&answers(), at(2), over), Judgement::New);
}

#[test]
fn a_flush_is_of_one_zone() {
    let mut tracker = asked();
    tracker.flush(ZONE + 1);
    assert_eq!(tracker.entries(1).count(), 1);
    tracker.flush(ZONE);
    assert_eq!(tracker.entries(1).count(), 0);
    assert_eq!(tracker.judge(&asks(), at(1), 1), Judgement::New);
}

#[test]
fn connections_expire() {
    let mut tracker = asked();
    known(tracker.judge(&asks(), at(1), 29_999));
    known(tracker.judge(&answers(), at(2), 59_998));
    // Both sides have sent, for longer than two seconds.
    known(tracker.judge(&asks(), at(1), 89_997));
    known(tracker.judge(&asks(), at(1), 89_997 + 119_999));
    assert_eq!(
        tracker.judge(&asks(), at(1), 89_997 + 239_999),
        Judgement::New
    );
    let mut tracker = asked();
    assert_eq!(tracker.judge(&asks(), at(1), 30_000), Judgement::New);
    tracker.commit(&asks(), at(1), Some(2), 30_000);
    assert_eq!(tracker.entries(30_000).count(), 1);
}

#[test]
fn timeouts_are_settings() {
    let mut tracker = tracker();
    tracker.settings.timeouts.set(Timeout::Icmp, 5000);
    let echo = read(&frame().ipv4(A, B).echo_request(1, 1));
    tracker.commit(&echo, at(1), Some(2), 0);
    known(tracker.judge(&echo, at(1), 4999));
    assert_eq!(tracker.judge(&echo, at(1), 9999), Judgement::New);
}

#[test]
fn errors_are_related_to_the_connection_that_they_quote() {
    let mut tracker = asked();
    let quoted = frame().ipv4(A, B).udp(5000, 53).payload(b"query").build();
    let error = |inner: &[u8]| read(&frame().ipv4(B, A).icmp(3, 3, [0; 4]).payload(inner));
    let good = error(&quoted[14..]);
    assert_eq!(text(tracker.judge(&good, at(2), 1)), "trk|rel|rpl");
    let unrelated = Judgement::Invalid(Invalid::Unrelated);
    assert_eq!(tracker.judge(&good, at(3), 1), unrelated, "of a third port");
    let other = frame().ipv4(A, B).udp(5001, 53).build();
    assert_eq!(tracker.judge(&error(&other[14..]), at(2), 1), unrelated);
    // They keep nothing alive.
    assert_eq!(tracker.judge(&good, at(2), 30_000), unrelated);
}

fn tcp(flags: u16, seq: u32, ack: u32) -> PacketBuilder {
    frame().ipv4(A, B).tcp(TcpFields {
        src_port: 1000,
        dst_port: 80,
        seq,
        ack,
        flags,
        ..TcpFields::default()
    })
}

#[test]
fn a_refusal_ends_with_its_frame() {
    let mut tracker = tracker();
    let syn = read(&tcp(wire::tcp::SYN, 100, 0));
    tracker.commit(&syn, at(1), Some(2), 0);
    let reset = frame().ipv4(B, A).tcp(TcpFields {
        src_port: 80,
        dst_port: 1000,
        ack: 101,
        flags: wire::tcp::RST | wire::tcp::ACK,
        ..TcpFields::default()
    });
    let reset = read(&reset);
    for _ in 0..2 {
        let judged = tracker.judge(&reset, at(2), 1);
        assert!(
            matches!(judged, Judgement::Known { refused: true, .. }),
            "{judged:?}"
        );
    }
    tracker.forget(&reset, at(2), 1);
    let nothing = Judgement::Invalid(Invalid::NoConnection);
    assert_eq!(tracker.judge(&reset, at(2), 1), nothing);
    assert_eq!(tracker.judge(&syn, at(1), 2), Judgement::New);
}

#[test]
fn what_cannot_open_a_connection_is_invalid() {
    let mut tracker = tracker();
    let answer = read(&frame().ipv4(B, A).icmp(0, 0, [0, 7, 0, 1]));
    let nothing = Judgement::Invalid(Invalid::NoConnection);
    assert_eq!(tracker.judge(&answer, at(2), 0), nothing);
    tracker.commit(&answer, at(2), Some(1), 0);
    assert_eq!(tracker.entries(0).count(), 0);
    assert_eq!(text(nothing), "trk|inv");
    let arp = read(&frame().arp_request(A, B));
    assert_eq!(text(tracker.judge(&arp, at(1), 0)), "");
}

/// A part of one datagram, in bytes.
fn part(id: u16, from: usize, to: usize, more: bool) -> Reading {
    let whole = frame().ipv4(A, B).udp(5000, 53).payload(&[0; 92]).build();
    let part = &whole[34 + from..34 + to];
    let piece = frame().ipv4(A, B).protocol(17).ip_id(id);
    read(&piece.fragment((from / 8) as u16, more).payload(part))
}

#[test]
fn fragments_are_what_their_first_one_is() {
    let mut tracker = tracker();
    let later = part(1, 48, 100, false);
    assert_eq!(tracker.judge(&later, at(1), 0), Judgement::EarlyFragment);
    assert_eq!(
        tracker.judge(&part(1, 0, 48, true), at(1), 0),
        Judgement::New
    );
    assert_eq!(tracker.judge(&later, at(1), 0), Judgement::New);
    tracker.commit(&part(1, 0, 48, true), at(1), Some(2), 0);
    assert_eq!(text(tracker.judge(&later, at(1), 1)), "trk|est");
    assert_eq!(
        text(tracker.judge(&part(1, 0, 48, true), at(1), 1)),
        "trk|est",
        "once more"
    );
    assert_eq!(text(tracker.judge(&later, at(1), 1)), "trk|est");
    // Another datagram, another port, and too late.
    for (read, from, now) in [
        (part(2, 48, 100, false), 1, 1),
        (part(1, 48, 100, false), 3, 1),
        (part(1, 48, 100, false), 1, DATAGRAM_TIMEOUT),
    ] {
        assert_eq!(
            tracker.judge(&read, at(from), now),
            Judgement::EarlyFragment
        );
    }
}

/// Rules decide a later fragment as they would its first one.
#[test]
fn a_later_fragment_renews_the_connection() {
    let mut tracker = asked();
    known(tracker.judge(&part(1, 0, 48, true), at(1), 1));
    tracker.epoch += 1;
    let later = part(1, 48, 100, false);
    assert_eq!(text(tracker.judge(&later, at(1), 1)), "trk|est|stale");
    tracker.commit(&later, at(1), Some(2), 1);
    assert_eq!(text(tracker.judge(&later, at(1), 1)), "trk|est");
    tracker.forget(&later, at(1), 1);
    assert_eq!(tracker.entries(1).count(), 0);
}

/// RFC 1858 and RFC 5722: what a later fragment overwrites was not what was judged.
#[test]
fn fragments_that_overlap_are_invalid() {
    let overlap = Judgement::Invalid(Invalid::Overlap);
    let mut tracker = asked();
    known(tracker.judge(&part(1, 0, 48, true), at(1), 1));
    assert_eq!(tracker.judge(&part(1, 40, 100, false), at(1), 1), overlap);
    assert_eq!(
        tracker.judge(&part(1, 48, 100, false), at(1), 1),
        overlap,
        "also those after it"
    );
    known(tracker.judge(&part(2, 0, 48, true), at(1), 1));
    assert_eq!(
        tracker.judge(&part(2, 0, 40, true), at(1), 1),
        overlap,
        "another first one"
    );
    assert_eq!(tracker.judge(&part(2, 48, 100, false), at(1), 1), overlap);
    let tiny = Judgement::Invalid(Invalid::TinyFragment);
    assert_eq!(tracker.judge(&part(3, 0, 4, true), at(1), 1), tiny);
    assert_eq!(tracker.judge(&part(3, 8, 100, false), at(1), 1), tiny);
}

#[test]
fn a_port_has_its_share_of_datagrams() {
    let mut tracker = asked();
    known(tracker.judge(&part(1, 0, 48, true), at(1), 0));
    // Another port's do not displace it.
    for id in 0..200 {
        let _ = tracker.judge(&part(id, 0, 48, true), at(3), 1);
    }
    known(tracker.judge(&part(1, 48, 100, false), at(1), 1));
    for id in 2..=DATAGRAMS_OF_PORT as u16 {
        known(tracker.judge(&part(id, 0, 48, true), at(1), 1));
    }
    known(tracker.judge(&part(1, 48, 100, false), at(1), 1));
    known(tracker.judge(&part(900, 0, 48, true), at(1), 1));
    let displaced = tracker.judge(&part(1, 48, 100, false), at(1), 1);
    assert_eq!(displaced, Judgement::EarlyFragment);
}
