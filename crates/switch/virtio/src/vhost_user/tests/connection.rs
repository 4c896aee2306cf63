//! The socket: pieces, floods, cut-off descriptors, and a front end that does not read.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use wire::virtio::vhost_user::{HEADER_LEN, Header};

use super::super::message::MAX_PAYLOAD;
use super::super::{Connection, Message, PeekResult};
use super::*;

fn pair() -> (UnixStream, Connection) {
    let (theirs, ours) = UnixStream::pair().expect("a pair");
    (theirs, Connection::new(ours).expect("a connection"))
}

fn header(code: u32, flags: u32, size: u32) -> Vec<u8> {
    Header { code, flags, size }.to_bytes().to_vec()
}

fn send_fds(socket: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    let sent = sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::empty(),
    );
    assert_eq!(sent.expect("sent"), bytes.len());
}

fn expect_message(connection: &mut Connection) -> (Message, Vec<sys::foreign::ForeignFd>) {
    connection.recv().expect("no fault").expect("a message")
}

#[test]
fn a_message_may_come_byte_by_byte() {
    let (mut theirs, mut ours) = pair();
    let bytes = [header(8, 1 | 8, 8), state(1, 256)].concat();
    for byte in &bytes[..bytes.len() - 1] {
        theirs.write_all(&[*byte]).expect("sent");
        assert!(ours.recv().expect("no fault").is_none());
    }
    theirs.write_all(&bytes[bytes.len() - 1..]).expect("sent");
    let (message, fds) = expect_message(&mut ours);
    assert_eq!(
        message,
        Message {
            code: 8,
            need_reply: true,
            payload: state(1, 256)
        }
    );
    assert!(fds.is_empty());
}

#[test]
fn several_messages_at_once_are_taken_one_by_one() {
    let (mut theirs, mut ours) = pair();
    theirs
        .write_all(&[header(1, 1, 0), header(3, 1, 0)].concat())
        .expect("sent");
    assert_eq!(expect_message(&mut ours).0.code, 1);
    assert_eq!(expect_message(&mut ours).0.code, 3);
    assert!(ours.recv().expect("no fault").is_none());
    drop(theirs);
    assert!(ours.recv().expect_err("the end").is_close());
}

#[test]
fn descriptors_stay_with_their_message_and_are_not_inherited() {
    let (mut theirs, mut ours) = pair();
    let (fd, watch) = watched();
    let bytes = [header(12, 1, 8), u64s(&[0])].concat();
    send_fds(&theirs, &bytes[..5], &[fd]);
    assert!(ours.recv().expect("no fault").is_none());
    theirs.write_all(&bytes[5..]).expect("sent");
    theirs.write_all(&header(1, 1, 0)).expect("sent");
    let (_, fds) = expect_message(&mut ours);
    assert_eq!(fds.len(), 1);
    let flags = rustix::io::fcntl_getfd(&fds[0]).expect("flags");
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    assert!(expect_message(&mut ours).1.is_empty());
    drop(fds);
    assert!(is_closed(&watch));
}

#[test]
fn more_descriptors_than_any_message_carries_end_the_connection() {
    // The control buffer may have room for a few more than requested; the kernel cuts off the
    // others.
    for count in [9, 10, 60] {
        let (theirs, mut ours) = pair();
        let (fds, watches): (Vec<_>, Vec<_>) = (0..count).map(|_| watched()).unzip();
        send_fds(&theirs, &header(5, 1, 0), &fds);
        drop(fds);
        let fault = ours.recv().expect_err("a fault");
        assert!(
            matches!(fault, Fault::FdsTruncated | Fault::TooManyFds(_)),
            "{fault}"
        );
        assert!(watches.iter().all(is_closed));
    }
}

#[test]
fn descriptors_spread_over_one_message_are_counted_together() {
    let (theirs, mut ours) = pair();
    let (fds, watches): (Vec<_>, Vec<_>) = (0..10).map(|_| watched()).unzip();
    let bytes = header(5, 1, 0);
    send_fds(&theirs, &bytes[..4], &fds[..5]);
    send_fds(&theirs, &bytes[4..], &fds[5..]);
    drop(fds);
    assert_eq!(ours.recv().expect_err("a fault"), Fault::TooManyFds(10));
    assert!(watches.iter().all(is_closed));
}

