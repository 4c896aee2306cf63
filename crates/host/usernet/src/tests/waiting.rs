//! Reasons why a flow waits, in each state, and the time of its last progress.

use wire::tcp::{ACK, FIN, SYN};

use super::host::Host;
use super::packets::{IRS, SERVER, answer, established, fields, host, tcp};
use crate::{ListedFlow, Nanos, SocketEvent, SocketQueues, TimerKind, WaitsFor};

const MS: Nanos = 1_000_000;

/// The flow waits for this, with a free buffer or without one.
fn waits(host: &Host, has_buffer: bool) -> WaitsFor {
    let queues = SocketQueues {
        unread: (host.socket.arrived - host.socket.discarded) as u32,
        unsent: host.socket.queued.len() as u32,
    };
    let flow = host.flow.unwrap();
    host.translator.waits_for(flow, &queues, has_buffer)
}

fn listed(host: &Host) -> ListedFlow {
    host.translator.listed(0).unwrap()
}

/// A segment of the guest without payload, with a window.
fn window(host: &mut Host, ack: u32, window: u16) {
    let taken = host.socket.read.len() + host.socket.queued.len();
    let at = IRS.wrapping_add(1 + taken as u32);
    let mut frame = tcp(SERVER, fields(5000, at, ack, ACK), &[]);
    frame[48..50].copy_from_slice(&window.to_be_bytes());
    host.frame(&frame);
}

#[test]
fn a_guest_that_does_not_read_closes_its_window() {
    let mut host = host();
    let next = established(&mut host);
    assert_eq!(waits(&host, true), WaitsFor::Nothing);
    window(&mut host, next, 0);
    assert_eq!(waits(&host, true), WaitsFor::Nothing, "nothing has come");
    host.socket.script = vec![7; 5000];
    host.now += 100 * MS;
    host.step(0, 5000);
    for has_buffer in [true, false] {
        assert_eq!(waits(&host, has_buffer), WaitsFor::GuestWindow);
    }
    let (kind, _) = listed(&host).timer.unwrap();
    assert_eq!((kind, listed(&host).progress), (TimerKind::Probe, 0));
    // A probe is no retransmission.
    for _ in 0..3 {
        host.now = host.translator.deadline().unwrap();
        host.step(0, 0);
        host.serve(9);
    }
    assert_eq!(waits(&host, true), WaitsFor::GuestWindow);
    let shown = listed(&host).tcp.unwrap();
    assert_eq!((shown.window, shown.retransmissions), (0, 0));
    // The window is open for less than all that waits.
    host.frames.clear();
    window(&mut host, next, 3000);
    assert_eq!(waits(&host, true), WaitsFor::Turn);
    assert_eq!(waits(&host, false), WaitsFor::Buffer);
    host.serve(9);
    assert_eq!(waits(&host, true), WaitsFor::GuestWindow);
    assert_eq!(listed(&host).tcp.unwrap().unacknowledged, 3000 / 536 * 536);
    let now = host.now;
    window(&mut host, next.wrapping_add(536), 60_000);
    assert_eq!(listed(&host).progress, now);
    host.serve(99);
    assert_eq!(waits(&host, true), WaitsFor::Acknowledgement);
    window(&mut host, next.wrapping_add(5000), 60_000);
    assert_eq!(waits(&host, true), WaitsFor::Nothing);
    let (kind, _) = listed(&host).timer.unwrap();
    assert_eq!(kind, TimerKind::KeepAlive);
    // Bytes have come, and the event has not.
    host.serve(1);
    host.socket.script.push(7);
    host.socket.arrived += 1;
    assert_eq!(waits(&host, true), WaitsFor::Turn);
}

#[test]
fn a_guest_that_is_gone_acknowledges_nothing() {
    let mut host = host();
    established(&mut host);
    host.socket.script = vec![7; 100];
    host.step(0, 100);
    host.serve(1);
    for timeouts in 0..3 {
        assert_eq!(waits(&host, true), WaitsFor::Acknowledgement);
        let shown = listed(&host);
        assert_eq!(shown.tcp.unwrap().retransmissions, timeouts);
        assert_eq!(shown.timer.unwrap().0, TimerKind::Retransmission);
        assert_eq!(shown.progress, 0);
        host.now = host.translator.deadline().unwrap();
        host.step(0, 0);
        host.serve(1);
    }
}

