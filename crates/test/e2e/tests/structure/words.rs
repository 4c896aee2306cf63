//! The rules of "Words" in `CONTRIBUTING.md` that can be counted, each with a ceiling that only
//! falls.
//!
//! `words.txt` has the ceilings: a rule, then its uses in comments of production code, in literals
//! of production code, and in documents. `BLESS=1` lowers those that are too high, and adds a rule
//! that is not there; it raises none.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use e2e::paths::root;

use super::{files, without_code};

/// Ceilings, below this file's folder.
const CEILINGS: &str = "crates/test/e2e/tests/structure/words.txt";
/// A ceiling is lowered when the uses are fewer by more than this: changes that come at the same
/// time need not agree on a number.
const SLACK: usize = 10;
/// Where uses are counted.
const PLACES: [&str; 3] = ["comments", "literals", "documents"];

/// A rule: its name, and the phrases that are against it. A phrase that begins with a capital
/// letter counts at the beginning of a sentence alone.
const RULES: &[(&str, &[&str])] = &[
    (
        "preposition-which",
        &[
            "of which",
            "to which",
            "by which",
            "from which",
            "in which",
            "at which",
            "on which",
            "for which",
            "with which",
        ],
    ),
    ("whose", &["whose"]),
    ("in-front-of", &["in front of", "behind"]),
    (
        "is-to-be",
        &["is to be", "are to be", "was to be", "were to be"],
    ),
    ("so-many", &["so many", "so much", "so long", "so often"]),
    ("most-least", &["Most", "Least", "The most", "The least"]),
    ("has-to", &["has to", "have to", "had to"]),
];
/// The rule about names of types, which is counted in code.
const NAMES: &str = "participle-names";

/// Participles and adjectives that end otherwise than in `ed`.
const IRREGULAR: &[&str] = &[
    "Kept",
    "Known",
    "Seen",
    "Met",
    "Lost",
    "Held",
    "Sent",
    "Taken",
    "Left",
    "Given",
    "Found",
    "Made",
    "Gone",
    "Shown",
    "Cut",
    "Read",
    "Told",
    "Born",
    "Drawn",
    "Hidden",
    "Chosen",
    "Written",
    "Begun",
    "Bound",
    "Spent",
    "Brought",
    "Built",
    "Bought",
    "Caught",
    "Dealt",
    "Heard",
    "Laid",
    "Led",
    "Lent",
    "Meant",
    "Paid",
    "Said",
    "Shut",
    "Sold",
    "Stood",
    "Stopped",
    "Understood",
    "Won",
    "Worn",
    "Open",
    "Alike",
    "Whole",
    "Wholes",
    "Last",
    "Next",
    "Other",
    "Same",
    "Past",
    "Due",
    "Ready",
    "Idle",
    "Busy",
    "Empty",
    "Full",
    "Fresh",
    "Stale",
    "Early",
    "Late",
    "Old",
    "New",
];
/// Nouns that end as participles do.
const NOUNS: &[&str] = &["Feed", "Need", "Seed", "Speed"];

type Counts = BTreeMap<String, [usize; PLACES.len()]>;

/// The last word of a name like `PortChanged`.
fn last_word(name: &str) -> &str {
    let at = name.rfind(|letter: char| letter.is_ascii_uppercase());
    &name[at.unwrap_or_default()..]
}

/// Returns whether the name of a type ends in no noun.
fn is_participle(name: &str) -> bool {
    let word = last_word(name);
    let is_regular = word.ends_with("ed") && !NOUNS.contains(&word);
    is_regular || IRREGULAR.contains(&word)
}

/// The type that a line of code declares.
fn declared(line: &str) -> Option<&str> {
    let mut words = line
        .split_whitespace()
        .skip_while(|word| word.starts_with("pub") || word.ends_with(')'));
    let is_type = |word: &&str| ["struct", "enum", "trait", "type", "union"].contains(word);
    words.next().filter(is_type)?;
    let name = words.next()?;
    let end = name.find(|letter: char| !letter.is_alphanumeric());
    Some(&name[..end.unwrap_or(name.len())])
}

/// The contents of the literals of a line of code, joined.
fn literals(line: &str) -> String {
    line.split('"')
        .skip(1)
        .step_by(2)
        .collect::<Vec<_>>()
        .join(" . ")
}

/// Returns how often a phrase stands in a text as words of their own. One that begins with a
/// capital letter must stand at the beginning of a sentence.
fn uses(text: &str, phrase: &str) -> usize {
    let begins = phrase.starts_with(|letter: char| letter.is_uppercase());
    let (lower, phrase) = (text.to_lowercase(), phrase.to_lowercase());
    let is_letter = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    let found = lower.match_indices(&phrase).filter(|(at, found)| {
        let before = lower[..*at].trim_end();
        let is_word = !is_letter(lower[..*at].chars().next_back())
            && !is_letter(lower[at + found.len()..].chars().next());
        is_word && (!begins || before.is_empty() || before.ends_with(['.', ':', '|']))
    });
    found.count()
}

/// Lines of a comment or document as one text, a paragraph a line: sentences go over lines.
#[derive(Default)]
struct Paragraphs(String);

impl Paragraphs {
    fn put(&mut self, line: &str) {
        let line = line.trim();
        let begins = line.is_empty() || line.starts_with(['*', '|', '#', '-']);
        self.0.push(if begins { '\n' } else { ' ' });
        self.0
            .push_str(line.trim_start_matches(['*', '#', '-', ' ']));
    }

    fn end(&mut self) {
        self.0.push('\n');
    }
}

