//! Claims of the documentation about this repository, checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::paths::{binary, root};
use serde_json::Value;

#[path = "structure/shape.rs"]
mod shape;

/// Files of production code stay below this many lines.
const LONGEST_FILE: usize = 800;
/// Crates in which the compiler refuses `unsafe`.
const SAFE_CRATES: [&str; 8] = [
    "api", "client", "config", "control", "filter", "policy", "usernet", "wire",
];

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of the folders under `crates/`.
fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates"))
        .expect("there are crates")
        .flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The table of crates in `docs/dev/architecture.md`: for each crate, the crates that it may use.
fn table() -> BTreeMap<String, Vec<String>> {
    let text = read("docs/dev/architecture.md");
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with("| crate |"))
        .skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .map(row)
        .collect()
}

fn row(line: &str) -> (String, Vec<String>) {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let [_, name, _, uses, ..] = cells[..] else {
        panic!("not a row of the table of crates: {line}")
    };
    let uses = uses
        .split(',')
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty());
    (name.trim_matches('`').to_owned(), uses.collect())
}

/// The keys of a section of a manifest, with hyphens as in the names of folders.
fn section(manifest: &str, title: &str) -> Vec<String> {
    let lines = manifest
        .lines()
        .skip_while(|line| line.trim() != title)
        .skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let keys = lines.filter_map(|line| line.split(['.', '=', ' ']).next());
    keys.filter(|key| !key.is_empty() && !key.starts_with('#'))
        .map(|key| key.replace('_', "-"))
        .collect()
}

