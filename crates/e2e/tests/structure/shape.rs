//! The shape of the production crates: fields of structs, files of implementations, the order of
//! modules, and the way of a frame.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{crates, files, read, root};

/// Fields of a struct at most.
const MOST_FIELDS: usize = 15;
/// Files with inherent implementations of one type at most.
const MOST_FILES: usize = 3;
/// Crates whose structs mirror documents, or that are no product.
const NOT_CHECKED: [&str; 6] = ["api", "config", "testkit", "bench", "e2e", "fuzz"];
/// Types that may be larger, each with the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "virtio",
        "Session",
        "the protocol has these states, and each message its handler",
    ),
    (
        "virtio",
        "PackedQueue",
        "one field for each position of a packed ring, side by side in its cache lines",
    ),
    (
        "policy",
        "Program",
        "compiling, deciding, explaining and comparing are files of their own",
    ),
    (
        "datapath",
        "Switch",
        "deciding, paying, asking control, applying its answers: steps of a batch, a file each",
    ),
    (
        "supervisor",
        "Supervisor",
        "reload, upgrade, hand-over and replacement are procedures over all its parts, a file each",
    ),
];
/// Crates with an order of modules.
const ORDERED: [&str; 2] = ["datapath", "control"];

/// A source file of a crate: the path of its module, and its lines without comments and tests.
struct Source {
    file: String,
    module: Vec<String>,
    lines: Vec<String>,
}

/// The production files of a crate.
fn sources(name: &str) -> Vec<Source> {
    let src = root().join("crates").join(name).join("src");
    let mut paths = Vec::new();
    files(&src, "rs", &mut paths);
    paths.sort();
    let inside = |path: &Path| {
        let path = path.strip_prefix(&src).expect("below the folder");
        path.display().to_string()
    };
    let paths = paths.iter().filter(|path| {
        let file = inside(path);
        !file.split('/').any(|part| {
            let part = part.trim_end_matches(".rs");
            part == "tests" || part.ends_with("_tests")
        })
    });
    let source = |path: &std::path::PathBuf| {
        let file = inside(path);
        let module = file.trim_end_matches(".rs").split('/').map(str::to_owned);
        let module = module.filter(|part| !["lib", "main", "mod"].contains(&part.as_str()));
        let text = fs::read_to_string(path).expect("a source file is text");
        Source {
            module: module.collect(),
            lines: production(&text),
            file,
        }
    };
    paths.map(source).collect()
}

/// The lines of a file in front of its test module, comments left out.
fn production(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let is_test = |pair: &[&str]| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    let end = lines.windows(2).position(is_test).unwrap_or(lines.len());
    let code = lines[..end].iter();
    code.filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| (*line).to_owned())
        .collect()
}

/// Drops the visibility in front of an item.
fn without_visibility(line: &str) -> &str {
    let line = line.trim_start();
    match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')').map_or(rest, |(_, r)| r).trim(),
        Some(rest) if rest.starts_with(' ') => rest.trim_start(),
        _ => line,
    }
}

