//! Every interleaving of workers that share a port's bucket, by loom.
//!
//! The bucket is the switch's own, with loom's atomics.

use ipc::limits::Rate;
use loom::sync::Arc;
use loom::thread;

use limits::bucket::Bucket;

#[path = "../src/forward/limits"]
mod limits {
    #![allow(dead_code)] // each file is here for what is modelled of it

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
    }

    pub(crate) mod bucket;
}

/// Ten tokens, and one more each second.
const RATE: Rate = Rate {
    per_second: 1,
    burst: 10,
};
const SECOND: u64 = 1_000_000_000;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// Two workers take at the same time: together never more than there is.
#[test]
fn no_token_is_taken_twice() {
    model(|| {
        let bucket = Arc::new(Bucket::new(RATE));
        let takers: Vec<_> = [4, 7]
            .map(|tokens| {
                let bucket = Arc::clone(&bucket);
                thread::spawn(move || {
                    if bucket.take(tokens, SECOND) {
                        tokens
                    } else {
                        0
                    }
                })
            })
            .into();
        let taken: u64 = takers.into_iter().map(|t| t.join().unwrap()).sum();
        assert!(taken == 4 || taken == 7, "{taken}");
        assert_eq!(bucket.take_all(SECOND).tokens, 10 - taken);
    });
}

/// One worker takes all and returns some while another takes: returned tokens are available again,
/// once.
#[test]
fn returned_tokens_are_available_once() {
    model(|| {
        let bucket = Arc::new(Bucket::new(RATE));
        let other = Arc::clone(&bucket);
        let settles = thread::spawn(move || {
            let taken = other.take_all(SECOND).tokens;
            let used = taken.min(3);
            other.settle(taken, used);
            used
        });
        let mut taken = 0;
        for _ in 0..2 {
            taken += u64::from(bucket.take(2, SECOND)) * 2;
        }
        taken += settles.join().unwrap();
        assert!(taken <= 10, "{taken}");
        assert_eq!(bucket.take_all(SECOND).tokens, 10 - taken);
        assert!(!bucket.take(1, SECOND));
    });
}