#[test]
fn crates_use_only_what_the_table_allows() {
    let table = table();
    let names = crates();
    assert_eq!(
        table.keys().cloned().collect::<Vec<_>>(),
        names,
        "docs/dev/architecture.md lists other crates than crates/"
    );
    let mut wrong = Vec::new();
    for name in &names {
        let manifest = read(format!("crates/{name}/Cargo.toml"));
        let allowed = &table[name];
        for used in section(&manifest, "[dependencies]") {
            if names.contains(&used) && !allowed.contains(&used) {
                wrong.push(format!("{name} uses {used}"));
            }
        }
        for used in section(&manifest, "[dev-dependencies]") {
            // Of itself a crate has the feature for tests.
            let always = ["testkit", name].contains(&used.as_str());
            if names.contains(&used) && !always && !allowed.contains(&used) {
                wrong.push(format!("{name} uses {used} in its tests"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "against the table in docs/dev/architecture.md: {wrong:#?}"
    );
}

/// Packages that no process with rights, or with guest memory, links.
const SERVERS: [&str; 9] = [
    "axum",
    "clap",
    "http",
    "hyper",
    "mio",
    "reqwest",
    "tokio",
    "toml",
    "toml_parser",
];

/// Guest memory, and the crates that build on it: for the switch alone.
const GUEST_MEMORY: [&str; 4] = [
    "lasthop-memory",
    "lasthop-virtio",
    "lasthop-memif",
    "lasthop-datapath",
];

/// Programs and their libraries, with the packages that they do not link. Versions and features are
/// those of the whole workspace, so a program links at most what is found here.
const NOT_LINKED: [(&str, &[&str]); 12] = [
    ("lasthop-datapath", &SERVERS),
    ("lasthop-driver", &SERVERS),
    ("lasthop-driver", &GUEST_MEMORY),
    ("lasthop-supervisor", &SERVERS),
    ("lasthop-supervisor", &GUEST_MEMORY),
    ("lasthop-supervisor", &["lasthop-config", "lasthop-control"]),
    ("lasthop-control", &GUEST_MEMORY),
    ("lasthop-client", &GUEST_MEMORY),
    ("lasthop", &GUEST_MEMORY),
    (
        "lasthop",
        &[
            "lasthop-control",
            "lasthop-driver",
            "lasthop-supervisor",
            "ratatui",
        ],
    ),
    ("lasthop-top", &GUEST_MEMORY),
    ("lasthop-top", &["clap", "toml", "lasthop-config"]),
];

/// The packages that each package links, as `cargo metadata` has them: without those for builds and
/// tests.
fn linked_by_package() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {error}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]);
    let names: BTreeMap<String, String> = packages
        .iter()
        .map(|package| (text(&package["id"]), text(&package["name"])))
        .collect();
    let is_linked = |dep: &Value| {
        list(&dep["dep_kinds"])
            .iter()
            .any(|kind| kind["kind"].is_null())
    };
    let nodes = list(&metadata["resolve"]["nodes"]);
    let links = nodes.iter().map(|node| {
        let deps = list(&node["deps"]).into_iter().filter(is_linked);
        let deps = deps.map(|dep| names[&text(&dep["pkg"])].clone());
        (names[&text(&node["id"])].clone(), deps.collect())
    });
    links.collect()
}

/// All packages that a package links, those of its packages included.
fn all_linked(links: &BTreeMap<String, BTreeSet<String>>, package: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut open = vec![package.to_owned()];
    while let Some(name) = open.pop() {
        for linked in &links[&name] {
            if all.insert(linked.clone()) {
                open.push(linked.clone());
            }
        }
    }
    all
}

#[test]
fn programs_do_not_link_what_they_must_not_know() {
    let links = linked_by_package();
    let mut wrong = Vec::new();
    for (program, unwelcome) in NOT_LINKED {
        let all = all_linked(&links, program);
        assert!(all.contains("lasthop-channel"), "{program} links {all:?}");
        let found = unwelcome.iter().filter(|name| all.contains(**name));
        wrong.extend(found.map(|name| format!("{program} links {name}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (program, linked) in [
        ("lasthop-control", "axum"),
        ("lasthop-datapath", "lasthop-memory"),
    ] {
        let all = all_linked(&links, program);
        assert!(all.contains(linked), "the check sees links: {all:?}");
    }
}

#[test]
fn safe_crates_refuse_unsafe() {
    for name in SAFE_CRATES {
        let text = read(format!("crates/{name}/src/lib.rs"));
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "crates/{name}/src/lib.rs does not forbid unsafe code"
        );
    }
}

/// Every file under a folder whose name ends in `.ending`, build output and the cache left out.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder)
        .expect("a folder can be read")
        .flatten()
    {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && !["target", ".cache", ".git"].contains(&name.as_str()) {
            files(&path, ending, found);
        } else if path
            .extension()
            .is_some_and(|extension| extension == ending)
        {
            found.push(path);
        }
    }
}

#[test]
fn production_files_are_short() {
    let mut sources = Vec::new();
    files(&root().join("crates"), "rs", &mut sources);
    let is_test = |path: &PathBuf| {
        path.to_string_lossy().contains("test") && !path.to_string_lossy().contains("testkit/src")
    };
    sources.retain(|path| !is_test(path));
    let lines = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a source file is text");
        text.lines()
            .take_while(|line| line.trim() != "#[cfg(test)]")
            .count()
    };
    let long: Vec<_> = sources
        .iter()
        .map(|path| (lines(path), path))
        .filter(|(lines, _)| *lines >= LONGEST_FILE)
        .collect();
    assert!(
        long.is_empty(),
        "files of {LONGEST_FILE} lines or more: {long:#?}"
    );
}

/// A piece of code in a Markdown file, with the file for complaints.
struct Snippet {
    file: String,
    text: String,
}

/// The lines of fenced blocks and the inline code of every Markdown file; and its links.
fn markdown() -> (Vec<Snippet>, Vec<Snippet>) {
    let mut paths = Vec::new();
    files(root(), "md", &mut paths);
    let (mut code, mut links) = (Vec::new(), Vec::new());
    for path in paths {
        let file = path
            .strip_prefix(root())
            .expect("below the root")
            .display()
            .to_string();
        let snippet = |text: &str| Snippet {
            file: file.clone(),
            text: text.trim().to_owned(),
        };
        let mut fenced = false;
        for line in fs::read_to_string(&path).expect("Markdown is text").lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if fenced {
                code.push(snippet(line));
            } else {
                code.extend(line.split('`').skip(1).step_by(2).map(snippet));
                links.extend(
                    line.split("](")
                        .skip(1)
                        .filter_map(|rest| Some(snippet(rest.split_once(')')?.0))),
                );
            }
        }
    }
    (code, links)
}

