//! The map of features in `docs/dev/features.md`: each production file is in exactly one row.

use std::collections::{BTreeMap, BTreeSet};

use super::shape::sources;
use super::{crate_folder, crates, read};

const MAP: &str = "docs/dev/features.md";
/// Crates that are no product.
const NO_PRODUCT: [&str; 4] = ["testkit", "load", "hostile", "e2e"];

/// A row of the table: the feature, its module paths, and its tests.
struct Row {
    feature: String,
    modules: Vec<String>,
    tests: Vec<String>,
}

/// The texts in backticks of a cell.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn rows() -> Vec<Row> {
    let text = read(MAP);
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("| feature |"));
    let lines = lines.skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [feature, _, modules, _, tests] = cells[..] else {
            panic!("{MAP}: not a row of five cells: {line}")
        };
        Row {
            feature: feature.trim().to_owned(),
            modules: quoted(modules),
            tests: quoted(tests),
        }
    };
    lines.map(row).collect()
}

/// The module paths of production code.
fn modules() -> BTreeSet<String> {
    let product = crates().into_iter();
    let product = product.filter(|name| !NO_PRODUCT.contains(&name.as_str()));
    let paths = product.flat_map(|name| {
        let sources = sources(&name);
        sources.into_iter().map(move |source| {
            let mut path = vec![name.replace('-', "_")];
            path.extend(source.module);
            path.join("::")
        })
    });
    paths.collect()
}

/// Returns whether a module is this one or below it.
fn is_in(module: &str, path: &str) -> bool {
    let rest = module.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[test]
fn each_production_file_is_in_one_row() {
    let rows = rows();
    assert!(rows.len() > 20, "{MAP} has a table of features");
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in &rows {
        for path in &row.modules {
            places.entry(path).or_default().push(&row.feature);
        }
    }
    let twice = places.iter().filter(|(_, rows)| rows.len() > 1);
    let twice: Vec<_> = twice.collect();
    assert!(twice.is_empty(), "{MAP}: in several rows: {twice:?}");
    let modules = modules();
    let is_placed = |module: &&String| places.keys().any(|path| is_in(module, path));
    let lost: Vec<_> = modules.iter().filter(|module| !is_placed(module)).collect();
    assert!(lost.is_empty(), "{MAP}: in no row: {lost:?}");
    let is_used = |path: &str| modules.iter().any(|module| is_in(module, path));
    let unused: Vec<_> = places.keys().filter(|path| !is_used(path)).collect();
    assert!(unused.is_empty(), "{MAP}: no such modules: {unused:?}");
}

#[test]
fn each_feature_has_tests_that_exist() {
    let mut wrong = Vec::new();
    let modules = modules();
    for row in rows() {
        if row.tests.is_empty() {
            wrong.push(format!("{}: no test", row.feature));
        }
        for test in &row.tests {
            let file = match test.split_once("::") {
                Some(("e2e", name)) => crate_folder("e2e").join(format!("tests/e2e/{name}.rs")),
                Some(("lasthop", name)) => {
                    let tests = crate_folder("lasthop").join("tests");
                    let alone = tests.join(format!("{name}.rs"));
                    let together = tests.join(format!("processes/{name}.rs"));
                    if alone.exists() { alone } else { together }
                }
                _ if modules.iter().any(|module| is_in(module, test)) => continue,
                _ => {
                    wrong.push(format!("{}: {test}", row.feature));
                    continue;
                }
            };
            if !file.exists() {
                wrong.push(format!("{}: {test}", row.feature));
            }
        }
    }
    assert!(wrong.is_empty(), "{MAP}: tests: {wrong:#?}");
}
