use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::*;
use crate::link::{Link, LinkEvent};
use crate::records::{Answer, StaleFlows, Upcall};
use crate::state::{PARTS_MAX, Part, Place, StateFile};
use crate::supervision::{
    ControlRequest, EventToControl, EventToSwitch, Request, SessionRequest, SocketRequest,
    SwitchRequest,
};

fn links() -> (
    Link<ControlRequest, EventToControl>,
    Link<EventToControl, ControlRequest>,
) {
    let (a, b) = link::pair().unwrap();
    (Link::new(a), Link::new(b))
}

#[test]
fn messages_keep_their_borders_and_descriptors() {
    let (child, mut parent) = links();
    let listen = ControlRequest::Sockets(SocketRequest::Unlisten {
        path: "a".parse().unwrap(),
    });
    child.send(&ControlRequest::Ready, &[]).unwrap();
    child.send(&listen, &[std::io::stderr().as_fd()]).unwrap();
    let LinkEvent::Message(first, fds) = parent.recv().unwrap() else {
        panic!("no message");
    };
    assert_eq!((first, fds.len()), (ControlRequest::Ready, 0));
    let LinkEvent::Message(second, fds) = parent.recv().unwrap() else {
        panic!("no message");
    };
    assert_eq!((second, fds.len()), (listen, 1));
    let flags = rustix::io::fcntl_getfd(&fds[0]).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    drop(child);
    assert!(matches!(parent.recv().unwrap(), LinkEvent::Closed));
}

