//! Fenced blocks of the documents for users, for the tests that run them as they stand.

use std::fs;
use std::path::PathBuf;

use crate::paths::root;

/// A fenced block of a document.
pub struct Block {
    /// Line of its fence, from 1.
    pub line: usize,
    /// The word behind the fence.
    pub language: String,
    /// The reason for which it is not run, from the comment `<!-- not run: REASON -->` above it.
    pub not_run: Option<String>,
    /// Its lines.
    pub text: String,
}

/// Returns the documents for users.
///
/// # Panics
/// The folder cannot be read.
#[must_use]
pub fn documents() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("docs/user")).expect("documents for users");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut documents: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|of| of == "md"))
        .collect();
    documents.sort();
    documents
}

/// Returns the fenced blocks of a document.
///
/// # Panics
/// A comment about a block stands above none, or a block has no end.
#[must_use]
pub fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = document.lines().zip(1..);
    let mut not_run = None;
    while let Some((text, line)) = lines.next() {
        let Some(language) = text.trim_start().strip_prefix("```") else {
            assert!(not_run.is_none(), "line {line}: no block below the comment");
            let comment = text.strip_prefix("<!-- not run: ");
            not_run = comment.map(|rest| rest.trim_end_matches(" -->").to_owned());
            continue;
        };
        let mut text = String::new();
        loop {
            let (inner, _) = lines.next().expect("a block has an end");
            if inner.trim() == "```" {
                break;
            }
            text += inner;
            text.push('\n');
        }
        let (language, not_run) = (language.to_owned(), not_run.take());
        blocks.push(Block {
            line,
            language,
            not_run,
            text,
        });
    }
    blocks
}

impl Block {
    /// Returns how the block is run: each part with a byte that says how, as
    /// `crates/test/e2e/tests/e2e/documents/scenario.sh` reads them; `None` if it is output, syntax
    /// or data.
    #[must_use]
    pub fn parts(&self) -> Option<Vec<(u8, String)>> {
        match &*self.language {
            "sh" => {
                let lines = command_lines(&self.text);
                let mut parts: Vec<_> = lines.map(|line| (way(&line), line)).collect();
                parts.push((b'e', String::new()));
                Some(parts)
            }
            "toml" => Some(vec![(b'c', self.text.clone())]),
            "python" => Some(vec![(b'p', self.text.clone())]),
            _ => None,
        }
    }
}

/// Returns the command lines of a block; one that ends with a backslash continues.
fn command_lines(text: &str) -> impl Iterator<Item = String> {
    let joined = text.replace("\\\n", "\\\u{0}");
    let lines: Vec<String> = joined
        .lines()
        .map(|line| line.replace('\u{0}', "\n"))
        .collect();
    lines.into_iter().filter(|line| !line.trim().is_empty())
}

/// Returns how a command line is run.
fn way(line: &str) -> u8 {
    /// Lines that run until Ctrl-C, or until frames come.
    const STREAMS: &[&str] = &[
        "lasthop capture",
        "--next",
        "--watch",
        "lasthop events",
        "curl -N",
        "/capture?",
        "qemu-system",
    ];
    let has = |part: &&str| line.contains(*part);
    if has(&"lasthop top") {
        b't'
    } else if has(&"lasthop run") && !has(&"--check") {
        b'b'
    } else if STREAMS.iter().any(has) && !has(&"--no-follow") {
        b's'
    } else {
        b'r'
    }
}
