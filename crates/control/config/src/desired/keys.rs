//! Keys of ports: which kinds have them, and the bounds in their declarations.

use api::v1::{PortSpec, Secret};
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
        for key in PortSpec::KEYS {
            if let Some(value) = self.0.get(key.name)
                && !port.kind.may_have(key.name)
            {
                let expected = format!("no {} with kind \"{}\"", key.name, port.kind.as_str());
                return Err(At(place, key.name).wrong(expected, shown(key.name, value)));
            }
        }
        Ok(())
    }

    /// Checks numbers and texts against the bounds of their keys.
    pub(super) fn check_bounds(&self, place: Place) -> Result<(), Invalid> {
        for key in PortSpec::KEYS {
            let Some(value) = self.0.get(key.name) else {
                continue;
            };
            let fits = match (key.range, key.length) {
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
            };
            if !fits {
                let expected = key.expected.unwrap_or("another value");
                return Err(At(place, key.name).wrong(expected, shown(key.name, value)));
            }
        }
        Ok(())
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
