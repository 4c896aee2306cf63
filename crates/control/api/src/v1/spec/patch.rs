//! JSON merge patches (RFC 7396) of objects: values, whose schema is that of the object with
//! everything optional.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Number, Value};
use utoipa::openapi::schema::{OneOfBuilder, Schema, SchemaType};
use utoipa::openapi::{ObjectBuilder, RefOr, Type};
use utoipa::{PartialSchema, ToSchema};

/// An object that merge patches change.
pub trait PatchTarget: ToSchema {
    /// The name of the schema of its patches.
    const PATCH: &str;
    /// The description of its patches.
    const MEANING: &str;
    /// Keys that no patch has, because they do not change.
    const FIXED: &[&str];
}

/// A merge patch of a `T`: an object, in which no key is twice. Whether its keys and their values
/// are those of a `T` shows when it is applied.
pub struct Patch<T> {
    value: Value,
    of: PhantomData<fn() -> T>,
}

impl<T> Patch<T> {
    /// Returns the object.
    #[must_use]
    pub fn into_value(self) -> Value {
        self.value
    }
}

impl<T> fmt::Debug for Patch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Patch")
    }
}

impl<T> Serialize for Patch<T> {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(output)
    }
}

impl<'de, T> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let object = input.deserialize_map(ObjectVisitor)?;
        Ok(Self {
            value: Value::Object(object),
            of: PhantomData,
        })
    }
}

/// A value in whose objects no key is twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(ValueVisitor).map(Self)
    }
}

/// Reads an object.
struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = object.next_key::<String>()? {
            if all.contains_key(&key) {
                return Err(A::Error::custom(format!("duplicate field `{key}`")));
            }
            let Strict(value) = object.next_value()?;
            all.insert(key, value);
        }
        Ok(all)
    }
}

/// Reads any value.
struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Strict(value)) = array.next_element()? {
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Value, A::Error> {
        ObjectVisitor.visit_map(object).map(Value::Object)
    }
}

impl<T: PatchTarget> PartialSchema for Patch<T> {
    fn schema() -> RefOr<Schema> {
        let mut schema = T::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            object.description = Some(T::MEANING.to_owned());
            object.required.clear();
            let properties = std::mem::take(&mut object.properties).into_iter();
            let changed = properties.filter(|(key, _)| !T::FIXED.contains(&key.as_str()));
            object.properties = changed.map(|(key, of)| (key, or_null(of))).collect();
        }
        schema
    }
}

impl<T: PatchTarget> ToSchema for Patch<T> {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed(T::PATCH)
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        T::schemas(schemas);
    }
}

/// Returns the schema of a value that may be `null`.
fn or_null(of: RefOr<Schema>) -> RefOr<Schema> {
    match of {
        RefOr::T(Schema::Object(mut object)) => {
            object.schema_type = type_or_null(object.schema_type);
            object.default = None;
            RefOr::T(Schema::Object(object))
        }
        RefOr::T(Schema::Array(mut array)) => {
            array.schema_type = type_or_null(array.schema_type);
            RefOr::T(Schema::Array(array))
        }
        RefOr::Ref(reference) => {
            let null = ObjectBuilder::new().schema_type(Type::Null);
            let either = OneOfBuilder::new().item(RefOr::Ref(reference)).item(null);
            RefOr::T(Schema::OneOf(either.build()))
        }
        // One of several types, of which one is `null` already.
        other => other,
    }
}

fn type_or_null(of: SchemaType) -> SchemaType {
    match of {
        SchemaType::Type(one) => SchemaType::Array(vec![one, Type::Null]),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_str, json, to_value};

    use super::*;
    use crate::v1::{PortPatch, PortSpec, QosClassSpec, QosGroupSpec, SegmentSpec};

    #[test]
    fn a_patch_is_an_object_with_each_key_once() {
        let text = r#"{"mtu":null,"limits":{"to_guest":{"bits_per_second":"1G"}},"trunk":["a"]}"#;
        let patch: PortPatch = from_str(text).unwrap();
        let value = from_str::<Value>(text).unwrap();
        assert_eq!(to_value(&patch).unwrap(), value);
        assert_eq!(patch.into_value(), value);
        for (text, expected) in [
            (r#"["mtu"]"#, "invalid type: sequence, expected an object"),
            ("null", "invalid type: null, expected an object"),
            (r#"{"mtu":1,"mtu":2}"#, "duplicate field `mtu`"),
            (r#"{"qos":{"min":1,"min":2}}"#, "duplicate field `min`"),
        ] {
            let error = from_str::<PortPatch>(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn its_schema_is_that_of_the_object_with_everything_optional() {
        its_schema_is_that_of::<PortSpec>();
        its_schema_is_that_of::<SegmentSpec>();
        its_schema_is_that_of::<QosClassSpec>();
        its_schema_is_that_of::<QosGroupSpec>();
    }

    fn its_schema_is_that_of<T: PatchTarget>() {
        let schema = to_value(Patch::<T>::schema()).unwrap();
        let object = to_value(T::schema()).unwrap();
        assert_eq!(schema["required"], Value::Null);
        let keys = |of: &Value| {
            let properties = of["properties"].as_object().unwrap();
            properties.keys().cloned().collect::<Vec<_>>()
        };
        let mut changed = keys(&object);
        changed.retain(|key| !T::FIXED.contains(&key.as_str()));
        assert_eq!(keys(&schema), changed);
        for key in changed {
            let of = &schema["properties"][&key];
            let null = json!({"type": "null"});
            let types = of["type"].as_array().or(of["oneOf"].as_array());
            let types = types.unwrap_or_else(|| panic!("{key}: {of}"));
            assert!(
                types.iter().any(|one| *one == "null" || *one == null),
                "{key}: {of}"
            );
            assert_eq!(of["default"], Value::Null, "{key}");
            let described = of["description"].is_string();
            assert!(
                described || of["oneOf"][0]["description"].is_string(),
                "{key}: {of}"
            );
        }
    }
}
