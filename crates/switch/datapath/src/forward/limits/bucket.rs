//! Token bucket for any number of threads, in one word and without a lock.
//!
//! The word is the time at which the bucket will be full (the "theoretical arrival time" of ATM's
//! generic cell rate algorithm, ITU-T I.371): every token that is taken defers it by the time of
//! one token. All times are whole 64ths of a nanosecond, so that nothing drifts: costs of tokens
//! are rounded up, however they are taken. In any interval no more is granted than burst and rate
//! allow together, to the 64th of a nanosecond; except that a request above the burst size gets a
//! full bucket and leaves it in debt.

use ipc::limits::Rate;

use super::sync::{AtomicU64, Ordering::Relaxed};

/// Time units of a nanosecond.
const PARTS: u64 = 64;
/// Time units of a second.
const SECOND: u64 = 1_000_000_000 * PARTS;
/// Maximum time of any number of tokens: 208 days.
const EVER: u64 = 1 << 60;
/// Maximum time, 7 years of one switch process: beyond it, sums of times still do not overflow.
const END: u64 = u64::MAX - 3 * EVER;

/// Nanoseconds of the monotonic clock.
pub(crate) type Nanos = u64;

/// Token bucket; see the module.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    /// Time until the empty bucket is full.
    whole: u64,
    full_at: AtomicU64,
}

/// Tokens that were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) tokens: u64,
    /// Whether the bucket was full: more tokens are never available.
    pub(crate) is_all: bool,
}

impl Bucket {
    /// Returns a full bucket.
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            rate,
            whole: time_of(rate.burst, rate.per_second),
            full_at: AtomicU64::new(0),
        }
    }

    /// Returns the time in which so many tokens arrive.
    fn time_of(&self, tokens: u64) -> u64 {
        time_of(tokens, self.rate.per_second)
    }

    /// Returns the tokens that arrive in that time.
    fn tokens_in(&self, time: u64) -> u64 {
        let tokens = u128::from(time) * u128::from(self.rate.per_second) / u128::from(SECOND);
        (tokens as u64).min(self.rate.burst)
    }

    /// Takes all available tokens.
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

    /// Takes so many tokens if there are as many, or if the bucket is full.
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

    /// Settles a grant of `taken` tokens of which `used` were used, fewer or more.
    pub(crate) fn settle(&self, taken: u64, used: u64) {
        let (had, needed) = (self.time_of(taken), self.time_of(used));
        match needed.checked_sub(had) {
            Some(more) => self.full_at.fetch_add(more, Relaxed),
            None => self.full_at.fetch_sub(had - needed, Relaxed),
        };
    }

    /// Returns the time at which there are so many tokens, or the bucket is full.
    pub(crate) fn ready_at(&self, tokens: u64) -> Nanos {
        let need = self.time_of(tokens).min(self.whole);
        let full_at = self.full_at.load(Relaxed);
        full_at.saturating_sub(self.whole - need).div_ceil(PARTS)
    }

    /// Returns the time in which the empty bucket fills.
    pub(crate) fn fills_in(&self) -> Nanos {
        self.whole / PARTS
    }
}

fn parts(now: Nanos) -> u64 {
    now.saturating_mul(PARTS).min(END)
}

/// Returns the time in which so many tokens arrive at a rate, rounded up.
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
