//! Tables of results in Markdown.

/// A table in Markdown.
pub fn table(head: &[String], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return "Nothing was measured.\n".to_owned();
    }
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let ruler = format!("|{}\n", "---|".repeat(head.len()));
    line(head) + &ruler + &rows.iter().map(|row| line(row)).collect::<String>()
}
