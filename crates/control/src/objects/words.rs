//! Translates serde's errors into those of the configuration: what was expected, and what was
//! found.

use api::v1::{Problem, ProblemKind, old_names};
use serde_json::Error;
use serde_path_to_error::Error as Misfit;

use super::INTEGERS;
use crate::desired::{expect, message, quoted};

/// Keys with the same meaning in every document, and the expected value of each. An entry with a
/// type applies only to errors about that type.
const KEYS: [(&str, Option<&str>, &str); 21] = [
    ("name", None, expect::NAME),
    ("kind", None, expect::KIND),
    ("driver", None, expect::DRIVER),
    ("role", None, expect::ROLE),
    ("socket", None, expect::SOCKET),
    ("queues", None, expect::QUEUES),
    ("weight", None, expect::WEIGHT),
    ("mtu", None, expect::MTU),
    ("mac", None, expect::MAC),
    ("netns", None, expect::NETNS),
    ("trunk", Some("a sequence"), expect::TRUNK),
    ("vcpu_threads", None, expect::VCPU_THREADS),
    ("vlan", Some("u16"), expect::VLAN),
    ("workers", None, expect::WORKERS),
    ("poll", None, expect::POLL),
    ("guest_state", None, expect::GUEST_STATE),
    ("period_us", None, expect::PERIOD),
    ("frames", None, expect::COALESCED_FRAMES),
    ("backlog", None, expect::BACKLOG),
    ("hysteresis_us", None, expect::HYSTERESIS),
    ("listen", None, expect::LISTEN),
];

/// Returns the problem of a document for the client: no JSON (400), or invalid (422).
pub(crate) fn problem(error: &Misfit<Error>) -> Problem {
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
pub(crate) fn syntax_error(error: &Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    let at = format!("at line {line} column {column}");
    let text = error.to_string();
    let detail = if error.is_eof() {
        format!("expected more JSON, found its end {at}")
    } else {
        format!("expected JSON, found none {at}: {}", without_place(&text))
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

/// Translates serde's message about the value at a path; returns the detail and the field.
pub(crate) fn explain(what: &str, path: &str) -> (String, String) {
    if let Some(name) = between(what, "missing field `", "`") {
        let key = KEYS.iter().find(|(key, ..)| *key == name);
        let expected = key.map_or("the key", |(.., words)| words);
        return (message(expected, "no such key"), within(path, name));
    }
    if let Some(name) = between(what, "duplicate field `", "`") {
        let found = format!("{} a second time", quoted(name));
        return (message("each key once", &found), path.to_owned());
    }
    if let Some(name) = between(what, "unknown field `", "`, there are no fields") {
        let found = format!("the unknown key {}", quoted(name));
        return (message("no key", &found), path.to_owned());
    }
    // The client's text is in the message, too, but before.
    let detail = match what.rsplit_once(", expected ") {
        Some((found, expected)) => with_both(found, expected, path),
        None => match what.strip_prefix("expected ") {
            // Of several possible types.
            Some(expected) => message(expected, "something else"),
            None => what.to_owned(),
        },
    };
    (detail, path.to_owned())
}

/// Translates an error with a found and an expected part.
fn with_both(found: &str, expected: &str, path: &str) -> String {
    if let Some(name) = between(found, "unknown field `", "`") {
        let keys: Vec<&str> = words(expected).collect();
        if let Some(row) = old_names::old_key(name, &keys) {
            return row.to_string();
        }
        let expected = match keys.len() {
            1 => format!("the key {}", keys[0]),
            _ => format!("one of the keys {}", keys.join(", ")),
        };
        return message(&expected, &format!("the unknown key {}", quoted(name)));
    }
    if let Some(word) = between(found, "unknown variant `", "`") {
        let all: Vec<String> = words(expected).map(quoted).collect();
        let expected = match all.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => all.concat(),
        };
        return message(&expected, &quoted(word));
    }
    let found = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|prefix| found.strip_prefix(prefix))
        .map_or_else(|| found.to_owned(), value);
    message(&expected_at(path, expected), &found)
}

/// Returns the expected value at a path where serde expects a type.
fn expected_at(path: &str, expected: &str) -> String {
    let key = path.rsplit('.').next().unwrap_or(path);
    let known = KEYS
        .iter()
        .find(|(name, of, _)| *name == key && of.is_none_or(|of| of == expected));
    if let Some((.., words)) = known {
        return (*words).to_owned();
    }
    let mut integers = INTEGERS.into_iter();
    if let Some((_, words)) = integers.find(|(name, _)| *name == expected) {
        return words.to_owned();
    }
    match expected {
        "a sequence" => "an array".to_owned(),
        words => words.to_owned(),
    }
}

/// Returns a value that serde calls ``integer `7` `` or `string "a"` as in the document.
fn value(found: &str) -> String {
    for kind in ["integer `", "floating point `", "boolean `", "character `"] {
        if let Some(value) = between(found, kind, "`") {
            return value.to_owned();
        }
    }
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "an array".to_owned(),
        "unit value" => "null".to_owned(),
        _ => match found.strip_prefix("string ") {
            Some(text) => text.to_owned(),
            None => found.to_owned(),
        },
    }
}

/// Returns the words of a list like ``one of `a`, `b` ``.
fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split('`').skip(1).step_by(2)
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
