//! The wake-up protocol of two index lines under loom: no interleaving leaves a side asleep that
//! has work.

#[allow(dead_code, unreachable_pub)]
#[path = "../src/wake.rs"]
mod wake;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU16, Ordering, fence};
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use wake::{Line, publish, request};

fn line(index: u16, event: u16) -> Arc<Line> {
    Arc::new(Line {
        index: sync::AtomicU16::new(index),
        event: sync::AtomicU16::new(event),
    })
}

/// A consumer that finds nothing goes to sleep while the producer publishes one frame.
#[test]
fn a_frame_reaches_a_consumer_that_goes_to_sleep() {
    loom::model(|| {
        // The consumer's event index is behind everything: it wants no notification yet.
        let (producer, consumer) = (line(0xffff, 0x8000), line(0xffff, 0x8000));
        let notified = Arc::new(AtomicBool::new(false));
        let other = {
            let (producer, consumer) = (producer.clone(), consumer.clone());
            let notified = notified.clone();
            thread::spawn(move || {
                if publish(&producer, &consumer, 0xffff, 0) {
                    notified.store(true, Ordering::SeqCst);
                }
            })
        };
        let seen = request(&consumer, &producer, 0xffff);
        other.join().unwrap();
        let awake = seen == 0 || notified.load(Ordering::SeqCst);
        assert!(awake, "it sleeps beside a frame");
    });
}

/// A producer without room waits for two slots while the consumer returns them one by one, and the
/// consumer goes to sleep while the producer, once awake, publishes again.
#[test]
fn room_reaches_a_producer_that_goes_to_sleep() {
    loom::model(|| {
        let (producer, consumer) = (line(4, 0x8000), line(0, 0x8000));
        let notified = Arc::new(AtomicBool::new(false));
        let other = {
            let (producer, consumer) = (producer.clone(), consumer.clone());
            let notified = notified.clone();
            thread::spawn(move || {
                for old in 0..2 {
                    if publish(&consumer, &producer, old, old + 1) {
                        notified.store(true, Ordering::SeqCst);
                    }
                }
            })
        };
        let seen = request(&producer, &consumer, 1);
        other.join().unwrap();
        let awake = seen == 2 || notified.load(Ordering::SeqCst);
        assert!(awake, "it sleeps beside room");
    });
}
