//! Numbers that may be written as texts with a decimal prefix: rates, bursts and sizes.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use utoipa::ToSchema;

/// Reads a number with a decimal prefix of the SI: `1500`, `100k`, `2.5M`, `1G`, `1T`.
///
/// ```
/// assert_eq!(api::v1::parse_si("2.5G"), Some(2_500_000_000));
/// assert_eq!(api::v1::parse_si("100_000"), Some(100_000));
/// assert_eq!(api::v1::parse_si("0.0001k"), None); // no whole number
/// assert_eq!(api::v1::parse_si("1Ki"), None);
/// ```
pub fn parse_si(text: &str) -> Option<u64> {
    let (number, zeros) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 3),
        b'M' => (&text[..text.len() - 1], 6),
        b'G' => (&text[..text.len() - 1], 9),
        b'T' => (&text[..text.len() - 1], 12),
        _ => (text, 0),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let part = part.trim_end_matches('0');
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if !whole.starts_with(|c: char| c.is_ascii_digit())
        || !digits(whole)
        || !part.bytes().all(|b| b.is_ascii_digit())
        || part.len() > zeros
        || number.ends_with('.')
    {
        return None;
    }
    let whole: u64 = whole.replace('_', "").parse().ok()?;
    let part: u64 = format!("{part:0<zeros$}0").parse().ok()?;
    let scale = 10u64.pow(zeros as u32);
    whole.checked_mul(scale)?.checked_add(part / 10)
}

/// A number, or a text of one with a decimal prefix: `1500`, `"100k"`, `"2.5M"`, `"1G"`, `"1T"`.
/// Responses have numbers.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = PrefixedNumber)]
#[expect(dead_code, reason = "it is there to be described")]
pub(super) enum Number {
    Plain(u64),
    Text(String),
}

/// Reads a number.
///
/// # Errors
/// It is neither an integer from 0 nor a text for [`parse_si`].
pub(super) fn number<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    input.deserialize_any(NumberVisitor)
}

/// Reads a number that may be `null`.
///
/// # Errors
/// As [`number`].
pub(super) fn optional<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    let read = Option::<SiNumber>::deserialize(input)?;
    Ok(read.map(|SiNumber(number)| number))
}

/// A number that was read.
struct SiNumber(u64);

impl<'de> Deserialize<'de> for SiNumber {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        number(input).map(Self)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer, or a text like \"1G\"")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        let wrong = |_| E::invalid_value(Unexpected::Signed(number), &self);
        number.try_into().map_err(wrong)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        let wrong = || E::invalid_value(Unexpected::Str(text), &self);
        parse_si(text).ok_or_else(wrong)
    }
}
