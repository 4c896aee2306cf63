//! Limits of ports: their checks, and their values for the switch.

use std::ops::RangeInclusive;

use api::v1::{FloodLimit, LimitsSpec, RateLimit};
use channel::limits::{Limit, Limits, Rate};
use port::MAX_FRAME;

use super::check::{At, number};
use super::invalid::{Bound, Invalid, Place, expect};

/// Nanoseconds in a second.
const PACKETS: RangeInclusive<u64> = 1..=1_000_000_000;
const BITS: RangeInclusive<u64> = 1..=1_000_000_000_000;
/// Bits of the longest frame, the minimum of a burst.
const FRAME: u64 = MAX_FRAME as u64 * 8;
const BITS_BURST: RangeInclusive<u64> = FRAME..=1_000_000_000_000;
/// Minimum burst in frames: a segmentation-offload frame of 64 KiB becomes 46 frames at the usual
/// MTU.
const PACKETS_BURST: RangeInclusive<u64> = 64..=1_000_000_000;
const FLOOD_BURST: RangeInclusive<u64> = 1..=1_000_000_000;
/// Default bursts, as fractions of a second.
const USUAL: u64 = 100;
const USUAL_FLOOD: u64 = 10;
const LEAST_FLOOD: u64 = 16;

/// Checks the limits of the port with this index.
pub(super) fn check(port: usize, limits: &LimitsSpec) -> Result<(), Invalid> {
    let rates = [
        (Bound::FromGuest, limits.from_guest),
        (Bound::ToGuest, limits.to_guest),
    ];
    for (bound, limit) in rates {
        if let Some(limit) = limit {
            check_rate(port, bound, &limit)?;
        }
    }
    let floods = [
        (Bound::Broadcast, limits.broadcast),
        (Bound::Multicast, limits.multicast),
        (Bound::UnknownUnicast, limits.unknown_unicast),
    ];
    for (bound, limit) in floods {
        let Some(limit) = limit else { continue };
        let at = |key| At(Place::Bound(port, bound), key);
        let rate = at("packets_per_second");
        number(rate, limit.packets_per_second, &PACKETS, expect::PACKETS)?;
        if let Some(burst) = limit.packets_burst {
            let (at, words) = (at("packets_burst"), expect::FLOOD_BURST);
            number(at, burst, &FLOOD_BURST, words)?;
        }
    }
    Ok(())
}

fn check_rate(port: usize, bound: Bound, limit: &RateLimit) -> Result<(), Invalid> {
    let at = |key| At(Place::Bound(port, bound), key);
    if (limit.packets_per_second, limit.bits_per_second) == (None, None) {
        let expected = "packets_per_second, bits_per_second or both";
        return Err(at("packets_per_second").wrong(expected, "neither"));
    }
    let (packets, bits) = (limit.packets_per_second, limit.bits_per_second);
    let packets = [
        ("packets_per_second", packets, &PACKETS, expect::PACKETS),
        (
            "packets_burst",
            limit.packets_burst,
            &PACKETS_BURST,
            expect::PACKETS_BURST,
        ),
    ];
    let bits = [
        ("bits_per_second", bits, &BITS, expect::BITS),
        (
            "bits_burst",
            limit.bits_burst,
            &BITS_BURST,
            expect::BITS_BURST,
        ),
    ];
    for [rate, burst] in [packets, bits] {
        if let (None, (key, Some(found), ..)) = (rate.1, burst) {
            let expected = format!("no burst without {}", rate.0);
            return Err(at(key).wrong(expected, found.to_string()));
        }
        for (key, value, range, words) in [rate, burst] {
            if let Some(value) = value {
                number(at(key), value, range, words)?;
            }
        }
    }
    Ok(())
}

