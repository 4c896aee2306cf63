//! The arguments of `lasthop netmap`.

use std::ffi::OsString;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};

/// How a program waits, with the meaning of each word.
const WAITS: [(&str, &str); 3] = [
    ("adaptive", "Poll while that is cheaper than sleeping"),
    ("sleep", "Sleep at once"),
    ("spin", "Never sleep; occupies a core"),
];

#[derive(Debug, Args)]
#[command(override_usage = "lasthop netmap [--poll <WAIT>] -- <PROGRAM> [ARGS]...")]
pub(in crate::cli) struct Netmap {
    /// How the program waits for frames and for room
    #[arg(long, value_name = "WAIT", value_parser = waits())]
    pub(in crate::cli) poll: Option<String>,
    /// Program, dynamically linked, and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    pub(in crate::cli) command: Vec<OsString>,
}

fn waits() -> PossibleValuesParser {
    let values = WAITS.map(|(word, help)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(values)
}
