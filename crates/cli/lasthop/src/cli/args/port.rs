//! `lasthop port add` and `lasthop port set`. Their options are one table, a row for each key of a
//! port; what both send is the object of the keys that were given.

mod rows;

use api::v1::{PortKind, PortSpec};
use clap::builder::{
    BoolValueParser, BoolishValueParser, PossibleValue, PossibleValuesParser, RangedU64ValueParser,
    TypedValueParser, ValueParser,
};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value, json};

use super::super::qos;
use super::{How, Output, Values, name};
use rows::ROWS;

/// Arguments of `port add`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Add {
    /// Name of the new port
    #[arg(value_parser = name)]
    name: String,
    /// Kind of port
    #[arg(long, value_parser = kind())]
    kind: PortKind,
    /// Add it administratively down
    #[arg(long)]
    down: bool,
    #[command(flatten)]
    options: Options<true>,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
}

impl Add {
    /// Returns the API's object. A key that is to be removed is at its default.
    pub(in crate::cli) fn spec(&self) -> Value {
        let mut object = json!({"name": self.name, "kind": self.kind});
        if self.down {
            object["admin_state"] = json!("down");
        }
        qos::merged(object, qos::without_nulls(self.options.object()))
    }
}

/// Arguments of `port set`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Set {
    /// Port
    #[arg(value_parser = name)]
    pub(in crate::cli) name: String,
    /// Set the port administratively up
    #[arg(long)]
    up: bool,
    /// Set the port administratively down; the guest stays connected
    #[arg(long, conflicts_with = "up")]
    down: bool,
    #[command(flatten)]
    options: Options<false>,
    #[command(flatten)]
    pub(in crate::cli) how: How,
}

impl Set {
    /// Returns the merge patch for the API; `null` without a change.
    pub(in crate::cli) fn patch(&self) -> Value {
        let mut patch = self.options.0.clone();
        let states = [(self.up, "up"), (self.down, "down")];
        if let Some((_, state)) = states.into_iter().find(|(is_given, _)| *is_given) {
            patch.insert("admin_state".to_owned(), json!(state));
        }
        match patch.is_empty() {
            true => Value::Null,
            false => Value::Object(patch),
        }
    }
}

/// Returns the parser of a kind.
fn kind() -> impl TypedValueParser<Value = PortKind> {
    let values = PortKind::ALL.iter();
    let values = values.map(|kind| PossibleValue::new(kind.as_str()).help(kind.help()));
    PossibleValuesParser::new(values).try_map(|word| {
        PortKind::from_word(&word).ok_or_else(|| "expected a kind of port".to_owned())
    })
}

