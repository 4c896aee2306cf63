//! What a thread that revokes memory waits for: batches that are under way, and not the front ends
//! whose guests these notify.

use std::os::fd::OwnedFd;
use std::sync::mpsc;

use datapath::worker::workers::Workers;
use ipc::supervision::Poll;
use port::counters::Counters;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_setfl};
use testkit::features::{RING_PACKED, VERSION_1};
use testkit::net::{NetHeader, NetPair};
use testkit::wait::wait_until;

use crate::forwarding::moving::{LIMIT, SENDERS, TO, attach, everything_to_one_port, frame};
use crate::forwarding::suppressed_kicks::{has_received, kick};

fn workers(count: u16) -> Workers {
    let counters = Counters::heap();
    let started = Workers::start(count, Poll::Adaptive, &counters, 7);
    let (workers, notices) = started.expect("threads");
    // Not read in these tests.
    std::mem::forget(notices);
    workers
}

/// Blocks the signal by which its watchdog interrupts the calling thread.
fn block_watchdog() {
    // SAFETY: a signal set is plain data, and is made empty before it is used.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGUSR1);
        let before = std::ptr::null_mut();
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &signals, before), 0);
    }
}

/// Has every write to an eventfd block until it is read.
fn have_block(event: &OwnedFd) {
    fcntl_setfl(event, OFlags::empty()).expect("a flag");
    rustix::io::read(event, &mut [0; 8]).expect("a count");
    rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).expect("room");
}

/// Runs `job` while a descriptor blocks, and reads the descriptor behind it. Where the job waits
/// for that, it is read before: returns whether.
fn waits_for(event: &OwnedFd, job: impl FnOnce()) -> bool {
    let (done, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let waits = ended.recv_timeout(LIMIT).is_err();
            rustix::io::read(event, &mut [0; 8]).expect("a count");
            waits
        });
        job();
        let _ = done.send(());
        reader.join().expect("no panic")
    })
}

fn send(nic: &mut NetPair, n: usize) {
    let sent = nic.send(&frame(0, n), &NetHeader::default());
    assert!(sent.expect("a correct device"));
}

/// A worker hangs in its write to the call descriptor of a sender or a receiver, and its watchdog
/// has no effect. It holds no queue meanwhile: none of the receiver, and none of the sender.
#[test]
fn a_call_descriptor_that_blocks_holds_up_no_pass() {
    for features in [VERSION_1, VERSION_1 | RING_PACKED] {
        for (port, index) in [(TO, 0), (SENDERS[0], 1)] {
            let workers = workers(1);
            let (_to_ram, mut to) = attach(&workers, TO, features);
            let (_from_ram, mut from) = attach(&workers, SENDERS[0], features);
            let (_other_ram, _other) = attach(&workers, SENDERS[1], features);
            everything_to_one_port(&workers);
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("one");
            let call = event.try_clone().expect("a copy");
            workers.on_port(port, move |guest| guest.set_call(index, Some(call.into())));
            workers.first(|_| block_watchdog());
            have_block(&event);
            to.rx.set_notifications(port == TO);
            from.tx.set_notifications(port != TO);
            send(&mut from, 0);
            kick(&workers);
            // Its buffers are published while the queues are locked.
            wait_until("a frame", || to.rx.used_waiting() > 0);
            let waits = waits_for(&event, || {
                for port in [TO, SENDERS[0], SENDERS[1]] {
                    workers.pass(port);
                }
            });
            assert!(!waits, "for the descriptor of port {}", port.0);
            workers.first(|_| ());
            assert!(has_received(&mut to));
        }
    }
}

/// Workers that lock their queues again at once do not keep a pass from its end.
#[test]
fn a_pass_ends_under_traffic() {
    let workers = workers(2);
    let (_to_ram, mut to) = attach(&workers, TO, VERSION_1);
    let mut senders = SENDERS.map(|port| attach(&workers, port, VERSION_1));
    everything_to_one_port(&workers);
    let mut received = 0;
    for round in 0..100 {
        for (_, nic) in &mut senders {
            nic.reclaim().expect("a correct device");
            for n in 0..8 {
                let staged = nic.stage(&frame(0, 8 * round + n), &NetHeader::default());
                assert!(staged.expect("a correct device"));
            }
            nic.tx.publish();
        }
        for port in SENDERS {
            workers.pass(TO);
            workers.pass(port);
            workers.retry(port);
        }
        wait_until("the frames", || {
            while has_received(&mut to) {
                received += 1;
            }
            received >= 16 * (round + 1)
        });
    }
    workers.stop_queue(TO, 0);
    assert!(workers.pass(TO).is_zero(), "no queue to wait for");
}

/// A worker that sleeps looks at a pair again without a kick of its guest.
#[test]
fn a_retry_stands_for_a_kick() {
    for features in [VERSION_1, VERSION_1 | RING_PACKED] {
        let workers = workers(2);
        let (_to_ram, mut to) = attach(&workers, TO, VERSION_1);
        let (_from_ram, mut from) = attach(&workers, SENDERS[0], features);
        everything_to_one_port(&workers);
        let mut n = 0;
        wait_until("a frame that needs a kick", || {
            send(&mut from, n);
            n += 1;
            let needs_kick = from.tx.needs_kick();
            if needs_kick {
                workers.retry(SENDERS[0]);
            }
            wait_until("a frame", || has_received(&mut to));
            needs_kick
        });
    }
}
