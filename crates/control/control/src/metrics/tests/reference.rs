//! `docs/user/reference/metrics.md` has every family.

use super::*;

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../docs/user/reference/metrics.md"
);

/// Returns the labels of a family's first sample.
fn labels(page: &str, name: &str) -> String {
    let mut samples = page.lines().filter_map(|line| line.strip_prefix(name));
    let sample = samples.find(|rest| rest.starts_with(['{', ' ']));
    let inner = sample.expect(name).strip_prefix('{');
    let inner = inner.and_then(|rest| rest.split_once('}'));
    let each = inner.map_or("", |(inner, _)| inner).split(',');
    let names = each.filter_map(|label| Some(format!("`{}`", label.split_once('=')?.0)));
    names.collect::<Vec<_>>().join(", ")
}

/// `BLESS=1` puts the rows there.
#[test]
fn the_reference_has_every_family() {
    let page = page(&facts(), Format::Plain);
    let helps = page.lines().filter_map(|line| line.strip_prefix("# HELP "));
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let rows = helps.zip(types).map(|(help, of)| {
        let (name, help) = help.split_once(' ').unwrap();
        let (_, kind) = of.split_once(' ').unwrap();
        let labels = match kind {
            "histogram" => labels(&page, &format!("{name}_count")),
            _ => labels(&page, name),
        };
        format!("| `{name}` | {kind} | {labels} | {help} |\n").replace("|  |", "| |")
    });
    let rows: String = rows.collect();
    let text = std::fs::read_to_string(FILE).unwrap();
    let head = "|---|---|---|---|\n";
    let (before, rest) = text.split_once(head).unwrap();
    let (is, after) = rest.split_at(rest.find("\n\n").map_or(0, |at| at + 1));
    if std::env::var_os("BLESS").is_some() {
        return std::fs::write(FILE, format!("{before}{head}{rows}{after}")).unwrap();
    }
    assert_eq!(is, rows, "BLESS=1 cargo test -p lasthop-control metrics");
}