fn is_production(path: &Path) -> bool {
    let path = path.strip_prefix(root()).unwrap_or(path);
    let parts = path.iter().map(|part| part.to_string_lossy());
    let tools = ["bench", "e2e", "hostile", "load"];
    let mut tools_or_tests =
        parts.filter(|part| part.contains("test") || tools.iter().any(|tool| *part == **tool));
    tools_or_tests.next().is_none() && path.iter().any(|part| part == "src")
}

/// Counts the uses of all rules in a text.
fn count(text: &str, place: usize, counts: &mut Counts) {
    for paragraph in text.lines() {
        let plain = without_code(paragraph);
        for (rule, phrases) in RULES {
            let found: usize = phrases.iter().map(|phrase| uses(&plain, phrase)).sum();
            counts.entry((*rule).to_owned()).or_default()[place] += found;
        }
    }
}

/// The lines of a source up to its module of tests.
fn production(text: &str) -> impl Iterator<Item = &str> {
    let next = text.lines().skip(1).map(Some).chain([None]);
    let begins = |line: &str| line.starts_with("mod ") && line.ends_with('{');
    let lines = text.lines().zip(next);
    let production =
        lines.take_while(move |(line, next)| *line != "#[cfg(test)]" || !next.is_some_and(begins));
    production.map(|(line, _)| line)
}

/// Counts the uses in a source without its tests.
fn count_source(text: &str, counts: &mut Counts) {
    let (mut comments, mut texts) = (Paragraphs::default(), Paragraphs::default());
    for line in production(text) {
        match line.trim_start().strip_prefix("//") {
            Some(comment) => comments.put(comment.trim_start_matches(['/', '!'])),
            None => {
                comments.end();
                texts.put(&literals(line));
                texts.end();
                if declared(line).is_some_and(is_participle) {
                    counts.entry(NAMES.to_owned()).or_default()[0] += 1;
                }
            }
        }
    }
    count(&comments.0, 0, counts);
    count(&texts.0, 1, counts);
}

fn count_all() -> Counts {
    let (mut sources, mut pages) = (Vec::new(), Vec::new());
    files(&root().join("crates"), "rs", &mut sources);
    files(root(), "md", &mut pages);
    // Figures of a day, and words that are quoted.
    let quotes = ["CHANGELOG.md", "glossary.md"];
    let is_old = |page: &PathBuf| {
        page.to_string_lossy().contains("/benchmarks/") || quotes.iter().any(|q| page.ends_with(q))
    };
    let mut counts = Counts::new();
    let read = |path: &PathBuf| fs::read_to_string(path).expect("a file is text");
    for source in sources.iter().filter(|path| is_production(path)) {
        count_source(&read(source), &mut counts);
    }
    for page in pages.iter().filter(|page| !is_old(page)) {
        let mut paragraphs = Paragraphs::default();
        let mut is_code = false;
        for line in read(page).lines() {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            paragraphs.put(if is_code || is_fence { "" } else { line });
        }
        count(&paragraphs.0, 2, &mut counts);
    }
    counts
}

fn ceilings(text: &str) -> Counts {
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let rule = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        Some((rule, [number()?, number()?, number()?]))
    };
    rows.filter_map(row).collect()
}

fn printed(ceilings: &Counts) -> String {
    let mut text = format!("# rule {}\n", PLACES.join(" "));
    for (rule, [comments, literals, documents]) in ceilings {
        let _ = writeln!(text, "{rule} {comments} {literals} {documents}");
    }
    text
}

#[test]
fn uses_of_refused_phrases_only_fall() {
    let path = root().join(CEILINGS);
    let mut counts = count_all();
    let mut ceilings = ceilings(&fs::read_to_string(&path).unwrap_or_default());
    // A rule without uses is counted, too.
    for rule in ceilings.keys() {
        counts.entry(rule.clone()).or_default();
    }
    if std::env::var_os("BLESS").is_some() {
        for (rule, found) in &counts {
            let ceiling = ceilings.entry(rule.clone()).or_insert(*found);
            *ceiling = std::array::from_fn(|at| ceiling[at].min(found[at]));
        }
        fs::write(&path, printed(&ceilings)).expect("a file of the tree");
    }
    let mut wrong = Vec::new();
    for (rule, found) in &counts {
        let Some(ceiling) = ceilings.get(rule) else {
            wrong.push(format!("{rule}: no ceiling in {CEILINGS}"));
            continue;
        };
        for (at, place) in PLACES.iter().enumerate() {
            let (found, ceiling) = (found[at], ceiling[at]);
            if found > ceiling {
                wrong.push(format!(
                    "{rule}: {found} uses in {place}, at most {ceiling}"
                ));
            } else if found + SLACK < ceiling {
                wrong.push(format!(
                    "{rule}: {found} uses in {place}, {ceiling} is too high"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "see \"Words\" in CONTRIBUTING.md; BLESS=1 lowers ceilings: {wrong:#?}"
    );
}

#[test]
fn phrases_and_names_are_found() {
    let source = "//! Most bytes of a frame. It is to\n//! be sent by the one whose turn it is.\n\
        // See `whose`.\n/// For the most part it is behind.\npub(crate) struct Kept;\n\
        struct KeptFlow;\nenum PortChanged {}\nlet text = \"it has to go\";\n\
        #[cfg(test)]\nmod own;\nstruct Seen;\n\
        #[cfg(test)]\nmod tests {\n// whose\nstruct Known;\n}\n";
    let mut counts = Counts::new();
    count_source(source, &mut counts);
    let found = |rule: &str| counts[rule];
    assert_eq!(found("whose"), [1, 0, 0]);
    assert_eq!(found("is-to-be"), [1, 0, 0]);
    assert_eq!(found("most-least"), [1, 0, 0]);
    assert_eq!(found("in-front-of"), [1, 0, 0]);
    assert_eq!(found("has-to"), [0, 1, 0]);
    assert_eq!(found(NAMES), [3, 0, 0]);
}
