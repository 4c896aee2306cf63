//! Times that may be written as texts with a unit.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use utoipa::ToSchema;

/// Reads a time: a whole number with the unit `s`, `m`, `h` or `d`. Returns seconds.
///
/// ```
/// assert_eq!(api::v1::parse_seconds("30s"), Some(30));
/// assert_eq!(api::v1::parse_seconds("24h"), Some(86_400));
/// assert_eq!(api::v1::parse_seconds("1.5h"), None);
/// assert_eq!(api::v1::parse_seconds("30"), None);
/// ```
#[must_use]
pub fn parse_seconds(text: &str) -> Option<u32> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u32 = number.parse().ok().filter(|_| digits)?;
    number.checked_mul(unit)
}

/// Seconds, or a text with a unit: `90`, `"30s"`, `"5m"`, `"24h"`, `"5d"`. Responses have numbers.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = Seconds)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) enum Seconds {
    Number(u32),
    Text(String),
}

/// Reads seconds.
///
/// # Errors
/// They are neither an integer from 0 nor a text for [`parse_seconds`].
pub(super) fn seconds<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    input.deserialize_any(SecondsVisitor)
}

/// Reads seconds that may be `null`.
///
/// # Errors
/// As [`seconds`].
pub(super) fn optional<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u32>, D::Error> {
    let read = Option::<ReadSeconds>::deserialize(input)?;
    Ok(read.map(|ReadSeconds(seconds)| seconds))
}

/// Seconds that were read.
struct ReadSeconds(u32);

impl<'de> Deserialize<'de> for ReadSeconds {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        seconds(input).map(Self)
    }
}

struct SecondsVisitor;

impl Visitor<'_> for SecondsVisitor {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("seconds, or a text like \"24h\"")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
        let wrong = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
        number.try_into().map_err(wrong)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u32, E> {
        let wrong = |_| E::invalid_value(Unexpected::Signed(number), &self);
        number.try_into().map_err(wrong)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u32, E> {
        let wrong = || E::invalid_value(Unexpected::Str(text), &self);
        parse_seconds(text).ok_or_else(wrong)
    }
}
