//! Driver and device on two threads: what Miri needs to see to judge the memory orders.

use std::thread;

use wire::virtio::features::Features;

use super::driver::*;

#[test]
fn driver_and_device_run_side_by_side() {
    let total = if cfg!(miri) { 24 } else { 2_000u32 };
    for features in both(Features::RING_INDIRECT_DESC) {
        let mut driver = Driver::new(Guest::new(4, features));
        let mut queue = driver.guest.queue();
        let device = thread::spawn(move || {
            let mut segs = Vec::new();
            let mut seen = 0;
            while seen < total {
                segs.clear();
                match queue.take_readable(&mut segs).expect("a sound driver") {
                    Some(chain) => {
                        assert_eq!(chain.bytes, 1 + seen % 500);
                        queue.put(chain, seen % 3);
                        seen += 1;
                        if seen % 2 == 0 || seen == total {
                            queue.publish();
                        }
                    }
                    None => {
                        queue.publish();
                        thread::yield_now();
                    }
                }
            }
        });
        let (mut added, mut reaped) = (0, 0);
        while reaped < total {
            let buffer = Buffer {
                gpa: DATA,
                len: 1 + added % 500,
                writable: false,
            };
            if added < total && driver.add(&[buffer], added % 5 == 0, 0).is_some() {
                added += 1;
            }
            if let Some((_, len)) = driver.reap() {
                assert_eq!(len, reaped % 3);
                reaped += 1;
            } else {
                thread::yield_now();
            }
        }
        device.join().expect("the device's checks");
    }
}