#[test]
fn an_unfinished_message_keeps_its_descriptors_no_longer_than_the_connection() {
    let (theirs, mut ours) = pair();
    let (fd, watch) = watched();
    send_fds(&theirs, &header(12, 1, 8), &[fd]);
    assert!(ours.recv().expect("no fault").is_none());
    assert!(!is_closed(&watch));
    drop(theirs);
    assert_eq!(ours.recv().expect_err("a fault"), Fault::ClosedMidMessage);
    assert!(is_closed(&watch));
}

#[test]
fn headers_that_cannot_be() {
    for (bytes, expected) in [
        (header(1, 0, 0), Fault::Version(0)),
        (header(1, 2, 0), Fault::Version(2)),
        (header(1, 5, 0), Fault::UnexpectedReply(1)),
        (
            header(5, 1, 4097),
            Fault::Oversized {
                code: 5,
                size: 4097,
            },
        ),
        (
            header(5, 1, u32::MAX),
            Fault::Oversized {
                code: 5,
                size: u32::MAX,
            },
        ),
    ] {
        let (mut theirs, mut ours) = pair();
        theirs.write_all(&bytes).expect("sent");
        assert_eq!(
            ours.recv().expect_err("a fault"),
            expected,
            "before any payload"
        );
    }
    let (mut theirs, mut ours) = pair();
    let longest = [header(5, 1, MAX_PAYLOAD as u32), vec![7; MAX_PAYLOAD]].concat();
    theirs.write_all(&longest).expect("sent");
    assert_eq!(expect_message(&mut ours).0.payload.len(), MAX_PAYLOAD);
}

#[test]
fn the_end_within_a_header_is_a_fault() {
    let (mut theirs, mut ours) = pair();
    theirs.write_all(&[1, 0]).expect("sent");
    drop(theirs);
    assert_eq!(ours.recv().expect_err("a fault"), Fault::ClosedMidMessage);
}

#[test]
fn a_reply_carries_header_payload_and_descriptor() {
    let (mut theirs, mut ours) = pair();
    ours.send(Reply {
        code: 31,
        payload: vec![7; 24],
        fd: Some(event()),
    })
    .expect("sent");
    assert!(!ours.wants_write());
    let mut bytes = [0; HEADER_LEN + 24];
    theirs.read_exact(&mut bytes).expect("a reply");
    let (head, rest) = bytes.split_first_chunk().expect("a header");
    assert_eq!(
        Header::parse(*head),
        Header {
            code: 31,
            flags: 1 | 4,
            size: 24
        }
    );
    assert_eq!(rest, [7; 24]);
}

#[test]
fn a_front_end_that_does_not_read_blocks_only_itself() {
    let (mut theirs, mut ours) = pair();
    let mut replies = 0;
    while !ours.wants_write() {
        ours.send(Reply::new(24, vec![replies as u8; 268]))
            .expect("sent");
        replies += 1;
        assert!(replies < 100_000);
    }
    theirs.write_all(&header(1, 1, 0)).expect("sent");
    assert!(
        ours.recv().expect("no fault").is_none(),
        "the reply goes first"
    );

    let mut read = 0;
    let mut buffer = vec![0; 1 << 16];
    while read < replies * (HEADER_LEN + 268) {
        read += theirs.read(&mut buffer).expect("replies");
        ours.flush().expect("no fault");
    }
    assert_eq!(expect_message(&mut ours).0.code, 1);
}

#[test]
fn a_reply_to_nobody_is_a_fault_and_not_a_signal() {
    let (theirs, mut ours) = pair();
    drop(theirs);
    let fault = ours.send(Reply::new(1, vec![0; 8])).expect_err("a fault");
    assert!(matches!(fault, Fault::Socket("send", _)), "{fault}");
}

fn whole(connection: &mut Connection) -> (Message, Vec<sys::foreign::ForeignFd>) {
    match connection.peek().expect("no fault") {
        PeekResult::Whole(message, fds) => (message, fds),
        other => panic!("no whole message: {other:?}"),
    }
}