/// Returns the limits for the switch, with default bursts filled in.
#[must_use]
pub fn limits_of(spec: &LimitsSpec) -> Limits {
    let limit = |limit: Option<RateLimit>| {
        let limit = limit.unwrap_or_default();
        Limit {
            packets: rate(limit.packets_per_second, limit.packets_burst, |rate| {
                (rate / USUAL).max(*PACKETS_BURST.start())
            }),
            bits: rate(limit.bits_per_second, limit.bits_burst, |rate| {
                (rate / USUAL).max(2 * FRAME)
            }),
        }
    };
    let flood = |limit: Option<FloodLimit>| {
        let per_second = limit.map(|limit| limit.packets_per_second);
        let burst = limit.and_then(|limit| limit.packets_burst);
        rate(per_second, burst, |rate| {
            (rate / USUAL_FLOOD).max(LEAST_FLOOD)
        })
    };
    Limits {
        from_guest: limit(spec.from_guest),
        to_guest: limit(spec.to_guest),
        broadcast: flood(spec.broadcast),
        multicast: flood(spec.multicast),
        unknown_unicast: flood(spec.unknown_unicast),
    }
}

fn rate(per_second: Option<u64>, burst: Option<u64>, usual: fn(u64) -> u64) -> Option<Rate> {
    per_second.map(|per_second| Rate {
        per_second,
        burst: burst.unwrap_or(usual(per_second)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate_limit(text: &str) -> RateLimit {
        serde_json::from_str(text).unwrap()
    }

    fn refused(limits: LimitsSpec) -> String {
        check(3, &limits).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_is_refused_with_field_and_reason() {
        let from = |text| LimitsSpec {
            from_guest: Some(rate_limit(text)),
            ..LimitsSpec::default()
        };
        for (text, field, word) in [
            (
                r#"{"packets_per_second":0}"#,
                "packets_per_second",
                "found 0",
            ),
            (r#"{"bits_per_second":0}"#, "bits_per_second", "found 0"),
            (r#"{}"#, "packets_per_second", "neither"),
            (
                r#"{"packets_per_second":9,"packets_burst":63}"#,
                "packets_burst",
                "found 63",
            ),
            (
                r#"{"bits_per_second":9,"bits_burst":524423}"#,
                "bits_burst",
                "64 KiB",
            ),
            (
                r#"{"bits_per_second":9,"packets_burst":99}"#,
                "packets_burst",
                "no burst without",
            ),
            (
                r#"{"packets_per_second":1000000001}"#,
                "packets_per_second",
                "1000000001",
            ),
        ] {
            let said = refused(from(text));
            let key = format!("port.limits.from_guest.{field}: ");
            assert!(
                said.starts_with(&key) && said.contains(word),
                "{text}: {said}"
            );
        }
        let flood = |packets_per_second, packets_burst| LimitsSpec {
            unknown_unicast: Some(FloodLimit {
                packets_per_second,
                packets_burst,
            }),
            ..LimitsSpec::default()
        };
        assert!(
            refused(flood(0, None)).starts_with("port.limits.unknown_unicast.packets_per_second")
        );
        assert!(
            refused(flood(1, Some(0))).starts_with("port.limits.unknown_unicast.packets_burst")
        );
        assert_eq!(check(0, &flood(1, Some(1))), Ok(()));
        let both = r#"{"packets_per_second":1,"bits_per_second":1,"packets_burst":64,"bits_burst":524424}"#;
        assert_eq!(check(0, &from(both)), Ok(()));
    }

    #[test]
    fn bursts_that_are_not_said_have_room_for_the_longest_frame() {
        let told = |text| {
            limits_of(&LimitsSpec {
                to_guest: Some(rate_limit(text)),
                ..LimitsSpec::default()
            })
            .to_guest
        };
        let burst = |rate: Option<Rate>| rate.map(|rate| rate.burst);
        let slow = told(r#"{"packets_per_second":1,"bits_per_second":1}"#);
        assert_eq!(
            (burst(slow.packets), burst(slow.bits)),
            (Some(64), Some(2 * FRAME))
        );
        let fast = told(r#"{"packets_per_second":1000000,"bits_per_second":10000000000}"#);
        assert_eq!(
            (burst(fast.packets), burst(fast.bits)),
            (Some(10_000), Some(100_000_000))
        );
        let own = told(r#"{"packets_per_second":1000000,"packets_burst":100}"#);
        assert_eq!((burst(own.packets), own.bits), (Some(100), None));
        assert!(limits_of(&LimitsSpec::default()).is_nothing());
    }
}
