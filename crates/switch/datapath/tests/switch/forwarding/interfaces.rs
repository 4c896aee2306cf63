//! Ports with an interface of the host, at several workers. A socket pair is the interface: as with
//! a TAP device, each call moves a frame with its header, and its descriptor reports edges.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use crate::forwarding::moving::{LIMIT, attach, frame};
use datapath::forward::limits::PortLimits;
use datapath::ports::guest::GuestPort;
use datapath::ports::interface::InterfaceQueues;
use datapath::worker::workers::Workers;
use ipc::driving::{BackEnd, InterfaceStart};
use ipc::limits::{Limit, Limits, Rate};
use ipc::records::Answer;
use ipc::supervision::Poll;
use port::PortId;
use port::counters::Counters;
use rustix::io::{read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use testkit::features::{RING_PACKED, VERSION_1};
use testkit::net::{NetHeader, NetPair};
use testkit::wait::wait_until;
use wire::flow::{FlowKey, FlowMask};

const INTERFACE: PortId = PortId(0);
const GUEST: PortId = PortId(1);
const HEADER: usize = 12;
/// Frames each way.
const FRAMES: u64 = 1500;
/// Frames on their way at most: the guest has buffers for them.
const WINDOW: u64 = 48;

/// Returns workers with a guest, all frames of which go to an interface, and back; and the system's
/// end of that.
fn scene(count: u16, poll: Poll, counters: &Counters) -> (Workers, NetPair, OwnedFd) {
    let (workers, _notices) = Workers::start(count, poll, counters, 7).expect("threads");
    let (_ram, nic) = attach(&workers, GUEST, VERSION_1 | RING_PACKED);
    workers.each(|w| {
        w.switch.add_port(INTERFACE, GuestPort::new(None).into());
        for (from, to) in [(INTERFACE, GUEST), (GUEST, INTERFACE)] {
            let (key, mask) = (FlowKey::default().with_in_port(from.0), FlowMask::NONE);
            let answer = Answer::unicast(&key, &mask.with_in_port(), to);
            let now = w.now();
            w.switch.answer(answer, now);
        }
    });
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, system) = pair.expect("sockets");
    let start = InterfaceStart {
        back_end: BackEnd::Tap,
        uso: true,
    };
    let queues = InterfaceQueues::new(INTERFACE, start, vec![ours]).expect("a TAP device");
    for sender in 0..2 {
        arrives(&system, sender);
    }
    workers
        .attach_interface(INTERFACE, &queues, None)
        .expect("the port is there");
    (workers, nic, system)
}

/// Has the system send frame number `n`, if there is room.
fn arrives(system: &OwnedFd, n: u64) -> bool {
    write(system, &[&[0; HEADER], &frame(0, n as usize)[..]].concat()).is_ok()
}

/// Returns the next frame that the system has got.
fn left(system: &OwnedFd) -> Option<Vec<u8>> {
    let mut buffer = [0; 2048];
    let len = read(system, &mut buffer).ok()?;
    // It is closed at its end.
    Some(buffer.get(HEADER..len)?.to_vec())
}

/// Takes what the guest has got; the first one is number `next`. Returns the number of the next.
fn received(nic: &mut NetPair, mut next: u64) -> u64 {
    while let Some(got) = nic.receive().expect("a correct device") {
        assert_eq!(got.frame, frame(0, next as usize), "frame {next}");
        next += 1;
    }
    nic.offer();
    next
}

fn send(nic: &mut NetPair, n: u64) {
    nic.reclaim().expect("a correct device");
    let staged = nic.stage(&frame(1, n as usize), &NetHeader::default());
    assert!(staged.expect("a correct device"), "room");
}

