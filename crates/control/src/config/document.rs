//! The schema of the file: tables, keys and types. Reading it records the offset of each value.

mod access;
mod keys;
mod limits;
mod port_security;
mod segment;
mod within;

use std::collections::HashMap;

use api::v1::{
    AdminState, DesiredState, GuestStates, Poll, PortKind, PortSpec, Role, SwitchSpec,
    UplinkDriver, Workers, old_names,
};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use self::keys::{PORT_KEYS, SWITCH_KEYS, TAP_KEYS, TOP_KEYS, UPLINK_KEYS};
use self::within::{coalescing, helpers, metrics};
use crate::desired::{Place, expect, quoted};

/// An error with the byte offset of its place.
pub(super) struct Fault {
    pub(super) offset: usize,
    pub(super) key: String,
    pub(super) expected: String,
    pub(super) found: String,
}

/// Byte offsets of all values of the document.
#[derive(Default)]
pub(super) struct Lines {
    /// For each key the value, then its elements; the empty key is the table itself.
    offsets: HashMap<(Place, &'static str), Vec<usize>>,
}

impl Lines {
    /// Returns the best known offset: the element's, else the value's, else the table's, else the
    /// file's.
    pub(super) fn find(&self, place: Place, key: &'static str, item: Option<usize>) -> usize {
        // A key of a nested table has the offset of that table.
        let key = key.split('.').next().unwrap_or(key);
        let value = self.offsets.get(&(place, key));
        let element = value.and_then(|all| all.get(item? + 1));
        let table = || self.offsets.get(&(place, "")).and_then(|all| all.first());
        let value = element.or_else(|| value.and_then(|all| all.first()));
        value.or_else(table).copied().unwrap_or(0)
    }
}

/// Reads a document; values are not checked beyond their types.
pub(super) fn read(text: &str) -> Result<(DesiredState, Lines), Fault> {
    let document = DeTable::parse(text).map_err(|error| {
        // The message usually ends in the expected syntax.
        let (found, expected) = error
            .message()
            .rsplit_once(", expected ")
            .unwrap_or((error.message(), "TOML"));
        Fault {
            offset: error.span().map_or(0, |span| span.start),
            key: String::new(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    })?;
    let top = document.into_inner();
    let mut lines = Lines::default();
    let mut state = DesiredState::default();
    Table::open(&top, 0, Place::Top, TOP_KEYS, &mut lines)?;
    if let Some(value) = top.get("switch") {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(misshapen(value, "switch", "the table [switch]"));
        };
        state.switch = switch(table, value.span().start, &mut lines)?;
    }
    if let Some(value) = top.get("metrics") {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(misshapen(value, "metrics", "the table [metrics]"));
        };
        state.metrics = metrics(table, value.span().start, &mut lines)?;
    }
    for (i, (table, at)) in tables(&top, "segment")?.into_iter().enumerate() {
        state
            .segments
            .push(segment::read(table, at, i, &mut lines)?);
    }
    for (i, (table, at)) in tables(&top, "port")?.into_iter().enumerate() {
        state.ports.push(port(table, at, i, &mut lines)?);
    }
    access::read(&top, &mut state, &mut lines)?;
    Ok((state, lines))
}

/// Returns the tables of an array of tables, each with its offset.
fn tables<'t, 'i>(top: &'t DeTable<'i>, key: &str) -> Result<Vec<(&'t DeTable<'i>, usize)>, Fault> {
    let Some(value) = top.get(key) else {
        return Ok(Vec::new());
    };
    let expected = format!("tables [[{key}]]");
    let DeValue::Array(array) = value.get_ref() else {
        return Err(misshapen(value, key, &expected));
    };
    let table = |value: &'t Spanned<DeValue<'i>>| match value.get_ref() {
        DeValue::Table(table) => Ok((table, value.span().start)),
        _ => Err(misshapen(value, key, &expected)),
    };
    array.iter().map(table).collect()
}

/// Returns the error for a value of the wrong type.
fn misshapen(value: &Spanned<DeValue<'_>>, key: &str, expected: &str) -> Fault {
    Fault {
        offset: value.span().start,
        key: key.to_owned(),
        expected: expected.to_owned(),
        found: describe(value.get_ref()),
    }
}

/// Returns a number, unless it is far out of every range.
fn small(value: &Spanned<DeValue<'_>>) -> Option<u16> {
    match value.get_ref() {
        DeValue::Integer(text) => u16::from_str_radix(text.as_str(), text.radix()).ok(),
        _ => None,
    }
}

/// Describes a value.
fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quoted(text),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(time) => format!("the time {time}"),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn switch(table: &DeTable<'_>, at: usize, lines: &mut Lines) -> Result<SwitchSpec, Fault> {
    let mut table = Table::open(table, at, Place::Switch, SWITCH_KEYS, lines)?;
    let default = SwitchSpec::default();
    Ok(SwitchSpec {
        name: table.text("name", expect::NAME)?.unwrap_or(default.name),
        poll: table.word("poll", expect::POLL, POLLS)?.unwrap_or_default(),
        workers: table.workers()?,
        coalescing: match table.table("coalescing", expect::COALESCING)? {
            Some((inner, at)) => coalescing(inner, at, table.lines)?,
            None => default.coalescing,
        },
        guest_state: table
            .word("guest_state", expect::GUEST_STATE, GUEST_STATES)?
            .unwrap_or_default(),
        helpers: match table.table("helpers", expect::HELPERS)? {
            Some((inner, at)) => helpers(inner, at, table.lines)?,
            None => default.helpers,
        },
        socket_dirs: table
            .list("socket_dirs", expect::SOCKET_DIRS, expect::SOCKET_DIRS)?
            .unwrap_or_default(),
    })
}

fn port(
    table: &DeTable<'_>,
    at: usize,
    index: usize,
    lines: &mut Lines,
) -> Result<PortSpec, Fault> {
    let known = port_keys(table);
    let mut table = Table::open(table, at, Place::Port(index), known, lines)?;
    let name = table.required("name", expect::NAME)?;
    let kind = table.word("kind", expect::KIND, KINDS)?;
    let kind = kind.ok_or_else(|| table.missing("kind", expect::KIND))?;
    let socket = match kind {
        PortKind::VhostUser => table.filled("socket", expect::SOCKET)?,
        PortKind::Uplink | PortKind::Tap => String::new(),
    };
    let default = PortSpec::new(name, kind);
    Ok(PortSpec {
        socket,
        admin_state: table
            .word("admin_state", expect::ADMIN_STATE, ADMIN_STATES)?
            .unwrap_or_default(),
        role: table.word("role", expect::ROLE, ROLES)?.unwrap_or_default(),
        user: table.text("user", expect::USER)?,
        group: table.text("group", expect::GROUP)?,
        mode: table.text("mode", expect::MODE)?,
        peer_user: table.text("peer_user", expect::USER)?,
        queues: table
            .number("queues", expect::QUEUES)?
            .unwrap_or(default.queues),
        segment: table.text("segment", expect::SEGMENT)?,
        trunk: table.list("trunk", expect::TRUNK, expect::SEGMENT)?,
        mac: table.text("mac", expect::MAC)?,
        mtu: table.number("mtu", expect::MTU)?,
        weight: table
            .number("weight", expect::WEIGHT)?
            .unwrap_or(default.weight),
        driver: table.word("driver", expect::DRIVER, DRIVERS)?,
        interface: table.text("interface", expect::INTERFACE)?,
        address: table.text("address", expect::ADDRESS)?,
        netns: table.text("netns", expect::NETNS)?,
        vcpu_threads: table.text("vcpu_threads", expect::VCPU_THREADS)?,
        port_security: match table.table("port_security", expect::PORT_SECURITY)? {
            Some((inner, at)) => port_security::read(inner, at, index, table.lines)?,
            None => default.port_security.clone(),
        },
        limits: match table.table("limits", expect::LIMITS)? {
            Some((inner, at)) => limits::limits(inner, at, index, table.lines)?,
            None => default.limits,
        },
        ..default
    })
}

/// Returns the keys that a port of this kind may have.
fn port_keys(table: &DeTable<'_>) -> &'static [&'static str] {
    match table.get("kind").map(Spanned::get_ref) {
        Some(DeValue::String(kind)) if kind == PortKind::Uplink.as_str() => UPLINK_KEYS,
        Some(DeValue::String(kind)) if kind == PortKind::Tap.as_str() => TAP_KEYS,
        _ => PORT_KEYS,
    }
}

/// Values that are words.
const KINDS: &[(&str, PortKind)] = &[
    (PortKind::VhostUser.as_str(), PortKind::VhostUser),
    (PortKind::Uplink.as_str(), PortKind::Uplink),
    (PortKind::Tap.as_str(), PortKind::Tap),
];
const ADMIN_STATES: &[(&str, AdminState)] = &[
    (AdminState::Up.as_str(), AdminState::Up),
    (AdminState::Down.as_str(), AdminState::Down),
];
const ROLES: &[(&str, Role)] = &[
    (Role::Server.as_str(), Role::Server),
    (Role::Client.as_str(), Role::Client),
];
const POLLS: &[(&str, Poll)] = &[
    (Poll::Adaptive.as_str(), Poll::Adaptive),
    (Poll::Always.as_str(), Poll::Always),
];
const GUEST_STATES: &[(&str, GuestStates)] = &[
    (GuestStates::Auto.as_str(), GuestStates::Auto),
    (GuestStates::Bpf.as_str(), GuestStates::Bpf),
    (GuestStates::Proc.as_str(), GuestStates::Proc),
    (GuestStates::Off.as_str(), GuestStates::Off),
];
const DRIVERS: &[(&str, UplinkDriver)] = &[
    (UplinkDriver::Auto.as_str(), UplinkDriver::Auto),
    (UplinkDriver::Tap.as_str(), UplinkDriver::Tap),
    (UplinkDriver::Packet.as_str(), UplinkDriver::Packet),
    (UplinkDriver::Xdp.as_str(), UplinkDriver::Xdp),
];

/// A table that is being read: finds values by key, checks types, records offsets.
struct Table<'t, 'i> {
    table: &'t DeTable<'i>,
    offset: usize,
    place: Place,
    lines: &'t mut Lines,
}

impl<'t, 'i> Table<'t, 'i> {
    /// Starts reading a table; the first key that is not in `known` is refused.
    fn open(
        table: &'t DeTable<'i>,
        offset: usize,
        place: Place,
        known: &[&str],
        lines: &'t mut Lines,
    ) -> Result<Self, Fault> {
        let unknown = table
            .iter()
            .filter(|(key, _)| !known.contains(&key.get_ref().as_ref()));
        if let Some((key, _)) = unknown.min_by_key(|(key, _)| key.span().start) {
            let (expected, found) = match old_names::old_key(key.get_ref(), known) {
                Some(row) => (String::new(), row.to_string()),
                None => (
                    format!("one of the keys {}", known.join(", ")),
                    format!("the unknown key {}", quoted(key.get_ref())),
                ),
            };
            return Err(Fault {
                offset: key.span().start,
                key: place.key(key.get_ref()),
                expected,
                found,
            });
        }
        lines.offsets.insert((place, ""), vec![offset]);
        Ok(Self {
            table,
            offset,
            place,
            lines,
        })
    }

    /// Returns the value of a key, and records its offset.
    fn value(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'i>>> {
        let value = self.table.get(key)?;
        let mut offsets = vec![value.span().start];
        if let DeValue::Array(array) = value.get_ref() {
            offsets.extend(array.iter().map(|item| item.span().start));
        }
        self.lines.offsets.insert((self.place, key), offsets);
        Some(value)
    }

    /// Returns the error for an unexpected value.
    fn wrong(&self, value: &Spanned<DeValue<'_>>, key: &str, expected: &str) -> Fault {
        misshapen(value, &self.place.key(key), expected)
    }

    /// Returns a string, if the key exists.
    fn text(&mut self, key: &'static str, expected: &str) -> Result<Option<String>, Fault> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.get_ref() {
            DeValue::String(text) => Ok(Some(text.to_string())),
            _ => Err(self.wrong(value, key, expected)),
        }
    }

    /// Returns a nested table and its offset, if the key exists.
    fn table(
        &mut self,
        key: &'static str,
        expected: &str,
    ) -> Result<Option<(&'t DeTable<'i>, usize)>, Fault> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.get_ref() {
            DeValue::Table(table) => Ok(Some((table, value.span().start))),
            _ => Err(self.wrong(value, key, expected)),
        }
    }

