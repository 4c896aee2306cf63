//! Keys of ports: which kinds have them, and the bounds in their declarations.

use std::collections::HashMap;
use std::sync::LazyLock;

use api::v1::{PortKey, PortSpec, Secret};
use serde_json::{Map, Value};

use super::at::{At, quoted};
use super::invalid::{Invalid, Place};

/// The keys of a port that are not at their defaults, and those that are always shown.
pub(super) struct Keys(Map<String, Value>);

impl Keys {
    /// Returns those of a port.
    pub(super) fn of(port: &PortSpec) -> Self {
        match serde_json::to_value(port) {
            Ok(Value::Object(keys)) => Self(keys),
            _ => Self(Map::new()),
        }
    }

    /// Refuses the first key that ports of this kind do not have.
    pub(super) fn check_kind(&self, place: Place, port: &PortSpec) -> Result<(), Invalid> {
        match self.first(|key, _| !port.kind.may_have(key.name)) {
            Some((key, value)) => {
                let expected = format!("no {} with kind \"{}\"", key.name, port.kind.as_str());
                Err(At(place, key.name).wrong(expected, shown(key.name, value)))
            }
            None => Ok(()),
        }
    }

    /// Checks numbers and texts against the bounds of their keys.
    pub(super) fn check_bounds(&self, place: Place) -> Result<(), Invalid> {
        match self.first(|key, value| !fits(key, value)) {
            Some((key, value)) => {
                let expected = key.expected.unwrap_or("another value");
                Err(At(place, key.name).wrong(expected, shown(key.name, value)))
            }
            None => Ok(()),
        }
    }

    /// Returns the first declared key that is wrong. A port has few keys of many, so these are
    /// looked up.
    fn first(
        &self,
        is_wrong: impl Fn(&PortKey, &Value) -> bool,
    ) -> Option<(&'static PortKey, &Value)> {
        static NUMBERS: LazyLock<HashMap<&str, usize>> = LazyLock::new(|| {
            let keys = PortSpec::KEYS.iter().enumerate();
            keys.map(|(number, key)| (key.name, number)).collect()
        });
        let set = self.0.iter().filter_map(|(name, value)| {
            let number = *NUMBERS.get(name.as_str())?;
            Some((number, value))
        });
        let wrong = set.filter(|(number, value)| is_wrong(&PortSpec::KEYS[*number], value));
        let (number, value) = wrong.min_by_key(|(number, _)| *number)?;
        Some((&PortSpec::KEYS[number], value))
    }
}

/// Returns whether a value is within the bounds of its key.
fn fits(key: &PortKey, value: &Value) -> bool {
    match (key.range, key.length) {
        (Some((least, most)), _) => {
            let number = value.as_u64();
            number.is_some_and(|number| (least..=most).contains(&number))
        }
        (None, Some((least, most))) => {
            let fits = |text: &str| (least..=most).contains(&text.len());
            let is_plain = |text: &str| !text.contains(char::is_control);
            value
                .as_str()
                .is_some_and(|text| fits(text) && is_plain(text))
        }
        (None, None) => true,
    }
}

/// Returns a value as errors show it; of a list the first element.
fn shown(key: &str, value: &Value) -> String {
    match value {
        Value::String(_) if key == "secret" => quoted(Secret::HIDDEN),
        Value::String(text) => quoted(text),
        Value::Array(all) => all.first().map_or("[]".to_owned(), |of| shown(key, of)),
        Value::Object(all) => all
            .values()
            .next()
            .map_or("{}".to_owned(), |of| shown(key, of)),
        other => other.to_string(),
    }
}
