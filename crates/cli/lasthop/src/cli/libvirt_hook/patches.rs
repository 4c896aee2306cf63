//! Changes of a port: what a `<bandwidth>` sets, and how it is taken back.
//!
//! | libvirt | port |
//! |---|---|
//! | `outbound average`, `burst` | `limits.from_guest.bits_per_second`, `bits_burst` |
//! | `outbound peak` | `qos.max` |
//! | `inbound average`, `burst` | `limits.to_guest.bits_per_second`, `bits_burst` |
//! | `inbound floor` | `qos.min` |

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::domain::{Bandwidth, Interface};
use super::records::{Record, ValueChange, ValueChanges};
use api::v1::PortKind;

/// Bits in a kilobyte, the unit of libvirt's rates (a second).
const KILOBYTE: u64 = 8000;
/// Bits in a kibibyte, the unit of libvirt's bursts.
const KIBIBYTE: u64 = 8192;
/// The smallest burst that limits accept: the longest frame, in bits.
const SMALLEST_BURST: u64 = port::MAX_FRAME as u64 * 8;

/// The fields of a port that the hook uses.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) kind: PortKind,
    pub(super) socket: String,
    #[serde(default)]
    limits: Value,
    #[serde(default)]
    qos: Value,
}

/// Values of a port by what they are, such as `limits.to_guest`.
type Values = BTreeMap<String, Value>;

/// Whether a domain overrides what an operator has changed since it set a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// The domain has been started: its values hold.
    Start,
    /// Its values are set again, where they, the ones before them, or those of the configuration
    /// file are in force.
    Again,
}

/// Returns what the bandwidth of an interface sets.
pub(super) fn requested(interface: &Interface) -> Result<Values, String> {
    let (inbound, outbound) = (&interface.inbound, &interface.outbound);
    let values = [
        ("limits.from_guest", limit(outbound)?),
        ("limits.to_guest", limit(inbound)?),
        ("qos.max", rate("peak", outbound.peak)?.map(Value::from)),
        ("qos.min", rate("floor", inbound.floor)?.map(Value::from)),
    ];
    let values = values.into_iter();
    Ok(values
        .filter_map(|(what, value)| Some((what.to_owned(), value?)))
        .collect())
}

/// The new values of a port, and their record.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Values that the domain will have set.
    pub(super) given: ValueChanges,
    /// The values that the port gets.
    values: Values,
}

impl Plan {
    /// Plans what happens at a port when a domain requests these values. Of a value that a domain
    /// has set before (`record`) and now does not, the one before it comes back; one that was
    /// changed meanwhile stays. `configured` returns the port as the configuration file has it.
    pub(super) fn new(
        port: &Port,
        record: Option<&Record>,
        domain: &str,
        requested: &Values,
        call: Call,
        configured: impl Fn() -> Value,
    ) -> Self {
        let mut plan = Self::default();
        let is_same = record.is_some_and(|record| record.domain == domain);
        let may_override = call == Call::Start || !is_same;
        let given = |what: &str| record.and_then(|record| record.given.get(what));
        for (what, value) in requested {
            let now = port.value(what);
            let mut new = ValueChange {
                set: value.clone(),
                before: now.clone(),
            };
            match given(what) {
                Some(old) if now == old.set || now == old.before => {
                    new.before.clone_from(&old.before);
                }
                Some(old)
                    if !may_override && now != *value && now != value_of(&configured(), what) =>
                {
                    // The operator's.
                    plan.given.insert(what.clone(), old.clone());
                    continue;
                }
                // Nothing changes, so there is nothing to take back.
                _ if now == *value => continue,
                _ => {}
            }
            if now != *value {
                plan.values.insert(what.clone(), value.clone());
            }
            plan.given.insert(what.clone(), new);
        }
        let ended = record.into_iter().flat_map(|record| &record.given);
        for (what, old) in ended.filter(|(what, _)| !requested.contains_key(*what)) {
            if port.value(what) == old.set {
                plan.values.insert(what.clone(), old.before.clone());
            }
        }
        plan
    }

    /// Plans that all that a domain has set is taken back.
    pub(super) fn end(port: &Port, record: &Record) -> Self {
        let none = Values::new();
        Self::new(port, Some(record), "", &none, Call::Start, || Value::Null)
    }

    /// Returns the merge patches. Ceilings come first: whether a guarantee is accepted depends on
    /// others.
    pub(super) fn patches(&self, port: &Port) -> Vec<Value> {
        let mut patches = Vec::new();
        for section in ["limits", "qos"] {
            let values = self.values.iter();
            let of_section = values.filter_map(|(what, value)| {
                let key = what.strip_prefix(section)?.strip_prefix('.')?;
                Some((key.to_owned(), port.patch(section, key, value)))
            });
            let fields: serde_json::Map<String, Value> = of_section.collect();
            if !fields.is_empty() {
                patches.push(json!({section: fields}));
            }
        }
        patches
    }
}

impl Port {
    /// Returns a value as it is now.
    fn value(&self, what: &str) -> Value {
        value_of(&json!({"limits": self.limits, "qos": self.qos}), what)
    }

    /// Returns the patch of a value. A limit without bits is removed, unless it is one of packets,
    /// too, which no interface of libvirt's has.
    fn patch(&self, section: &str, key: &str, value: &Value) -> Value {
        let packets = &self.limits[key]["packets_per_second"];
        match section {
            "limits" if value["bits_per_second"].is_null() && packets.is_null() => Value::Null,
            _ => value.clone(),
        }
    }
}

/// Returns a value of a port's document: of a limit its bits, which are what the hook sets.
fn value_of(port: &Value, what: &str) -> Value {
    let (section, key) = what.split_once('.').unwrap_or((what, ""));
    let value = &port[section][key];
    match section {
        "limits" => json!({
            "bits_per_second": value["bits_per_second"],
            "bits_burst": value["bits_burst"],
        }),
        _ => value.clone(),
    }
}

/// Returns the patch of a limit: bits, and no other burst than the interface's.
fn limit(bandwidth: &Bandwidth) -> Result<Option<Value>, String> {
    let Some(bits) = rate("average", bandwidth.average)? else {
        return Ok(None);
    };
    let burst = match bandwidth.burst {
        0 => None,
        burst => Some(times("burst", burst, KIBIBYTE)?.max(SMALLEST_BURST)),
    };
    Ok(Some(json!({"bits_per_second": bits, "bits_burst": burst})))
}

/// Returns a rate in bit/s, or `None` where libvirt has none.
fn rate(name: &str, kilobytes: u64) -> Result<Option<u64>, String> {
    let bits = times(name, kilobytes, KILOBYTE)?;
    Ok((bits > 0).then_some(bits))
}

fn times(name: &str, number: u64, unit: u64) -> Result<u64, String> {
    let bits = number.checked_mul(unit);
    bits.ok_or_else(|| format!("{name}: {number} is too much"))
}
