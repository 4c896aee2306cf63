//! Tests that the manual page lasthop.toml(5) has exactly the keys that a file may have.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use api::v1::{PortKind, PortSpec};

use super::read;

const PAGE: &str = include_str!("../../../../../../docs/user/lasthop.toml.md");
const GUIDE: &str = include_str!("../../../../../../docs/user/configuration.md");
const MAN: &str = include_str!("../../../../../../packaging/lasthop.toml.5");

/// Headings of the page whose tables have the keys of one table together, and the beginning of a
/// file that ends in that table: the error about an unknown key lists the keys that it may have.
const TABLES: &[(&[&str], &str)] = &[
    (&["`[switch]`"], "[switch]"),
    (&["`[switch.coalescing]`"], "[switch.coalescing]"),
    (&["`[switch.connections]`"], "[switch.connections]"),
    (
        &["`[switch.connections.timeouts]`"],
        "[switch.connections.timeouts]",
    ),
    (&["`[metrics]`"], "[metrics]"),
    (&["`[[segment]]`"], "[[segment]]"),
    (
        &["`[[port.forward]]`"],
        "[[port]]\nname = \"a\"\nkind = \"user\"\n[[port.forward]]",
    ),
    (
        &["`[port.port_security]`"],
        "[[port]]\nname = \"a\"\nkind = \"tap\"\n[port.port_security]",
    ),
    (
        &["`[port.limits]`"],
        "[[port]]\nname = \"a\"\nkind = \"tap\"\n[port.limits]",
    ),
    (
        &["`[port.limits.from_guest]` and `[port.limits.to_guest]`"],
        "[[port]]\nname = \"a\"\nkind = \"tap\"\n[port.limits.to_guest]",
    ),
    (
        &["`[port.limits.broadcast]`, `[port.limits.multicast]` and \
             `[port.limits.unknown_unicast]`"],
        "[[port]]\nname = \"a\"\nkind = \"tap\"\n[port.limits.unknown_unicast]",
    ),
    (&["`[[qos_class]]`"], "[[qos_class]]"),
    (&["`[[qos_group]]`"], "[[qos_group]]"),
    (
        &["`[port.egress]`"],
        "[[port]]\nname = \"a\"\nkind = \"tap\"\n[port.egress]",
    ),
    (
        &["`[port.qos]`"],
        "[[port]]\nname = \"a\"\nkind = \"tap\"\n[port.qos]",
    ),
    (
        &["`[port.qos.classes.NAME]`"],
        "[[port]]\nname = \"a\"\nkind = \"tap\"\n[port.qos.classes.default]",
    ),
    (&["`[[mirror]]`"], "[[mirror]]"),
    (&["`[[pipe]]`"], "[[pipe]]"),
    (&["`[[fdb]]`"], "[[fdb]]"),
    (&["`[[address_set]]`"], "[[address_set]]"),
    (&["`[[group]]`"], "[[group]]"),
    (&["`[[acl_default]]`"], "[[acl_default]]"),
    (&["`[[acl]]`"], "[[acl]]"),
    (&["`[[acl.rule]]`"], "[[acl]]\n[[acl.rule]]"),
    (
        &["`[acl.rule.log]`"],
        "[[acl]]\n[[acl.rule]]\nname = \"r\"\naction = \"drop\"\n[acl.rule.log]",
    ),
];

/// All of them, with those of ports, whose keys are those of all kinds and of their own.
fn all_tables() -> Vec<(Vec<String>, String)> {
    let of_kind = |kind: &&str| {
        let headings = ["`[[port]]`".to_owned(), kind_heading(kind)];
        (headings.to_vec(), format!("[[port]]\nkind = \"{kind}\""))
    };
    let others = TABLES.iter().map(|(headings, table)| {
        let headings = headings.iter().map(|heading| (*heading).to_owned());
        (headings.collect(), (*table).to_owned())
    });
    others.chain(PortKind::WORDS.iter().map(of_kind)).collect()
}

fn kind_heading(kind: &str) -> String {
    format!("`[[port]]` with `kind = \"{kind}\"`")
}

/// The keys that a table may have, as the error about an unknown one lists them.
fn known(table: &str) -> BTreeSet<String> {
    let error = read(&format!("{table}\nno_such_key = 1\n")).expect_err(table);
    let is_it = error.key.ends_with("no_such_key") || error.found.contains("no_such_key");
    assert!(is_it, "{table}: {error}");
    let words = error
        .expected
        .split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_');
    let words = words.filter(|word| !["", "one", "of", "or", "the", "key", "keys"].contains(word));
    // The API's key for the tables [[acl.rule]] is refused with an error of its own.
    let words = words.filter(|word| *word != "rules");
    let words: BTreeSet<_> = words.map(str::to_owned).collect();
    assert!(!words.is_empty(), "{table}: {error}");
    words
}

