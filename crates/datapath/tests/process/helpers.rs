//! Guests with an IOMMU while helpers copy, and not only the worker.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use sched::topology;
use testkit::iommu::{IommuConfig, Mode, is_canary};
use testkit::net::NetHeader;
use testkit::packets::{Flow, tcp_super};
use testkit::skip::skipped;
use testkit::wait::LIMIT;
use testkit::{FakeGuest, GuestConfig};

use crate::host::Host;

/// Frames that helpers have to deliver in each part.
const HELPED: u64 = 200;
const SEGMENT: u16 = 1448;
/// Payload that takes eight receive buffers.
const LENGTH: u32 = 8 * SEGMENT as u32;

/// The owner writes a pattern into each page when INVALIDATE was answered. It is never overwritten,
/// and arrives nowhere.
#[test]
fn helpers_do_not_touch_pages_once_invalidate_was_answered() {
    if topology::allowed().len() < 2 {
        return skipped("one core: helpers on the worker's own core get no pairs");
    }
    let mut host = Host::with_helpers();
    for id in [1, 2] {
        host.add_port(id, 1);
    }
    let layouts = [GuestConfig::default(), GuestConfig::default().packed()];
    for (config, mode) in layouts.into_iter().zip([Mode::Strict, Mode::OnDemand]) {
        let mut guests = [1, 2].map(|id: u8| {
            let (socket, config) = (host.socket(id.into()), config.clone().guest(id));
            FakeGuest::connect_translated(&socket, config, IommuConfig::new(mode))
                .expect("a session")
        });
        full_traffic(&mut host, &mut guests);
        for guest in &guests {
            let watched = guest.iommu().verify();
            assert!(watched.as_ref().is_ok_and(|n| *n > 100), "{watched:?}");
        }
        host.gone(guests, 2);
    }
}

/// Lets two guests send each other as much as they can, until helpers have delivered enough of it.
fn full_traffic(host: &mut Host, guests: &mut [FakeGuest; 2]) {
    let before = host.figures().helper_frames;
    let stop = AtomicBool::new(false);
    let [a, b] = guests;
    let received = std::thread::scope(|scope| {
        let parts = [
            scope.spawn(|| bulk(a, Flow::v4(1, 2), &stop)),
            scope.spawn(|| bulk(b, Flow::v4(1, 2).reversed(), &stop)),
        ];
        let since = Instant::now();
        while since.elapsed() < LIMIT
            && host.figures().helper_frames < before + HELPED
            && !parts.iter().any(|part| part.is_finished())
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, SeqCst);
        parts.map(|part| part.join().expect("frames are sound"))
    });
    let helped = host.figures().helper_frames - before;
    assert!(helped >= HELPED, "{helped} by helpers of {received:?}");
    assert!(received.iter().all(|n| *n > 0), "{received:?}");
}

/// Sends as much as there is room for and receives meanwhile; returns how many frames came.
fn bulk(guest: &mut FakeGuest, flow: Flow, stop: &AtomicBool) -> u64 {
    let (mut sent, mut received) = (0, 0);
    while !stop.load(SeqCst) {
        let pair = &mut guest.pairs[0];
        for _ in 0..8 {
            let (frame, header) = super_frame(&flow, sent);
            let staged = pair.stage(&frame, &header);
            sent += u32::from(staged.expect("the device keeps the rules"));
        }
        pair.flush();
        let mut pause = Duration::from_millis(1);
        for _ in 0..16 {
            let got = guest.recv(pause).expect("the device keeps the rules");
            let Some(got) = got else {
                break;
            };
            assert!(!is_canary(&got.frame), "it has bytes of a revoked page");
            let number = got
                .frame
                .get(38..42)
                .and_then(|bytes| bytes.try_into().ok());
            let number = u32::from_be_bytes(number.expect("a sequence number"));
            let whole = got.frame == super_frame(&flow.reversed(), number).0;
            assert!(whole, "frame {number} is not as it was sent");
            received += 1;
            pause = Duration::ZERO;
        }
    }
    received
}

/// A frame with this sequence number.
fn super_frame(flow: &Flow, number: u32) -> (Vec<u8>, NetHeader) {
    let payload: Vec<u8> = (0..LENGTH).map(|at| (at / 5 + number) as u8).collect();
    tcp_super(flow, number, &payload, SEGMENT)
}
