//! Structures that are read from objects only. The code that serde derives for a structure also
//! accepts an array of its fields, so that `[]` would be an empty document.

use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};

/// Implements `Serialize` and `Deserialize` for structures that derive both with
/// `#[serde(remote = "Self")]`. They are read from objects only.
#[macro_export]
macro_rules! objects {
    ($($name:ident),*) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, output)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                Self::deserialize($crate::objects::ObjectInput(input))
            }
        }
    )*};
}

/// Wraps the deserializer of a structure: refuses arrays.
#[doc(hidden)]
pub struct ObjectInput<D>(pub D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ObjectInput<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0
            .deserialize_struct(name, fields, FieldsVisitor(visitor))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Wraps the visitor of a structure: accepts objects only.
struct FieldsVisitor<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for FieldsVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(object)
    }
}
