//! Settings of scheduled ports as arguments and in output.

use api::v1::{EgressStatus, PortQosSpec, QosRates, parse_si};
use serde_json::{Map, Value, json};

use client::units::rate;

/// The error of [`qos`].
const QOS_EXPECTED: &str = "expected none, KEY=VALUE,... with keys min, max, burst (like 500M), \
                            priority, weight, group, beyond, trust-dscp and class-by-pair (like \
                            default+storage), or CLASS:KEY=VALUE,... with min, max, burst and \
                            weight; KEY=none resets a key, CLASS:none all of a class";

/// The error of [`egress`].
const EGRESS_EXPECTED: &str = "expected none, or KEY=VALUE,... with keys rate (like 10G), \
                               overhead (bytes), full (hold, drop) and room (like 256k); KEY=none \
                               resets a key";

/// Reads the value of a key.
type ValueReader = fn(&str) -> Option<Value>;

const RATES: [(&str, ValueReader); 4] =
    [("min", si), ("max", si), ("burst", si), ("weight", integer)];
const QOS: [(&str, ValueReader); 9] = [
    RATES[0],
    RATES[1],
    RATES[2],
    RATES[3],
    ("priority", byte),
    ("group", word),
    ("beyond", fate),
    ("trust-dscp", boolean),
    ("class-by-pair", names),
];
const EGRESS: [(&str, ValueReader); 4] = [
    ("rate", si),
    ("overhead", integer),
    ("full", fate),
    ("room", si),
];

fn si(text: &str) -> Option<Value> {
    parse_si(text).map(Value::from)
}

fn integer(text: &str) -> Option<Value> {
    text.parse::<u16>().ok().map(Value::from)
}

fn byte(text: &str) -> Option<Value> {
    text.parse::<u8>().ok().map(Value::from)
}

/// The fates of frames in [`api::v1::Beyond`] and [`api::v1::FullAction`].
fn fate(text: &str) -> Option<Value> {
    api::v1::Beyond::from_word(text).map(|_| text.into())
}

fn boolean(text: &str) -> Option<Value> {
    text.parse::<bool>().ok().map(Value::from)
}

/// The server knows the names.
fn word(text: &str) -> Option<Value> {
    api::v1::valid_name(text).then(|| text.into())
}

fn names(text: &str) -> Option<Value> {
    text.split('+')
        .map(word)
        .collect::<Option<Vec<_>>>()
        .map(Value::from)
}

/// Parses `--qos`: a merge patch.
pub(super) fn qos(text: &str) -> Result<Value, String> {
    let parsed = match text.split_once(':') {
        Some((class, rates)) => word(class)
            .and_then(|_| patch_of(rates, &RATES))
            .map(|patch| json!({"classes": {class: patch}})),
        None => patch_of(text, &QOS),
    };
    parsed.ok_or_else(|| QOS_EXPECTED.to_owned())
}

/// Parses `--egress`: a merge patch.
pub(super) fn egress(text: &str) -> Result<Value, String> {
    patch_of(text, &EGRESS).ok_or_else(|| EGRESS_EXPECTED.to_owned())
}

/// Parses a number with an SI prefix.
pub(super) fn number(text: &str) -> Result<u64, String> {
    parse_si(text).ok_or_else(|| "expected a number like 1500, 100k or 2.5G".to_owned())
}

/// Parses `none` or keys with their values.
fn patch_of(text: &str, known: &[(&str, ValueReader)]) -> Option<Value> {
    if text == "none" {
        return Some(Value::Null);
    }
    let mut patch = Map::new();
    for part in text.split(',') {
        let (name, text) = part.split_once('=')?;
        let (_, read) = known.iter().find(|(known, _)| *known == name)?;
        let value = match text {
            "none" => Value::Null,
            text => read(text)?,
        };
        if patch.insert(name.replace('-', "_"), value).is_some() {
            return None;
        }
    }
    Some(Value::Object(patch))
}

/// Returns the patch that does what two do one after the other.
pub(super) fn merged(first: Value, second: Value) -> Value {
    match (first, second) {
        (Value::Object(mut first), Value::Object(second)) => {
            for (key, value) in second {
                let before = first.remove(&key).unwrap_or(Value::Null);
                first.insert(key, merged(before, value));
            }
            Value::Object(first)
        }
        (_, second) => second,
    }
}

/// Returns a value without what is `null` in it: a patch of nothing.
pub(super) fn without_nulls(value: Value) -> Value {
    let Value::Object(map) = value else {
        return value;
    };
    let some = map.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(
        some.map(|(key, value)| (key, without_nulls(value)))
            .collect(),
    )
}

