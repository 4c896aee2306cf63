//! Coalesced kicks: a guest that sends steadily kicks once for several frames, and no frame waits
//! for a kick that is not to come.

use std::time::{Duration, Instant};

use datapath::ports::coalescing::Rules;
use datapath::ports::guest::GuestPort;
use datapath::worker::workers::Workers;
use ipc::supervision::{Coalescing, Poll};
use port::counters::Counters;
use testkit::features::{EVENT_IDX, RING_PACKED, VERSION_1};
use testkit::net::{NetHeader, NetPair};
use testkit::wait::wait_until;

use crate::forwarding::frame;
use crate::forwarding::moving::{SENDERS, TO, attach_as, everything_to_one_port};
use crate::forwarding::suppressed_kicks::{has_received, kick};

/// Longer than the gaps of a sender on a busy machine, microseconds.
const WINDOW_US: u32 = 1000;
const ROUND: u32 = 100;

struct Scene {
    workers: Workers,
    from: NetPair,
    to: NetPair,
}

/// Starts a worker with a sending and a receiving guest.
fn scene(features: u64, kick_us: u32) -> (Scene, impl Sized) {
    let (workers, notices) = Workers::start(1, Poll::Adaptive, &Counters::heap(), 7).unwrap();
    let rules = Rules::of(Some(Coalescing {
        period_us: 125,
        threshold: 64,
        kick_us,
    }));
    let attach = |id, features| {
        attach_as(&workers, id, features, move || {
            GuestPort::new(None).with_rules(rules)
        })
    };
    let (to_ram, to) = attach(TO, VERSION_1);
    let (from_ram, from) = attach(SENDERS[0], VERSION_1 | features);
    everything_to_one_port(&workers);
    let scene = Scene { workers, from, to };
    (scene, (notices, to_ram, from_ram))
}

impl Scene {
    /// Sends a frame. Returns whether the guest kicked.
    fn send(&mut self) -> bool {
        let (bytes, _) = frame(0, 60, false);
        wait_until("a free descriptor", || {
            self.from.reclaim().unwrap();
            self.from.send(&bytes, &NetHeader::default()).unwrap()
        });
        let kicks = self.from.tx.needs_kick();
        if kicks {
            kick(&self.workers);
        }
        kicks
    }

    fn receive(&mut self) {
        wait_until("a frame", || has_received(&mut self.to));
    }

    /// Sends a frame in each 20 microseconds. Returns the number of kicks.
    fn round(&mut self) -> u32 {
        let mut kicks = 0;
        for _ in 0..ROUND {
            let sent = Instant::now();
            kicks += u32::from(self.send());
            while sent.elapsed() < Duration::from_micros(20) {
                std::hint::spin_loop();
            }
        }
        (0..ROUND).for_each(|_| self.receive());
        kicks
    }
}

#[test]
fn a_steady_sender_kicks_once_for_several_frames() {
    for features in [0, EVENT_IDX, RING_PACKED | EVENT_IDX] {
        let (mut scene, _kept) = scene(features, WINDOW_US);
        // The worker measures the rate at first.
        wait_until("kicks are few", || scene.round() < ROUND / 4);
    }
}

#[test]
fn each_frame_arrives_whatever_the_guest_was_asked_for() {
    for features in [0, EVENT_IDX, RING_PACKED | EVENT_IDX] {
        let (mut scene, _kept) = scene(features, WINDOW_US);
        let mut silent = 0;
        wait_until("frames without a kick arrive", || {
            // A steady sender that stops, and then has one outstanding frame at a time.
            scene.round();
            for _ in 0..20 {
                silent += u32::from(!scene.send());
                scene.receive();
            }
            silent > 40
        });
    }
}

#[test]
fn a_queue_that_stops_while_its_kicks_are_coalesced_is_left_alone() {
    let (mut scene, _kept) = scene(EVENT_IDX, WINDOW_US);
    wait_until("kicks are few", || scene.round() < ROUND / 4);
    for index in [0, 1] {
        scene.workers.stop_queue(SENDERS[0], index);
    }
    // The timer expires, and the worker goes on.
    std::thread::sleep(Duration::from_micros(5 * u64::from(WINDOW_US)));
    scene.workers.first(|_| ());
}
