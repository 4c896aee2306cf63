//! Deserialises JSON in which structures are objects. The code that serde derives for a structure
//! also accepts an array of its fields, so that `[]` would be an empty document.

mod words;

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    Visitor,
};
use serde_path_to_error::Error as Misfit;

pub(crate) use words::{explain, problem, syntax_error};

/// Reads a document from `input`.
///
/// # Errors
/// The first error and its path.
pub(crate) fn read<'de, T, D>(input: D) -> Result<T, Misfit<D::Error>>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    serde_path_to_error::deserialize(Objects(input))
}

/// Reads a document faster; an error has no path.
pub(crate) fn read_quickly<'de, T, D>(input: D) -> Result<T, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    T::deserialize(Objects(input))
}

/// The types of integers in serde's errors, and their descriptions.
pub(crate) const INTEGERS: [(&str, &str); 6] = [
    ("u8", "an integer from 0 to 255"),
    ("u16", "an integer from 0 to 65535"),
    ("u32", "an integer from 0 to 4294967295"),
    ("u64", "an integer from 0"),
    ("usize", "an integer from 0"),
    ("i64", "an integer"),
];

/// Wraps a deserializer or a visitor, and everything nested in it.
struct Objects<T>(T);

/// Wraps the visitor of a structure: accepts objects only.
struct Fields<V>(V);

