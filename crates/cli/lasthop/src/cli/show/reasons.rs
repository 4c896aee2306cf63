//! `lasthop stats --explain`.

use serde_json::{Value, json};

use crate::cli::args::Output;
use crate::cli::tables::Table;

/// Formats the meaning of each drop reason.
pub(in crate::cli) fn reasons(output: Output) -> String {
    if output.json {
        let one =
            |reason: &port::DropReason| json!({"reason": reason.name(), "help": reason.help()});
        let all: Vec<Value> = port::losses().map(one).collect();
        return format!("{}\n", json!({"drops": all}));
    }
    Table::of(port::losses())
        .text("REASON", |reason| reason.name().to_owned())
        .text("MEANING", |reason| reason.help().to_owned())
        .format_or("no reasons")
}
