//! Guests with an IOMMU while helpers copy, and not only the worker.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
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
const HELPED: i64 = 600;
/// Frames of one sender on their way: fewer than a receiver has buffers for.
const WINDOW: u32 = 16;
/// Time without an arrival after which a guest sends one frame more.
const SEEMS_LOST: Duration = Duration::from_millis(10);
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
    for config in [GuestConfig::default(), GuestConfig::default().packed()] {
        let mut guests = [1, 2].map(|id: u8| {
            let (socket, config) = (host.socket(id.into()), config.clone().guest(id));
            let iommu = IommuConfig::new(Mode::Strict);
            FakeGuest::connect_translated(&socket, config, iommu).expect("a session")
        });
        full_traffic(&mut host, &mut guests);
        for guest in &guests {
            let watched = guest.iommu().verify();
            assert!(watched.as_ref().is_ok_and(|n| *n > 100), "{watched:?}");
        }
        host.gone(guests, 2);
    }
}

/// Two guests that send each other as much as the other has buffers for.
#[derive(Default)]
struct Exchange {
    stop: AtomicBool,
    /// By guest: the number behind the last frame that has come to its peer.
    seen: [AtomicU32; 2],
}

/// Lets two guests send until helpers have delivered enough of it.
fn full_traffic(host: &mut Host, guests: &mut [FakeGuest; 2]) {
    // What helpers have taken, less all that was dropped.
    let delivered = |host: &mut Host| {
        let drops = [1, 2].map(|id| host.counts(id).drops.iter().sum::<u64>());
        host.figures().helper_frames as i64 - drops.iter().sum::<u64>() as i64
    };
    let (before, mut helped) = (delivered(host), 0);
    let exchange = Exchange::default();
    let [a, b] = guests;
    std::thread::scope(|scope| {
        let parts = [
            scope.spawn(|| exchange.part(a, 0, Flow::v4(1, 2))),
            scope.spawn(|| exchange.part(b, 1, Flow::v4(1, 2).reversed())),
        ];
        let since = Instant::now();
        while helped < HELPED
            && since.elapsed() < LIMIT
            && !parts.iter().any(|part| part.is_finished())
        {
            std::thread::sleep(Duration::from_millis(10));
            helped = delivered(host) - before;
        }
        exchange.stop.store(true, SeqCst);
        for part in parts {
            part.join().expect("frames are sound");
        }
    });
    let counts = [1, 2].map(|id| host.counts(id));
    assert!(helped >= HELPED, "{helped} frames by helpers: {counts:?}");
}

impl Exchange {
    /// The part of guest `me`. Every frame that comes is as it was sent.
    fn part(&self, guest: &mut FakeGuest, me: usize, flow: Flow) {
        let (mut sent, mut moved) = (0, (0, Instant::now()));
        while !self.stop.load(SeqCst) {
            let seen = self.seen[me].load(SeqCst);
            if seen > moved.0 {
                moved = (seen, Instant::now());
            }
            let end = if moved.1.elapsed() > SEEMS_LOST {
                moved.1 = Instant::now();
                sent + 1
            } else {
                seen + WINDOW
            };
            let pair = &mut guest.pairs[0];
            while sent < end {
                let (frame, header) = super_frame(&flow, sent);
                let staged = pair.stage(&frame, &header);
                if !staged.expect("the device keeps the rules") {
                    break;
                }
                sent += 1;
            }
            pair.flush();
            guest.replace_buffers(4);
            self.collect(guest, me, &flow.reversed());
        }
    }

    fn collect(&self, guest: &mut FakeGuest, me: usize, flow: &Flow) {
        let mut pause = Duration::from_millis(1);
        for _ in 0..WINDOW {
            let got = guest.recv(pause).expect("the device keeps the rules");
            let Some(got) = got else {
                return;
            };
            assert!(!is_canary(&got.frame), "it has bytes of a revoked page");
            let number = got
                .frame
                .get(38..42)
                .and_then(|bytes| bytes.try_into().ok());
            let number = u32::from_be_bytes(number.expect("a sequence number"));
            let whole = got.frame == super_frame(flow, number).0;
            assert!(whole, "frame {number} is not as it was sent");
            self.seen[1 - me].store(number + 1, SeqCst);
            pause = Duration::ZERO;
        }
    }
}

/// A frame with this sequence number.
fn super_frame(flow: &Flow, number: u32) -> (Vec<u8>, NetHeader) {
    let payload: Vec<u8> = (0..LENGTH).map(|at| (at / 5 + number) as u8).collect();
    tcp_super(flow, number, &payload, SEGMENT)
}
