//! JSON in which objects are objects. What serde derives for a structure also takes an array of its fields in their order, so
//! that `[]` would stand for a document in which nothing is said; nobody means that.

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    Visitor,
};
use serde_path_to_error::Error as Misfit;

/// Reads a document from what `input` reads.
///
/// # Errors
/// What is wrong, and where.
pub(crate) fn read<'de, T, D>(input: D) -> Result<T, Misfit<D::Error>>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    serde_path_to_error::deserialize(Objects(input))
}

/// The same, faster, without the place of what is wrong.
pub(crate) fn read_quickly<'de, T, D>(input: D) -> Result<T, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    T::deserialize(Objects(input))
}

/// The types of integers in serde's errors, and what they are to whoever wrote the document.
pub(crate) const INTEGERS: [(&str, &str); 6] = [
    ("u8", "an integer from 0 to 255"),
    ("u16", "an integer from 0 to 65535"),
    ("u32", "an integer from 0 to 4294967295"),
    ("u64", "an integer from 0"),
    ("usize", "an integer from 0"),
    ("i64", "an integer"),
];

/// What is wrong, in the words of JSON instead of those of our code.
pub(crate) fn told(error: &impl fmt::Display) -> String {
    const WORDS: [(&str, &str); 3] = [
        ("expected a sequence", "expected an array"),
        ("invalid type: sequence", "invalid type: array"),
        ("invalid type: map", "invalid type: object"),
    ];
    let expected = |word: &str| format!("expected {word}");
    let integers = INTEGERS.map(|(ours, theirs)| (expected(ours), expected(theirs)));
    let words = WORDS.map(|(ours, theirs)| (ours.to_owned(), theirs.to_owned()));
    let text = error.to_string();
    // Only at the ends of words: what the client sent is in there, too.
    let (what, place) = match text.rfind(" at line ") {
        Some(at) => text.split_at(at),
        None => (text.as_str(), ""),
    };
    let mut what = what.to_owned();
    for (ours, theirs) in integers.into_iter().chain(words) {
        if let Some(rest) = what.strip_prefix(&*ours) {
            what = format!("{theirs}{rest}");
        } else if let Some(rest) = what.strip_suffix(&*ours) {
            what = format!("{rest}{theirs}");
        }
    }
    what + place
}

/// Around what reads, or is read into: all that comes from within has it around it, too.
struct Objects<T>(T);

/// Around what is read from an object.
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
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_option
        deserialize_unit deserialize_seq deserialize_map deserialize_identifier deserialize_ignored_any
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
        // Ours are words: there is nothing in them.
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
    use api::v1::{AccessModel, PortPatch, PortSpec, SegmentSpec, WantedState};
    use serde_json::{Value, json};

    use super::*;

    /// What is wrong with a document, and where.
    fn wrong<T: DeserializeOwned + fmt::Debug>(document: Value) -> (String, String) {
        let text = document.to_string();
        let error = read::<T, _>(document).unwrap_err();
        let quickly = read_quickly::<T, _>(&mut serde_json::Deserializer::from_str(&text));
        assert!(quickly.is_err(), "{text}");
        (error.path().to_string(), told(error.inner()))
    }

    #[test]
    fn an_array_is_no_object() {
        let object = |field: &str| {
            let text = "invalid type: array, expected an object";
            (field.to_owned(), text.to_owned())
        };
        assert_eq!(wrong::<WantedState>(json!([])), object("."));
        assert_eq!(wrong::<WantedState>(json!([["host"]])), object("."));
        assert_eq!(wrong::<SegmentSpec>(json!(["blue", 7])), object("."));
        assert_eq!(wrong::<PortPatch>(json!([null, null])), object("."));
        assert_eq!(wrong::<AccessModel>(json!([])), object("."));
        assert_eq!(
            wrong::<WantedState>(json!({"switch": ["x"]})),
            object("switch")
        );
        assert_eq!(
            wrong::<WantedState>(json!({"segments": [["x"]]})),
            object("segments[0]")
        );
        let guard = json!({"name": "vm1", "kind": "tap", "guard": ["any"]});
        assert_eq!(wrong::<PortSpec>(guard), object("guard"));
        let log = json!({"lists": [{"name": "l", "direction": "to-guest", "rules": [
            {"name": "r", "action": "drop", "log": [5]}
        ]}]});
        assert_eq!(wrong::<AccessModel>(log), object("lists[0].rules[0].log"));
    }

    #[test]
    fn what_is_right_is_read_as_without() {
        let document = json!({
            "switch": {"name": "h", "workers": "auto", "offload": {"enabled": true, "cores": [1]}},
            "segments": [{"name": "blue", "vlan": 7}],
            "ports": [{
                "name": "vm1", "kind": "vhost-user", "socket": "vm1.sock", "trunk": ["blue"],
                "guard": {"macs": ["52:54:00:00:00:01"], "addresses": "any"},
                "limits": {"from_guest": {"packets_per_second": 100}}
            }],
            "access": {"lists": [{"name": "l", "direction": "to-guest", "ports": ["vm1"], "rules": [
                {"name": "r", "action": "drop", "protocol": "tcp", "destination_ports": [80, "90-99"], "log": {"per_second": 5}}
            ]}]}
        });
        let plain: WantedState = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(read::<WantedState, _>(&document).unwrap(), plain);
        assert_eq!(read_quickly::<WantedState, _>(document).unwrap(), plain);
    }

    #[test]
    fn words_are_those_of_json() {
        let said = |document| wrong::<PortPatch>(document).1;
        let long = "invalid value: integer `99999`, expected an integer from 0 to 65535";
        assert_eq!(said(json!({"mtu": 99999})), long);
        let text = r#"invalid type: string "expected u16", expected an integer from 0 to 65535"#;
        assert_eq!(said(json!({"mtu": "expected u16"})), text);
        let text = "invalid type: object, expected an array";
        assert_eq!(said(json!({"trunk": {}})), text);
        let mut json = serde_json::Deserializer::from_str("{\"mtu\": -1}");
        let error = read_quickly::<PortPatch, _>(&mut json).unwrap_err();
        let text =
            "invalid value: integer `-1`, expected an integer from 0 to 65535 at line 1 column 10";
        assert_eq!(told(&error), text);
    }
}
