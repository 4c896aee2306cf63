//! Plain tables: headings without borders, text to the left, numbers to the right.

use comfy_table::{CellAlignment, Table, presets};

use super::units::printable;

/// A column: its heading and alignment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// Aligned to the left.
    Text(&'static str),
    /// Aligned to the right.
    Number(&'static str),
}

/// Formats a table; without rows, returns `empty` as a line.
pub(super) fn table(columns: &[Column], rows: &[Vec<String>], empty: &str) -> String {
    if rows.is_empty() {
        return format!("{empty}\n");
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(columns.iter().map(|column| match column {
        Column::Text(heading) | Column::Number(heading) => *heading,
    }));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for (column, written) in columns.iter().zip(table.column_iter_mut()) {
        written.set_padding((0, 2));
        if matches!(column, Column::Number(_)) {
            written.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// Formats names with values, one pair per line.
pub(super) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| format!("{name:width$}  {}\n", printable(value));
    facts.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_left_numbers_right_without_trailing_blanks() {
        let columns = [Column::Text("NAME"), Column::Number("N"), Column::Text("X")];
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["a", "1", ""]), row(["bcdef", "1000", "y\x1b[2J"])];
        let text = table(&columns, &rows, "none");
        assert_eq!(
            text,
            "NAME      N  X\na         1\nbcdef  1000  y\u{fffd}[2J\n"
        );
        assert_eq!(table(&columns, &[], "none"), "none\n");
    }

    #[test]
    fn facts_line_up() {
        let text = facts(&[("a", "1".to_owned()), ("long", "2".to_owned())]);
        assert_eq!(text, "a     1\nlong  2\n");
    }
}