/// The keys that the page has under a heading.
fn documented(heading: &str) -> BTreeSet<String> {
    let line = format!("### {heading}");
    let rows = PAGE.lines().skip_while(|at| *at != line).skip(1);
    let rows = rows.take_while(|at| !at.starts_with('#'));
    let keys = rows.filter_map(|row| row.strip_prefix("| `")?.split_once('`'));
    let keys: BTreeSet<_> = keys.map(|(key, _)| key.to_owned()).collect();
    assert!(!keys.is_empty(), "the page has no table {heading}");
    keys
}

#[test]
fn the_page_has_every_key_and_no_other() {
    let mut wrong = Vec::new();
    for (headings, table) in all_tables() {
        let page: BTreeSet<_> = headings.iter().flat_map(|at| documented(at)).collect();
        let code = known(&table);
        let missing = code.difference(&page).map(|key| ("missing", key.clone()));
        let unknown = page.difference(&code).map(|key| ("unknown", key.clone()));
        let all = missing.chain(unknown);
        wrong.extend(all.map(|(what, key)| (table.clone(), what, key)));
    }
    assert_eq!(wrong, []);
}

#[test]
fn the_page_has_every_table() {
    let headings: BTreeSet<_> = all_tables().into_iter().flat_map(|(all, _)| all).collect();
    let on_page = PAGE.lines().filter_map(|line| line.strip_prefix("### "));
    let on_page: BTreeSet<_> = on_page.map(str::to_owned).collect();
    assert_eq!(on_page, headings);
    for key in known("") {
        let one = [format!("`[{key}]`"), format!("`[[{key}]]`")];
        let is_there = one.iter().any(|heading| headings.contains(heading));
        assert!(is_there, "the page has no table {key}");
    }
}

/// The guide's table of kinds has a row for each, with its keys in the order of the declaration.
#[test]
fn the_guide_has_the_keys_of_each_kind() {
    let row = |name: &str, keys: &[&str]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
        format!("| {name} | {} |", keys.join(", "))
    };
    let is_common = |key: &&str| {
        PortKind::ALL
            .iter()
            .all(|kind| !kind.own_keys().contains(key))
    };
    let all = PortSpec::KEYS.iter().map(|key| key.name).filter(is_common);
    let common: Vec<&str> = ["name", "kind"].into_iter().chain(all).collect();
    let kinds = PortKind::ALL.iter();
    let kinds = kinds.map(|kind| row(&format!("`{}`", kind.as_str()), kind.own_keys()));
    for row in std::iter::once(row("all", &common)).chain(kinds) {
        assert!(
            GUIDE.contains(&row),
            "docs/user/configuration.md has no row {row}"
        );
    }
}

#[test]
fn the_manual_page_is_made_of_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let made = Command::new("scripts/man-page")
        .arg("docs/user/lasthop.toml.md")
        .current_dir(root)
        .output()
        .expect("scripts/man-page runs");
    assert!(made.status.success(), "{made:?}");
    let same = made.stdout == MAN.as_bytes();
    assert!(
        same,
        "run scripts/man-page docs/user/lasthop.toml.md >packaging/lasthop.toml.5"
    );
}

/// Pages that begin with so many whole files.
const EXAMPLES: &[(&str, &str, usize)] = &[
    ("lasthop.toml.md", PAGE, 1),
    (
        "access-lists.md",
        include_str!("../../../../../../docs/user/access-lists.md"),
        3,
    ),
    (
        "port-security.md",
        include_str!("../../../../../../docs/user/port-security.md"),
        1,
    ),
    (
        "rate-limits.md",
        include_str!("../../../../../../docs/user/rate-limits.md"),
        1,
    ),
    (
        "memif.md",
        include_str!("../../../../../../docs/user/memif.md"),
        1,
    ),
    (
        "sockets.md",
        include_str!("../../../../../../docs/user/sockets.md"),
        1,
    ),
    (
        "user-network.md",
        include_str!("../../../../../../docs/user/user-network.md"),
        1,
    ),
];

#[test]
fn the_examples_are_right() {
    for (name, page, count) in EXAMPLES {
        let blocks = page.split("```toml\n").skip(1).take(*count);
        let texts: Vec<&str> = blocks
            .filter_map(|rest| rest.split("\n```").next())
            .collect();
        assert_eq!(texts.len(), *count, "{name}");
        for text in texts {
            let state = read(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(crate::desired::warnings(&state), [], "{name}");
        }
    }
}
