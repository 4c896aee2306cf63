//! Claims of the documentation about this repository, checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::paths::{binary, root};

#[path = "structure/blocks.rs"]
mod blocks;
#[path = "structure/commits.rs"]
mod commits;
#[path = "structure/features.rs"]
mod features;
#[path = "structure/functions.rs"]
mod functions;
#[path = "structure/keys.rs"]
mod keys;
#[path = "structure/links.rs"]
mod links;
#[path = "structure/order.rs"]
mod order;
#[path = "structure/shape.rs"]
mod shape;
#[path = "structure/words.rs"]
mod words;

/// Files of production code stay below this many lines.
const LONGEST_FILE: usize = 800;
/// Crates in which the compiler refuses `unsafe`.
const SAFE_CRATES: [&str; 11] = [
    "api", "client", "config", "control", "egress", "filter", "model", "pipes", "policy",
    "usernet", "wire",
];

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Folders with code.
const SOURCES: [&str; 3] = ["crates", "bench", "fuzz"];
/// The manifest of the benchmarks, a workspace of their own.
const BENCH: &str = "bench/Cargo.toml";

/// The crates by name, each with its folder: `crates/` has seven folders of crates.
fn crate_folders() -> BTreeMap<String, PathBuf> {
    let folders = |folder: &Path| {
        let entries = fs::read_dir(folder).expect("there are crates").flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let crates = folders(&root().join("crates")).into_iter();
    let crates = crates.flat_map(|folder| folders(&folder));
    let named = crates.map(|path| {
        let name = path.file_name().expect("a folder has a name");
        (name.to_string_lossy().into_owned(), path.clone())
    });
    named.collect()
}

/// Names of the crates.
fn crates() -> Vec<String> {
    crate_folders().into_keys().collect()
}

/// The folder of a crate.
fn crate_folder(name: &str) -> PathBuf {
    let folder = crate_folders().remove(name);
    folder.unwrap_or_else(|| panic!("there is no crate {name}"))
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
    let mut names = crates();
    names.push("bench".to_owned());
    names.sort();
    assert_eq!(
        table.keys().cloned().collect::<Vec<_>>(),
        names,
        "docs/dev/architecture.md lists other crates than bench and those of crates/"
    );
    let mut wrong = Vec::new();
    for name in &names {
        let manifest = match name.as_str() {
            "bench" => read(BENCH),
            _ => read(crate_folder(name).join("Cargo.toml")),
        };
        let allowed = &table[name];
        for used in section(&manifest, "[dependencies]") {
            if names.contains(&used) && !allowed.contains(&used) {
                wrong.push(format!("{name} uses {used}"));
            }
        }
        for used in section(&manifest, "[dev-dependencies]") {
            // Of itself a crate has the feature for tests.
            let always = ["testkit", "load", name].contains(&used.as_str());
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

/// The sections of a manifest whose titles begin so, comments left out.
fn sections(manifest: &str, beginning: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut title = String::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            line.clone_into(&mut title);
        } else if !line.is_empty() && !line.starts_with('#') && title.starts_with(beginning) {
            let section: &mut String = found.entry(title.clone()).or_default();
            *section += line;
            section.push('\n');
        }
    }
    found
}

/// The packages of a lock file, each with its versions.
fn locked(file: &str) -> BTreeMap<String, BTreeSet<String>> {
    let text = read(file);
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in text.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let mut lines = package.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            value.unwrap_or_default().trim_matches('"').to_owned()
        };
        found
            .entry(value("name"))
            .or_default()
            .insert(value("version"));
    }
    found
}

#[test]
fn benchmarks_are_built_as_the_rest_is() {
    let (root, bench) = (read("Cargo.toml"), read(BENCH));
    assert_eq!(
        sections(&bench, "[workspace.lints"),
        sections(&root, "[workspace.lints"),
        "lints of {BENCH}"
    );
    let own = locked("bench/Cargo.lock");
    let mut profiles = sections(&root, "[profile.release");
    profiles.retain(|title, _| {
        let package = title
            .strip_prefix("[profile.release.package.")
            .and_then(|rest| rest.strip_suffix(']'));
        package.is_none_or(|name| name.contains('*') || own.contains_key(name))
    });
    assert_eq!(
        sections(&bench, "[profile.release"),
        profiles,
        "profile of {BENCH}"
    );
    let rest = locked("Cargo.lock");
    let other = own.iter().filter(|(name, versions)| {
        rest.get(*name)
            .is_some_and(|rest| !versions.is_subset(rest))
    });
    let other: Vec<_> = other.collect();
    assert!(
        other.is_empty(),
        "other versions in bench/Cargo.lock: {other:?}"
    );
}

