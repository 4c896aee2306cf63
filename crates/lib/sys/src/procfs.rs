//! Files about processes and threads (proc(5)).

use std::str::SplitAsciiWhitespace;

/// Returns the fields of a `stat` file (proc_pid_stat(5)) from the third on, the state. The name
/// before them may contain anything and ends at the last bracket.
#[must_use]
pub fn stat_fields(stat: &str) -> Option<SplitAsciiWhitespace<'_>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let fields: Vec<_> = stat_fields("7 (a) b) S 1 7\n").unwrap().collect();
        assert_eq!(fields, ["S", "1", "7"]);
        assert!(stat_fields("7 a S").is_none());
    }
}