    /// Returns a Boolean, if the key exists.
    fn flag(&mut self, key: &'static str, expected: &str) -> Result<Option<bool>, Fault> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.get_ref() {
            DeValue::Boolean(flag) => Ok(Some(*flag)),
            _ => Err(self.wrong(value, key, expected)),
        }
    }

    /// Returns a required string.
    fn required(&mut self, key: &'static str, expected: &str) -> Result<String, Fault> {
        self.text(key, expected)?
            .ok_or_else(|| self.missing(key, expected))
    }

    /// Returns a required string that must not be empty.
    fn filled(&mut self, key: &'static str, expected: &str) -> Result<String, Fault> {
        match self.required(key, expected)? {
            text if text.is_empty() => Err(Fault {
                offset: self.lines.find(self.place, key, None),
                found: quoted(&text),
                ..self.missing(key, expected)
            }),
            text => Ok(text),
        }
    }

    /// Returns the error for a missing key.
    fn missing(&self, key: &str, expected: &str) -> Fault {
        Fault {
            offset: self.offset,
            key: self.place.key(key),
            expected: expected.to_owned(),
            found: "no such key".to_owned(),
        }
    }

    /// Returns a number, if the key exists. Numbers far out of every range are refused here.
    fn number(&mut self, key: &'static str, expected: &str) -> Result<Option<u16>, Fault> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match small(value) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(value, key, expected)),
        }
    }

    /// Returns a list of numbers; empty if the key does not exist.
    fn numbers(&mut self, key: &'static str, expected: &str) -> Result<Vec<u16>, Fault> {
        let Some(value) = self.value(key) else {
            return Ok(Vec::new());
        };
        let DeValue::Array(array) = value.get_ref() else {
            return Err(self.wrong(value, key, expected));
        };
        let number = |item| small(item).ok_or_else(|| self.wrong(item, key, expected));
        array.iter().map(number).collect()
    }

    /// Returns a list of strings, if the key exists.
    fn list(
        &mut self,
        key: &'static str,
        expected: &str,
        each: &str,
    ) -> Result<Option<Vec<String>>, Fault> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let DeValue::Array(array) = value.get_ref() else {
            return Err(self.wrong(value, key, expected));
        };
        let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            _ => Err(self.wrong(item, key, each)),
        };
        array.iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Returns the value of a keyword, if the key exists.
    fn word<T: Copy>(
        &mut self,
        key: &'static str,
        expected: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Fault> {
        let Some(text) = self.text(key, expected)? else {
            return Ok(None);
        };
        let found = words.iter().find(|(word, _)| *word == text);
        match found {
            Some((_, value)) => Ok(Some(*value)),
            None => Err(Fault {
                offset: self.lines.find(self.place, key, None),
                key: self.place.key(key),
                expected: expected.to_owned(),
                found: quoted(&text),
            }),
        }
    }

    /// Returns the number of workers, or `auto`.
    fn workers(&mut self) -> Result<Workers, Fault> {
        const KEY: &str = "workers";
        match self.value(KEY).map(Spanned::get_ref) {
            None => Ok(Workers::default()),
            Some(DeValue::String(text)) if text == "auto" => Ok(Workers::Auto),
            Some(_) => {
                let count = self.number(KEY, expect::WORKERS)?;
                Ok(count.map_or(Workers::Auto, Workers::Count))
            }
        }
    }
}
