//! A port's rate limits as arguments and in output.

use api::v1::{FloodLimit, LimitsSpec, RateLimit, parse_si};
use serde_json::{Map, Value, json};

use client::units::rate;

/// The error of [`limit`].
const EXPECTED: &str = "expected WHAT:none or WHAT:packets=N,packets-burst=N,bits=N,bits-burst=N, \
                        with WHAT one of from-guest, to-guest, broadcast, multicast and \
                        unknown-unicast, or connections:N or connections:none, and N like 1500, \
                        100k or 1G";

/// Keys of the argument with the API's keys.
const KEYS: [(&str, &str); 4] = [
    ("packets", "packets_per_second"),
    ("packets-burst", "packets_burst"),
    ("bits", "bits_per_second"),
    ("bits-burst", "bits_burst"),
];
const RATES: [&str; 2] = ["from_guest", "to_guest"];
const FLOODS: [&str; 3] = ["broadcast", "multicast", "unknown_unicast"];

/// Parses a limit: a merge patch of the limits.
pub(super) fn limit(text: &str) -> Result<Value, String> {
    parse(text).ok_or_else(|| EXPECTED.to_owned())
}

fn parse(text: &str) -> Option<Value> {
    let (what, bounds) = text.split_once(':')?;
    if what == "connections" {
        let most = match bounds {
            "none" => Value::Null,
            number => json!(parse_si(number)?),
        };
        return Some(json!({what: most}));
    }
    let what = what.replace('-', "_");
    let known = match what.as_str() {
        what if RATES.contains(&what) => &KEYS[..],
        what if FLOODS.contains(&what) => &KEYS[..2],
        _ => return None,
    };
    if bounds == "none" {
        return Some(json!({what: null}));
    }
    // A key that is not given gets its default, not its value before.
    let mut patch: Map<String, Value> = (known.iter())
        .map(|(_, key)| ((*key).to_owned(), Value::Null))
        .collect();
    for bound in bounds.split(',') {
        let (name, number) = bound.split_once('=')?;
        let (_, key) = known.iter().find(|(known, _)| *known == name)?;
        let old = patch.insert((*key).to_owned(), json!(parse_si(number)?));
        if old != Some(Value::Null) {
            return None;
        }
    }
    Some(json!({what: patch}))
}

/// Formats the limits, one per line.
pub(super) fn lines(limits: &LimitsSpec) -> Vec<String> {
    let one_way = |what: &str, limit: Option<RateLimit>| {
        let limit = limit?;
        let packets = limit.packets_per_second.map(|n| rate(n as f64, "packets"));
        let bits = limit.bits_per_second.map(|n| rate(n as f64, "bit"));
        let both: Vec<_> = packets.into_iter().chain(bits).collect();
        Some(format!("{what}: {}", both.join(", ")))
    };
    let flood = |what: &str, limit: Option<FloodLimit>| {
        let packets = limit?.packets_per_second as f64;
        Some(format!("{what}: {}", rate(packets, "packets")))
    };
    let all = [
        one_way("from guest", limits.from_guest),
        one_way("to guest", limits.to_guest),
        flood("broadcast", limits.broadcast),
        flood("multicast", limits.multicast),
        flood("unknown unicast", limits.unknown_unicast),
        limits
            .connections
            .map(|most| format!("connections: {most}")),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::qos::merged;
    use super::*;

    #[test]
    fn limits_are_parsed() {
        let all = [
            limit("from-guest:packets=100k,bits=2.5G").unwrap(),
            limit("unknown-unicast:packets=10,packets-burst=20").unwrap(),
            limit("broadcast:none").unwrap(),
            limit("connections:20k").unwrap(),
        ];
        let patch = all.into_iter().reduce(merged).unwrap();
        let spec: LimitsSpec = serde_json::from_value(patch.clone()).unwrap();
        let from = spec.from_guest.unwrap();
        assert_eq!(from.packets_per_second, Some(100_000));
        assert_eq!(from.bits_per_second, Some(2_500_000_000));
        assert_eq!((from.packets_burst, spec.broadcast), (None, None));
        let unknown = spec.unknown_unicast.unwrap();
        assert_eq!(
            (unknown.packets_per_second, unknown.packets_burst),
            (10, Some(20))
        );
        assert_eq!(
            lines(&spec),
            [
                "from guest: 100.0 kpackets/s, 2.5 Gbit/s",
                "unknown unicast: 10 packets/s",
                "connections: 20000"
            ]
        );
        assert_eq!(patch["broadcast"], Value::Null);
        let unlimited = json!({"connections": null});
        assert_eq!(limit("connections:none").unwrap(), unlimited);
        assert_eq!(
            patch["from_guest"]["bits_burst"],
            Value::Null,
            "the default"
        );
    }

    #[test]
    fn malformed_limits_are_refused() {
        for text in [
            "",
            "from-guest",
            "from-guest:",
            "from-guest:packets",
            "from-guest:packets=",
            "from-guest:packets=1Ki",
            "from-guest:packets=1,packets=2",
            "broadcast:bits=1",
            "everything:packets=1",
            "connections:packets=1",
        ] {
            assert!(limit(text).is_err(), "{text}");
        }
    }
}