/// The identifier at the start of a text.
fn identifier(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The structs of a file with their numbers of fields; those of clap's arguments left out.
fn structs(lines: &[String]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(rest) = without_visibility(line).strip_prefix("struct ") else {
            continue;
        };
        let is_end = |line: &&String| line.ends_with(['{', ';', '}']);
        let header = lines[at..].iter().take_while(|line| !is_end(line)).count();
        let above = lines[..at].iter().rev();
        let attributes = above.take_while(|line| !line.trim().is_empty() && !line.ends_with('}'));
        let is_argument = |line: &String| {
            let clap = ["Args", "Parser", "Subcommand"];
            line.contains("derive(") && clap.iter().any(|name| line.contains(name))
        };
        if attributes.into_iter().any(is_argument) {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let closes = format!("{}}}", " ".repeat(indent));
        let body = lines[at + header..].iter().skip(1);
        let body = body.take_while(|line| !line.starts_with(&closes));
        let is_field = |line: &&String| {
            let inner = line.len() - line.trim_start().len();
            let field = without_visibility(line);
            let name = identifier(field);
            inner == indent + 4 && !name.is_empty() && field[name.len()..].starts_with(": ")
        };
        let fields = if lines[at + header].ends_with('{') {
            body.filter(is_field).count()
        } else {
            0
        };
        found.push((identifier(rest).to_owned(), fields));
    }
    found
}

/// The types with inherent implementations in a file.
fn implemented(lines: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(rest) = line.strip_prefix("impl") else {
            continue;
        };
        if !rest.starts_with([' ', '<']) {
            continue;
        }
        let more = lines[at + 1..].iter().map(String::as_str);
        let header: Vec<&str> = std::iter::once(rest).chain(more).collect();
        let end = header.iter().position(|line| line.contains('{'));
        let header = header[..=end.unwrap_or(0)].join(" ");
        let mut depth = 0;
        let skipped = header.find(|letter| {
            depth += i32::from(letter == '<') - i32::from(letter == '>');
            depth == 0 && letter != '>'
        });
        let target = &header[skipped.unwrap_or(0)..];
        if !target.contains(" for ") {
            let path = target.trim_start().split(['<', ' ', '{']).next();
            let name = path.unwrap_or_default().rsplit("::").next();
            found.insert(name.unwrap_or_default().to_owned());
        }
    }
    found
}

#[test]
fn types_are_small_enough_to_be_understood() {
    let excused = |name: &str, of: &str| {
        let known = EXCEPTIONS.iter().map(|(name, of, _)| (name, of));
        known.into_iter().any(|known| known == (&name, &of))
    };
    assert!(EXCEPTIONS.len() <= 5, "that many exceptions are a rule");
    let mut wrong = Vec::new();
    let mut unused: BTreeSet<_> = EXCEPTIONS
        .iter()
        .map(|(name, of, _)| (*name, *of))
        .collect();
    for name in crates() {
        if NOT_CHECKED.contains(&name.as_str()) {
            continue;
        }
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut large: Vec<(String, String)> = Vec::new();
        for source in sources(&name) {
            for (of, fields) in structs(&source.lines) {
                if fields > MOST_FIELDS {
                    large.push((of, format!("{fields} fields")));
                }
            }
            for of in implemented(&source.lines) {
                places.entry(of).or_default().push(source.file.clone());
            }
        }
        for (of, files) in places {
            if files.len() > MOST_FILES {
                large.push((of, format!("implemented in {}", files.join(", "))));
            }
        }
        for (of, complaint) in large {
            unused.retain(|known| *known != (name.as_str(), of.as_str()));
            if !excused(&name, &of) {
                wrong.push(format!("{name}: {of}: {complaint}"));
            }
        }
    }
    assert!(wrong.is_empty(), "too large: {wrong:#?}");
    assert!(unused.is_empty(), "exceptions without need: {unused:?}");
}

/// The modules of a crate in order, the lowest first: the fenced block in the documentation of the
/// crate, if it says that it is one.
fn order(name: &str) -> Option<Vec<String>> {
    let text = read(format!("crates/{name}/src/lib.rs"));
    let lines = text.lines().filter_map(|line| line.strip_prefix("//!"));
    let mut lines = lines
        .map(str::trim)
        .skip_while(|l| !l.contains("lowest first"));
    lines.find(|line| line.starts_with("```text"))?;
    let rows = lines.take_while(|line| !line.starts_with("```"));
    let names = rows.filter_map(|row| row.split_whitespace().next().map(str::to_owned));
    Some(names.collect())
}

/// The rank of the module in the order to which a path belongs: of the longest name that it starts
/// with.
fn rank(order: &[String], path: &[String]) -> Option<usize> {
    let lengths = (1..=path.len()).rev();
    let mut names = lengths.map(|len| path[..len].join("::"));
    names.find_map(|name| order.iter().position(|listed| *listed == name))
}

