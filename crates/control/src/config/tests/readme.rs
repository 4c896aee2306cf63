//! The README's examples are taken as they stand.

use super::read;

const README: &str = include_str!("../../../../../README.md");

/// The block of this kind that has such a line.
fn block(line: &str) -> &'static str {
    let blocks = README.split("```toml\n").skip(1);
    let texts = blocks.filter_map(|rest| rest.split("\n```").next());
    let mut found = texts.filter(|text| text.lines().any(|at| at == line));
    found.next().expect("README.md has such an example")
}

#[test]
fn the_access_lists_fit_the_configuration_before_them_and_cut_nobody_off() {
    let ports = block("name = \"host0\"");
    let lists = block("name = \"web-in\"");
    let wanted = read(&format!("{ports}\n{lists}\n")).unwrap();
    assert_eq!(wanted.access.lists.len(), 1);
    assert!(wanted.access.defaults.is_empty(), "uplinks would be judged");
    assert_eq!(crate::wanted::warnings(&wanted), []);
}
