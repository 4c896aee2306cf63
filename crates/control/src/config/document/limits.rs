//! The table of a port's limits, and its nested tables.

use api::v1::{FloodLimit, LimitsSpec, RateLimit, parse_si};
use toml::de::{DeTable, DeValue};

use super::{Fault, Lines, Table};
use crate::desired::{Bound, Place, expect};

const LIMITS_KEYS: &[&str] = &[
    "from_guest",
    "to_guest",
    "broadcast",
    "multicast",
    "unknown_unicast",
];
const RATE_KEYS: &[&str] = &[
    "packets_per_second",
    "packets_burst",
    "bits_per_second",
    "bits_burst",
];
const FLOOD_KEYS: &[&str] = &["packets_per_second", "packets_burst"];

/// Reads the limits of the port with this index.
pub(super) fn limits(
    table: &DeTable<'_>,
    at: usize,
    port: usize,
    lines: &mut Lines,
) -> Result<LimitsSpec, Fault> {
    let mut table = Table::open(table, at, Place::Limits(port), LIMITS_KEYS, lines)?;
    Ok(LimitsSpec {
        from_guest: rate(&mut table, port, Bound::FromGuest)?,
        to_guest: rate(&mut table, port, Bound::ToGuest)?,
        broadcast: flood(&mut table, port, Bound::Broadcast)?,
        multicast: flood(&mut table, port, Bound::Multicast)?,
        unknown_unicast: flood(&mut table, port, Bound::UnknownUnicast)?,
    })
}

fn rate(table: &mut Table<'_, '_>, port: usize, bound: Bound) -> Result<Option<RateLimit>, Fault> {
    let Some((inner, at)) = table.table(bound.as_str(), expect::RATE)? else {
        return Ok(None);
    };
    let place = Place::Bound(port, bound);
    let mut table = Table::open(inner, at, place, RATE_KEYS, table.lines)?;
    Ok(Some(RateLimit {
        packets_per_second: table.large("packets_per_second", expect::PACKETS)?,
        packets_burst: table.large("packets_burst", expect::PACKETS_BURST)?,
        bits_per_second: table.large("bits_per_second", expect::BITS)?,
        bits_burst: table.large("bits_burst", expect::BITS_BURST)?,
    }))
}

fn flood(
    table: &mut Table<'_, '_>,
    port: usize,
    bound: Bound,
) -> Result<Option<FloodLimit>, Fault> {
    let Some((inner, at)) = table.table(bound.as_str(), expect::FLOOD)? else {
        return Ok(None);
    };
    let place = Place::Bound(port, bound);
    let mut table = Table::open(inner, at, place, FLOOD_KEYS, table.lines)?;
    let rate = table.large("packets_per_second", expect::PACKETS)?;
    Ok(Some(FloodLimit {
        packets_per_second: rate
            .ok_or_else(|| table.missing("packets_per_second", expect::PACKETS))?,
        packets_burst: table.large("packets_burst", expect::FLOOD_BURST)?,
    }))
}

impl Table<'_, '_> {
    /// Returns a number, possibly with an SI prefix, if the key exists.
    fn large(&mut self, key: &'static str, expected: &str) -> Result<Option<u64>, Fault> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = match value.get_ref() {
            DeValue::Integer(text) => u64::from_str_radix(text.as_str(), text.radix()).ok(),
            DeValue::String(text) => parse_si(text),
            _ => None,
        };
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(value, key, expected)),
        }
    }
}