/// Adds the paths of a `use` tree, or the path at the start of an expression.
fn add_paths(tree: &str, base: &[String], found: &mut Vec<Vec<String>>) {
    let mut path = base.to_vec();
    let mut rest = tree.trim_start();
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            let (mut depth, mut from) = (0, 0);
            for (at, letter) in group.char_indices() {
                match letter {
                    '{' => depth += 1,
                    '}' if depth > 0 => depth -= 1,
                    ',' | '}' if depth == 0 => {
                        let item = group[from..at].trim();
                        if !item.is_empty() {
                            add_paths(item, &path, found);
                        }
                        if letter == '}' {
                            return;
                        }
                        from = at + 1;
                    }
                    _ => {}
                }
            }
            return;
        }
        let name = identifier(rest);
        if name.is_empty() {
            break;
        }
        match name {
            "super" => drop(path.pop()),
            "self" => {}
            name => path.push(name.to_owned()),
        }
        match rest[name.len()..].strip_prefix("::") {
            Some(next) => rest = next,
            None => break,
        }
    }
    found.push(path);
}

/// The paths in the crate that a file names: by `crate::`, by `super::`, by `use` of a child.
fn used(source: &Source) -> Vec<Vec<String>> {
    let text = source.lines.join("\n");
    let mut found = Vec::new();
    for (start, base) in [("crate::", &[][..]), ("super::", &source.module[..])] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            let inside = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
            if before.is_none_or(|letter| !inside(letter)) {
                let from = if start == "crate::" {
                    at + start.len()
                } else {
                    at
                };
                add_paths(&text[from..], base, &mut found);
            }
        }
    }
    for line in &source.lines {
        if let Some(tree) = without_visibility(line).strip_prefix("use ") {
            add_paths(tree, &source.module, &mut found);
        }
    }
    found
}

/// A crate without such an order passes: control's is about to be written. (Delete this sentence
/// and the `continue` then.)
#[test]
fn modules_use_only_those_before_them() {
    let mut wrong = Vec::new();
    for name in ORDERED {
        let Some(order) = order(name) else {
            continue;
        };
        let sources = sources(name);
        for listed in &order {
            let path: Vec<_> = listed.split("::").map(str::to_owned).collect();
            let exists = sources
                .iter()
                .any(|source| source.module.starts_with(&path));
            assert!(exists, "{name} has no module {listed}");
        }
        for source in sources.iter().filter(|source| !source.module.is_empty()) {
            let Some(own) = rank(&order, &source.module) else {
                wrong.push(format!("{name}: {} is in no listed module", source.file));
                continue;
            };
            for path in used(source) {
                if let Some(other) = rank(&order, &path).filter(|other| *other > own) {
                    let (file, listed) = (&source.file, &order[other]);
                    wrong.push(format!("{name}: {file} uses {listed}: {}", path.join("::")));
                }
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "against the order in lib.rs: {wrong:#?}");
}

/// The code in the items of the list below a heading of `docs/dev/datapath.md`.
fn listed_below(heading: &str) -> Vec<Vec<String>> {
    let text = read("docs/dev/datapath.md");
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('#'));
    let is_item = |line: &&str| line.starts_with(|letter: char| letter.is_ascii_digit());
    let code = |line: &str| {
        line.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    lines.filter(is_item).map(code).collect()
}

#[test]
fn the_way_of_a_frame_is_short() {
    let way = listed_below("### Files of a frame's way");
    assert!((10..=25).contains(&way.len()), "{} files", way.len());
    for item in &way {
        let file = item.first().expect("an item names a file");
        assert!(root().join(file).is_file(), "there is no {file}");
    }
    let owners = listed_below("### Owners on a frame's way");
    assert!((3..=6).contains(&owners.len()), "{} owners", owners.len());
    for item in &owners {
        let [name, file, ..] = item.as_slice() else {
            panic!("not a struct and its file: {item:?}")
        };
        let lines = production(&read(file));
        let known = structs(&lines);
        assert!(
            known.iter().any(|(of, _)| of == name),
            "{file} has no {name}"
        );
    }
}
