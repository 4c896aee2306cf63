//! Tables of test cases as text.

/// Returns the rows of a table with `N` columns: a row is a line, with ` | ` between its cells. A
/// line that begins with `|` has further cells of the row above it, and one that begins with `..`
/// continues its last cell. `\n` is a line break, and `""` an empty cell.
///
/// # Panics
/// When a row has another number of cells.
#[must_use]
pub fn rows<const N: usize>(text: &str) -> Vec<[String; N]> {
    let mut rows: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match rows.last_mut() {
            Some(row) if line.starts_with('|') => *row += &format!(" {line}"),
            Some(row) if line.starts_with("..") => *row += &line[2..],
            _ => rows.push(line.to_owned()),
        }
    }
    let cell = |text: &str| match text.trim() {
        r#""""# => String::new(),
        text => text.replace("\\n", "\n"),
    };
    let cells = |row: &String| {
        let cells: Vec<String> = row.split(" | ").map(cell).collect();
        let found = cells.try_into();
        found.unwrap_or_else(|cells| panic!("{N} cells are expected, not {cells:?}"))
    };
    rows.iter().map(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_may_have_several_lines() {
        let text = "
            a |  | c
            d\\ne
                | f .. g
                .. h | \"\"
        ";
        assert_eq!(rows(text), [["a", "", "c"], ["d\ne", "f .. g h", ""]]);
    }
}