#[test]
fn a_peer_that_ends_with_unread_messages_is_gone_and_its_own_are_read() {
    let (child, mut parent) = links();
    parent.send(&EventToControl::Stop, &[]).unwrap();
    child.send(&ControlRequest::SwitchGone, &[]).unwrap();
    drop(child);
    let LinkEvent::Message(last, _) = parent.recv().unwrap() else {
        panic!("no message");
    };
    assert_eq!(last, ControlRequest::SwitchGone);
    assert!(matches!(parent.recv().unwrap(), LinkEvent::Closed));

    let (child, parent) = links();
    parent.send(&EventToControl::Stop, &[]).unwrap();
    drop(child);
    for _ in 0..2 {
        let sent = parent.send(&EventToControl::Stop, &[]);
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn a_message_that_is_none_is_an_error() {
    let (a, b) = link::pair().unwrap();
    let mut parent: Link<EventToControl, ControlRequest> = Link::new(b);
    rustix::net::send(&a, &[0xff; 40], rustix::net::SendFlags::empty()).unwrap();
    assert!(parent.recv().is_err());
    parent.set_nonblocking().unwrap();
    assert!(matches!(parent.recv().unwrap(), LinkEvent::Nothing));
}

/// Sends a datagram that says that its message is in this file.
fn send_file(to: &OwnedFd, file: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [file];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let flags = SendFlags::empty();
    rustix::net::sendmsg(to, &[IoSlice::new(&[1])], &mut control, flags).unwrap();
}

#[test]
fn a_long_message_travels_in_a_file() {
    let (child, mut parent) = links();
    let dials = vec![(port::PortId(1), "vm1.sock".parse().unwrap()); 1 << 17];
    let request = ControlRequest::from(SocketRequest::Dials(dials));
    child.send(&request, &[]).unwrap();
    match parent.recv().unwrap() {
        LinkEvent::Message(got, fds) => assert!(got == request && fds.is_empty()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_could_block_or_change_is_no_message() {
    let (a, b) = link::pair().unwrap();
    let mut parent: Link<EventToControl, ControlRequest> = Link::new(b);
    // A read of it would never return.
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    send_file(&a, event.as_fd());
    assert!(parent.recv().is_err());
    // As `ControlRequest::Ready` is, but not sealed.
    let memory = rustix::fs::memfd_create("m", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::write(&memory, &[0]).unwrap();
    send_file(&a, memory.as_fd());
    assert!(parent.recv().is_err());
    rustix::fs::fcntl_add_seals(
        &memory,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW,
    )
    .unwrap();
    send_file(&a, memory.as_fd());
    let ready = parent.recv().unwrap();
    assert!(
        matches!(ready, LinkEvent::Message(ControlRequest::Ready, _)),
        "{ready:?}"
    );
}

#[test]
fn a_message_that_is_too_long_is_not_decoded() {
    let (a, b) = link::pair().unwrap();
    let child: Link<SwitchRequest, EventToSwitch> = Link::new(a);
    let mut parent: Link<EventToSwitch, SwitchRequest> = Link::new(b);
    let request = |numbers| {
        SwitchRequest::Sessions(SessionRequest::StoreSession {
            port: port::PortId(1),
            record: Vec::new(),
            numbers: vec![0; numbers],
        })
    };
    // Numbers of one byte each take eight in memory; the longest travels in a file.
    for numbers in [120 << 10, 8 << 20] {
        child.send(&request(numbers), &[]).unwrap();
        let got = parent.recv_within(SwitchRequest::MAX_BYTES);
        assert!(got.is_err(), "{numbers}");
    }
    child.send(&request(1), &[]).unwrap();
    let got = parent.recv_within(SwitchRequest::MAX_BYTES).unwrap();
    assert!(matches!(got, LinkEvent::Message(got, _) if got == request(1)));
}

#[test]
fn a_message_with_something_behind_it_is_none() {
    let (a, b) = link::pair().unwrap();
    let mut parent: Link<EventToControl, ControlRequest> = Link::new(b);
    for (bytes, good) in [(&[0, 0][..], true), (&[0, 0, 0], false)] {
        rustix::net::send(&a, bytes, SendFlags::empty()).unwrap();
        assert_eq!(parent.recv().is_ok(), good, "{bytes:?}");
    }
}

#[test]
fn a_message_without_room_is_not_sent_and_nobody_waits() {
    let (a, b) = link::pair().unwrap();
    let child: Link<SwitchRequest, EventToSwitch> = Link::new(a);
    let mut parent: Link<EventToSwitch, SwitchRequest> = Link::new(b);
    let ask = |number: u64| {
        let port = port::PortId(1);
        SwitchRequest::Sessions(SessionRequest::StoreDescriptor { port, number })
    };
    let fds = [std::io::stderr()];
    let fds = fds.each_ref().map(AsFd::as_fd);
    child.set_nonblocking().unwrap();
    let room = |n: u64| match child.send_at_once(&ask(n), &fds) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
        sent => sent.map(|()| true).unwrap(),
    };
    let sent = (0..).take_while(|n| room(*n));
    let sent = sent.count() as u64;
    assert!(sent > 0);
    for n in 0..sent {
        let got = parent.recv().unwrap();
        assert!(
            matches!(&got, LinkEvent::Message(got, fds) if *got == ask(n) && fds.len() == 1),
            "{got:?}"
        );
    }
    assert!(room(0), "room again");
    drop(parent);
    let sent = child.send_at_once(&ask(0), &fds);
    let gone = sent.expect_err("no peer");
    assert_ne!(gone.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn threads_that_do_not_get_on_are_told_from_busy_ones() {
    let file = rustix::fs::memfd_create("slots", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, keeping::CRASH_RECORD_LEN).unwrap();
    let slots = keeping::ThreadSlots::map(&file).unwrap();
    let [session, one, two] = [0, 1, 2].map(|thread| slots.of(thread));
    let [a, b, c] = [1, 2, 3].map(port::PortId);
    session.serve(a);
    one.serve(b);
    two.serve(c);
    let before = keeping::SlotSnapshot::at(&file).unwrap();
    assert_eq!(
        keeping::SlotSnapshot::at(&file)
            .unwrap()
            .stuck_since(&before),
        [b, c],
        "the session thread may wait for a worker"
    );
    assert_eq!(before.served_by_workers(), [b, c]);
    two.serve(c);
    let now = keeping::SlotSnapshot::at(&file).unwrap();
    assert_eq!(now.stuck_since(&before), [b], "the same port, again");
    one.rest();
    let now = keeping::SlotSnapshot::at(&file).unwrap();
    assert_eq!(now.stuck_since(&before), [a]);
    session.rest();
    let now = keeping::SlotSnapshot::at(&file).unwrap();
    assert_eq!(now.stuck_since(&before), []);
    let again = keeping::SlotSnapshot::at(&file).unwrap();
    assert_eq!(again.stuck_since(&now), [c], "and still");
    assert_eq!(keeping::suspects(&file).unwrap(), [c]);
    assert_eq!(keeping::suspects(&file).unwrap(), [], "wiped");
}

#[test]
fn the_state_file_keeps_the_last_whole_document() {
    let file = StateFile::create().unwrap();
    assert_eq!(file.load().unwrap(), None);
    for round in 0..5u8 {
        let document = vec![round; 1000 * usize::from(round)];
        file.save(&document).unwrap();
        let other = StateFile::from_fd(file.as_fd().try_clone_to_owned().unwrap());
        assert_eq!(other.load().unwrap(), Some(document));
    }
    assert!(file.save(&vec![0; 65 << 20]).is_err());
    assert_eq!(
        file.load().unwrap().unwrap().len(),
        4000,
        "a refusal changes nothing"
    );
}

#[test]
fn a_state_file_with_the_number_of_no_slot_is_refused() {
    let file = StateFile::create().unwrap();
    file.save(b"first").unwrap();
    rustix::io::pwrite(&file, &5_u64.to_le_bytes(), 0).unwrap();
    assert_eq!(file.load().unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn parts_stand_behind_each_other_in_one_half_of_their_place() {
    let file = StateFile::create().unwrap();
    let mut place = Place::default();
    let texts = ["one", "three", "seven"];
    let parts = texts.map(|text| file.save_part(&mut place, text.as_bytes()).unwrap());
    let read = |parts: &[Part; 3]| parts.map(|part| file.load_part(part).unwrap());
    assert_eq!(read(&parts), texts.map(|text| text.as_bytes().to_vec()));
    assert_eq!(place.used(), 13);
    assert_eq!(Place::behind(parts).used(), 13);
    let mut other = place.other_half();
    let others = texts.map(|_| file.save_part(&mut other, b"!").unwrap());
    assert_eq!(read(&parts)[0], b"one");
    assert_eq!(Place::behind(others).other_half().used(), 0);
    let mut again = Place::behind(others).other_half();
    file.save_part(&mut again, b"ten").unwrap();
    assert_eq!(read(&parts)[0], b"ten", "where the first half begins");
    let most = vec![0; PARTS_MAX as usize - 2];
    let full = file.save_part(&mut other, &most).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::FileTooLarge);
    let nowhere: Part =
        postcard::from_bytes(&postcard::to_allocvec(&(PARTS_MAX, u64::MAX)).unwrap()).unwrap();
    assert_eq!(
        file.load_part(nowhere).unwrap_err().kind(),
        ErrorKind::InvalidData
    );
}

#[test]
fn records_cross_the_shared_region_both_ways() {
    let region = shared::Region::create().unwrap();
    let copy = region.try_clone().unwrap();
    let (mut upcalls, mut answers) = region.switch_ends().unwrap();
    let (mut to_switch, mut from_switch) = copy.control_ends().unwrap();
    let upcall = Upcall {
        id: 7,
        key: [1; 8],
        frame_len: 60,
        headers: vec![9; 60],
        connection: None,
    };
    let answer = Answer::Forget(StaleFlows::Station {
        segment: policy::SegmentId(2),
        mac: [3; 6],
    });
    assert!(from_switch.prepare_sleep());
    assert!(upcalls.send(&upcall));
    upcalls.ring_bell();
    let mut fds = [rustix::event::PollFd::new(
        &from_switch,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    assert_eq!(
        rustix::event::poll(&mut fds, Some(&now)).unwrap(),
        1,
        "the bell rings"
    );
    from_switch.rang();
    assert_eq!(from_switch.recv::<Upcall>().unwrap(), Some(upcall));
    assert_eq!(from_switch.recv::<Upcall>().unwrap(), None);
    assert!(to_switch.send(&answer));
    assert_eq!(answers.recv::<Answer>().unwrap(), Some(answer));
}

#[test]
fn a_full_ring_refuses_and_loses_nothing() {
    let region = shared::Region::create().unwrap();
    let copy = region.try_clone().unwrap();
    let (mut upcalls, _answers) = region.switch_ends().unwrap();
    let (_to_switch, mut from_switch) = copy.control_ends().unwrap();
    let make = |id| Upcall {
        id,
        key: [0; 8],
        frame_len: 192,
        headers: vec![0; 192],
        connection: None,
    };
    let sent = (0..).take_while(|&id| upcalls.send(&make(id))).count() as u64;
    assert!(sent > 1000, "{sent} upcalls have room");
    for id in 0..sent {
        assert_eq!(from_switch.recv::<Upcall>().unwrap().unwrap().id, id);
    }
    assert_eq!(from_switch.recv::<Upcall>().unwrap(), None);
}

#[test]
fn keys_survive_their_words() {
    let words = std::array::from_fn(|i| 0x0102_0304_0506_0708 * (i as u64 + 1));
    assert_eq!(records::key_from_words(&words).words(), &words);
    assert_eq!(records::mask_from_words(&words).words(), &words);
}
