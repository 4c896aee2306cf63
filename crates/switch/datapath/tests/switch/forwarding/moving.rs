//! Queue pairs that move from worker to worker under traffic: every frame arrives once, in its
//! sender's order.

use std::time::Instant;

use crate::common::queue;
use datapath::ports::guest::GuestPort;
use datapath::worker::workers::Workers;
use ipc::records::Answer;
use ipc::supervision::Poll;
use port::PortId;
use port::counters::Counters;
use testkit::features::{RING_PACKED, VERSION_1};
use testkit::guest_ram::{GuestRam, RegionSpec};
use testkit::net::{NetHeader, NetOptions, NetPair};
use wire::flow::{FlowKey, FlowMask};
use wire::virtio::features::Features;

pub(crate) const TO: PortId = PortId(1);
pub(crate) const SENDERS: [PortId; 2] = [PortId(0), PortId(2)];
const MOVES: usize = 300;
const BURST: usize = 20;
pub(crate) use testkit::wait::LIMIT;

pub(crate) fn attach(workers: &Workers, port: PortId, features: u64) -> (GuestRam, NetPair) {
    attach_as(workers, port, features, || GuestPort::new(None))
}

pub(crate) fn attach_as(
    workers: &Workers,
    port: PortId,
    features: u64,
    make: impl Fn() -> GuestPort + Clone + Send + 'static,
) -> (GuestRam, NetPair) {
    let ram = GuestRam::heap(&[RegionSpec::at(0x10_0000, 24 << 20)]);
    let mut nic = NetPair::new(&ram, NetOptions::new(features, 128));
    nic.offer();
    workers.each(move |w| w.switch.add_port(port, make().into()));
    for (index, driver) in [(0u16, &nic.rx), (1, &nic.tx)] {
        let negotiated = Features::from_bits_truncate(features);
        workers
            .start_queue(port, index, queue(&ram, driver, features), negotiated)
            .expect("the port is there");
    }
    (ram, nic)
}

pub(crate) fn everything_to_one_port(workers: &Workers) {
    everything_to_one_port_on(workers, 0..workers.count());
}

/// Installs the same flow on some threads only.
fn everything_to_one_port_on(workers: &Workers, threads: std::ops::Range<usize>) {
    for from in SENDERS {
        let answer = Answer::unicast(
            &FlowKey::default().with_in_port(from.0),
            &FlowMask::NONE.with_in_port(),
            TO,
        );
        for thread in threads.clone() {
            let answer = answer.clone();
            workers.on(thread, move |w| {
                let now = w.now();
                w.switch.answer(answer, now);
            });
        }
    }
}

pub(crate) fn frame(sender: usize, n: usize) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, sender as u8, 0x88, 0xb5]);
    frame[14..22].copy_from_slice(&(n as u64).to_be_bytes());
    frame
}

#[test]
fn nothing_is_lost_or_reordered_by_a_move() {
    let counters = Counters::heap();
    let (workers, _notices) = Workers::start(3, Poll::Always, &counters, 7).expect("threads");
    let (_to_ram, mut to) = attach(&workers, TO, VERSION_1);
    let [(_ram0, mut nic0), (_ram2, mut nic2)] = [VERSION_1, VERSION_1 | RING_PACKED]
        .into_iter()
        .zip(SENDERS)
        .map(|(features, port)| attach(&workers, port, features))
        .collect::<Vec<_>>()
        .try_into()
        .expect("two");
    everything_to_one_port(&workers);
    let mut next = [0; 2];
    for round in 0..MOVES {
        for (sender, nic) in [&mut nic0, &mut nic2].into_iter().enumerate() {
            nic.reclaim().expect("a correct device");
            for n in round * BURST..(round + 1) * BURST {
                assert!(
                    nic.stage(&frame(sender, n), &NetHeader::default())
                        .expect("a correct device")
                );
            }
            nic.tx.publish();
        }
        workers.move_pair((SENDERS[round % 2], 0), round % 3);
        let since = Instant::now();
        while next != [(round + 1) * BURST; 2] {
            assert!(since.elapsed() < LIMIT, "round {round}: {next:?} arrived");
            while let Some(got) = to.receive().expect("a correct device") {
                let sender = usize::from(got.frame[11]);
                assert_eq!(got.frame, frame(sender, next[sender]), "round {round}");
                next[sender] += 1;
            }
            to.offer();
            std::thread::yield_now();
        }
    }
    assert_eq!(
        counters.read(TO).to_guest.packets,
        (2 * MOVES * BURST) as u64
    );
    for port in SENDERS {
        assert_eq!(
            workers.stop_queue(port, 1).map(|_| ()),
            Some(()),
            "its position"
        );
    }
}

#[test]
fn a_pair_whose_frames_wait_for_control_is_not_moved() {
    const HOME: usize = 0;
    const NEW: usize = 1;
    let counters = Counters::heap();
    let (workers, _notices) = Workers::start(2, Poll::Always, &counters, 7).expect("threads");
    let (_to_ram, mut to) = attach(&workers, TO, VERSION_1);
    let (_ram, mut nic) = attach(&workers, SENDERS[0], VERSION_1);
    let pair = (SENDERS[0], 0);
    workers.move_pair(pair, HOME);
    // Only the new home worker has the flow, as if from frames of another pair.
    everything_to_one_port_on(&workers, NEW..NEW + 1);
    let mut send = |numbers: std::ops::Range<usize>| {
        for n in numbers {
            let staged = nic.stage(&frame(0, n), &NetHeader::default());
            assert!(staged.expect("a correct device"));
        }
        nic.tx.publish();
    };
    let mut next = 0;
    let mut all_until = |last: usize| {
        let since = Instant::now();
        while next != last {
            assert!(since.elapsed() < LIMIT, "{next} of {last} arrived");
            while let Some(got) = to.receive().expect("a correct device") {
                assert_eq!(got.frame, frame(0, next), "in their order");
                next += 1;
            }
            to.offer();
            std::thread::yield_now();
        }
    };
    send(0..BURST);
    let pending = || workers.on(HOME, |w| w.switch.figures().pending);
    let since = Instant::now();
    while pending() != BURST as u64 {
        assert!(since.elapsed() < LIMIT, "{} pending", pending());
    }
    assert!(!workers.move_pair(pair, NEW), "frames of it wait");
    send(BURST..2 * BURST);
    // Control's answer is late. It releases the pending frames before later ones are sent.
    everything_to_one_port_on(&workers, HOME..HOME + 1);
    all_until(2 * BURST);
    assert!(workers.move_pair(pair, NEW), "nothing waits any more");
    send(2 * BURST..3 * BURST);
    all_until(3 * BURST);
}
