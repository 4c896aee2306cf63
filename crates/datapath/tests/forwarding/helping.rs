//! Queue pairs that are handed to helpers and back under traffic: every frame arrives once, in its
//! sender's order.

use std::time::Instant;

use channel::supervision::{HelpersConfig, Poll};
use datapath::worker::idle::helper::Help;
use datapath::worker::workers::Workers;
use port::counters::Counters;
use sched::topology;
use testkit::features::{RING_PACKED, VERSION_1};
use testkit::net::{NetHeader, NetPair};

use crate::moving::{BURST, LIMIT, SENDERS, TO, attach, everything_to_one_port, frame};

const ROUNDS: usize = 300;

/// Returns one worker with a helper on each core; helpers are ordinary threads and serve any pair
/// with frames.
fn eager(counters: &Counters) -> Workers {
    let allowed = topology::allowed();
    let cores = topology::read(topology::SYSTEM.as_ref(), &allowed);
    let settings = HelpersConfig {
        enabled: true,
        ..HelpersConfig::default()
    };
    let help = Help {
        eager: true,
        ..Help::new(settings, cores)
    };
    let (workers, notices) =
        Workers::start(Some(1), Poll::Always, counters, 7, help).expect("threads");
    assert_eq!(usize::from(workers.help().0), allowed.len());
    // Not read in this test.
    std::mem::forget(notices);
    workers
}

/// Sends a burst from each sender, and checks the arriving frames until all have arrived.
fn round(n: usize, nics: &mut [NetPair; 2], to: &mut NetPair, next: &mut [usize; 2]) {
    for (sender, nic) in nics.iter_mut().enumerate() {
        nic.reclaim().expect("a correct device");
        for n in n * BURST..(n + 1) * BURST {
            let staged = nic.stage(&frame(sender, n), &NetHeader::default());
            assert!(staged.expect("a correct device"));
        }
        nic.tx.publish();
    }
    let since = Instant::now();
    while *next != [(n + 1) * BURST; 2] {
        assert!(since.elapsed() < LIMIT, "round {n}: {next:?} arrived");
        while let Some(got) = to.receive().expect("a correct device") {
            let sender = usize::from(got.frame[11]);
            assert_eq!(got.frame, frame(sender, next[sender]), "round {n}");
            next[sender] += 1;
        }
        to.offer();
        std::thread::yield_now();
    }
}

#[test]
fn nothing_is_lost_or_reordered_by_a_handoff() {
    let counters = Counters::heap();
    let workers = eager(&counters);
    let (_to_ram, mut to) = attach(&workers, TO, VERSION_1);
    let (_ram0, nic0) = attach(&workers, SENDERS[0], VERSION_1);
    let (_ram2, nic2) = attach(&workers, SENDERS[1], VERSION_1 | RING_PACKED);
    let mut nics = [nic0, nic2];
    everything_to_one_port(&workers);
    let (mut next, mut rounds) = ([0; 2], 0);
    // Helpers on the worker's own core get no pairs.
    let can_help = topology::allowed().len() > 1;
    let since = Instant::now();
    while rounds < ROUNDS || can_help && workers.help().1 == 0 {
        assert!(since.elapsed() < LIMIT, "no helper takes a pair");
        round(rounds, &mut nics, &mut to, &mut next);
        rounds += 1;
        if rounds % 7 == 0 {
            workers.quiesce();
            workers.resume();
        }
    }
    let sent = (2 * rounds * BURST) as u64;
    assert_eq!(counters.read(TO).to_guest.packets, sent);
    for port in SENDERS {
        let from = counters.read(port);
        assert_eq!(from.from_guest.packets, sent / 2, "each is counted once");
        assert!(workers.stop_queue(port, 1).is_some(), "its position");
    }
    assert!(workers.help().1 <= sent);
}

/// Flows that only the home worker knows: helpers return pairs with unknown flows, with all frames.
#[test]
fn frames_that_helpers_do_not_know_are_served_at_home() {
    let counters = Counters::heap();
    let workers = eager(&counters);
    let (_to_ram, mut to) = attach(&workers, TO, VERSION_1);
    let (_ram0, nic0) = attach(&workers, SENDERS[0], VERSION_1);
    let (_ram2, nic2) = attach(&workers, SENDERS[1], VERSION_1 | RING_PACKED);
    let mut nics = [nic0, nic2];
    crate::moving::everything_to_one_port_on(&workers, 0..1);
    let mut next = [0; 2];
    for n in 0..ROUNDS {
        round(n, &mut nics, &mut to, &mut next);
    }
    assert_eq!(workers.help().1, 0);
    for port in SENDERS {
        let counts = counters.read(port);
        assert_eq!(counts.from_guest.packets, (ROUNDS * BURST) as u64);
        assert!(counts.drops.iter().all(|count| *count == 0));
    }
}
