//! Times and sizes, and allowances of moves.

use std::time::Duration;

/// Times and sizes of a forwarding database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Ageing time: entries without frames for this long are removed, and claims are forgotten.
    /// 300 s, as in IEEE 802.1Q.
    pub age: Duration,
    /// Maximum number of addresses learned at one port; frames to further ones are flooded. An
    /// address still moves to a full port: the table does not grow, and a refusal would disconnect
    /// the host.
    pub per_port: usize,
    /// Maximum number of learned addresses in total.
    pub total: usize,
    /// Moves of one address to one port.
    pub moves: Allowance,
    /// Likewise of an address that ports share by configuration or by protocol.
    pub shared_moves: Allowance,
    /// Moves of all addresses to one port.
    pub port_moves: Allowance,
    /// Silence of the holder after which an address goes to a port whose moves are used up.
    pub silence: Duration,
    /// Likewise for shared addresses.
    pub shared_silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(300),
            per_port: 4096,
            total: 65536,
            moves: Allowance::new(5, Duration::from_secs(10)),
            shared_moves: Allowance::new(1024, Duration::from_millis(250)),
            // A port takes over all addresses that another one may have, at once.
            port_moves: Allowance::new(4096, Duration::from_millis(10)),
            silence: Duration::from_secs(10),
            shared_silence: Duration::from_secs(1),
        }
    }
}

/// A token bucket of moves: so many at once, and one more each interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    burst: u32,
    interval: Duration,
}

/// Use of an [`Allowance`]: the time at which the bucket is full again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SpentAllowance(Duration);

impl Allowance {
    /// Returns an allowance of `burst` moves, and one more each `interval`.
    #[must_use]
    pub const fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval }
    }

    /// Returns what is spent after one more move; `None` if there is no move left.
    pub(super) fn spend(&self, spent: SpentAllowance, now: Duration) -> Option<SpentAllowance> {
        let full_at = spent.0.max(now) + self.interval;
        (full_at <= now + self.interval * self.burst).then_some(SpentAllowance(full_at))
    }
}

impl SpentAllowance {
    /// Returns whether nothing is spent.
    pub(super) fn is_none(self, now: Duration) -> bool {
        self.0 <= now
    }
}
