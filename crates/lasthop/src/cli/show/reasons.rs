//! `lasthop stats --explain`.

use port::REASONS;
use serde_json::{Value, json};

use crate::cli::args::Output;
use crate::cli::tables::Column::Text;
use crate::cli::tables::table;

/// What each name of a drop means.
pub(in crate::cli) fn reasons(output: Output) -> String {
    if output.json {
        let one =
            |reason: &port::DropReason| json!({"reason": reason.name(), "help": reason.help()});
        let all: Vec<Value> = REASONS.iter().map(one).collect();
        return format!("{}\n", json!({"drops": all}));
    }
    let row = |reason: &port::DropReason| vec![reason.name().to_owned(), reason.help().to_owned()];
    let rows: Vec<_> = REASONS.iter().map(row).collect();
    table(&[Text("REASON"), Text("MEANING")], &rows, "no reasons")
}