/// An edge of the interface is reported to the worker that has its pair at that moment, or to none:
/// the next one reads until nothing is left.
#[test]
fn nothing_is_lost_or_reordered_when_pairs_move() {
    let counters = Counters::heap();
    let (workers, mut nic, system) = scene(3, Poll::Always, &counters);
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let since = Instant::now();
            let mut next = 2;
            while next < FRAMES {
                assert!(since.elapsed() < LIMIT, "{next} were sent");
                if next < seen.load(SeqCst) + WINDOW && arrives(&system, next) {
                    next += 1;
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let since = Instant::now();
        let (mut to_guest, mut sent, mut to_system) = (0, 0, 0);
        let mut moves = [0usize; 2];
        while to_guest < FRAMES || to_system < FRAMES {
            let late = since.elapsed() >= LIMIT;
            assert!(!late, "{to_guest} and {to_system} arrived, {moves:?} moves");
            for (port, moves) in [INTERFACE, GUEST].into_iter().zip(&mut moves) {
                *moves += usize::from(workers.move_pair((port, 0), *moves % 3));
            }
            to_guest = received(&mut nic, to_guest);
            seen.store(to_guest, SeqCst);
            while sent < FRAMES.min(to_system + WINDOW) {
                send(&mut nic, sent);
                sent += 1;
            }
            nic.tx.publish();
            while let Some(got) = left(&system) {
                assert_eq!(got, frame(1, to_system as usize), "frame {to_system}");
                to_system += 1;
            }
        }
        assert!(moves.iter().all(|moves| *moves > 10), "{moves:?}");
    });
    for port in [INTERFACE, GUEST] {
        let counts = counters.read(port);
        assert_eq!(counts.to_guest.packets, FRAMES);
        assert_eq!(counts.drops.iter().sum::<u64>(), 0);
    }
}

/// A worker that leaves a queue, perhaps to another process, has frames that it has read: these
/// wait for nothing any more.
#[test]
fn frames_that_were_read_leave_with_their_queue_also_beyond_a_limit() {
    let counters = Counters::heap();
    // No other pair is active, beside which batches would be short.
    let (workers, mut nic, system) = scene(1, Poll::Adaptive, &counters);
    let packets = Some(Rate {
        per_second: 1,
        burst: 3,
    });
    let limits = Limits {
        from_guest: Limit {
            packets,
            bits: None,
        },
        ..Limits::default()
    };
    let mut next = 0;
    wait_until("the first frames arrive", || {
        next = received(&mut nic, next);
        next == 2
    });
    let limits = PortLimits::new(limits);
    workers.first(move |w| w.set_limits(INTERFACE, limits));
    // The worker reads no frame before all are there.
    let from = system.try_clone().expect("a descriptor");
    workers.first(move |_| assert!((2..42).all(|n| arrives(&from, n))));
    wait_until("some arrive", || {
        next = received(&mut nic, next);
        next > 2
    });
    assert!(next < 20, "the others wait: {next}");
    workers.quiesce();
    next = received(&mut nic, next);
    assert_eq!(next, 42);
    // What was not read stays, and is read by who serves the queue next.
    assert!((42..44).all(|n| arrives(&system, n)));
    assert_eq!(received(&mut nic, next), 42);
    workers.first(|w| w.set_limits(INTERFACE, None));
    workers.resume();
    wait_until("they arrive", || {
        next = received(&mut nic, next);
        next == 44
    });
    assert_eq!(counters.read(GUEST).to_guest.packets, 44);
}

#[test]
fn counters_include_what_an_interface_takes_at_its_end() {
    let counters = Counters::heap();
    let (workers, mut nic, system) = scene(2, Poll::Always, &counters);
    let waits = |workers: &Workers| {
        let port = workers.first(|w| {
            let port = w.switch.port_mut(INTERFACE).expect("a port");
            datapath::ports::port::Port::buffers(port)
        });
        port.is_some_and(|buffers| buffers.used > 10)
    };
    let mut sent = 0;
    wait_until("frames wait for the interface", || {
        send(&mut nic, sent);
        nic.tx.publish();
        sent += 1;
        waits(&workers)
    });
    wait_until("the switch has taken all", || {
        nic.reclaim().expect("a correct device");
        nic.tx.outstanding() == 0
    });
    workers.detach_interface(INTERFACE);
    let mut got = 0;
    while left(&system).is_some() {
        got += 1;
    }
    // Before a worker tries again, as a rule.
    let last = workers.remove_interface(INTERFACE).expect("counters");
    while left(&system).is_some() {
        got += 1;
    }
    assert_eq!((got, last.sent.frames), (sent, sent));
    assert_eq!(counters.read(INTERFACE).to_guest.packets, sent);
}
