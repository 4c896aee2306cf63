//! Merge patches (RFC 7396) of documents and their parts.

use std::collections::BTreeMap;

use api::v1::{PatchTarget, Problem, ProblemKind};
use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::{Serialize, forward_to_deserialize_any};
use serde_json::{Error, Value};

use crate::json;
use crate::words::message;

/// Returns a document with a merge patch applied. A key that no document has is refused at any
/// depth, also where the patch removes it.
pub(super) fn patched<T: Serialize + DeserializeOwned>(
    document: &T,
    patch: &Value,
) -> Result<T, Problem> {
    let before = serde_json::to_value(document);
    let before = before.map_err(|error| Problem::internal(error.to_string()))?;
    json::read(MergedValue::new(Some(before), patch)).map_err(|error| json::problem(&error))
}

/// Returns an object with a merge patch applied, which must not have its fixed keys.
pub(super) fn patched_object<T: PatchTarget + Serialize + DeserializeOwned>(
    object: &T,
    patch: &Value,
) -> Result<T, Problem> {
    if let Some(key) = T::FIXED.iter().find(|key| patch.get(key).is_some()) {
        let expected = format!("no {key}, which does not change");
        let detail = message(&expected, &patch[key].to_string());
        return Err(Problem::new(ProblemKind::Invalid, detail).with_field(*key));
    }
    patched(object, patch)
}

/// A value with a merge patch applied. It remembers the keys that the patch removes, so that the
/// structure that is read from it refuses those that it does not know.
enum MergedValue {
    /// The patch removes it.
    Removed,
    /// The patch has an object in its place.
    Object(BTreeMap<String, MergedValue>),
    /// Any value, with nothing removed from it.
    Plain(Value),
}

impl MergedValue {
    /// Applies a merge patch (RFC 7396, 2). The parser has limited the depth of the patch.
    fn new(before: Option<Value>, patch: &Value) -> Self {
        let Value::Object(patch) = patch else {
            return Self::Plain(patch.clone());
        };
        let before = match before {
            Some(Value::Object(before)) => before,
            _ => serde_json::Map::new(),
        };
        let plain = |(key, value)| (key, Self::Plain(value));
        let mut all: BTreeMap<_, _> = before.into_iter().map(plain).collect();
        for (key, value) in patch {
            let before = match all.remove(key) {
                Some(Self::Plain(before)) => Some(before),
                _ => None,
            };
            let merged = match value {
                Value::Null => Self::Removed,
                _ => Self::new(before, value),
            };
            all.insert(key.clone(), merged);
        }
        Self::Object(all)
    }

    /// Returns the value as JSON.
    fn into_value(self) -> Value {
        match self {
            Self::Removed => Value::Null,
            Self::Plain(value) => value,
            Self::Object(all) => {
                let left = all.into_iter().filter(|(_, of)| !of.is_removed());
                Value::Object(left.map(|(key, of)| (key, of.into_value())).collect())
            }
        }
    }

    const fn is_removed(&self) -> bool {
        matches!(self, Self::Removed)
    }
}

impl IntoDeserializer<'_, Error> for MergedValue {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Each structure has its keys; all other objects are maps, which have any.
impl<'de> Deserializer<'de> for MergedValue {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Self::Object(all) = self else {
            return self.into_value().deserialize_struct(name, keys, visitor);
        };
        let is_known = |key: &str| keys.contains(&key);
        let left = all.into_iter();
        let left = left.filter(|(key, of)| !(of.is_removed() && is_known(key)));
        MapDeserializer::new(left).deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Self::Object(all) = self else {
            return self.into_value().deserialize_any(visitor);
        };
        let left = all.into_iter().filter(|(_, of)| !of.is_removed());
        MapDeserializer::new(left).deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Removed | Self::Plain(Value::Null) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.into_value().deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use api::v1::{DesiredState, PortSpec};
    use serde_json::json;

    use super::*;