#[test]
fn links_and_paths_in_the_docs_exist() {
    let (code, links) = markdown();
    let mut missing = Vec::new();
    for Snippet { file, text } in links.iter().filter(|link| !link.text.contains("://")) {
        let target = text.split('#').next().unwrap_or_default();
        let base = root().join(file);
        if !target.is_empty()
            && !base
                .parent()
                .is_some_and(|folder| folder.join(target).exists())
        {
            missing.push(format!("{file}: {text}"));
        }
    }
    let ours = ["crates/", "docs/", "scripts/", ".ci/", "fuzz/"];
    for Snippet { file, text } in &code {
        let words = text
            .split_whitespace()
            .map(|word| word.trim_matches(['\'', '"', ',', ';', ':', '.', '(', ')']));
        for word in words.filter(|word| ours.iter().any(|start| word.starts_with(start))) {
            let made_up = word.contains(['*', '<', '{', '…']) || word.contains("NAME");
            let path = word.trim_start_matches("./");
            if !made_up && !root().join(path).exists() && !root().join(format!(".{path}")).exists()
            {
                missing.push(format!("{file}: {word}"));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "named in the docs, and not there: {missing:#?}"
    );
}

/// The commands in the docs that start with `program`, as words after it.
fn commands(program: &str) -> Vec<(String, Vec<String>)> {
    let (code, _) = markdown();
    let mut found = Vec::new();
    for Snippet { file, text } in code {
        let text = text.trim_start_matches("$ ").trim_start_matches("# ");
        let text = text.split(['#', '|', ';', '>']).next().unwrap_or_default();
        let mut words = text
            .split_whitespace()
            .skip_while(|word| word.contains('='))
            .map(str::to_owned);
        if words
            .next()
            .is_some_and(|first| first.rsplit('/').next() == Some(program))
        {
            found.push((file, words.collect()));
        }
    }
    found
}

#[test]
fn make_targets_in_the_docs_exist() {
    let makefile = read("Makefile");
    for (file, words) in commands("make") {
        for target in words
            .iter()
            .filter(|word| !word.starts_with('-') && !word.contains('='))
        {
            let known = makefile
                .lines()
                .any(|line| line.starts_with(&format!("{target}:")));
            assert!(known, "{file}: the Makefile has no target {target}");
        }
    }
}

#[test]
fn cargo_packages_and_tests_in_the_docs_exist() {
    let manifests: String = crates()
        .iter()
        .map(|name| format!("crates/{name}"))
        .chain(["fuzz".to_owned()])
        .map(|folder| read(format!("{folder}/Cargo.toml")))
        .collect();
    for (file, words) in commands("cargo") {
        for pair in words.windows(2) {
            let [option, value] = pair else { continue };
            let made_up = value.chars().all(|letter| letter.is_uppercase()) || value.ends_with('X');
            if ["-p", "--package"].contains(&option.as_str()) && !made_up {
                assert!(
                    manifests.contains(&format!("name = \"{value}\"")),
                    "{file}: there is no package {value}"
                );
            }
            if option == "--test" && !made_up {
                let there = crates().iter().any(|name| {
                    root()
                        .join(format!("crates/{name}/tests/{value}.rs"))
                        .exists()
                });
                assert!(there, "{file}: there is no test {value}");
            }
        }
    }
}

#[test]
fn lasthop_commands_in_the_docs_exist() {
    let mut help = Help::default();
    for (file, words) in commands("lasthop") {
        let mut words = words.iter().peekable();
        while words
            .next_if(|word| word.starts_with("--runtime-dir"))
            .is_some()
        {
            words.next();
        }
        let mut subcommands = Vec::new();
        while let Some(word) =
            words.next_if(|word| word.chars().all(|letter| letter.is_ascii_lowercase()))
        {
            subcommands.push(word.as_str());
        }
        let options = words
            .filter(|word| word.starts_with("--"))
            .map(|word| word.split('=').next().unwrap_or_default());
        help.check(&file, &subcommands, &options.collect::<Vec<_>>());
    }
}

/// The help texts of `lasthop`, each printed once.
#[derive(Default)]
struct Help(BTreeMap<Vec<String>, Option<String>>);

impl Help {
    /// The help of a subcommand; none if there is no such subcommand.
    fn of(&mut self, words: &[&str]) -> Option<String> {
        let key = words.iter().map(|word| (*word).to_owned()).collect();
        let text = self.0.entry(key).or_insert_with(|| {
            let mut command = Command::new(binary("lasthop"));
            let output = command.args(words).arg("--help").output();
            let output = output.expect("lasthop runs");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success().then_some(text)
        });
        text.clone()
    }

    /// Checks that `lasthop SUBCOMMANDS` exists and that its help knows the options. Trailing words
    /// may be arguments instead of subcommands.
    fn check(&mut self, file: &str, subcommands: &[&str], options: &[&str]) {
        let Some(first) = subcommands.first() else {
            return;
        };
        let top = self.of(&[]).expect("lasthop --help succeeds");
        assert!(
            top.contains(&format!("  {first}")),
            "{file}: lasthop has no command {first}"
        );
        let text = self.of(subcommands);
        let text = text.unwrap_or_else(|| panic!("{file}: lasthop {subcommands:?} --help fails"));
        for option in options {
            let known = text.contains(option) || top.contains(option) || *option == "--json";
            assert!(
                known,
                "{file}: lasthop {subcommands:?} has no option {option}"
            );
        }
    }
}

/// Words of which the field knows nothing, or that say less than its own: `docs/dev/glossary.md`
/// has the words to use instead.
const REFUSED_WORDS: &[&str] = &[
    "nobody",
    "somebody",
    "anybody",
    "whoever",
    "for ever",
    "from now on",
    "makes no sense",
    "confess",
    "culprit",
    "keeper",
    "errand",
    "parcel",
    "shelf",
    "palette",
    "porter",
    "bereft",
    "condemned",
    "stranger",
    "strangers",
    "muster",
    "obey",
    "obeys",
    "wanted",
    "learned-once",
    "hears",
    "heard",
    "told",
    "parked",
    "lent",
    "goes on",
    "go on",
];

/// The text of a source file that documents it: `///` and `//!` comments.
fn documentation(text: &str) -> Vec<(usize, String)> {
    let numbered = (1..).zip(text.lines());
    let comments = numbered.filter_map(|(number, line)| {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or(line.strip_prefix("//!"))?;
        Some((number, text.trim().to_owned()))
    });
    comments.collect()
}

/// Says whether `text` has `word` as a word of its own.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |letter: Option<char>| {
        letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == '-')
    };
    let mut found = text.match_indices(word);
    found.any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !is_part(before) && !is_part(after)
    })
}

