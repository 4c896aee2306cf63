//! A token bucket that any number of threads take from, in one word and without a lock.
//!
//! The word is the time at which the bucket will be full (the "theoretical arrival time" of ATM's generic cell rate algorithm, ITU-T
//! I.371): every token that is taken puts it off by what a token takes to come. All is in whole 64ths of a nanosecond, so that nothing
//! drifts: what tokens cost is rounded up and never down, however they are taken. In any time no more is granted than the
//! burst and the rate allow together, to the 64th of a nanosecond; but that who needs more than a full bucket has gets that, and pays
//! afterwards.

use channel::limits::Rate;

use super::sync::{AtomicU64, Ordering::Relaxed};

/// Parts of a nanosecond.
const PARTS: u64 = 64;
/// Of a second.
const SECOND: u64 = 1_000_000_000 * PARTS;
/// Nothing takes longer than this to come, 208 days.
const EVER: u64 = 1 << 60;
/// Time goes no further than this, 7 years of one switch process: from there, what comes and what is owed can be counted still.
const END: u64 = u64::MAX - 3 * EVER;

/// Nanoseconds of the machine's monotonic clock.
pub(crate) type Nanos = u64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    /// From empty to full.
    whole: u64,
    full_at: AtomicU64,
}

/// Tokens that were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) tokens: u64,
    /// The bucket was full: there never are more.
    pub(crate) is_all: bool,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            rate,
            whole: time_of(rate.burst, rate.per_second),
            full_at: AtomicU64::new(0),
        }
    }

    /// What so many tokens take to come.
    fn time_of(&self, tokens: u64) -> u64 {
        time_of(tokens, self.rate.per_second)
    }

    /// Tokens that come in that time.
    fn tokens_in(&self, time: u64) -> u64 {
        let tokens = u128::from(time) * u128::from(self.rate.per_second) / u128::from(SECOND);
        (tokens as u64).min(self.rate.burst)
    }

    /// Takes all that there are.
    pub(crate) fn take_all(&self, now: Nanos) -> Grant {
        let now = parts(now);
        let mut full_at = self.full_at.load(Relaxed);
        loop {
            let from = full_at.max(now);
            let tokens = self.tokens_in((now + self.whole).saturating_sub(from));
            let is_all = full_at <= now;
            if tokens == 0 {
                return Grant { tokens, is_all };
            }
            let next = from + self.time_of(tokens);
            match self
                .full_at
                .compare_exchange_weak(full_at, next, Relaxed, Relaxed)
            {
                Ok(_) => return Grant { tokens, is_all },
                Err(other) => full_at = other,
            }
        }
    }

    /// Takes so many if there are so many, or if there never are more.
    pub(crate) fn take(&self, tokens: u64, now: Nanos) -> bool {
        let (now, time) = (parts(now), self.time_of(tokens));
        let mut full_at = self.full_at.load(Relaxed);
        loop {
            let next = full_at.max(now).saturating_add(time);
            if next > now + self.whole && full_at > now {
                return false;
            }
            match self
                .full_at
                .compare_exchange_weak(full_at, next, Relaxed, Relaxed)
            {
                Ok(_) => return true,
                Err(other) => full_at = other,
            }
        }
    }

    /// Of the tokens that were taken, so many were used: fewer or more.
    pub(crate) fn settle(&self, taken: u64, used: u64) {
        let (had, needed) = (self.time_of(taken), self.time_of(used));
        match needed.checked_sub(had) {
            Some(more) => self.full_at.fetch_add(more, Relaxed),
            None => self.full_at.fetch_sub(had - needed, Relaxed),
        };
    }

    /// When there are so many tokens, or as many as there can be.
    pub(crate) fn ready_at(&self, tokens: u64) -> Nanos {
        let need = self.time_of(tokens).min(self.whole);
        let full_at = self.full_at.load(Relaxed);
        full_at.saturating_sub(self.whole - need).div_ceil(PARTS)
    }

    /// From empty to full.
    pub(crate) fn fills_in(&self) -> Nanos {
        self.whole / PARTS
    }
}

fn parts(now: Nanos) -> u64 {
    now.saturating_mul(PARTS).min(END)
}

/// What so many tokens take to come at a rate, rounded up.
fn time_of(tokens: u64, per_second: u64) -> u64 {
    let per_second = per_second.max(1);
    match tokens.checked_mul(SECOND) {
        Some(product) => product.div_ceil(per_second).min(EVER),
        None => {
            let product = u128::from(tokens) * u128::from(SECOND);
            product
                .div_ceil(u128::from(per_second))
                .min(u128::from(EVER)) as u64
        }
    }
}
