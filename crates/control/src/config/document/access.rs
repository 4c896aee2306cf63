//! The tables of access lists, of mirrors and of static entries. Their schema is that of the API's
//! types, which deserialise themselves.

use std::sync::Arc;

use api::v1::{
    AccessListSpec, AccessModel, AddressSet, DesiredState, Group, MirrorSpec, RuleSpec,
    SegmentDefault, StaticEntry,
};
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::{Fault, Lines, describe, tables};
use crate::desired::Place;
use crate::objects::INTEGERS;

/// Keys whose offsets errors may need.
const KEYS: &[&str] = &[
    "action",
    "addresses",
    "destination",
    "destination_mac",
    "destination_ports",
    "direction",
    "ether_type",
    "filter",
    "fragment",
    "groups",
    "icmp_code",
    "icmp_type",
    "log",
    "mac",
    "name",
    "peer_groups",
    "peer_ports",
    "port",
    "ports",
    "priority",
    "protocol",
    "rule",
    "segment",
    "segments",
    "source",
    "source_mac",
    "source_ports",
    "tcp_flags",
    "to",
    "vlan",
];

/// Reads all of these tables.
pub(super) fn read(
    top: &DeTable<'_>,
    state: &mut DesiredState,
    lines: &mut Lines,
) -> Result<(), Fault> {
    state.access = Arc::new(AccessModel {
        address_sets: all::<AddressSet>(top, "address_set", Place::AddressSet, lines)?.into(),
        groups: all::<Group>(top, "group", Place::Group, lines)?,
        defaults: all::<SegmentDefault>(top, "acl_default", Place::AclDefault, lines)?,
        lists: lists(top, lines)?,
    });
    state.mirrors = all::<MirrorSpec>(top, "mirror", Place::Mirror, lines)?;
    state.fdb = all::<StaticEntry>(top, "fdb", Place::Fdb, lines)?;
    Ok(())
}

/// Reads all tables of a kind, in their order.
fn all<T: DeserializeOwned>(
    table: &DeTable<'_>,
    key: &'static str,
    place: impl Fn(usize) -> Place,
    lines: &mut Lines,
) -> Result<Vec<T>, Fault> {
    let tables = tables(table, key)?.into_iter().enumerate();
    let one = |(at, (table, offset)): (usize, (&DeTable<'_>, usize))| {
        let place = place(at);
        note(table, offset, place, lines);
        typed(table, offset, place)
    };
    tables.map(one).collect()
}

fn lists(top: &DeTable<'_>, lines: &mut Lines) -> Result<Vec<AccessListSpec>, Fault> {
    let mut lists = Vec::new();
    for (at, (table, offset)) in tables(top, "acl")?.into_iter().enumerate() {
        let place = Place::Acl(at);
        note(table, offset, place, lines);
        let rules = all::<RuleSpec>(table, "rule", |rule| Place::Rule(at, rule), lines)?;
        let mut rest = table.clone();
        rest.remove("rule");
        no_other_rules(&rest, place)?;
        let list: AccessListSpec = typed(&rest, offset, place)?;
        lists.push(AccessListSpec {
            rules: rules.into(),
            ..list
        });
    }
    Ok(lists)
}

/// Records the offsets of a table and its values.
fn note(table: &DeTable<'_>, offset: usize, place: Place, lines: &mut Lines) {
    lines.offsets.insert((place, ""), vec![offset]);
    for key in KEYS {
        if let Some(value) = table.get(*key) {
            let offsets = vec![value.span().start];
            lines.offsets.insert((place, key), offsets);
        }
    }
}

/// Refuses the key `rules`, under which the API's document has rules. Here they would be lost, and
/// a list without rules allows everything.
fn no_other_rules(list: &DeTable<'_>, place: Place) -> Result<(), Fault> {
    match list.get_key_value("rules") {
        None => Ok(()),
        Some((key, _)) => Err(Fault {
            offset: key.span().start,
            key: place.key(key.get_ref()),
            expected: "tables [[acl.rule]]".to_owned(),
            found: "the unknown key \"rules\"".to_owned(),
        }),
    }
}

/// Deserialises a table.
fn typed<T: DeserializeOwned>(
    table: &DeTable<'_>,
    offset: usize,
    place: Place,
) -> Result<T, Fault> {
    let value = Spanned::new(offset..offset, DeValue::Table(table.clone()));
    T::deserialize(ValueDeserializer::from(value)).map_err(|error| {
        let offset = error.span().map_or(offset, |span| span.start);
        let (found, expected) = in_words(error.message());
        let value = value_at(table, offset);
        let (key, value) =
            value.map_or_else(Default::default, |(key, value)| (key, describe(value)));
        Fault {
            offset,
            key: place.key(&key),
            expected,
            found: found.unwrap_or(value),
        }
    })
}

/// Returns the innermost value at an offset, and its key.
fn value_at<'t, 'i>(table: &'t DeTable<'i>, offset: usize) -> Option<(String, &'t DeValue<'i>)> {
    let mut values = table.iter();
    let (key, value) = values.find(|(_, value)| value.span().contains(&offset))?;
    let key = key.get_ref().to_string();
    let inner = match value.get_ref() {
        DeValue::Table(table) => {
            let inner = value_at(table, offset);
            inner.map(|(within, value)| (format!("{key}.{within}"), value))
        }
        DeValue::Array(items) => {
            let item = items.iter().find(|item| item.span().contains(&offset));
            item.map(|item| (key.clone(), item.get_ref()))
        }
        _ => None,
    };
    // The offset of an unknown key in a nested table is not that of a value.
    let is_value = value.span().start == offset;
    inner.or_else(|| is_value.then(|| (key, value.get_ref())))
}

/// Splits an error of serde into what was found and what was expected. Without the former, the
/// value at the offset was found.
fn in_words(message: &str) -> (Option<String>, String) {
    let quoted = |text: &str| Some(text.replace('`', "\""));
    match message.split_once(", expected ") {
        Some((found, expected)) if found.starts_with("unknown field") => {
            (quoted(found), type_in_words(expected))
        }
        Some((_, expected)) => (None, type_in_words(expected)),
        None => match message.strip_prefix("expected ") {
            // Of several possible types. The element of a list is not known.
            Some(expected) => (Some("something else".to_owned()), expected.to_owned()),
            None => (quoted(message), String::new()),
        },
    }
}

/// Returns a type's name in the terms of TOML.
fn type_in_words(expected: &str) -> String {
    let mut integers = INTEGERS.into_iter();
    if let Some((_, words)) = integers.find(|(name, _)| *name == expected) {
        return words.to_owned();
    }
    match expected {
        "a sequence" => "a list, like [...]".to_owned(),
        structure if structure.starts_with("struct ") => "a table, like { ... }".to_owned(),
        words => words.replace('`', "\""),
    }
}
