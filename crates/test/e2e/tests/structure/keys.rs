//! The number of files that a key of a port costs.
//!
//! A file counts if it is one of a product crate's `src`, is no test, and its code has a name that
//! begins with the key: `cpu_weight`, `cpu_weight_error`, `CPU_WEIGHTS` or `CpuWeights`. Comments
//! and test modules do not count, and no documents: the generated ones, the manual page and its
//! example follow the declaration.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{crate_folder, crates, files, root};

/// Crates that are no product.
const TOOLS: [&str; 4] = ["testkit", "load", "hostile", "e2e"];
/// A key that reaches a driver, and the most files that it costs.
const OF_A_DRIVER: (&str, usize) = ("cpu_weight", 12);
/// A key that control alone reads, and the most files that it costs.
const OF_CONTROL: (&str, usize) = ("vcpu_threads", 3);

/// The modules of a crate that are compiled for tests only, by name.
fn test_modules(texts: &[String]) -> BTreeSet<String> {
    let lines = texts
        .iter()
        .flat_map(|text| text.split("#[cfg(test)]\n").skip(1));
    let modules =
        lines.filter_map(|rest| rest.lines().next()?.split_once("mod ")?.1.split_once(';'));
    modules.map(|(name, _)| name.to_owned()).collect()
}

/// The code of a file without comments and without its test module.
fn code(text: &str) -> String {
    let product = text.split("#[cfg(test)]\nmod tests {").next();
    let lines = product.unwrap_or_default().lines();
    let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a text has a name that begins with one of these.
fn has_name(text: &str, names: &[String]) -> bool {
    let begins = |at: usize| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    };
    let mut found = names
        .iter()
        .flat_map(|name| text.match_indices(name.as_str()));
    found.any(|(at, _)| begins(at))
}

/// A key as it stands in code: as a field, a constant and a type.
fn spellings(key: &str) -> Vec<String> {
    let words = key.split('_').map(|word| {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    });
    vec![key.to_owned(), key.to_uppercase(), words.collect()]
}

/// The production files whose code names a key.
fn naming(key: &str) -> Vec<String> {
    let names = spellings(key);
    let mut found = Vec::new();
    for name in crates()
        .into_iter()
        .filter(|name| !TOOLS.contains(&name.as_str()))
    {
        let mut paths = Vec::new();
        files(&crate_folder(&name).join("src"), "rs", &mut paths);
        paths.sort();
        let text = |path| fs::read_to_string(path).expect("a source file is text");
        let texts: Vec<String> = paths.iter().map(text).collect();
        let tests = test_modules(&texts);
        let is_test = |path: &Path| {
            let mut parts = path.components().map(|part| {
                let part = part.as_os_str().to_string_lossy();
                part.trim_end_matches(".rs").to_owned()
            });
            parts.any(|part| part == "tests" || tests.contains(&part))
        };
        for (path, text) in paths.iter().zip(&texts) {
            let path = path.strip_prefix(root()).expect("below the root");
            if !is_test(path) && has_name(&code(text), &names) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[test]
fn a_key_costs_few_files() {
    for (key, most) in [OF_A_DRIVER, OF_CONTROL] {
        let files = naming(key);
        assert!(!files.is_empty(), "no file has {key}");
        assert!(
            files.len() <= most,
            "{key}: {} files: {files:#?}",
            files.len()
        );
    }
}

#[test]
fn names_are_found_where_they_begin() {
    let names = spellings("cpu_weight");
    for text in [
        "port.cpu_weight",
        "CpuWeights(",
        "CPU_WEIGHT",
        "(cpu_weight_error",
    ] {
        assert!(has_name(text, &names), "{text}");
    }
    for text in ["vcpu_weight", "weight", "cpu-weight", "lasthop_cpu_weight"] {
        assert!(!has_name(text, &names), "{text}");
    }
    let text = "// cpu_weight\nfn a() {}\n#[cfg(test)]\nmod tests {\n cpu_weight\n}\n";
    assert!(!has_name(&code(text), &names));
}
