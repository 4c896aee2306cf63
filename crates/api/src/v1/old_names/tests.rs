//! The page has every row, the API's document every new name and no old one.

use serde_json::Value;

use super::*;
use crate::v1::EventKind;

/// Returns the file of the page, and its text.
fn page() -> (String, String) {
    let file = format!("{}/../../{PAGE}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&file).unwrap();
    (file, text)
}

/// Returns the rows of one of the page's tables.
fn table(rows: impl Fn(&OldName) -> bool) -> String {
    let rows = OLD_NAMES.iter().filter(|row| rows(row)).map(|row| {
        let place = match row.place {
            OldPlace::Key(table) => format!("`{table}`"),
            OldPlace::Value(of) => format!("value of {of}"),
            OldPlace::EventKind => "kind of events, `?kind=`".to_owned(),
            OldPlace::Answer(part) => part.to_owned(),
        };
        let new = match row.new {
            Replacement::Name(new) => format!("`{new}`"),
            Replacement::Removed { why, .. } => format!("removed: {why}"),
        };
        format!("| {place} | `{}` | {new} |\n", row.old)
    });
    rows.collect()
}

fn is_configuration(row: &OldName) -> bool {
    matches!(row.place, OldPlace::Key(_) | OldPlace::Value(_))
}

/// `BLESS=1` puts the rows there.
#[test]
fn the_page_of_changed_names_has_every_row() {
    let (file, mut text) = page();
    let tables = [
        ("configuration", table(is_configuration)),
        ("api", table(|row| !is_configuration(row))),
    ];
    for (name, rows) in tables {
        let begin = format!("<!-- generated: {name} -->\n");
        let (before, rest) = text.split_once(&begin).expect(name);
        let (is, after) = rest.split_once("\n<!-- end -->").expect(name);
        let table = format!("| where | old | new |\n|---|---|---|\n{rows}");
        let made = format!("{before}{begin}\n{table}\n<!-- end -->{after}");
        if std::env::var_os("BLESS").is_none() {
            assert_eq!(
                is.trim_start(),
                table,
                "BLESS=1 cargo test -p lasthop-api old_names"
            );
        }
        text = made;
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(file, text).unwrap();
    }
}

/// Collects the names of all properties, and all values that are words.
fn words(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("properties", Value::Object(all)) => into.extend(all.keys().cloned()),
                    ("enum", Value::Array(all)) => {
                        into.extend(all.iter().filter_map(Value::as_str).map(str::to_owned));
                    }
                    _ => (),
                }
                words(value, into);
            }
        }
        Value::Array(all) => all.iter().for_each(|value| words(value, into)),
        _ => (),
    }
}

#[test]
fn the_api_has_the_new_names_only() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut words_of_api = Vec::new();
    words(&document, &mut words_of_api);
    let is_there = |word: &str| words_of_api.iter().any(|one| one == word);
    for row in OLD_NAMES {
        if let Replacement::Name(new) = row.new {
            assert!(is_there(new), "{new}");
        }
        // Some old kinds of events are names of fields.
        let is_kind = row.place == OldPlace::EventKind;
        assert!(is_kind || !is_there(row.old), "{}", row.old);
    }
}

#[test]
fn old_names_are_found_only_where_they_were() {
    let switch = ["name", "workers", "coalescing", "helpers"];
    let text = |row: Option<&OldName>| row.map(OldName::to_string).unwrap_or_default();
    assert_eq!(
        text(old_key("batching", &switch)),
        "renamed to \"coalescing\" (see docs/user/changed-names.md)"
    );
    assert_eq!(
        text(old_key("copy_engine", &switch)),
        "removed: workers copy (see docs/user/changed-names.md)"
    );
    assert_eq!(old_key("guard", &switch), None);
    assert_eq!(old_key("workers", &switch), None);
    assert_eq!(old_key("moved", &["mac_moved"]), None);
    assert_eq!(
        text(old_value("learned-once", &["any", "sticky"])),
        "\"learned-once\" was renamed to \"sticky\" (see docs/user/changed-names.md)"
    );
    let sources = ["auto", "bpf", "off"];
    assert_eq!(old_value("learned-once", &sources), None);
    assert_eq!(old_value("proc", &["any", "sticky"]), None);
    assert_eq!(
        text(old_value("proc", &sources)),
        "\"proc\" was removed: no rule could use samples of /proc, write \"auto\" or \"off\" \
         (see docs/user/changed-names.md)"
    );
    for row in OLD_NAMES
        .iter()
        .filter(|row| row.place == OldPlace::EventKind)
    {
        let Replacement::Name(new) = row.new else {
            panic!("{row}")
        };
        assert_eq!(old_event_kind(row.old), Some(row));
        assert!(EventKind::NAMES.contains(&new), "{new}");
        assert!(!EventKind::NAMES.contains(&row.old), "{row}");
    }
}
