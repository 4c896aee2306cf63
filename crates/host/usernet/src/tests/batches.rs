//! Segments that come together and leave by one call: they have one report, and are acknowledged
//! behind it.

use wire::tcp::{ACK, FIN, TcpView};

use super::host::Host;
use super::packets::{IRS, SERVER, established, fields, host, tcp};
use crate::headers::RST;

const FIRST: u32 = IRS.wrapping_add(1);

/// An established flow whose driver waits for more segments; returns the next sequence number
/// towards the guest.
fn batching() -> (Host, u32) {
    let mut host = host();
    let next = established(&mut host);
    host.waiting = Some(Vec::new());
    (host, next)
}

/// The acknowledgements of frames to the guest, from the first byte of the guest on.
fn acks(host: &mut Host) -> Vec<u32> {
    let frames = std::mem::take(&mut host.frames);
    let ack = |frame: &Vec<u8>| TcpView::new_checked(&frame[34..]).unwrap().ack();
    let ack = |frame| ack(frame).wrapping_sub(FIRST);
    frames.iter().map(ack).collect()
}

fn frame(host: &mut Host, next: u32, at: u32, flags: u16, payload: &[u8]) {
    let seq = FIRST.wrapping_add(at);
    host.frame(&tcp(SERVER, fields(5000, seq, next, flags), payload));
}

#[test]
fn segments_that_come_together_get_one_acknowledgement() {
    let (mut host, next) = batching();
    for at in 0..5 {
        frame(&mut host, next, at * 100, ACK, &[at as u8; 100]);
    }
    assert!(acks(&mut host).is_empty());
    host.flush();
    assert_eq!(acks(&mut host), [500]);
    let whole: Vec<u8> = (0..5).flat_map(|at| [at; 100]).collect();
    assert!(host.socket.queued == whole);
}

#[test]
fn what_the_system_does_not_take_comes_again() {
    let (mut host, next) = batching();
    host.socket.buffer = 250;
    for at in 0..3 {
        frame(&mut host, next, at * 100, ACK, &[1; 100]);
    }
    frame(&mut host, next, 300, ACK | FIN, &[1; 10]);
    host.flush();
    assert_eq!(acks(&mut host), [250]);
    assert!(!host.socket.shut, "bytes are missing in front of the end");
    host.step(250, 0);
    assert_eq!(acks(&mut host), [250], "the window opens");
    frame(&mut host, next, 250, ACK | FIN, &[1; 60]);
    host.flush();
    assert_eq!(acks(&mut host), [311]);
    assert!(host.socket.shut);
}

#[test]
fn segments_behind_a_gap_are_answered_behind_pending_bytes() {
    let (mut host, next) = batching();
    frame(&mut host, next, 0, ACK, &[1; 100]);
    frame(&mut host, next, 200, ACK, &[1; 100]);
    frame(&mut host, next, 300, ACK, &[1; 100]);
    assert!(acks(&mut host).is_empty());
    host.flush();
    assert_eq!(acks(&mut host), [100; 3], "two duplicates");
    frame(&mut host, next, 100, ACK, &[1; 100]);
    frame(&mut host, next, 0, ACK, &[1; 100]);
    assert_eq!(acks(&mut host), [100], "an old segment is answered at once");
    host.flush();
    assert_eq!(acks(&mut host), [200]);
}

#[test]
fn the_end_follows_pending_bytes() {
    let (mut host, next) = batching();
    frame(&mut host, next, 0, ACK, &[1; 100]);
    frame(&mut host, next, 100, ACK | FIN, &[]);
    assert!(!host.socket.shut);
    host.flush();
    assert_eq!(acks(&mut host), [101]);
    // Behind the end there is nothing that counts.
    frame(&mut host, next, 101, ACK, &[1; 10]);
    host.flush();
    assert_eq!(acks(&mut host), [101]);
    assert!(host.socket.shut);
    assert_eq!(host.socket.queued.len(), 100);
}

#[test]
fn a_reset_behind_pending_bytes_counts() {
    let (mut host, next) = batching();
    frame(&mut host, next, 0, ACK, &[1; 100]);
    frame(&mut host, next, 50, RST, &[]);
    frame(&mut host, next, 100, RST, &[]);
    assert_eq!(host.socket.closed, Some(true));
    assert!(
        acks(&mut host).is_empty(),
        "one in front of the next byte is none"
    );
}
