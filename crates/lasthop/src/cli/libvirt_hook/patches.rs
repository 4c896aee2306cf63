//! Changes of a port: what a `<bandwidth>` sets, and how it is taken back.
//!
//! | libvirt | port |
//! |---|---|
//! | `outbound average`, `burst` | `limits.from_guest.bits_per_second`, `bits_burst` |
//! | `outbound peak` | `qos.max` |
//! | `inbound average`, `burst` | `limits.to_guest.bits_per_second`, `bits_burst` |
//! | `inbound floor` | `qos.min` |

use serde::Deserialize;
use serde_json::{Value, json};

use super::domain::{Bandwidth, Interface};
use api::v1::{PortKind, PortState};

/// Bits in a kilobyte, the unit of libvirt's rates (a second).
const KILOBYTE: u64 = 8000;
/// Bits in a kibibyte, the unit of libvirt's bursts.
const KIBIBYTE: u64 = 8192;
/// The smallest burst that limits accept: the longest frame, in bits.
const SMALLEST_BURST: u64 = port::MAX_FRAME as u64 * 8;

/// The fields of a port that the hook uses.
#[derive(Debug, Deserialize)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) kind: PortKind,
    pub(super) socket: String,
    pub(super) state: PortState,
    #[serde(default)]
    limits: Value,
    #[serde(default)]
    qos: Value,
}

/// Returns the merge patches that give a port the bandwidth of an interface, without those that
/// would change nothing. Ceilings come first: whether a guarantee is accepted depends on others.
pub(super) fn set(interface: &Interface, port: &Port) -> Result<Vec<Value>, String> {
    let (inbound, outbound) = (&interface.inbound, &interface.outbound);
    let limits = object(&[
        ("from_guest", limit(outbound)?),
        ("to_guest", limit(inbound)?),
    ]);
    let max = rate("peak", outbound.peak)?.map(Value::from);
    let min = rate("floor", inbound.floor)?.map(Value::from);
    let qos = object(&[("max", max), ("min", min)]);
    Ok(patches(port, limits, qos))
}

/// Returns the merge patches that give a port the values of its configuration again, where an
/// interface has set others. `configured` is the port in the configuration file, or null.
pub(super) fn take_back(interface: &Interface, port: &Port, configured: &Value) -> Vec<Value> {
    let (inbound, outbound) = (&interface.inbound, &interface.outbound);
    let limit = |bandwidth: &Bandwidth, key: &str| {
        let back = || configured_limit(&port.limits[key], &configured["limits"][key]);
        (bandwidth.average > 0).then(back)
    };
    let qos = |value: u64, key: &str| (value > 0).then(|| configured["qos"][key].clone());
    let limits = object(&[
        ("from_guest", limit(outbound, "from_guest")),
        ("to_guest", limit(inbound, "to_guest")),
    ]);
    let qos = object(&[
        ("max", qos(outbound.peak, "max")),
        ("min", qos(inbound.floor, "min")),
    ]);
    patches(port, limits, qos)
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

/// Returns the patch of a limit that is as configured again. A limit of packets, which no interface
/// of libvirt's has, stays.
fn configured_limit(now: &Value, configured: &Value) -> Value {
    if configured["bits_per_second"].is_null() && now["packets_per_second"].is_null() {
        return Value::Null;
    }
    json!({
        "bits_per_second": configured["bits_per_second"],
        "bits_burst": configured["bits_burst"],
    })
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

/// Returns an object of the fields that have a value.
fn object(fields: &[(&str, Option<Value>)]) -> Value {
    let fields = fields.iter();
    let fields = fields.filter_map(|(key, value)| Some(((*key).to_owned(), value.clone()?)));
    Value::Object(fields.collect())
}

/// Returns the patches of a port that change something.
fn patches(port: &Port, limits: Value, qos: Value) -> Vec<Value> {
    let parts = [("limits", limits, &port.limits), ("qos", qos, &port.qos)];
    let changing = parts.into_iter().filter(|(_, patch, now)| !has(now, patch));
    changing
        .map(|(key, patch, _)| json!({key: patch}))
        .collect()
}

/// Returns whether a document has all that a merge patch would set.
fn has(document: &Value, patch: &Value) -> bool {
    match patch {
        Value::Object(fields) => fields.iter().all(|(key, value)| has(&document[key], value)),
        value => document == value,
    }
}
