//! Default bursts of rates.

use port::MAX_FRAME;

/// Bits of the longest frame, the minimum of a burst.
pub(super) const FRAME: u64 = MAX_FRAME as u64 * 8;
/// Frames that a segmentation-offload frame of 64 KiB becomes at the usual MTU.
const SEGMENTS: u64 = 46;
/// Minimum burst in frames.
pub(super) const PACKETS: u64 = 64;

/// Unit of a rate.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Bits,
    Packets,
}

/// Returns the default burst of a rate whose senders wait: what 10 ms bring, at least two of the
/// longest frames.
pub(super) fn of_held(rate: u64, unit: Unit) -> u64 {
    let least = match unit {
        Unit::Bits => 2 * FRAME,
        Unit::Packets => PACKETS,
    };
    (rate / 100).max(least)
}

/// Returns the default burst of a rate beyond which frames are dropped: what 400 ms bring, at least
/// eight of the longest frames.
///
/// A TCP connection near the receiver loses all that it has on the way at once. Its sender is then
/// silent for the retransmission timeout, 200 ms on Linux (`TCP_RTO_MIN`) or twice that if the
/// timeout doubles (RFC 6298, section 5.5). What the rate brings meanwhile beyond the burst is
/// lost, so a shorter burst keeps TCP below the rate.
pub(super) fn of_dropped(rate: u64, unit: Unit) -> u64 {
    let longest = match unit {
        Unit::Bits => FRAME,
        Unit::Packets => SEGMENTS,
    };
    (rate * 2 / 5).max(8 * longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a connection that sends all that a token bucket has, loses the rest of its window, and
    /// is silent for a retransmission timeout. Returns the share of the rate that it gets.
    fn share_of_rate(rate: u64, burst: u64, timeout_ms: u64) -> f64 {
        const ROUNDS: u64 = 100;
        let (mut tokens, mut sent) = (burst, 0);
        for _ in 0..ROUNDS {
            // Super-frames pass as a whole or are dropped as a whole.
            let passed = tokens / FRAME * FRAME;
            sent += passed;
            tokens = (tokens - passed + rate * timeout_ms / 1000).min(burst);
        }
        (sent - burst) as f64 / (rate * timeout_ms / 1000 * (ROUNDS - 1)) as f64
    }

    #[test]
    fn a_connection_that_waits_for_a_doubled_timeout_gets_the_rate() {
        for rate in [10_000_000, 100_000_000, 1_000_000_000, 40_000_000_000] {
            let burst = of_dropped(rate, Unit::Bits);
            for timeout_ms in [200, 400] {
                let share = share_of_rate(rate, burst, timeout_ms);
                assert!(share > 0.95, "{share} of {rate} with {timeout_ms} ms");
            }
            let held = of_held(rate, Unit::Bits);
            assert!(
                share_of_rate(rate, held, 200) < 0.6,
                "the model shows a short burst"
            );
        }
    }

    #[test]
    fn bursts_have_room_for_the_longest_frames() {
        assert_eq!(of_held(1, Unit::Bits), 2 * FRAME);
        assert_eq!(of_held(1, Unit::Packets), 64);
        assert_eq!(of_dropped(1, Unit::Bits), 4_195_392);
        assert_eq!(of_dropped(1, Unit::Packets), 368);
        assert_eq!(of_held(1_000_000_000_000, Unit::Bits), 10_000_000_000);
        assert_eq!(of_dropped(1_000_000_000_000, Unit::Bits), 400_000_000_000);
    }
}
