//! The shape of the production crates: fields of structs, files of implementations, and the way of
//! a frame.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{crate_folder, crates, files, read, root};

/// Fields of a struct at most.
const MOST_FIELDS: usize = 15;
/// Files with inherent implementations of one type at most.
const MOST_FILES: usize = 3;
/// Crates whose structs mirror documents, or that are no product.
const NOT_CHECKED: [&str; 7] = [
    "api", "model", "config", "testkit", "load", "hostile", "e2e",
];
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
];

/// A source file of a crate: the path of its module, and its lines without comments and tests.
pub(super) struct Source {
    pub(super) file: String,
    pub(super) module: Vec<String>,
    pub(super) lines: Vec<String>,
}

/// The production files of a crate.
pub(super) fn sources(name: &str) -> Vec<Source> {
    let src = crate_folder(name).join("src");
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
        let module = without_visibility(pair[1]);
        pair[0] == "#[cfg(test)]" && module.starts_with("mod ") && module.ends_with('{')
    };
    let end = lines.windows(2).position(is_test).unwrap_or(lines.len());
    let code = lines[..end].iter();
    code.filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| (*line).to_owned())
        .collect()
}

/// Drops the visibility in front of an item.
pub(super) fn without_visibility(line: &str) -> &str {
    let line = line.trim_start();
    match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')').map_or(rest, |(_, r)| r).trim(),
        Some(rest) if rest.starts_with(' ') => rest.trim_start(),
        _ => line,
    }
}

/// The identifier at the start of a text.
pub(super) fn identifier(text: &str) -> &str {
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
    assert!(EXCEPTIONS.len() <= 4, "that many exceptions are a rule");
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
