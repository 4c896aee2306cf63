//! The examples of README.md and docs/user/configuration.md are valid and cause no warning.

use super::read;

const README: &str = include_str!("../../../../../../README.md");
const CONFIGURATION: &str = include_str!("../../../../../../docs/user/configuration.md");

/// The blocks of a page that are whole files.
fn files(page: &'static str) -> impl Iterator<Item = &'static str> {
    let blocks = page.split("```toml\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split("\n```").next());
    blocks.filter(|text| text.contains("[[port]]\n") || text.contains("[[port]] "))
}

#[test]
fn the_examples_are_valid_and_cause_no_warning() {
    let texts: Vec<&str> = files(README).chain(files(CONFIGURATION)).collect();
    assert_eq!(
        texts.len(),
        3,
        "a minimal file twice, and one with everything"
    );
    for text in texts {
        let state = read(text).unwrap();
        assert_eq!(crate::desired::warnings(&state), [], "{text}");
    }
    let all = files(CONFIGURATION).last().expect("a file");
    let state = read(all).unwrap();
    assert_eq!(state.access.lists.len(), 1);
    assert!(state.access.defaults.is_empty(), "uplinks would be judged");
}