/// Formats what a port has at scheduled ports: as a whole, then by class.
pub(super) fn qos_lines(qos: &PortQosSpec) -> Vec<String> {
    if qos.is_nothing() {
        return Vec::new();
    }
    let mut parts = rates(&qos.rates());
    let names = [
        (
            "priority",
            (qos.priority > 0).then(|| qos.priority.to_string()),
        ),
        ("group", qos.group.clone()),
        (
            "beyond",
            qos.beyond.map(|beyond| beyond.as_str().to_owned()),
        ),
        ("trust dscp", qos.trust_dscp.map(|trust| trust.to_string())),
    ];
    let named = names.into_iter();
    parts.extend(named.filter_map(|(key, value)| Some(format!("{key} {}", value?))));
    if !qos.class_by_pair.is_empty() {
        parts.push(format!("class by pair {}", qos.class_by_pair.join("+")));
    }
    let whole = (!parts.is_empty()).then(|| parts.join(", "));
    let classes = qos.classes.iter();
    let classes = classes.map(|(name, of)| format!("class {name}: {}", rates(of).join(", ")));
    whole.into_iter().chain(classes).collect()
}

fn rates(of: &QosRates) -> Vec<String> {
    let bits = [("min", of.min), ("max", of.max)];
    let bits = bits.into_iter();
    let bits = bits.filter_map(|(key, bits)| Some(format!("{key} {}", rate(bits? as f64, "bit"))));
    let weight = (of.weight != api::v1::QOS_WEIGHT).then(|| format!("weight {}", of.weight));
    bits.chain(weight).collect()
}

/// Formats an output in effect.
pub(super) fn egress_line(of: &EgressStatus) -> String {
    let bits = |bits: u64| rate(bits as f64, "bit");
    let speed = of.rate.map_or("as fast as the interface".to_owned(), bits);
    let scaled = match (of.scaled, of.link) {
        (true, Some(link)) => format!(", scaled down to the link's {}", bits(link)),
        _ => String::new(),
    };
    format!(
        "{speed}, overhead {} bytes, full {}, {} guaranteed{scaled}",
        of.overhead,
        of.full.as_str(),
        bits(of.promised)
    )
}

#[cfg(test)]
mod tests {
    use api::v1::{Beyond, EgressSpec, FullAction};

    use super::*;

    fn patch(all: &[Value]) -> Option<Value> {
        all.iter().cloned().reduce(merged)
    }

    fn spec<T: serde::de::DeserializeOwned>(all: &[Value]) -> Option<T> {
        let patch = patch(all).filter(|patch| !patch.is_null())?;
        serde_json::from_value(without_nulls(patch)).ok()
    }

    #[test]
    fn settings_of_senders_are_parsed() {
        let all = [
            qos("min=500M,max=2G,burst=20M,group=tenant1,beyond=drop,trust-dscp=true").unwrap(),
            qos("class-by-pair=default+storage,priority=3").unwrap(),
            qos("storage:min=200M,weight=50").unwrap(),
            qos("max=none").unwrap(),
        ];
        let spec = spec::<PortQosSpec>(&all).unwrap();
        assert_eq!(
            (spec.min, spec.max, spec.burst),
            (Some(500_000_000), None, Some(20_000_000))
        );
        assert_eq!((spec.priority, spec.trust_dscp), (3, Some(true)));
        assert_eq!(
            (spec.group.as_deref(), spec.beyond),
            (Some("tenant1"), Some(Beyond::Drop))
        );
        assert_eq!(spec.class_by_pair, ["default", "storage"]);
        assert_eq!(spec.classes["storage"].min, Some(200_000_000));
        assert_eq!(
            qos_lines(&spec),
            [
                "min 500.0 Mbit/s, priority 3, group tenant1, beyond drop, trust dscp true, class \
                 by pair default+storage",
                "class storage: min 200.0 Mbit/s, weight 50",
            ]
        );
        assert_eq!(patch(&all).unwrap()["max"], Value::Null);
        assert_eq!(patch(&[qos("none").unwrap()]), Some(Value::Null));
        let removed = patch(&[qos("storage:none").unwrap()]);
        assert_eq!(removed, Some(json!({"classes": {"storage": null}})));
        assert_eq!(patch(&[]), None);
    }

    #[test]
    fn outputs_are_parsed() {
        let given =
            spec::<EgressSpec>(&[egress("rate=10G,overhead=24,full=hold,room=256k").unwrap()]);
        let expected = EgressSpec {
            rate: Some(10_000_000_000),
            overhead: Some(24),
            full: Some(FullAction::Hold),
            room: Some(256_000),
        };
        assert_eq!(given, Some(expected));
        let usual = spec::<EgressSpec>(&[egress("rate=none").unwrap()]);
        assert_eq!(usual, Some(EgressSpec::default()), "the interface's speed");
        assert_eq!(spec::<EgressSpec>(&[egress("none").unwrap()]), None);
        assert_eq!(spec::<EgressSpec>(&[]), None);
    }

    #[test]
    fn malformed_settings_are_refused() {
        for text in [
            "",
            "min",
            "min=",
            "min=1Ki",
            "min=1,min=2",
            "rate=1G",
            "storage:",
            ":min=1",
        ] {
            assert!(qos(text).is_err(), "{text}");
        }
        for text in [
            "storage:priority=1",
            "storage:none,min=1",
            "class-by-pair=a++b",
            "weight=-1",
            "beyond=x",
            "priority=256",
        ] {
            assert!(qos(text).is_err(), "{text}");
        }
        for text in [
            "",
            "10G",
            "rate=",
            "min=1G",
            "overhead=1.5",
            "rate=1G,rate=2G",
        ] {
            assert!(egress(text).is_err(), "{text}");
        }
    }
}
