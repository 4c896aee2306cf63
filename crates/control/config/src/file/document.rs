//! The schema of the file: that of the API's documents, whose types deserialise themselves, with
//! tables in the singular, and without the wrapper around access lists.

mod expected;

use std::collections::HashSet;
use std::sync::Arc;

use api::v1::{
    AccessListSpec, AccessModel, AddressSet, DesiredState, Group, MetricsSpec, MirrorSpec,
    PipeSpec, PortKind, PortSpec, QosClassSpec, QosGroupSpec, Secret, SegmentDefault, SegmentSpec,
    StaticEntry, SwitchSpec,
};
use serde::Deserialize;
use serde_path_to_error::{Error as Misfit, Segment};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, Error, ValueDeserializer};

use self::expected::expected;
use crate::json::{self, Message};
use crate::{similar, words};

/// The tables of a file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Tables {
    switch: SwitchSpec,
    metrics: MetricsSpec,
    segment: Vec<SegmentSpec>,
    qos_class: Vec<QosClassSpec>,
    qos_group: Vec<QosGroupSpec>,
    port: Vec<PortSpec>,
    address_set: Vec<AddressSet>,
    group: Vec<Group>,
    acl_default: Vec<SegmentDefault>,
    acl: Vec<AccessListSpec>,
    mirror: Vec<MirrorSpec>,
    pipe: Vec<PipeSpec>,
    fdb: Vec<StaticEntry>,
}

impl From<Tables> for DesiredState {
    fn from(tables: Tables) -> Self {
        Self {
            switch: tables.switch,
            metrics: tables.metrics,
            segments: tables.segment,
            qos_classes: tables.qos_class,
            qos_groups: tables.qos_group,
            ports: tables.port.into(),
            access: Arc::new(AccessModel {
                address_sets: tables.address_set.into(),
                groups: tables.group,
                defaults: tables.acl_default,
                lists: tables.acl,
            }),
            mirrors: tables.mirror,
            pipes: tables.pipe,
            fdb: tables.fdb,
        }
    }
}

/// An error with the byte offset of its place.
pub(super) struct Fault {
    pub(super) offset: usize,
    pub(super) key: String,
    pub(super) expected: String,
    pub(super) found: String,
}

/// Reads a document; values are not checked beyond their types.
///
/// Paths of values are followed only for an error.
pub(super) fn read(text: &str) -> Result<DesiredState, Fault> {
    let document = Document::parse(text)?;
    document.check_keys()?;
    let tables = match Tables::deserialize(document.into_input()) {
        Ok(tables) => tables,
        Err(_) => {
            let input = Document::parse(text)?.into_input();
            let tables: Result<Tables, _> = serde_path_to_error::deserialize(input);
            let document = Document::parse(text)?;
            tables.map_err(|error| document.fault(&error))?
        }
    };
    Ok(tables.into())
}

/// A parsed file.
pub(super) struct Document<'i>(Spanned<DeValue<'i>>);

/// A value of the file, or the innermost table around it if it does not exist.
struct FoundValue<'d, 'i> {
    value: &'d Spanned<DeValue<'i>>,
    exists: bool,
}

impl FoundValue<'_, '_> {
    fn offset(&self) -> usize {
        self.value.span().start
    }

    /// Describes the value.
    fn describe(&self) -> String {
        describe(self.value.get_ref())
    }
}

impl<'i> Document<'i> {
    /// Parses TOML.
    pub(super) fn parse(text: &'i str) -> Result<Self, Fault> {
        let top = DeTable::parse(text).map_err(|error| {
            let (expected, found) = words::toml(error.message());
            Fault {
                offset: error.span().map_or(0, |span| span.start),
                key: String::new(),
                expected: expected.to_owned(),
                found: found.to_owned(),
            }
        })?;
        Ok(Self(Spanned::new(0..0, DeValue::Table(top.into_inner()))))
    }

