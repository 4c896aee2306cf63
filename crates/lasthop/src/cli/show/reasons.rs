//! `lasthop stats --explain`.

use serde_json::{Value, json};

use crate::cli::args::Output;
use crate::cli::tables::Column::Text;
use crate::cli::tables::table;

/// Formats the meaning of each drop reason.
pub(in crate::cli) fn reasons(output: Output) -> String {
    if output.json {
        let one =
            |reason: &port::DropReason| json!({"reason": reason.name(), "help": reason.help()});
        let all: Vec<Value> = port::losses().map(one).collect();
        return format!("{}\n", json!({"drops": all}));
    }
    let row = |reason: &port::DropReason| vec![reason.name().to_owned(), reason.help().to_owned()];
    let rows: Vec<_> = port::losses().map(row).collect();
    table(&[Text("REASON"), Text("MEANING")], &rows, "no reasons")
}
