//! Writes a desired state as a configuration file: the documents of the API as tables, without
//! values that are defaults.

use std::fmt::Write;

use api::v1::{
    AccessListSpec, ConnectionsSpec, DEFAULT_SEGMENT, DesiredState, PipeSpec, PortKind, PortSpec,
    RuleSpec, SegmentDefault, SegmentSpec, StaticEntry, SwitchSpec, UplinkDriver,
};
use serde::Serialize;
use toml::{Table, Value};

use crate::desired::{pipes, process};

/// Maximum length of a list on one line, in characters.
const LINE: usize = 100;

/// Returns the configuration file of a checked state. [`parse`](super::parse) reads it as the same
/// state, once both are [normalised](crate::desired::normalise). Defaults are left out, and paths
/// stay as they are written.
#[must_use]
pub fn export(state: &DesiredState) -> String {
    let mut file = File::default();
    file.switch(&state.switch);
    file.table("[metrics]", &table_of(&state.metrics), &Table::new());
    for (at, segment) in state.segments.iter().enumerate() {
        file.segment(segment, at == 0);
    }
    file.all("[[qos_class]]", &state.qos_classes);
    file.all("[[qos_group]]", &state.qos_groups);
    state.ports.iter().for_each(|port| file.port(port));
    file.all("[[address_set]]", state.access.address_sets.iter());
    file.all("[[group]]", &state.access.groups);
    for default in &state.access.defaults {
        file.acl_default(default);
    }
    state.access.lists.iter().for_each(|list| file.acl(list));
    file.all("[[mirror]]", &state.mirrors);
    state.pipes.iter().for_each(|pipe| file.pipe(pipe));
    state.fdb.iter().for_each(|entry| file.static_entry(entry));
    file.text
}

/// Returns a document of the API as a table. Optional fields without a value are absent.
fn table_of(document: &impl Serialize) -> Table {
    // These documents have only what TOML has, too.
    Table::try_from(document).unwrap_or_default()
}

/// A file that is being written.
#[derive(Default)]
struct File {
    text: String,
}

impl File {
    /// Writes the values of a table that differ from the `usual` ones. A table outside of an array
    /// is written only if it has such values.
    fn table(&mut self, header: &str, table: &Table, usual: &Table) {
        let name = header.trim_matches(['[', ']']);
        let is_inline = name.contains('.');
        let given = table
            .iter()
            .filter(|(key, value)| usual.get(*key) != Some(*value));
        let (tables, mut plain): (Vec<_>, Vec<_>) =
            given.partition(|(_, value)| value.is_table() && !is_inline);
        plain.sort_by_key(|(_, value)| value.is_table());
        if !plain.is_empty() || header.starts_with("[[") {
            let line = if self.text.is_empty() { "" } else { "\n" };
            self.text.extend([line, header, "\n"]);
        }
        for (key, value) in plain {
            self.text.extend([key, " = ", &text(value), "\n"]);
        }
        for (key, value) in tables {
            let usual = usual.get(key).and_then(Value::as_table).cloned();
            let table = value.as_table().cloned().unwrap_or_default();
            if table.is_empty() {
                // That the table is there says something: `[port.egress]`.
                self.text.extend(["\n[", name, ".", key, "]\n"]);
            }
            self.table(
                &format!("[{name}.{key}]"),
                &table,
                &usual.unwrap_or_default(),
            );
        }
    }

    /// Writes tables without defaults.
    fn all<'a, T: Serialize + 'a>(&mut self, header: &str, all: impl IntoIterator<Item = &'a T>) {
        for one in all {
            self.table(header, &table_of(one), &Table::new());
        }
    }

    fn switch(&mut self, switch: &SwitchSpec) {
        let mut usual = table_of(&SwitchSpec::default());
        let connections = table_of(&ConnectionsSpec::default());
        usual.insert("connections".to_owned(), connections.into());
        self.table("[switch]", &table_of(switch), &usual);
    }

    /// Writes a segment. The default segment is the first one even if it is not listed.
    fn segment(&mut self, segment: &SegmentSpec, first: bool) {
        let usual = SegmentSpec {
            name: DEFAULT_SEGMENT.to_owned(),
            vlan: None,
            neighbour_suppression: false,
        };
        if !(first && *segment == usual) {
            self.all("[[segment]]", [segment]);
        }
    }

    fn port(&mut self, port: &PortSpec) {
        let mut usual = PortSpec {
            segment: Some(DEFAULT_SEGMENT.to_owned()),
            driver: Some(UplinkDriver::default()),
            // The default name of a TAP port's interface is the port's.
            interface: (port.kind == PortKind::Tap).then(|| port.name.clone()),
            ..PortSpec::new(&port.name, port.kind)
        };
        if port.kind.is_for_process() {
            process::normalise(&mut usual);
        }
        let mut usual = table_of(&usual);
        usual.remove("kind");
        usual.remove("name");
        self.table("[[port]]", &table_of(port), &usual);
    }

    fn pipe(&mut self, pipe: &PipeSpec) {
        let mut usual = PipeSpec::new(&pipe.name);
        pipes::normalise(&mut usual);
        let mut usual = table_of(&usual);
        usual.remove("name");
        self.table("[[pipe]]", &table_of(pipe), &usual);
    }

    fn acl_default(&mut self, default: &SegmentDefault) {
        let usual = table_of(&SegmentDefault {
            segment: String::new(),
            from_guest: Default::default(),
            to_guest: Default::default(),
        });
        self.table("[[acl_default]]", &table_of(default), &usual);
    }

    fn acl(&mut self, list: &AccessListSpec) {
        self.all("[[acl]]", [&list.without_rules()]);
        let mut usual = table_of(&RuleSpec::default());
        usual.retain(|key, _| key == "priority");
        for rule in list.rules.iter() {
            self.table("[[acl.rule]]", &table_of(rule), &usual);
        }
    }

    fn static_entry(&mut self, entry: &StaticEntry) {
        let usual = table_of(&StaticEntry {
            segment: DEFAULT_SEGMENT.to_owned(),
            mac: String::new(),
            port: String::new(),
        });
        self.table("[[fdb]]", &table_of(entry), &usual);
    }
}

/// Returns a value in TOML. A long list has one line for each element.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(text).collect();
            let line = format!("[{}]", items.join(", "));
            match line.chars().count() {
                0..=LINE => line,
                _ => format!("[\n    {},\n]", items.join(",\n    ")),
            }
        }
        Value::Table(table) => {
            let items = table.iter();
            let items = items.map(|(key, value)| format!("{key} = {}", text(value)));
            format!("{{ {} }}", items.collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

/// Returns a basic string (TOML 1.0). All control characters are escaped, more than TOML requires:
/// the file may be shown on a terminal.
fn string(value: &str) -> String {
    let mut text = String::from('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            // Writing to a string does not fail.
            c if c.is_control() => drop(write!(text, "\\u{:04X}", u32::from(c))),
            c => text.push(c),
        }
    }
    text.push('"');
    text
}