/// How the text of an option becomes the value of its key.
#[derive(Clone, Copy)]
enum ValueFormat {
    /// As it is.
    Text,
    /// As it is; this word stands for the default.
    TextOr(&'static str),
    /// A number within the bounds of the key.
    Number,
    /// A number within these bounds.
    Within(u64, u64),
    /// One of these words.
    Word(&'static Values),
    /// `true` or `false`.
    Bool,
    /// `port add` has the option without a value, `port set` with `true` or `false`.
    Flag,
    /// By a function.
    By(fn(&str) -> Result<Value, String>),
    /// Words with commas between them, for a list.
    Commas,
    /// An element of a list; the option may be repeated.
    Each(fn(&str) -> Result<Value, String>),
    /// A part of an object; the option may be repeated.
    Part(fn(&str) -> Result<Value, String>),
}

/// The option of a key.
#[derive(Clone, Copy)]
struct Row {
    /// The key, with that of its object in front.
    key: &'static str,
    /// The option's name, where it is not that of the key.
    long: Option<&'static str>,
    /// The name of its value in the help.
    value: &'static str,
    heading: Option<&'static str>,
    read: ValueFormat,
    /// Help of `port add`.
    add: &'static str,
    /// Help of `port set`, where it differs.
    set: Option<&'static str>,
    /// Help of the option of `port set` that resets the key, if there is one.
    none: Option<&'static str>,
    /// The name of that option, where it is not the option's with `no-`.
    none_long: Option<&'static str>,
    /// The default that the help of `port add` shows.
    default: Option<&'static str>,
    /// The kind whose ports need it.
    needed_by: Option<&'static str>,
    conflicts: Option<&'static str>,
}

const fn row(key: &'static str, value: &'static str, read: ValueFormat, help: &'static str) -> Row {
    Row {
        key,
        long: None,
        value,
        heading: None,
        read,
        add: help,
        set: None,
        none: None,
        none_long: None,
        default: None,
        needed_by: None,
        conflicts: None,
    }
}

impl Row {
    const fn under(self, heading: &'static str) -> Self {
        let heading = Some(heading);
        Self { heading, ..self }
    }

    const fn set(self, help: &'static str) -> Self {
        let set = Some(help);
        Self { set, ..self }
    }

    const fn none(self, help: &'static str) -> Self {
        let none = Some(help);
        Self { none, ..self }
    }

    const fn none_by(self, long: &'static str, help: &'static str) -> Self {
        let none_long = Some(long);
        Self { none_long, ..self }.none(help)
    }

    const fn by(self, long: &'static str) -> Self {
        let long = Some(long);
        Self { long, ..self }
    }

    const fn usually(self, default: &'static str) -> Self {
        let default = Some(default);
        Self { default, ..self }
    }

    const fn needed_by(self, kind: &'static str) -> Self {
        let needed_by = Some(kind);
        Self { needed_by, ..self }
    }

    const fn without(self, other: &'static str) -> Self {
        let conflicts = Some(other);
        Self { conflicts, ..self }
    }

    /// Returns the name of the option.
    fn long(&self) -> String {
        let key = self.key.rsplit('.').next().unwrap_or_default();
        self.long.map_or(key.replace('_', "-"), str::to_owned)
    }

    /// Returns the option that resets the key.
    fn none_long(&self) -> String {
        let usual = || format!("no-{}", self.long());
        self.none_long.map_or_else(usual, str::to_owned)
    }

    /// Returns the option.
    fn argument(&self, is_new: bool) -> Arg {
        let help = self.set.filter(|_| !is_new).unwrap_or(self.add);
        let arg = Arg::new(self.key).long(self.long()).help(help);
        let arg = arg.help_heading(self.heading);
        let arg = match self.read {
            ValueFormat::Flag if is_new => return arg.action(ArgAction::SetTrue),
            ValueFormat::Each(_) | ValueFormat::Part(_) => arg.action(ArgAction::Append),
            ValueFormat::Commas => arg.action(ArgAction::Append).value_delimiter(','),
            _ => arg.action(ArgAction::Set),
        };
        let mut arg = arg.value_name(self.value).value_parser(self.parser());
        if let Some(other) = self.conflicts {
            arg = arg.conflicts_with(other);
        }
        if let Some(default) = self.default.filter(|_| is_new) {
            arg = arg.default_value(default);
        }
        if let Some(kind) = self.needed_by.filter(|_| is_new) {
            arg = arg.required_if_eq("kind", kind);
        }
        arg
    }

    /// Returns the option of `port set` that resets the key.
    fn reset(&self) -> Option<Arg> {
        let arg = Arg::new(self.none_long()).long(self.none_long());
        let arg = arg.help(self.none?).help_heading(self.heading);
        Some(arg.action(ArgAction::SetTrue).conflicts_with(self.key))
    }

    fn parser(&self) -> ValueParser {
        let within = |least, most| {
            let number = RangedU64ValueParser::<u64>::new().range(least..=most);
            ValueParser::new(number.map(Value::from))
        };
        let text = |text: &str| Ok::<_, String>(json!(text));
        match self.read {
            ValueFormat::Text | ValueFormat::Commas => ValueParser::new(text),
            ValueFormat::TextOr(default) => ValueParser::new(move |text: &str| {
                let value = Some(text).filter(|text| *text != default);
                Ok::<_, String>(json!(value))
            }),
            ValueFormat::Number => {
                let mut keys = PortSpec::KEYS.iter();
                let key = keys.find(|key| key.name == self.key);
                let (least, most) = key.and_then(|key| key.range).unwrap_or((0, u64::MAX));
                within(least, most)
            }
            ValueFormat::Within(least, most) => within(least, most),
            ValueFormat::Word(values) => {
                let values = values.iter();
                let values = values.map(|(word, help)| PossibleValue::new(word).help(help));
                ValueParser::new(PossibleValuesParser::new(values).map(Value::from))
            }
            ValueFormat::Bool => ValueParser::new(BoolishValueParser::new().map(Value::from)),
            ValueFormat::Flag => ValueParser::new(BoolValueParser::new().map(Value::from)),
            ValueFormat::By(read) | ValueFormat::Each(read) | ValueFormat::Part(read) => {
                ValueParser::new(read)
            }
        }
    }

    /// Returns the value that was given for the key.
    fn given(&self, matches: &ArgMatches, is_new: bool) -> Option<Value> {
        if self.none.is_some() && !is_new && matches.get_flag(&self.none_long()) {
            return Some(Value::Null);
        }
        if is_new && matches!(self.read, ValueFormat::Flag) {
            return matches.get_flag(self.key).then_some(json!(true));
        }
        let mut all = matches.get_many::<Value>(self.key)?.cloned();
        match self.read {
            ValueFormat::Commas | ValueFormat::Each(_) => Some(Value::Array(all.collect())),
            ValueFormat::Part(_) => all.reduce(qos::merged),
            _ => all.next(),
        }
    }
}

/// The options for keys of a new port, or of one that is there: the object that they make.
#[derive(Clone, Debug)]
struct Options<const NEW: bool>(Map<String, Value>);

impl<const NEW: bool> Options<NEW> {
    fn object(&self) -> Value {
        Value::Object(self.0.clone())
    }
}

impl<const NEW: bool> Args for Options<NEW> {
    fn augment_args(command: Command) -> Command {
        ROWS.iter().fold(command, |command, row| {
            let command = command.arg(row.argument(NEW));
            command.args(row.reset().filter(|_| !NEW))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const NEW: bool> FromArgMatches for Options<NEW> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut object = json!({});
        for row in ROWS {
            let Some(mut value) = row.given(matches, NEW) else {
                continue;
            };
            for key in row.key.rsplit('.') {
                value = json!({key: value});
            }
            object = qos::merged(object, value);
        }
        match object {
            Value::Object(object) => Ok(Self(object)),
            _ => Ok(Self(Map::new())),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command, Port};
    use super::*;

    fn port(arguments: &str) -> Port {
        let all = format!("lasthop port {arguments}");
        match Cli::try_parse_from(all.split(' ')).unwrap().command {
            Command::Port(port) => port,
            other => panic!("{other:?}"),
        }
    }

    fn added(arguments: &str) -> Value {
        match port(&format!("add {arguments}")) {
            Port::Add(add) => add.spec(),
            other => panic!("{other:?}"),
        }
    }

    fn patch(arguments: &str) -> Value {
        match port(&format!("set vm1 {arguments}")) {
            Port::Set(set) => set.patch(),
            other => panic!("{other:?}"),
        }
    }

    /// Every key has an option, except the administrative state, which has two words.
    #[test]
    fn every_key_has_an_option() {
        let first = |row: &Row| row.key.split('.').next().map(str::to_owned);
        let rows: Vec<String> = ROWS.iter().filter_map(first).collect();
        for key in PortSpec::KEYS {
            let is_there = rows.iter().any(|row| row == key.name);
            assert!(is_there || key.name == "admin_state", "{}", key.name);
        }
        let known = |row: &String| PortSpec::KEYS.iter().any(|key| key.name == row);
        assert!(rows.iter().all(known), "{rows:?}");
    }

    #[test]
    fn a_new_port_has_the_keys_that_were_given() {
        let minimal = added("vm1 --kind vhost-user --socket a.sock");
        let port: PortSpec = serde_json::from_value(minimal).unwrap();
        assert_eq!(port, PortSpec::vhost_user("vm1", "a.sock"));
        let full = added(
            "m --kind memif --down --queues 2 --id 7 --user usual --peer-user 9 --macs any \
             --trunk a,b --limit to-guest:packets=5 --limit broadcast:none --qos min=1M \
             --qos x:none --egress rate=none --dhcp-server yes --mtu 9000",
        );
        let port: PortSpec = serde_json::from_value(full.clone()).unwrap();
        let expected = json!({
            "name": "m", "kind": "memif", "admin_state": "down", "queues": 2, "id": 7,
            "peer_user": "9", "port_security": {"macs": "any", "dhcp_server": true},
            "trunk": ["a", "b"], "limits": {"to_guest": {"packets_per_second": 5}},
            "qos": {"min": 1_000_000}, "egress": {}, "mtu": 9000,
        });
        let expected: PortSpec = serde_json::from_value(expected).unwrap();
        assert_eq!(port, expected, "{full}");
    }

    #[test]
    fn a_change_has_the_keys_that_were_given() {
        assert_eq!(patch("--json"), Value::Null);
        let given = patch("--up --no-mac --mtu 68 --pipes false --group usual --addresses usual");
        let expected = json!({
            "admin_state": "up", "mac": null, "mtu": 68, "pipes": false, "group": null,
            "port_security": {"addresses": null},
        });
        assert_eq!(given, expected);
        let given = patch("--allow-all --no-forward --no-cpu-weight --limit to-guest:none");
        let expected = json!({
            "allow": null, "forward": null, "cpu_weight": null, "limits": {"to_guest": null},
        });
        assert_eq!(given, expected);
        assert_eq!(patch("--qos min=1M --qos none"), json!({"qos": null}));
    }

    #[test]
    fn bounds_are_those_of_the_keys() {
        for wrong in [
            "--mtu 67",
            "--queues 65",
            "--cpu-weight 0",
            "--weight x",
            "--mac 5",
        ] {
            let all = format!("lasthop port set vm1 {wrong}");
            assert!(Cli::try_parse_from(all.split(' ')).is_err(), "{wrong}");
        }
        for missing in [
            "add a --kind vhost-user",
            "add a --kind uplink",
            "set a --mac 1 --no-mac",
        ] {
            let all = format!("lasthop port {missing}");
            assert!(Cli::try_parse_from(all.split(' ')).is_err(), "{missing}");
        }
    }
}