/// Drops inline code, in which names of other projects and old names may stand.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn documentation_uses_the_terms_of_the_field() {
    let mut lines: Vec<(String, usize, String)> = Vec::new();
    let (mut sources, mut pages) = (Vec::new(), Vec::new());
    for folder in ["crates", "fuzz"] {
        files(&root().join(folder), "rs", &mut sources);
    }
    files(root(), "md", &mut pages);
    let name = |path: &Path| {
        let path = path.strip_prefix(root()).expect("below the root");
        path.display().to_string()
    };
    let text = |path: &Path| fs::read_to_string(path).expect("a source is text");
    let mut headless = Vec::new();
    for path in &sources {
        let mut last = 0;
        for (number, line) in documentation(&text(path)) {
            let begins = number != last + 1;
            last = number;
            if begins
                && ["What ", "Who ", "Whoever "]
                    .iter()
                    .any(|w| line.starts_with(w))
            {
                headless.push(format!("{}:{number}: {line}", name(path)));
            }
            lines.push((name(path), number, line));
        }
    }
    // Old names stand on these pages because they are old.
    let quotes = ["CHANGELOG.md", "changed-names.md", "glossary.md"];
    for path in pages
        .iter()
        .filter(|path| !quotes.iter().any(|q| path.ends_with(q)))
    {
        let numbered = (1..).zip(text(path).lines().map(str::to_owned).collect::<Vec<_>>());
        lines.extend(numbered.map(|(number, line)| (name(path), number, line)));
    }
    let mut refused = Vec::new();
    for (file, number, line) in lines {
        let plain = without_code(&line).to_lowercase();
        for word in REFUSED_WORDS.iter().filter(|word| has_word(&plain, word)) {
            refused.push(format!("{file}:{number}: \"{word}\": {line}"));
        }
    }
    assert!(
        refused.is_empty(),
        "words that docs/dev/glossary.md replaces:\n{}",
        refused.join("\n")
    );
    assert!(
        headless.is_empty(),
        "documentation that names no noun:\n{}",
        headless.join("\n")
    );
}

/// Says whether a line may be longer than 100 columns: a row of a table or diagram, or a literal
/// that would be harder to read in pieces.
fn may_be_long(path: &Path, line: &str) -> bool {
    let line = line.trim();
    let is_comment = line.starts_with("//");
    let is_table = line.contains("   ") || is_comment && line.contains(" | ");
    // Output that a test expects, word for word.
    let is_output = ["cli/trace.rs", "tests/cli.rs"]
        .iter()
        .any(|file| path.ends_with(file))
        && !line.ends_with(['{', ';', ',', '(']);
    let is_row = path.ends_with("vhost_user/table.rs");
    is_table || is_row || is_output || !is_comment && line.contains('"') || line.contains("://")
}

#[test]
fn lines_have_at_most_100_columns() {
    let mut sources = Vec::new();
    for folder in ["crates", "fuzz"] {
        files(&root().join(folder), "rs", &mut sources);
    }
    let mut long = Vec::new();
    for path in sources {
        let text = fs::read_to_string(&path).expect("a source is text");
        for (number, line) in (1..).zip(text.lines()) {
            if line.chars().count() > 100 && !may_be_long(&path, line) {
                long.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "longer lines:\n{}", long.join("\n"));
}

#[test]
fn the_readme_can_be_read_to_its_end() {
    let text = read("README.md");
    assert!(
        text.lines().count() <= 150,
        "{} lines",
        text.lines().count()
    );
    let lines = text.lines();
    let long: Vec<_> = lines.filter(|line| line.chars().count() > 120).collect();
    assert!(long.is_empty(), "lines over 120 columns: {long:#?}");
}
