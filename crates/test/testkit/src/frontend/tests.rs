use std::os::fd::AsFd;

use super::*;
use crate::guest_ram::{GuestRam, RegionSpec};
use crate::wait::LIMIT;

fn pair() -> (FrontEnd, FrontEnd) {
    let (a, b) = UnixStream::pair().expect("sockets");
    (
        FrontEnd::over(a, LIMIT).expect("a socket"),
        FrontEnd::over(b, LIMIT).expect("a socket"),
    )
}

fn reply(peer: &FrontEnd, code: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
    peer.send_raw(code, VERSION | FLAG_REPLY, body.len() as u32, body, fds)
        .expect("a listener");
}

#[test]
fn refusals_and_wrong_replies_are_distinguished() {
    let (mut front, peer) = pair();
    front.protocol = protocol::REPLY_ACK;
    reply(&peer, request::SET_OWNER, &7u64.to_le_bytes(), &[]);
    let refused = front.set_owner();
    assert!(matches!(
        refused,
        Err(FrontError::Refused {
            request: request::SET_OWNER,
            code: 7
        })
    ));
    assert_eq!(
        peer.receive().expect("the request").flags,
        VERSION | FLAG_NEED_REPLY
    );
    reply(&peer, request::GET_STATUS, &0u64.to_le_bytes(), &[]);
    assert!(matches!(
        front.get_features(),
        Err(FrontError::BadReply { .. })
    ));
    reply(&peer, request::GET_FEATURES, &[0; 4], &[]);
    assert!(matches!(
        front.get_features(),
        Err(FrontError::BadReply { .. })
    ));
    front.acknowledge = false;
    front.set_owner().expect("there is no reply and no wait");
}

#[test]
fn inflight_memory_goes_round() {
    let (mut front, peer) = pair();
    for size in [20, 24] {
        let mut body = [4096u64, 64].map(u64::to_le_bytes).concat();
        body.extend([2u16, 256, 0, 0].map(u16::to_le_bytes).concat());
        let fd = useless_fd();
        reply(
            &peer,
            request::GET_INFLIGHT_FD,
            &body[..size],
            &[fd.as_fd()],
        );
        let memory = front.get_inflight(2, 256).expect("memory");
        assert_eq!(
            (memory.size, memory.offset, memory.queues, memory.queue_size),
            (4096, 64, 2, 256)
        );
        let _asked = peer.receive().expect("the request");
        front.set_inflight(&memory).expect("sent");
        let set = peer.receive().expect("the request");
        assert_eq!((set.body.as_slice(), set.fds.len()), (body.as_slice(), 1));
    }
    let fds = [useless_fd(), useless_fd()];
    let both: Vec<BorrowedFd<'_>> = fds.iter().map(|f| f.as_fd()).collect();
    reply(&peer, request::GET_INFLIGHT_FD, &[0; 24], &both);
    assert!(matches!(
        front.get_inflight(2, 256),
        Err(FrontError::BadReply { .. })
    ));
}

#[test]
fn anything_can_be_sent() {
    let (front, peer) = pair();
    let fds: Vec<OwnedFd> = (0..MAX_FDS - 1).map(|_| useless_fd()).collect();
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|f| f.as_fd()).collect();
    front
        .send_raw(0xffff_ffff, 0xabcd, 3, b"abc", &borrowed)
        .expect("sent");
    let got = peer.receive().expect("a message");
    assert_eq!(
        (got.request, got.flags, got.body.as_slice()),
        (u32::MAX, 0xabcd, &b"abc"[..])
    );
    assert_eq!(got.fds.len(), MAX_FDS - 1);
    front
        .send_raw(1, VERSION, u32::MAX, &[], &[])
        .expect("sent");
    assert!(matches!(peer.receive(), Err(FrontError::BadReply { .. })));
    front.send_bytes(b"half", &[]).expect("sent");
    drop(front);
    assert!(peer.closes_within(LIMIT));
}

#[test]
fn the_mac_and_the_memory_stand_where_the_specification_says() {
    let (mut front, peer) = pair();
    front.send_rarp([1, 2, 3, 4, 5, 6]).expect("sent");
    assert_eq!(
        peer.receive().expect("a request").body,
        [1, 2, 3, 4, 5, 6, 0, 0]
    );
    let specs = [
        RegionSpec::at(0x1000, 4096),
        RegionSpec {
            file_offset: 8192,
            ..RegionSpec::at(0x9000, 4096)
        },
    ];
    let ram = GuestRam::memfd(&specs).expect("memory");
    front.set_mem_table(&ram).expect("sent");
    let table = peer.receive().expect("a request");
    assert_eq!(
        (table.body.len(), table.fds.len(), table.body[0]),
        (8 + 64, 2, 2)
    );
    assert_eq!(table.body[8 + 32 + 24..], 8192u64.to_le_bytes());
    front.add_mem_reg(&ram.regions()[1]).expect("sent");
    let one = peer.receive().expect("a request");
    assert_eq!((one.body.len(), one.fds.len()), (40, 1));
    assert_eq!(one.body[8..16], 0x9000u64.to_le_bytes());
    reply(
        &peer,
        request::GET_VRING_BASE,
        &[3u32, 77].map(u32::to_le_bytes).concat(),
        &[],
    );
    assert_eq!(front.get_vring_base(3).expect("a base"), 77);
}

#[test]
fn the_listening_side_waits_so_long_and_no_longer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("front.sock");
    let listener = FrontListener::bind(&path).expect("a socket");
    assert!(matches!(
        listener.accept(Duration::from_millis(1)),
        Err(FrontError::Timeout(_))
    ));
    let caller = FrontEnd::connect(&path, LIMIT).expect("a listener");
    let accepted = listener.accept(LIMIT).expect("a caller");
    caller.send_raw(1, VERSION, 0, &[], &[]).expect("sent");
    assert_eq!(accepted.receive().expect("a message").request, 1);
    drop(listener);
    assert!(FrontEnd::connect(&path, Duration::ZERO).is_err());
}

#[test]
fn events_count() {
    let (a, b) = (
        Event::new().expect("an event"),
        Event::new().expect("an event"),
    );
    assert_eq!(a.wait(Duration::ZERO), 0);
    b.signal();
    b.signal();
    assert!(wait_any(&[&a, &b], LIMIT));
    assert_eq!((a.take(), b.wait(LIMIT), b.take()), (0, 2, 0));
}
