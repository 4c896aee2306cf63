//! The credit of a leaf, and its request for more, for any number of threads without a lock.
//!
//! A worker takes credit for frames that it is about to forward, and asks for more when there is
//! not enough. The worker that has the output's tree reads the requests and adds credit. A request
//! stays until it is satisfied: its reader takes its mark away *before* it looks at the
//! amounts, so one that is made meanwhile has its mark again.

use egress::QUANTUM;

use super::sync::{AtomicI64, AtomicU64, Ordering};

/// Bits of a leaf: those that it may send, and those that it asks for.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    /// Bits that may be sent; below 0: a debt.
    bits: AtomicI64,
    /// Credit without which the first waiting frame cannot go.
    first: AtomicU64,
    /// Credit with which all frames can go that are ready.
    all: AtomicU64,
}

/// Bits that a leaf lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Missing {
    pub(crate) first: u64,
    pub(crate) all: u64,
}

impl Credit {
    /// Returns the credit.
    pub(crate) fn bits(&self) -> i64 {
        self.bits.load(Ordering::Relaxed)
    }

    /// Takes all credit up to `most`. Returns the amount.
    pub(crate) fn take(&self, most: u64) -> u64 {
        let mut bits = self.bits.load(Ordering::Relaxed);
        loop {
            let taken = u64::try_from(bits).unwrap_or(0).min(most);
            if taken == 0 {
                return 0;
            }
            let left = bits - taken as i64;
            match self
                .bits
                .compare_exchange_weak(bits, left, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return taken,
                Err(now) => bits = now,
            }
        }
    }

    /// Takes bits even if that leaves a debt of up to `most`. Returns `false`, and takes nothing,
    /// if the debt would be larger.
    pub(crate) fn owe(&self, bits: u64, most: u64) -> bool {
        let bits = i64::try_from(bits).unwrap_or(i64::MAX);
        let least = -i64::try_from(most).unwrap_or(i64::MAX);
        let mut before = self.bits.load(Ordering::Relaxed);
        loop {
            let after = before.saturating_sub(bits);
            // A frame that is longer than a whole burst passes when there is no debt.
            if after < least && before < 0 {
                return false;
            }
            match self.bits.compare_exchange_weak(
                before,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => before = now,
            }
        }
    }

    /// Sets the credit.
    pub(crate) fn set(&self, bits: i64) {
        self.bits.store(bits, Ordering::Relaxed);
    }

    /// Adds credit.
    pub(crate) fn add(&self, bits: u64) {
        // After the grant, a worker that finds it also finds what was written before.
        let bits = i64::try_from(bits).unwrap_or(i64::MAX);
        self.bits.fetch_add(bits, Ordering::Release);
    }

    /// Asks for credit: `first` at least, `all` at most. The mark in `marks` follows it. A request
    /// for more that was not answered yet stays: another queue pair waits for it.
    pub(crate) fn ask(&self, first: u64, all: u64, (marks, mark): (&AtomicU64, u64)) {
        let all = all.max(first);
        if marks.load(Ordering::Relaxed) & mark == 0 {
            self.first.store(first, Ordering::Relaxed);
            self.all.store(all, Ordering::Relaxed);
        } else {
            self.first.fetch_max(first, Ordering::Relaxed);
            self.all.fetch_max(all, Ordering::Relaxed);
        }
        marks.fetch_or(mark, Ordering::Release);
    }

    /// Returns whether the last request asks for so much for a first frame.
    pub(crate) fn asks_for(&self, first: u64) -> bool {
        self.first.load(Ordering::Relaxed) >= first
    }

    /// Takes back the request, but for a debt, which is still to be repaid. A request that another
    /// worker makes meanwhile may be lost: it makes another one when it finds no mark.
    pub(crate) fn take_back(&self, mark: (&AtomicU64, u64)) {
        mark.0.fetch_and(!mark.1, Ordering::Relaxed);
        self.first.store(0, Ordering::Relaxed);
        self.all.store(0, Ordering::Relaxed);
        if self.bits() < 0 {
            mark.0.fetch_or(mark.1, Ordering::Release);
        }
    }

    /// Returns the bits that are missing; `None` if nothing is. A debt is repaid in pieces, so that
    /// the others do not wait for all of it.
    pub(crate) fn missing(&self) -> Option<Missing> {
        let missing = |desired: &AtomicU64| {
            let desired = i64::try_from(desired.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
            u64::try_from(desired.saturating_sub(self.bits())).unwrap_or(0)
        };
        let (mut first, all) = (missing(&self.first), missing(&self.all));
        if self.bits() < 0 {
            first = first.min(QUANTUM);
        }
        (all > 0).then_some(Missing { first, all })
    }
}