    /// Returns the file as the API's types read it: with a name of the switch.
    fn into_input(mut self) -> ValueDeserializer<'i> {
        if let DeValue::Table(top) = self.0.get_mut()
            && let Some(DeValue::Table(switch)) = top.get_mut("switch").map(Spanned::get_mut)
        {
            let name = DeValue::String(SwitchSpec::default().name.into());
            let key = Spanned::new(0..0, "name".into());
            switch.entry(key).or_insert(Spanned::new(0..0, name));
        }
        ValueDeserializer::from(self.0)
    }

    /// Follows keys; an array on the way, or at its end, takes the next index.
    fn find(&self, keys: &[&str], indices: &[usize]) -> FoundValue<'_, 'i> {
        let mut indices = indices.iter();
        let mut value = &self.0;
        for key in keys {
            let Some(next) = value.get_ref().get(*key) else {
                let exists = false;
                return FoundValue { value, exists };
            };
            value = next;
            while let DeValue::Array(items) = value.get_ref()
                && let Some(item) = indices.next().and_then(|at| items.get(*at))
            {
                value = item;
            }
        }
        let exists = true;
        FoundValue { value, exists }
    }

    /// Returns the error about a key at a place of the desired state.
    pub(super) fn placed(&self, invalid: &crate::desired::Invalid) -> Fault {
        let key = invalid.place.key(invalid.key);
        let keys: Vec<&str> = key.split('.').collect();
        let mut indices = invalid.place.indices();
        indices.extend(invalid.item);
        let at = self.find(&keys, &indices);
        // A document without the key has an empty text there.
        let found = match invalid.found.as_str() {
            "no such key" if at.exists => at.describe(),
            found => found.to_owned(),
        };
        Fault {
            offset: at.offset(),
            expected: invalid.expected.clone(),
            found,
            key,
        }
    }

    /// Refuses what the schema of the API's documents allows, and the file does not: keys that
    /// ports of another kind have, and rules under the API's name.
    fn check_keys(&self) -> Result<(), Fault> {
        let all = json::keys_of::<PortSpec>();
        let names: HashSet<&str> = all.iter().map(String::as_str).collect();
        for port in tables(self.0.get_ref(), "port") {
            let kind = kind_of(port);
            let is_known = |key: &str| names.contains(key) && kind.may_have(key);
            let unknown = port.keys().filter(|key| !is_known(key.get_ref()));
            if let Some(key) = unknown.min_by_key(|key| key.span().start) {
                let known = all.iter().map(String::as_str);
                let known: Vec<&str> = known.filter(|key| kind.may_have(key)).collect();
                let fault = unknown_key(key, "port", &known);
                return Err(match kinds_with(key.get_ref(), &all) {
                    kinds if kinds.is_empty() => fault,
                    kinds => Fault {
                        found: format!(
                            "{}, which ports of kind {kinds} have",
                            words::quoted(key.get_ref())
                        ),
                        ..fault
                    },
                });
            }
        }
        for list in tables(self.0.get_ref(), "acl") {
            if let Some((key, _)) = list.get_key_value("rules") {
                return Err(Fault {
                    expected: "tables [[acl.rule]]".to_owned(),
                    found: "the unknown key \"rules\"".to_owned(),
                    ..unknown_key(key, "acl", &[])
                });
            }
        }
        Ok(())
    }

    /// Returns the error of a value.
    fn fault(&self, error: &Misfit<Error>) -> Fault {
        let (keys, indices, is_item) = path_of(error);
        let at = self.find(&keys, &indices);
        let key = keys.join(".");
        let of_value = |of: &str| Fault {
            offset: at.offset(),
            expected: expected(&key, is_item, of),
            found: match json::is_secret(&key) {
                true => Secret::HIDDEN.to_owned(),
                false => at.describe(),
            },
            key: key.clone(),
        };
        match Message::parse(error.inner().message()) {
            Message::Missing(name) => {
                let key = format!("{key}.{name}");
                Fault {
                    expected: expected(&key, false, "the key"),
                    found: "no such key".to_owned(),
                    key,
                    ..of_value("")
                }
            }
            Message::UnknownKey(name, known) => self
                .unknown_key(&keys, &indices, name, &known)
                .unwrap_or_else(|| of_value("another key")),
            Message::UnknownWord(word, known) if similar::nearest(word, &known).is_some() => {
                Fault {
                    expected: similar::expected_word(word, &known),
                    ..of_value("")
                }
            }
            Message::UnknownWord(_, known) => of_value(&words::one_of(&known)),
            Message::Value(_, of) => of_value(of),
            Message::Other("wanted string or table") => of_value("a string"),
            Message::Twice(_) | Message::Other(_) => Fault {
                expected: String::new(),
                found: error.inner().message().to_owned(),
                ..of_value("")
            },
        }
    }

    /// Returns the error for an unknown key, the last one of the path.
    fn unknown_key(
        &self,
        path: &[&str],
        indices: &[usize],
        name: &str,
        known: &[&str],
    ) -> Option<Fault> {
        let (_, outer) = path.split_last()?;
        let table = self.find(outer, indices).value.get_ref().as_table()?;
        let (key, _) = table.get_key_value(name)?;
        // `rules` is the API's word for `rule`.
        let known = known.iter().copied().filter(|key| *key != "rules");
        let known: Vec<&str> = known.collect();
        Some(unknown_key(key, &outer.join("."), &known))
    }
}

/// Returns the keys and the indices of the path of an error, and whether it ends with an index.
fn path_of(error: &Misfit<Error>) -> (Vec<&str>, Vec<usize>, bool) {
    let (mut keys, mut indices, mut is_item) = (Vec::new(), Vec::new(), false);
    for segment in error.path() {
        is_item = matches!(segment, Segment::Seq { .. });
        match segment {
            Segment::Map { key } => keys.push(key.as_str()),
            Segment::Seq { index } => indices.push(*index),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    (keys, indices, is_item)
}

/// Returns the error for an unknown key of a table.
fn unknown_key(key: &Spanned<DeString<'_>>, table: &str, known: &[&str]) -> Fault {
    let name = key.get_ref();
    Fault {
        offset: key.span().start,
        key: format!("{table}.{name}").trim_start_matches('.').to_owned(),
        expected: similar::expected_key(name, known),
        found: format!("the unknown key {}", words::quoted(name)),
    }
}

/// Returns the tables of an array of tables.
fn tables<'d, 'i>(top: &'d DeValue<'i>, key: &str) -> impl Iterator<Item = &'d DeTable<'i>> {
    let array = top.get(key).and_then(|value| value.get_ref().as_array());
    let items = array.into_iter().flat_map(|array| array.iter());
    items.filter_map(|item| item.get_ref().as_table())
}

/// Returns the kinds of ports that may have a key, quoted; none for an unknown key.
fn kinds_with(key: &str, known: &[String]) -> String {
    let kinds = PortKind::ALL.iter().filter(|kind| kind.may_have(key));
    let kinds: Vec<&str> = kinds.map(|kind| kind.as_str()).collect();
    match known.iter().any(|one| one == key) {
        true => words::one_of(&kinds),
        false => String::new(),
    }
}

/// Returns the kind of a port's table; one without a valid kind is read as a vhost-user port.
fn kind_of(port: &DeTable<'_>) -> PortKind {
    let kind = port.get("kind").and_then(|kind| kind.get_ref().as_str());
    kind.and_then(PortKind::from_word)
        .unwrap_or(PortKind::VhostUser)
}

/// Describes a value.
fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => words::quoted(text),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(time) => format!("the time {time}"),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
