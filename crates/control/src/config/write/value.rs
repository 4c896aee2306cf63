//! Values in TOML.

use std::fmt::Write;

use api::v1::{
    AdminState, Allowed, Direction, Enabled, FloodLimit, GuestStates, LogSpec, MirrorDirection,
    Otherwise, Pieces, Poll, PortKind, PortText, RateLimit, Role, RuleAction, UplinkDriver,
    Workers,
};

/// Maximum length of a list on one line, in characters.
const LINE: usize = 100;

/// A value of a key.
pub(super) trait Value {
    /// Returns the value in TOML.
    fn toml(&self) -> String;
}

/// A basic string (TOML 1.0). All control characters are escaped, more than TOML requires: the file
/// may be shown on a terminal.
impl Value for str {
    fn toml(&self) -> String {
        let mut text = String::from('"');
        for c in self.chars() {
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
}

impl Value for String {
    fn toml(&self) -> String {
        self.as_str().toml()
    }
}

/// A list on one line, or with one line for each element.
impl<T: Value> Value for [T] {
    fn toml(&self) -> String {
        let items: Vec<String> = self.iter().map(Value::toml).collect();
        let line = format!("[{}]", items.join(", "));
        match line.chars().count() {
            0..=LINE => line,
            _ => format!("[\n    {},\n]", items.join(",\n    ")),
        }
    }
}

impl<T: Value> Value for Vec<T> {
    fn toml(&self) -> String {
        self.as_slice().toml()
    }
}

/// Numbers and other values whose text is the same in TOML.
macro_rules! plain {
    ($($of:ty),*) => {$(
        impl Value for $of {
            fn toml(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
plain!(bool, u8, u16, u32, u64, i64);

/// A keyword.
macro_rules! words {
    ($($of:ty),*) => {$(
        impl Value for $of {
            fn toml(&self) -> String {
                self.as_str().toml()
            }
        }
    )*};
}
words!(
    AdminState,
    PortKind,
    Role,
    UplinkDriver,
    Poll,
    GuestStates,
    MirrorDirection,
    Otherwise,
    Direction,
    RuleAction,
    Pieces
);

impl Value for Workers {
    fn toml(&self) -> String {
        match self {
            Self::Auto => "auto".toml(),
            Self::Count(count) => count.toml(),
        }
    }
}

impl Value for Enabled {
    fn toml(&self) -> String {
        match self {
            Self::Auto => "auto".toml(),
            Self::Yes => true.toml(),
            Self::No => false.toml(),
        }
    }
}

impl Value for Allowed {
    fn toml(&self) -> String {
        match self {
            Self::Word(word) => word.as_str().toml(),
            Self::List(all) => all.toml(),
        }
    }
}

impl Value for PortText {
    fn toml(&self) -> String {
        match self {
            Self::Number(number) => number.toml(),
            Self::Text(text) => text.toml(),
        }
    }
}

impl Value for LogSpec {
    fn toml(&self) -> String {
        let Self { per_second } = self;
        inline(&[("per_second", Some(u64::from(*per_second)))])
    }
}

impl Value for RateLimit {
    fn toml(&self) -> String {
        let Self {
            packets_per_second,
            packets_burst,
            bits_per_second,
            bits_burst,
        } = self;
        inline(&[
            ("packets_per_second", *packets_per_second),
            ("packets_burst", *packets_burst),
            ("bits_per_second", *bits_per_second),
            ("bits_burst", *bits_burst),
        ])
    }
}

impl Value for FloodLimit {
    fn toml(&self) -> String {
        let Self {
            packets_per_second,
            packets_burst,
        } = self;
        inline(&[
            ("packets_per_second", Some(*packets_per_second)),
            ("packets_burst", *packets_burst),
        ])
    }
}

/// Returns an inline table of the keys that have values.
fn inline(keys: &[(&str, Option<u64>)]) -> String {
    let there = keys
        .iter()
        .filter_map(|(key, value)| Some(format!("{key} = {}", (*value)?)));
    format!("{{ {} }}", there.collect::<Vec<_>>().join(", "))
}
