//! Limits of ports: their checks, and their values for the switch.

use std::ops::RangeInclusive;

use api::v1::{FloodLimit, LimitsSpec, RateLimit};
use ipc::limits::{Limit, Limits, Rate};

use super::at::{At, number};
use super::bursts::{self, FRAME, Unit};
use super::invalid::{Invalid, LimitKind, Place, expect};

/// Nanoseconds in a second.
const PACKETS: RangeInclusive<u64> = 1..=1_000_000_000;
const BITS: RangeInclusive<u64> = 1..=1_000_000_000_000;
const BITS_BURST: RangeInclusive<u64> = FRAME..=1_000_000_000_000;
const PACKETS_BURST: RangeInclusive<u64> = bursts::PACKETS..=1_000_000_000;
const FLOOD_BURST: RangeInclusive<u64> = 1..=1_000_000_000;
const CONNECTIONS: RangeInclusive<u64> = 1..=1 << 22;
/// Default burst of storm control, as a fraction of a second, and its minimum.
const USUAL_FLOOD: u64 = 10;
const LEAST_FLOOD: u64 = 16;

/// Checks the limits of the port with this index.
pub(super) fn check(port: usize, limits: &LimitsSpec) -> Result<(), Invalid> {
    let rates = [
        (LimitKind::FromGuest, limits.from_guest),
        (LimitKind::ToGuest, limits.to_guest),
    ];
    for (bound, limit) in rates {
        if let Some(limit) = limit {
            check_rate(port, bound, &limit)?;
        }
    }
    if let Some(connections) = limits.connections {
        let (at, words) = (
            At(Place::Limits(port), "connections"),
            expect::PORT_CONNECTIONS,
        );
        number(at, connections, &CONNECTIONS, words)?;
    }
    let floods = [
        (LimitKind::Broadcast, limits.broadcast),
        (LimitKind::Multicast, limits.multicast),
        (LimitKind::UnknownUnicast, limits.unknown_unicast),
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

fn check_rate(port: usize, bound: LimitKind, limit: &RateLimit) -> Result<(), Invalid> {
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
    let limit = |limit: Option<RateLimit>, usual: fn(u64, Unit) -> u64| {
        let limit = limit.unwrap_or_default();
        Limit {
            packets: rate(limit.packets_per_second, limit.packets_burst, |rate| {
                usual(rate, Unit::Packets)
            }),
            bits: rate(limit.bits_per_second, limit.bits_burst, |rate| {
                usual(rate, Unit::Bits)
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
        from_guest: limit(spec.from_guest, bursts::of_held),
        to_guest: limit(spec.to_guest, bursts::of_dropped),
        broadcast: flood(spec.broadcast),
        multicast: flood(spec.multicast),
        unknown_unicast: flood(spec.unknown_unicast),
        connections: spec
            .connections
            .map(|limit| limit.try_into().unwrap_or(u32::MAX)),
    }
}

fn rate(per_second: Option<u64>, burst: Option<u64>, usual: impl Fn(u64) -> u64) -> Option<Rate> {
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
    fn default_bursts_are_longer_where_frames_are_dropped() {
        let same = rate_limit(r#"{"packets_per_second":1000000,"bits_per_second":100000000}"#);
        let limits = limits_of(&LimitsSpec {
            from_guest: Some(same),
            to_guest: Some(same),
            ..LimitsSpec::default()
        });
        let bursts = |limit: Limit| [limit.packets, limit.bits].map(|rate| rate.unwrap().burst);
        assert_eq!(bursts(limits.from_guest), [10_000, 2 * FRAME]);
        assert_eq!(bursts(limits.to_guest), [400_000, 40_000_000]);
        let own = limits_of(&LimitsSpec {
            to_guest: Some(rate_limit(
                r#"{"packets_per_second":1000000,"packets_burst":100}"#,
            )),
            ..LimitsSpec::default()
        });
        let own = own.to_guest;
        assert_eq!((own.packets.unwrap().burst, own.bits), (100, None));
        assert!(limits_of(&LimitsSpec::default()).is_nothing());
    }
}
