//! Plain tables: headings without borders, text to the left, numbers to the right.

use comfy_table::{CellAlignment, presets};

use client::units::printable;

/// A table with a line for each of some rows.
pub(super) struct Table<'a, T> {
    rows: Vec<&'a T>,
    columns: Vec<(&'static str, CellAlignment)>,
    /// The cells of each row.
    lines: Vec<Vec<String>>,
}

impl<'a, T> Table<'a, T> {
    /// Returns a table without columns.
    pub(super) fn of(rows: impl IntoIterator<Item = &'a T>) -> Self {
        let rows: Vec<_> = rows.into_iter().collect();
        Self {
            lines: vec![Vec::new(); rows.len()],
            columns: Vec::new(),
            rows,
        }
    }

    /// Adds a column that is aligned to the left.
    pub(super) fn text(self, heading: &'static str, cell: impl Fn(&T) -> String) -> Self {
        self.column(heading, CellAlignment::Left, cell)
    }

    /// Adds a column that is aligned to the right.
    pub(super) fn number(self, heading: &'static str, cell: impl Fn(&T) -> String) -> Self {
        self.column(heading, CellAlignment::Right, cell)
    }

    fn column(
        mut self,
        heading: &'static str,
        alignment: CellAlignment,
        cell: impl Fn(&T) -> String,
    ) -> Self {
        self.columns.push((heading, alignment));
        for (row, line) in self.rows.iter().zip(&mut self.lines) {
            line.push(printable(&cell(row)));
        }
        self
    }

    /// Formats the table; `None` without rows.
    pub(super) fn format(self) -> Option<String> {
        if self.rows.is_empty() {
            return None;
        }
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(self.columns.iter().map(|(heading, _)| heading));
        table.add_rows(self.lines);
        for ((_, alignment), column) in self.columns.iter().zip(table.column_iter_mut()) {
            column.set_padding((0, 2));
            column.set_cell_alignment(*alignment);
        }
        Some(table.trim_fmt() + "\n")
    }

    /// Formats the table; without rows, returns `empty` as a line.
    pub(super) fn format_or(self, empty: &str) -> String {
        self.format().unwrap_or_else(|| format!("{empty}\n"))
    }
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
        let formatted = |rows: &[[&str; 3]]| {
            Table::of(rows)
                .text("NAME", |row| row[0].to_owned())
                .number("N", |row| row[1].to_owned())
                .text("X", |row| row[2].to_owned())
                .format_or("none")
        };
        let text = formatted(&[["a", "1", ""], ["bcdef", "1000", "y\x1b[2J"]]);
        assert_eq!(
            text,
            "NAME      N  X\na         1\nbcdef  1000  y\u{fffd}[2J\n"
        );
        assert_eq!(formatted(&[]), "none\n");
    }

    #[test]
    fn facts_line_up() {
        let text = facts(&[("a", "1".to_owned()), ("long", "2".to_owned())]);
        assert_eq!(text, "a     1\nlong  2\n");
    }
}
