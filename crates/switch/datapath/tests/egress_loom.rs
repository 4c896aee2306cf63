//! Every interleaving of workers that share the credit of a leaf, by loom.
//!
//! The credit is the switch's own, with loom's atomics.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use scheduled::credit::Credit;

#[path = "../src/forward/egress"]
mod scheduled {
    #![allow(dead_code)] // each file is here for what is modelled of it

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
    }

    pub(crate) mod credit;
}

const MARK: u64 = 1;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// Two workers take at the same time: together never more than there is.
#[test]
fn no_credit_is_taken_twice() {
    model(|| {
        let credit = Arc::new(Credit::default());
        credit.add(10);
        let takers: Vec<_> = [4, 7]
            .map(|bits| {
                let credit = Arc::clone(&credit);
                thread::spawn(move || {
                    let taken = credit.take(bits);
                    // It sends four, and gives back the rest.
                    let sent = taken.min(4);
                    credit.add(taken - sent);
                    sent
                })
            })
            .into();
        let sent: u64 = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
        assert_eq!(credit.bits(), 10 - sent as i64);
    });
}

/// A debt is taken while another worker takes credit: both are accounted for.
#[test]
fn debts_and_grants_add_up() {
    model(|| {
        let credit = Arc::new(Credit::default());
        credit.add(5);
        let other = Arc::clone(&credit);
        let debtor = thread::spawn(move || u64::from(other.owe(7, 3)) * 7);
        let taken = credit.take(4);
        let owed = debtor.join().unwrap();
        let left = credit.bits();
        assert_eq!(left, 5 - taken as i64 - owed as i64);
        assert!(left >= -7, "{left}");
    });
}

/// One worker asks while another answers requests: the request is answered, or its mark is there
/// for the next one who looks.
#[test]
fn no_request_is_lost() {
    model(|| {
        let credit = Arc::new(Credit::default());
        let marks = Arc::new(AtomicU64::new(0));
        // What was asked for and granted before.
        credit.ask(3, 3, (&marks, MARK));
        let (other, others) = (Arc::clone(&credit), Arc::clone(&marks));
        let scheduler = thread::spawn(move || answer(&other, &others));
        let taken = credit.take(3);
        credit.ask(9 - taken, 9 - taken, (&marks, MARK));
        scheduler.join().unwrap();
        let asked = marks.load(Ordering::Acquire) & MARK != 0;
        let missing = credit.missing().is_some();
        assert!(asked || !missing, "{:?} is missing", credit.missing());
        answer(&credit, &marks);
        assert_eq!(credit.missing(), None);
    });
}

/// Answers a request as the owner of the tree does.
fn answer(credit: &Credit, marks: &AtomicU64) {
    if marks.swap(0, Ordering::Acquire) & MARK != 0
        && let Some(missing) = credit.missing()
    {
        credit.add(missing.all);
    }
}

/// A pair takes its request back while another pair of the leaf makes one: that one is granted
/// after its next look at the latest.
#[test]
fn a_request_beside_one_that_is_taken_back_is_granted() {
    model(|| {
        let credit = Arc::new(Credit::default());
        let marks = Arc::new(AtomicU64::new(0));
        credit.ask(9, 9, (&marks, MARK));
        let other = (Arc::clone(&credit), Arc::clone(&marks));
        let gone = thread::spawn(move || other.0.take_back((&other.1, MARK)));
        credit.ask(5, 5, (&marks, MARK));
        answer(&credit, &marks);
        gone.join().unwrap();
        answer(&credit, &marks);
        if credit.bits() < 5 && marks.load(Ordering::Relaxed) & MARK == 0 {
            credit.ask(5, 5, (&marks, MARK));
        }
        answer(&credit, &marks);
        assert!(credit.bits() >= 5, "{credit:?}");
    });
}