#[test]
fn a_peer_that_does_not_read_fills_the_socket() {
    let mut host = host();
    let next = established(&mut host);
    let at = IRS.wrapping_add(1);
    host.now += 5 * MS;
    host.frame(&tcp(SERVER, fields(5000, at, next, ACK), &[7; 1000]));
    assert_eq!(waits(&host, true), WaitsFor::HostSocket);
    assert_eq!(listed(&host).progress, 5 * MS);
    host.socket.buffer = 1000;
    host.now += 5 * MS;
    let frame = tcp(
        SERVER,
        fields(5000, at.wrapping_add(1000), next, ACK),
        &[7; 9],
    );
    host.frame(&frame);
    assert_eq!(waits(&host, true), WaitsFor::HostSocket);
    let shown = listed(&host);
    assert_eq!((shown.progress, shown.tcp.unwrap().room), (5 * MS, 0));
    // The way to the guest comes first.
    window(&mut host, next, 0);
    host.socket.script = vec![7; 10];
    host.step(0, 10);
    assert_eq!(waits(&host, true), WaitsFor::GuestWindow);
    window(&mut host, next, 1000);
    host.serve(9);
    window(&mut host, next.wrapping_add(10), 1000);
    host.step(1000, 0);
    assert_eq!(waits(&host, true), WaitsFor::Nothing);
}

#[test]
fn a_connection_waits_for_the_end_that_is_to_answer() {
    let mut host = host();
    // The model's socket connects at once.
    host.frame(&tcp(SERVER, fields(5000, IRS, 0, SYN), &[]));
    answer(&mut host);
    assert_eq!(waits(&host, true), WaitsFor::Acknowledgement);
    host.now = host.translator.deadline().unwrap();
    host.step(0, 0);
    assert_eq!(listed(&host).tcp.unwrap().retransmissions, 1);
    let mut out = Vec::new();
    let guest = ("10.0.2.15:80".parse().unwrap(), super::GUEST);
    let peer = "192.0.2.9:4000".parse().unwrap();
    let translator = &mut host.translator;
    let accepted = translator.accepted(0, guest, peer, 10, &mut out).unwrap();
    let none = SocketQueues::default();
    let waits_for = |host: &Host, flow| host.translator.waits_for(flow, &none, true);
    assert_eq!(waits_for(&host, accepted), WaitsFor::Acknowledgement);
    let frame = tcp(SERVER, fields(5001, IRS, 0, SYN), &[]);
    out.clear();
    let header = wire::virtio::net::NetHeader::default();
    let translator = &mut host.translator;
    translator.frame(0, &frame, frame.len(), &header, &mut out);
    let Some(crate::Action::Connect(connecting, _)) = out.first() else {
        panic!("{out:?}");
    };
    assert_eq!(waits_for(&host, *connecting), WaitsFor::HostSocket);
    let timer = host.translator.listed(2).unwrap().timer.unwrap();
    assert_eq!(timer.0, TimerKind::Expiry);
}

#[test]
fn the_end_of_a_stream_is_acknowledged_like_bytes() {
    let mut host = host();
    let next = established(&mut host);
    host.socket.closes_after = 0;
    host.event(SocketEvent::Readable);
    host.serve(9);
    assert_eq!(waits(&host, true), WaitsFor::Acknowledgement);
    assert_eq!(listed(&host).tcp.unwrap().unacknowledged, 0);
    host.now = host.translator.deadline().unwrap();
    host.step(0, 0);
    assert_eq!(listed(&host).tcp.unwrap().retransmissions, 1);
    let (at, next) = (IRS.wrapping_add(1), next.wrapping_add(1));
    host.frame(&tcp(SERVER, fields(5000, at, next, ACK | FIN), &[]));
    assert_eq!(waits(&host, true), WaitsFor::Nothing);
    assert_eq!(listed(&host).timer.unwrap().0, TimerKind::Expiry);
}
