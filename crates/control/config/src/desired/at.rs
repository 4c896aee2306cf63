//! The helpers of checks: a key at a place, and checks that many keys share.

use std::ops::RangeInclusive;

use api::v1::{parse_mac, valid_name};

use super::invalid::{Invalid, Place, Why, expect};
pub(super) use crate::words::quoted;

/// A key at a place, for errors.
#[derive(Clone, Copy)]
pub(super) struct At(pub(super) Place, pub(super) &'static str);

impl At {
    /// Returns an error of this key.
    pub(super) fn wrong(self, expected: impl Into<String>, found: impl Into<String>) -> Invalid {
        Invalid {
            place: self.0,
            key: self.1,
            item: None,
            expected: expected.into(),
            found: found.into(),
            why: Why::Wrong,
        }
    }

    /// Returns the error for a value of this key that is taken.
    pub(super) fn taken(self, expected: &str, found: String) -> Invalid {
        Invalid {
            why: Why::Taken,
            ..self.wrong(expected, found)
        }
    }

    /// Returns an error of an element of this key's list.
    pub(super) fn item(self, item: usize, expected: impl Into<String>, found: String) -> Invalid {
        Invalid {
            item: Some(item),
            ..self.wrong(expected, found)
        }
    }
}

/// Checks that a name is well formed.
pub(super) fn name(at: At, name: &str) -> Result<(), Invalid> {
    if valid_name(name) {
        Ok(())
    } else {
        Err(at.wrong(expect::NAME, quoted(name)))
    }
}

/// Checks that a number is in its range.
pub(super) fn number<T: PartialOrd + ToString>(
    at: At,
    value: T,
    range: &RangeInclusive<T>,
    words: &str,
) -> Result<(), Invalid> {
    if range.contains(&value) {
        Ok(())
    } else {
        Err(at.wrong(words, value.to_string()))
    }
}

/// Checks the number of objects against their maximum.
pub(super) fn count(at: At, count: usize, most: usize, what: &str) -> Result<(), Invalid> {
    if count <= most {
        Ok(())
    } else {
        Err(at.wrong(format!("at most {most} {what}"), count.to_string()))
    }
}

/// Describes a text that is not a unicast MAC address; `None` if it is one.
pub(super) fn not_a_station(text: &str) -> Option<String> {
    match parse_mac(text) {
        Some([0, 0, 0, 0, 0, 0]) => Some("the zero address".to_owned()),
        Some(mac) if mac[0] & 1 == 1 => Some(format!("the group address {}", quoted(text))),
        Some(_) => None,
        None => Some(quoted(text)),
    }
}
