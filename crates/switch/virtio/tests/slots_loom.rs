//! Every interleaving of a client that sends and a switch that goes to sleep, by loom: the steps
//! of slot queues in the order in which `queue/slots` and clients do them, on loom's atomics, with
//! the queue's own comparison of indices.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicU16, fence};
use loom::thread;

#[path = "../src/queue/event.rs"]
mod event;

use event::need_event;

/// The words of one queue, and the eventfd of its kicks.
#[derive(Default)]
struct Shared {
    head: AtomicU16,
    /// netmap: the switch wants a kick when `head` passes it.
    kick_event: AtomicU16,
    /// memif: the switch wants no kicks.
    mask: AtomicBool,
    kicked: AtomicBool,
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// Runs a client beside a switch that looks, asks for kicks, looks again, and sleeps. Returns
/// whether the client's slot is found or kicked for before the sleep has no end. `later`: the
/// switch looks once more when the client's stores have become visible.
fn is_found(client: fn(&Shared), ask: fn(&Shared), later: bool) -> bool {
    let shared = Arc::new(Shared::default());
    // Events of the lap before, and masked kicks: the switch is awake.
    shared.kick_event.store(0xfff0, Relaxed);
    shared.mask.store(true, Relaxed);
    let theirs = Arc::clone(&shared);
    let client = thread::spawn(move || client(&theirs));
    ask(&shared);
    fence(SeqCst);
    let seen = shared.head.load(Acquire) != 0;
    // All stores of a thread are visible to the one that joins it, as they are to every other core
    // a moment after.
    client.join().unwrap();
    let kicked = shared.kicked.load(Relaxed);
    seen || kicked || (later && shared.head.load(Acquire) != 0)
}

fn netmap_client(shared: &Shared) {
    shared.head.store(1, Release);
    fence(SeqCst);
    if need_event(shared.kick_event.load(Relaxed), 1, 0) {
        shared.kicked.store(true, Relaxed);
    }
}

fn netmap_ask(shared: &Shared) {
    shared.kick_event.store(0, Relaxed);
}

/// As libmemif, VPP and DPDK do: no fence between the store and the load.
fn memif_client(shared: &Shared) {
    shared.head.store(1, Release);
    if !shared.mask.load(Relaxed) {
        shared.kicked.store(true, Relaxed);
    }
}

fn memif_ask(shared: &Shared) {
    shared.mask.store(false, Relaxed);
}

#[test]
fn no_wake_up_of_a_netmap_client_is_lost() {
    model(|| assert!(is_found(netmap_client, netmap_ask, false)));
}

/// The interleaving that `worker/second_looks.rs` exists for is there, and the second look ends
/// it.
#[test]
fn a_wake_up_of_a_memif_client_is_lost_but_for_the_second_look() {
    let lost = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = std::sync::Arc::clone(&lost);
    model(move || {
        if !is_found(memif_client, memif_ask, false) {
            seen.store(true, SeqCst);
        }
    });
    assert!(lost.load(SeqCst), "clients have a fence now");
    model(|| assert!(is_found(memif_client, memif_ask, true)));
}

/// A client that waits for room, and a switch that publishes its tail: the same in the other
/// direction.
#[test]
fn no_call_of_a_client_that_waits_is_lost() {
    model(|| {
        let tail = Arc::new((AtomicU16::new(0), AtomicU16::new(0xfff0)));
        let theirs = Arc::clone(&tail);
        let client = thread::spawn(move || {
            theirs.1.store(0, Relaxed);
            fence(SeqCst);
            theirs.0.load(Acquire) == 1
        });
        tail.0.store(1, Release);
        fence(SeqCst);
        let called = need_event(tail.1.load(Relaxed), 1, 0);
        assert!(client.join().unwrap() || called);
    });
}
