//! Reads JSON documents. Errors are those of serde in the words of the configuration: what was
//! expected, and what was found.

use api::v1::{PortSpec, Problem, ProblemKind, Secret};
use serde::de::{DeserializeOwned, Deserializer};
use serde_json::Error;
use serde_path_to_error::Error as Misfit;

use crate::words::{message, quoted};
use crate::{expect, similar, words};

/// Reads a document from `input`.
///
/// # Errors
/// The first error and its path.
pub fn read<'de, T, D>(input: D) -> Result<T, Misfit<D::Error>>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    serde_path_to_error::deserialize(input)
}

/// A key or the end of a path, the expected type if the row is about that only, and the expected
/// value.
pub(crate) type ExpectedValue = (&'static str, Option<&'static str>, &'static str);

/// Keys with the same meaning in every document.
pub(crate) const KEYS: &[ExpectedValue] = &[
    ("name", None, expect::NAME),
    ("kind", None, expect::KIND),
    ("driver", None, expect::DRIVER),
    ("role", None, expect::ROLE),
    ("iommu", None, expect::IOMMU),
    ("socket", None, expect::SOCKET),
    ("slots", None, expect::SLOTS),
    ("secret", None, expect::SECRET),
    ("mac", None, expect::MAC),
    ("netns", None, expect::NETNS),
    ("trunk", Some("a sequence"), expect::TRUNK),
    ("vlan", Some("u16"), expect::VLAN),
    ("workers", None, expect::WORKERS),
    ("poll", None, expect::POLL),
    ("poll_us", None, expect::POLL_LIMIT),
    ("guest_state", None, expect::GUEST_STATE),
    ("period_us", None, expect::PERIOD),
    ("kick_us", None, expect::KICK_WINDOW),
    ("frames", None, expect::COALESCED_FRAMES),
    ("connections.max", None, expect::CONNECTIONS),
    ("limits.connections", None, expect::PORT_CONNECTIONS),
    ("recovery", None, expect::RECOVERY),
    ("listen", None, expect::LISTEN),
    ("packets_per_second", None, expect::PACKETS),
    ("from_guest.packets_burst", None, expect::PACKETS_BURST),
    ("to_guest.packets_burst", None, expect::PACKETS_BURST),
    ("packets_burst", None, expect::FLOOD_BURST),
    ("bits_per_second", None, expect::BITS),
    ("bits_burst", None, expect::BITS_BURST),
    ("egress.rate", None, expect::BITS),
    ("egress.room", None, expect::ROOM),
    ("min", None, expect::BITS),
    ("max", None, expect::BITS),
    ("burst", None, expect::BITS_BURST),
];

/// The types of integers in serde's errors, and their descriptions.
const INTEGERS: [(&str, &str); 6] = [
    ("u8", "an integer from 0 to 255"),
    ("u16", "an integer from 0 to 65535"),
    ("u32", "an integer from 0 to 4294967295"),
    ("u64", "an integer from 0"),
    ("usize", "an integer from 0"),
    ("i64", "an integer"),
];

/// Returns the problem of a document for the client: no JSON (400), or invalid (422).
pub fn problem(error: &Misfit<Error>) -> Problem {
    let (path, error) = (error.path().to_string(), error.inner());
    if !error.is_data() {
        return syntax_error(error);
    }
    let path = match path.as_str() {
        "." | "?" => "",
        path => path,
    };
    let (detail, field) = explain(without_place(&error.to_string()), path);
    let problem = Problem::new(ProblemKind::Invalid, detail);
    match field.as_str() {
        "" => problem,
        field => problem.with_field(field),
    }
}

/// Returns the problem of a text that is not JSON, with its line and column.
pub fn syntax_error(error: &Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    let at = format!("at line {line} column {column}");
    let text = error.to_string();
    let detail = if error.is_eof() {
        format!("expected more JSON, found its end {at}")
    } else {
        let expected = words::expected_json(without_place(&text));
        format!("expected {expected}, found something else {at}")
    };
    Problem::new(ProblemKind::Malformed, detail)
}

/// Removes the position in the text from serde's message: a document may come from elsewhere.
fn without_place(text: &str) -> &str {
    let is_place = |place: &str| {
        let numbers = place.split_once(" column ");
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        numbers.is_some_and(|(line, column)| is_number(line) && is_number(column))
    };
    match text.rsplit_once(" at line ") {
        Some((what, place)) if is_place(place) => what,
        _ => text,
    }
}

/// A message of serde, taken apart.
pub(crate) enum Message<'a> {
    /// A required key is missing.
    Missing(&'a str),
    /// A key is there twice.
    Twice(&'a str),
    /// A key is none of the known ones.
    UnknownKey(&'a str, Vec<&'a str>),
    /// A word is none of the known ones.
    UnknownWord(&'a str, Vec<&'a str>),
    /// A value is not of the expected type; serde may describe it.
    Value(Option<&'a str>, &'a str),
    /// Any other error.
    Other(&'a str),
}

impl<'a> Message<'a> {
    /// Takes a message apart.
    pub(crate) fn parse(what: &'a str) -> Self {
        if let Some(name) = between(what, "missing field `", "`") {
            return Self::Missing(name);
        }
        if let Some(name) = between(what, "duplicate field `", "`") {
            return Self::Twice(name);
        }
        if let Some(name) = between(what, "unknown field `", "`, there are no fields") {
            return Self::UnknownKey(name, Vec::new());
        }
        // The client's text is in the message, too, but before.
        let Some((found, expected)) = what.rsplit_once(", expected ") else {
            // Of several possible types.
            return match what.strip_prefix("expected ") {
                Some(expected) => Self::Value(None, expected),
                None => Self::Other(what),
            };
        };
        if let Some(name) = between(found, "unknown field `", "`") {
            return Self::UnknownKey(name, words(expected));
        }
        if let Some(word) = between(found, "unknown variant `", "`") {
            return Self::UnknownWord(word, words(expected));
        }
        Self::Value(Some(found), expected)
    }
}

/// Returns the keys that a structure may have, from the error about an unknown one.
pub(crate) fn keys_of<T: DeserializeOwned>() -> Vec<String> {
    let error = serde_json::from_str::<T>("{\"\": 0}").err();
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    match Message::parse(without_place(&text)) {
        Message::UnknownKey(_, known) => known.into_iter().map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// Translates serde's message about the value at a path; returns the detail and the field.
pub fn explain(what: &str, path: &str) -> (String, String) {
    let detail = match Message::parse(what) {
        Message::Missing(name) => {
            let key = KEYS.iter().find(|(key, ..)| *key == name);
            let expected = key.map_or("the key", |(.., words)| words);
            return (message(expected, "no such key"), within(path, name));
        }
        Message::Twice(name) => {
            message("each key once", &format!("{} a second time", quoted(name)))
        }
        Message::UnknownKey(name, known) => unknown_key(name, &known),
        Message::UnknownWord(word, known) => {
            message(&similar::expected_word(word, &known), &quoted(word))
        }
        Message::Value(None, expected) => message(expected, "something else"),
        Message::Value(Some(_), expected) if is_secret(path) => {
            message(&expected_at(path, expected), Secret::HIDDEN)
        }
        Message::Value(Some(found), expected) => {
            message(&expected_at(path, expected), &value(found))
        }
        Message::Other(what) => what.to_owned(),
    };
    (detail, path.to_owned())
}

/// Returns whether errors must not show the value at a path.
pub(crate) fn is_secret(path: &str) -> bool {
    path.rsplit('.').next() == Some("secret")
}

fn unknown_key(name: &str, known: &[&str]) -> String {
    let expected = similar::expected_key(name, known);
    message(&expected, &format!("the unknown key {}", quoted(name)))
}

/// Returns the expected value at a path where serde expects a type.
fn expected_at(path: &str, expected: &str) -> String {
    let words = row(KEYS, path, expected).or_else(|| of_port(path));
    let words = words.or_else(|| integer(expected));
    match words.unwrap_or(expected) {
        "a sequence" => "an array".to_owned(),
        words => words.to_owned(),
    }
}

/// Returns the expected value at a path from a table, where serde expects a type.
pub(crate) fn row(table: &[ExpectedValue], path: &str, of: &str) -> Option<&'static str> {
    let is_end = |end: &str| {
        let before = path.strip_suffix(end);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    let mut rows = table.iter();
    let row = rows.find(|(end, type_of, _)| is_end(end) && type_of.is_none_or(|it| it == of));
    row.map(|(.., words)| *words)
}

/// Returns the expected value of a port's key, of the last name in a path, from its declaration.
pub(crate) fn of_port(path: &str) -> Option<&'static str> {
    let name = path.rsplit('.').next()?;
    let mut keys = PortSpec::KEYS.iter();
    keys.find(|key| key.name == name)?.expected
}

/// Describes a type of integers.
pub(crate) fn integer(of: &str) -> Option<&'static str> {
    let mut integers = INTEGERS.into_iter();
    integers
        .find(|(name, _)| *name == of)
        .map(|(_, words)| words)
}

/// Returns a value that serde calls ``integer `7` `` or `string "a"` as in the document.
fn value(found: &str) -> String {
    let prefixes = ["invalid type: ", "invalid value: "];
    let mut prefixes = prefixes.iter();
    let Some(found) = prefixes.find_map(|prefix| found.strip_prefix(prefix)) else {
        return found.to_owned();
    };
    for kind in ["integer `", "floating point `", "boolean `", "character `"] {
        if let Some(value) = between(found, kind, "`") {
            return value.to_owned();
        }
    }
    let found = match found {
        "map" => "an object",
        "sequence" => "an array",
        "unit value" => "null",
        _ => found.strip_prefix("string ").unwrap_or(found),
    };
    found.to_owned()
}

/// Returns the words of a list like ``one of `a`, `b` ``.
fn words(list: &str) -> Vec<&str> {
    list.split('`').skip(1).step_by(2).collect()
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.strip_prefix(before)?.strip_suffix(after)
}

/// Returns the path of a field of the object at a path.
fn within(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use api::v1::{AccessModel, DesiredState, PortPatch, PortSpec, SegmentSpec};
    use serde_json::{Value, json};

    use super::*;

    /// Returns the field and the detail of the error in a document.
    fn wrong<T: DeserializeOwned + fmt::Debug>(document: Value) -> (String, String) {
        let text = document.to_string();
        let error = read::<T, _>(document).unwrap_err();
        assert!(serde_json::from_str::<T>(&text).is_err(), "{text}");
        let problem = problem(&error);
        (problem.field.unwrap_or_default(), problem.detail)
    }

    /// A vhost-user port with more keys.
    fn with(part: Value) -> Value {
        let mut port = json!({"name": "vm1", "kind": "vhost-user", "socket": "vm1.sock"});
        let keys = part.as_object().unwrap().clone();
        port.as_object_mut().unwrap().extend(keys);
        port
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
    fn a_structure_tells_its_keys() {
        let keys = ["name", "vlan", "neighbour_suppression"];
        assert_eq!(keys_of::<SegmentSpec>(), keys);
        assert_eq!(keys_of::<api::v1::MetricsSpec>(), ["listen"]);
    }

    #[test]
    fn a_document_is_read_with_paths_as_without() {
        let document = json!({
            "switch": {"name": "h", "workers": "auto", "coalescing": {"enabled": true, "frames": 1}},
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
        assert_eq!(read::<DesiredState, _>(document).unwrap(), plain);
    }

    #[test]
    fn words_are_those_of_the_configuration() {
        let said = |part: Value| wrong::<PortSpec>(with(part));
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
        let text = "expected \"server\", or else \"client\", found \"serve`r\"";
        assert_eq!(said(json!({"role": "serve`r"})), about("role", text));
        let said = |document| wrong::<SegmentSpec>(document);
        let text = "expected the key vlan, or another of name, vlan, neighbour_suppression, found \
                    the unknown key \"vlans\"";
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

    /// Wherever a file may have a prefix, a document may, too; both refuse alike.
    #[test]
    fn a_number_may_have_a_prefix() {
        use api::v1::QosGroupSpec;
        let port = with;
        let rate =
            |way: &str, key: &str, number: Value| port(json!({"limits": {way: {key: number}}}));
        let flood = |kind: &str, number: Value| {
            port(json!({"limits": {kind: {"packets_per_second": 1, "packets_burst": number}}}))
        };
        let class =
            |key: &str, number: Value| port(json!({"qos": {"classes": {"a": {key: number}}}}));
        type Make<'a> = (&'a str, Box<dyn Fn(Value) -> Value + 'a>);
        let ports: Vec<Make<'_>> = vec![
            (
                "limits.to_guest.bits_per_second",
                Box::new(|n| rate("to_guest", "bits_per_second", n)),
            ),
            (
                "limits.from_guest.bits_burst",
                Box::new(|n| rate("from_guest", "bits_burst", n)),
            ),
            (
                "limits.to_guest.packets_per_second",
                Box::new(|n| rate("to_guest", "packets_per_second", n)),
            ),
            (
                "limits.from_guest.packets_burst",
                Box::new(|n| rate("from_guest", "packets_burst", n)),
            ),
            (
                "limits.broadcast.packets_burst",
                Box::new(|n| flood("broadcast", n)),
            ),
            (
                "limits.unknown_unicast.packets_burst",
                Box::new(|n| flood("unknown_unicast", n)),
            ),
            ("qos.min", Box::new(|n| port(json!({"qos": {"min": n}})))),
            ("qos.max", Box::new(|n| port(json!({"qos": {"max": n}})))),
            (
                "qos.burst",
                Box::new(|n| port(json!({"qos": {"burst": n}}))),
            ),
            ("qos.classes.a.min", Box::new(|n| class("min", n))),
            ("qos.classes.a.burst", Box::new(|n| class("burst", n))),
            (
                "egress.rate",
                Box::new(|n| port(json!({"egress": {"rate": n}}))),
            ),
            (
                "egress.room",
                Box::new(|n| port(json!({"egress": {"room": n}}))),
            ),
        ];
        for (field, of) in &ports {
            let plain = read::<PortSpec, _>(of(json!(1_500_000))).unwrap();
            for text in ["1.5M", "1500k", "1_500_000"] {
                assert_eq!(
                    read::<PortSpec, _>(of(json!(text))).unwrap(),
                    plain,
                    "{field}"
                );
            }
            for value in [
                json!("1Mi"),
                json!(""),
                json!(-1),
                json!(1.5),
                json!(true),
                json!("1.5"),
            ] {
                let (found, text) = wrong::<PortSpec>(of(value));
                assert_eq!(found, *field);
                let ours = text.starts_with("expected an integer from ")
                    && text.contains(", or a text like \"");
                assert!(ours, "{field}: {text}");
            }
        }
        let group =
            |number: Value| json!({"name": "g", "min": number, "max": number, "burst": number});
        let plain = read::<QosGroupSpec, _>(group(json!(2_000_000))).unwrap();
        assert_eq!(read::<QosGroupSpec, _>(group(json!("2M"))).unwrap(), plain);
    }

    #[test]
    fn only_what_is_no_json_has_a_place_in_the_text() {
        let said = |text: &str| {
            let mut json = serde_json::Deserializer::from_str(text);
            let problem = problem(&read::<PortPatch, _>(&mut json).unwrap_err());
            (problem.status, problem.field, problem.detail)
        };
        let (status, field, detail) = said("{\"mtu\": 1, \"mtu\": 2}");
        assert_eq!((status, field), (422, None));
        assert_eq!(
            detail,
            "expected each key once, found \"mtu\" a second time"
        );
        let none = "expected a key in double quotes, found something else at line 2 column 1";
        assert_eq!(said("{\n1: 2}"), (400, None, none.to_owned()));
        let end = "expected more JSON, found its end at line 1 column 7";
        assert_eq!(said("{\"mtu\":").0, 400);
        assert_eq!(said("{\"mtu\"").2, end.replace('7', "6"));
    }
}