/// Experiments make reports, and a report knows its figures by a trait.
#[test]
fn reports_of_benchmarks_know_no_experiment() {
    let mut reports = vec![root().join("bench/src/report.rs")];
    files(&root().join("bench/src/report"), "rs", &mut reports);
    for report in reports {
        let knows = read(&report).contains("experiments::");
        assert!(!knows, "{} names an experiment", report.display());
    }
}

#[test]
fn safe_crates_refuse_unsafe() {
    for name in SAFE_CRATES {
        let text = read(crate_folder(name).join("src/lib.rs"));
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "lib.rs of {name} does not forbid unsafe code"
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
    for folder in ["crates", "bench"] {
        files(&root().join(folder), "rs", &mut sources);
    }
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
    let ours = ["crates/", "docs/", "scripts/", ".ci/", "fuzz/", "bench/"];
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
    let manifests: String = crate_folders()
        .into_values()
        .chain(["bench".into(), "fuzz".into()])
        .map(|folder| read(folder.join("Cargo.toml")))
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
                assert!(
                    has_test(value, filter_behind(&words, value)),
                    "{file}: there is no test {value}, or no module of it or test in it as named"
                );
            }
        }
    }
}

/// The first word behind the name of a test program, which selects tests of it.
fn filter_behind<'a>(words: &'a [String], program: &str) -> Option<&'a str> {
    let mut behind = words.iter().skip_while(|word| *word != program).skip(1);
    let filter = behind.next()?.trim_end_matches("::");
    filter
        .starts_with(|letter: char| letter.is_ascii_lowercase())
        .then_some(filter)
}

/// Returns whether a crate has this test program, with a module or a test that the filter selects.
fn has_test(program: &str, filter: Option<&str>) -> bool {
    let tests = |name: &String| crate_folder(name).join("tests");
    let mut sources = Vec::new();
    for tests in crates().iter().map(tests) {
        let file = tests.join(format!("{program}.rs"));
        let folder = tests.join(program);
        if folder.is_dir() && (file.exists() || folder.join("main.rs").exists()) {
            files(&folder, "rs", &mut sources);
        }
        sources.extend(file.exists().then_some(file));
    }
    let selects = |path: &PathBuf| {
        let Some(filter) = filter else { return true };
        let text = fs::read_to_string(path).expect("a source file is text");
        let is_test = |line: &str| line.trim().starts_with("fn ") && line.contains(filter);
        path.file_stem()
            .is_some_and(|stem| stem.to_string_lossy().contains(filter))
            || text.lines().any(is_test)
    };
    sources.iter().any(selects)
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

/// Returns whether a source writes lines to the log with its module's target.
fn logs(text: &str) -> bool {
    ["error", "warn", "info", "debug", "trace"]
        .iter()
        .any(|level| {
            let call = format!("tracing::{level}!(");
            let mut rest = text.split(call.as_str()).skip(1);
            rest.any(|rest| !rest.trim_start().starts_with("target:"))
        })
}

#[test]
fn log_filters_know_every_crate_that_logs() {
    let list = read("crates/host/supervisor/src/environment.rs");
    let list = list.split("const TARGETS").nth(1).expect("log targets");
    let list = list.split("];").next().unwrap_or_default();
    let page = read("docs/user/operations.md");
    for name in crates() {
        let mut sources = Vec::new();
        files(&crate_folder(&name).join("src"), "rs", &mut sources);
        let text = |path: &PathBuf| fs::read_to_string(path).expect("a source is text");
        if sources.iter().any(|path| logs(&text(path))) {
            let target = match name.as_str() {
                "supervisor" => "lasthop_supervisor".to_owned(),
                name => name.replace('-', "_"),
            };
            assert!(list.contains(&format!("\"{target}\"")), "target {target}");
            assert!(page.contains(&format!("`{target}`")), "page: {target}");
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
    for folder in SOURCES {
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
    let quotes = ["CHANGELOG.md", "glossary.md"];
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
    let is_output = ["cli/trace.rs", "processes/cli.rs"]
        .iter()
        .any(|file| path.ends_with(file))
        && !line.ends_with(['{', ';', ',', '(']);
    let is_row = path.ends_with("vhost_user/table.rs");
    is_table || is_row || is_output || !is_comment && line.contains('"') || line.contains("://")
}

#[test]
fn lines_have_at_most_100_columns() {
    let mut sources = Vec::new();
    for folder in SOURCES {
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
