//! `lasthop pipe list`.

use api::v1::{OpenPipe, PipeStatus};

use super::super::tables::Table;
use super::{NONE, or_none};
use client::units::{bytes, duration};

/// A pipe with an end, or a name without one.
struct Row<'a> {
    name: &'a str,
    slots: Option<u16>,
    open: Option<&'a OpenPipe>,
}

/// Formats the pipes: a line for each with a connected end, and one for each name without.
pub(in crate::cli) fn pipes(pipes: &[PipeStatus]) -> String {
    let rows = pipes.iter().flat_map(|pipe| {
        let none = pipe.open.is_empty().then_some(None);
        let open = pipe.open.iter().map(Some).chain(none);
        open.map(|open| Row {
            name: &pipe.name,
            slots: open.and_then(|open| open.slots).or(pipe.slots),
            open,
        })
    });
    let rows: Vec<Row<'_>> = rows.collect();
    Table::of(&rows)
        .text("PIPE", |row| row.name.to_owned())
        .number("ID", |row| or_none(row.open.map(|open| open.id)))
        .number("SLOTS", |row| or_none(row.slots))
        .number("MEMORY", |row| {
            let memory = row.open.and_then(|open| open.memory_bytes);
            or_none(memory.map(bytes))
        })
        .text("MASTER", |row| end(row, "master"))
        .text("SLAVE", |row| end(row, "slave"))
        .format_or("no pipes")
}

/// Formats an end with its program.
fn end(row: &Row<'_>, name: &str) -> String {
    let mut ends = row.open.iter().flat_map(|open| &open.ends);
    match ends.find(|end| end.end == name) {
        Some(end) => {
            let since = duration(end.connected_seconds);
            format!("{} ({}), {since}", end.program, end.pid)
        }
        None => NONE.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use api::v1::PipeEnd;

    use super::*;

    #[test]
    fn a_pipe_has_a_line_with_its_ends() {
        let slave = PipeEnd {
            end: "slave".to_owned(),
            program: "pkt-gen".to_owned(),
            pid: 7,
            connected_seconds: 61,
        };
        let open = OpenPipe {
            id: 1,
            slots: Some(512),
            memory_bytes: Some(1 << 20),
            ends: vec![slave],
        };
        let pipe = |name: &str, open: Vec<OpenPipe>| PipeStatus {
            name: name.to_owned(),
            slots: Some(2048),
            open,
            ..PipeStatus::default()
        };
        let text = pipes(&[pipe("p0", vec![open]), pipe("p1", Vec::new())]);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        let p0 = "p0 1 512 1.0 MiB - pkt-gen (7), 1 min 1 s";
        assert_eq!(lines[1].join(" "), p0);
        assert_eq!(lines[2].join(" "), "p1 - 2048 - - -");
        assert_eq!(pipes(&[]), "no pipes\n");
    }
}