#[test]
fn a_message_stays_until_it_is_done() {
    let (mut theirs, mut ours) = pair();
    assert!(matches!(ours.peek(), Ok(PeekResult::Nothing)));
    let (fd, watch) = watched();
    let bytes = [header(12, 1, 8), u64s(&[1])].concat();
    send_fds(&theirs, &bytes, &[fd]);
    let (other, other_watch) = watched();
    send_fds(&theirs, &header(7, 1, 0), &[other]);
    for _ in 0..3 {
        let (message, fds) = whole(&mut ours);
        assert_eq!((message.code, fds.len()), (12, 1));
    }
    let (message, fds) = whole(&mut ours);
    ours.consume(&message, 1).expect("no fault");
    assert!(!is_closed(&watch));
    drop(fds);
    assert!(is_closed(&watch), "none is left in the socket");
    let (message, fds) = whole(&mut ours);
    assert_eq!((message.code, fds.len()), (7, 1));
    ours.consume(&message, 1).expect("no fault");
    drop(fds);
    assert!(is_closed(&other_watch));
    theirs.write_all(&header(1, 2, 0)).expect("sent");
    assert!(ours.peek().is_err(), "another version");
    drop(theirs);
}

#[test]
fn descriptors_of_the_next_message_are_not_this_ones() {
    let (mut theirs, mut ours) = pair();
    theirs.write_all(&header(1, 1, 0)).expect("sent");
    let no_fd = [header(12, 1, 8), u64s(&[1 << 8])].concat();
    theirs.write_all(&no_fd).expect("sent");
    send_fds(&theirs, &header(7, 1, 0), &[event()]);
    for (code, count) in [(1, 0), (12, 0), (7, 1)] {
        let (message, fds) = whole(&mut ours);
        assert_eq!((message.code, fds.len()), (code, count));
        ours.consume(&message, count).expect("no fault");
    }
    // Those of one that may have none are found at the latest when it is taken away.
    for more in [false, true] {
        send_fds(&theirs, &header(1, 1, 0), &[event()]);
        if more {
            theirs.write_all(&header(1, 1, 0)).expect("sent");
        }
        let (message, fds) = whole(&mut ours);
        assert_eq!(fds.len(), usize::from(!more));
        let taken = ours.consume(&message, 0);
        let fault = taken.expect_err("a descriptor too many");
        assert!(matches!(fault, Fault::WrongFds { got: 1, .. }), "{fault}");
    }
}

#[test]
fn a_message_in_pieces_is_seen_as_such() {
    let (mut theirs, mut ours) = pair();
    let bytes = [header(8, 1, 8), state(1, 256)].concat();
    for cut in [1, HEADER_LEN - 1, HEADER_LEN, HEADER_LEN + 3] {
        theirs.write_all(&bytes[..cut]).expect("sent");
        assert!(matches!(ours.peek(), Ok(PeekResult::Pieces)));
        assert!(ours.recv().expect("no fault").is_none());
        assert!(ours.is_mid_message());
        theirs.write_all(&bytes[cut..]).expect("sent");
        assert!(matches!(ours.peek(), Ok(PeekResult::Pieces)));
        assert_eq!(expect_message(&mut ours).0.code, 8);
        assert!(!ours.is_mid_message());
    }
    drop(theirs);
    assert!(ours.peek().expect_err("the end").is_close());
}

#[test]
fn who_closes_with_a_message_unread_does_not_reset_the_connection() {
    let (mut theirs, mut ours) = pair();
    let bytes = [header(200, 1, 8), state(1, 256)].concat();
    let file = memfd(4096);
    send_fds(&theirs, &bytes, &[file]);
    assert!(matches!(ours.peek(), Ok(PeekResult::Whole(..))));
    let kept = ours.as_fd().try_clone_to_owned().expect("a copy");
    ours.end();
    let mut rest = Vec::new();
    assert_eq!(theirs.read_to_end(&mut rest).expect("an end, no reset"), 0);
    assert!(theirs.write(&bytes).is_err(), "the reader is gone");
    drop(kept);
    assert_eq!(theirs.read_to_end(&mut rest).expect("an end, no reset"), 0);
}

#[test]
fn who_only_lets_go_of_a_connection_leaves_its_messages_to_a_successor() {
    let (mut theirs, ours) = pair();
    let (fd, watch) = watched();
    let bytes = [header(12, 1, 8), u64s(&[1])].concat();
    send_fds(&theirs, &bytes, &[fd]);
    let kept = ours.as_fd().try_clone_to_owned().expect("a copy");
    drop(ours);
    theirs.write_all(&header(1, 1, 0)).expect("a listener");
    let mut successor = Connection::new(kept).expect("a connection");
    let (message, fds) = whole(&mut successor);
    assert_eq!((message.code, fds.len()), (12, 1));
    successor.consume(&message, 1).expect("no fault");
    assert_eq!(whole(&mut successor).0.code, 1);
    drop(fds);
    assert!(is_closed(&watch));
}
