//! The tables of access lists and of mirrors. Their shape is that of the API's document, which says itself what may be there.

use std::sync::Arc;

use api::v1::{
    AccessListSpec, AccessModel, AddressSet, Group, MirrorSpec, RuleSpec, SegmentDefault,
    WantedState,
};
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::{Fault, Lines, tables};
use crate::wanted::Place;

/// The keys that errors may be about.
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
    "name",
    "peer_groups",
    "peer_ports",
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

/// Reads all of them.
pub(super) fn read(
    top: &DeTable<'_>,
    state: &mut WantedState,
    lines: &mut Lines,
) -> Result<(), Fault> {
    state.access = Arc::new(AccessModel {
        address_sets: all::<AddressSet>(top, "address_set", Place::AddressSet, lines)?.into(),
        groups: all::<Group>(top, "group", Place::Group, lines)?,
        defaults: all::<SegmentDefault>(top, "acl_default", Place::AclDefault, lines)?,
        lists: lists(top, lines)?,
    });
    state.mirrors = all::<MirrorSpec>(top, "mirror", Place::Mirror, lines)?;
    Ok(())
}

/// The tables of a kind, in their order.
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
        typed(table.clone(), offset, place)
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
        let list: AccessListSpec = typed(rest, offset, place)?;
        lists.push(AccessListSpec {
            rules: rules.into(),
            ..list
        });
    }
    Ok(lists)
}

/// Notes where a table and its values stand.
fn note(table: &DeTable<'_>, offset: usize, place: Place, lines: &mut Lines) {
    lines.offsets.insert((place, ""), vec![offset]);
    for key in KEYS {
        if let Some(value) = table.get(*key) {
            let offsets = vec![value.span().start];
            lines.offsets.insert((place, key), offsets);
        }
    }
}

/// A table as the value that its type says it is.
fn typed<T: DeserializeOwned>(table: DeTable<'_>, offset: usize, place: Place) -> Result<T, Fault> {
    let value = Spanned::new(offset..offset, DeValue::Table(table));
    T::deserialize(ValueDeserializer::from(value)).map_err(|error| {
        let (found, expected) = in_words(error.message());
        Fault {
            offset: error.span().map_or(offset, |span| span.start),
            key: place.key(""),
            expected,
            found,
        }
    })
}

/// What was found and what was expected, of an error that has both.
fn in_words(message: &str) -> (String, String) {
    match message.split_once(", expected ") {
        Some((found, expected)) => (found.replace('`', "\""), expected.replace('`', "\"")),
        None => (message.replace('`', "\""), String::new()),
    }
}
