//! Fenced blocks of the documents for users.

use std::fs;

use e2e::documents::{blocks, documents};

/// `crates/test/e2e/tests/e2e/documents.rs` runs or reads these.
const RUN: &[&str] = &["sh", "toml", "python", "json"];

#[test]
fn blocks_of_the_documents_are_run_or_say_why_not() {
    let mut wrong = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a document");
        for block in blocks(&text) {
            let language = &*block.language;
            let is_fine = match block.not_run {
                Some(reason) => reason.len() > 5 && !language.is_empty(),
                // Output and syntax.
                None => language == "text" || RUN.contains(&language),
            };
            if !is_fine {
                wrong.push(format!("{}:{}: {language}", document.display(), block.line));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "not run, and no `<!-- not run: REASON -->` above:\n{}",
        wrong.join("\n")
    );
}