    /// RFC 7396, appendix A.
    #[test]
    fn merge_patches_are_those_of_the_rfc() {
        for (original, patch, result) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (
                json!({"a":"b","b":"c"}),
                json!({"a":null}),
                json!({"b":"c"}),
            ),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (
                json!({"a":{"b":"c"}}),
                json!({"a":{"b":"d","c":null}}),
                json!({"a":{"b":"d"}}),
            ),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"a":"foo"}), json!("bar"), json!("bar")),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (
                json!({}),
                json!({"a":{"bb":{"ccc":null}}}),
                json!({"a":{"bb":{}}}),
            ),
        ] {
            let merged = MergedValue::new(Some(original.clone()), &patch).into_value();
            assert_eq!(merged, result, "{original} and {patch}");
        }
    }
    fn state() -> DesiredState {
        let state = json!({
            "switch": {"name": "host", "coalescing": {"enabled": true}},
            "segments": [{"name": "blue", "vlan": 7}],
            "ports": [{
                "name": "vm1", "kind": "vhost-user", "socket": "vm1.sock",
                "limits": {"to_guest": {"bits_per_second": 1000}},
                "qos": {"classes": {"bulk": {"max": 1000}}}
            }],
            "access": {"groups": [{"name": "web", "ports": ["vm1"]}]}
        });
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn a_removed_key_must_be_known_at_any_depth() {
        let refused = |problem: Problem| (problem.status, problem.field.unwrap_or_default());
        for (patch, field) in [
            (json!({"bogus": null}), "bogus"),
            (json!({"switch": {"bogus": null}}), "switch.bogus"),
            (
                json!({"switch": {"coalescing": {"bogus": null}}}),
                "switch.coalescing.bogus",
            ),
            (json!({"metrics": {"bogus": null}}), "metrics.bogus"),
            (json!({"access": {"bogus": null}}), "access.bogus"),
            (
                json!({"segments": [{"name": "a", "bogus": null}]}),
                "segments[0].bogus",
            ),
        ] {
            let problem = patched(&state(), &patch).unwrap_err();
            assert_eq!(refused(problem), (422, field.to_owned()), "{patch}");
        }
        for (patch, field) in [
            (json!({"limits": {"bogus": null}}), "limits.bogus"),
            (
                json!({"limits": {"to_guest": {"bogus": null}}}),
                "limits.to_guest.bogus",
            ),
            (
                json!({"limits": {"from_guest": {"bogus": null}}}),
                "limits.from_guest.bogus",
            ),
            (json!({"egress": {"bogus": null}}), "egress.bogus"),
            (
                json!({"qos": {"classes": {"bulk": {"bogus": null}}}}),
                "qos.classes.bulk.bogus",
            ),
            (
                json!({"qos": {"classes": {"new": {"bogus": null}}}}),
                "qos.classes.new.bogus",
            ),
            (
                json!({"port_security": {"bogus": null}}),
                "port_security.bogus",
            ),
        ] {
            let problem = patched(&state().ports[0], &patch).unwrap_err();
            assert_eq!(refused(problem), (422, field.to_owned()), "{patch}");
        }
    }

    #[test]
    fn a_known_key_or_the_key_of_a_map_is_removed() {
        let port = patched(
            &state().ports[0],
            &json!({
                "mtu": null, "egress": null, "limits": {"to_guest": null, "from_guest": null},
                "qos": {"min": null, "classes": {"bulk": null, "unknown": null}}
            }),
        );
        assert_eq!(port.unwrap(), PortSpec::vhost_user("vm1", "vm1.sock"));
        let of_classes = json!({"qos": {"classes": {"bulk": {"max": null, "min": "1k"}}}});
        let port = patched(&state().ports[0], &of_classes).unwrap();
        let rates = port.qos.classes["bulk"];
        assert_eq!((rates.min, rates.max), (Some(1000), None));
        let parts = json!({"segments": null, "ports": null, "access": {"groups": null}});
        let new = patched(&state(), &parts).unwrap();
        let expected = DesiredState {
            switch: state().switch,
            ..DesiredState::default()
        };
        assert_eq!(new, expected);
        assert_eq!(patched(&state(), &json!({})).unwrap(), state());
    }
}