macro_rules! pass_on {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(Objects(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Objects<D> {
    type Error = D::Error;

    pass_on! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32
        deserialize_i64 deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32
        deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char
        deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_option
        deserialize_unit deserialize_seq deserialize_map deserialize_identifier
        deserialize_ignored_any
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Fields(visitor))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, Objects(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, Objects(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, Objects(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, Objects(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, Objects(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! hand_over {
    ($($method:ident: $type:ty,)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Objects<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    hand_over! {
        visit_bool: bool,
        visit_i64: i64,
        visit_i128: i128,
        visit_u64: u64,
        visit_u128: u128,
        visit_f64: f64,
        visit_str: &str,
        visit_borrowed_str: &'de str,
        visit_string: String,
        visit_bytes: &[u8],
        visit_borrowed_bytes: &'de [u8],
        visit_byte_buf: Vec<u8>,
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Objects(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Objects(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, array: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Objects(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Objects(object))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        // Our enumerations are words without contents.
        self.0.visit_enum(variant)
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Fields<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Objects(object))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Objects<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Objects(input))
    }
}

#[cfg(test)]
mod tests {
    use api::v1::{AccessModel, DesiredState, PortPatch, PortSpec, SegmentSpec};
    use serde_json::{Value, json};

    use super::*;

    /// Returns the field and the detail of the error in a document.
    fn wrong<T: DeserializeOwned + fmt::Debug>(document: Value) -> (String, String) {
        let text = document.to_string();
        let error = read::<T, _>(document).unwrap_err();
        let quickly = read_quickly::<T, _>(&mut serde_json::Deserializer::from_str(&text));
        assert!(quickly.is_err(), "{text}");
        let problem = problem(&error);
        (problem.field.unwrap_or_default(), problem.detail)
    }

    #[test]
    fn an_array_is_no_object() {
        let object = |field: &str| {
            let text = "expected an object, found an array";
            (field.to_owned(), text.to_owned())
        };
        assert_eq!(wrong::<DesiredState>(json!([])), object(""));
        assert_eq!(wrong::<DesiredState>(json!([["host"]])), object(""));
        assert_eq!(wrong::<SegmentSpec>(json!(["blue", 7])), object(""));
        assert_eq!(wrong::<PortPatch>(json!([null, null])), object(""));
        assert_eq!(wrong::<AccessModel>(json!([])), object(""));
        assert_eq!(
            wrong::<DesiredState>(json!({"switch": ["x"]})),
            object("switch")
        );
        assert_eq!(
            wrong::<DesiredState>(json!({"segments": [["x"]]})),
            object("segments[0]")
        );
        let guard = json!({"name": "vm1", "kind": "tap", "port_security": ["any"]});
        assert_eq!(wrong::<PortSpec>(guard), object("port_security"));
        let log = json!({"lists": [{"name": "l", "direction": "to-guest", "rules": [
            {"name": "r", "action": "drop", "log": [5]}
        ]}]});
        assert_eq!(wrong::<AccessModel>(log), object("lists[0].rules[0].log"));
    }

    #[test]
    fn what_is_right_is_read_as_without() {
        let document = json!({
            "switch": {"name": "h", "workers": "auto", "helpers": {"enabled": true, "cores": [1]}},
            "segments": [{"name": "blue", "vlan": 7}],
            "ports": [{
                "name": "vm1", "kind": "vhost-user", "socket": "vm1.sock", "trunk": ["blue"],
                "port_security": {"macs": ["52:54:00:00:00:01"], "addresses": "any"},
                "limits": {"from_guest": {"packets_per_second": 100}}
            }],
            "access": {"lists": [{"name": "l", "direction": "to-guest", "ports": ["vm1"], "rules": [
                {"name": "r", "action": "drop", "protocol": "tcp", "destination_ports": [80, "90-99"], "log": {"per_second": 5}}
            ]}]}
        });
        let plain: DesiredState = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(read::<DesiredState, _>(&document).unwrap(), plain);
        assert_eq!(read_quickly::<DesiredState, _>(document).unwrap(), plain);
    }

    #[test]
    fn words_are_those_of_the_configuration() {
        let said = |document| wrong::<PortPatch>(document);
        let about = |field: &str, text: &str| (field.to_owned(), text.to_owned());
        let weight = about("weight", "expected an integer from 1 to 1000, found \"7\"");
        assert_eq!(said(json!({"weight": "7"})), weight);
        let long = about("mtu", "expected an integer from 68 to 9216, found 99999");
        assert_eq!(said(json!({"mtu": 99999})), long);
        let text =
            r#"expected an integer from 68 to 9216, found "a, expected u16 at line 1 column 2""#;
        let sent = json!({"mtu": "a, expected u16 at line 1 column 2"});
        assert_eq!(said(sent), about("mtu", text));
        let text = "expected an array of names of segments, found an object";
        assert_eq!(said(json!({"trunk": {}})), about("trunk", text));
        let text = "expected a string, found 1.5";
        assert_eq!(said(json!({"segment": 1.5})), about("segment", text));
        let text = "expected \"server\" or \"client\", found \"serve`r\"";
        assert_eq!(said(json!({"role": "serve`r"})), about("role", text));
        let said = |document| wrong::<SegmentSpec>(document);
        let text = "expected one of the keys name, vlan, neighbour_suppression, found the unknown \
                    key \"vlans\"";
        let sent = json!({"name": "blue", "vlans": 7});
        assert_eq!(said(sent), about("vlans", text));
        let text =
            "expected a name of 1 to 32 characters out of A-Z a-z 0-9 _ . -, found no such key";
        assert_eq!(said(json!({})), about("name", text));
        let vlan = about("vlan", "expected an integer from 1 to 4094, found -1");
        assert_eq!(said(json!({"name": "blue", "vlan": -1})), vlan);
        let rule = wrong::<api::v1::RuleSpec>(json!({"name": "r", "action": "drop", "vlan": "x"}));
        assert_eq!(rule, about("vlan", "expected an integer, found \"x\""));
        let text = "expected the key, found no such key";
        let within = wrong::<DesiredState>(json!({"access": {"lists": [{"name": "l"}]}}));
        assert_eq!(within, about("access.lists[0].direction", text));
    }

    #[test]
    fn only_what_is_no_json_has_a_place_in_the_text() {
        let said = |text: &str| {
            let mut json = serde_json::Deserializer::from_str(text);
            let problem = problem(&read::<PortPatch, _>(&mut json).unwrap_err());
            (problem.status, problem.field, problem.detail)
        };
        let (status, field, detail) = said("{\"mtu\": -1}");
        assert_eq!((status, field.as_deref()), (422, Some("mtu")));
        assert_eq!(detail, "expected an integer from 68 to 9216, found -1");
        let none = "expected JSON, found none at line 2 column 1: key must be a string";
        assert_eq!(said("{\n1: 2}"), (400, None, none.to_owned()));
        let end = "expected more JSON, found its end at line 1 column 7";
        assert_eq!(said("{\"mtu\":").0, 400);
        assert_eq!(said("{\"mtu\"").2, end.replace('7', "6"));
    }
}
