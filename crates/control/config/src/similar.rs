//! The key or word that an unknown one probably means: the expected ones begin with that.

use strsim::damerau_levenshtein;

use crate::words::{one_of, quoted};

/// Letters of a word for each slip in it; one is always accepted.
const LETTERS_PER_SLIP: usize = 4;
/// Letters of a word that may be its beginning alone.
const BEGINNING: usize = 3;

/// Words of other programs, and ours for them.
const SYNONYMS: [(&str, &str); 11] = [
    ("deny", "drop"),
    ("block", "drop"),
    ("discard", "drop"),
    ("drop", "deny"),
    ("reject", "deny"),
    ("block", "deny"),
    ("accept", "allow"),
    ("permit", "allow"),
    ("pass", "allow"),
    // OVN and nf.
    ("allow-related", "allow-stateful"),
    ("stateful", "allow-stateful"),
];

/// Returns the known word that is nearest to an unknown one.
pub(crate) fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let synonyms = SYNONYMS.iter().filter(|(theirs, _)| *theirs == unknown);
    let mut ours = synonyms.filter_map(|(_, ours)| known.iter().find(|word| *word == ours));
    if let Some(ours) = ours.next() {
        return Some(ours);
    }
    let letters = unknown.chars().count();
    // What a client sends may be long.
    let longest = known.iter().map(|word| word.len()).max().unwrap_or(0);
    if letters > 2 * longest {
        return None;
    }
    let slips = |word: &&str| {
        let is_beginning = letters >= BEGINNING && word.starts_with(unknown);
        if is_beginning {
            return Some(0);
        }
        let slips = damerau_levenshtein(unknown, word);
        let most = (word.len().max(letters) / LETTERS_PER_SLIP).max(1);
        (slips <= most.min(letters / 2)).then_some(slips)
    };
    let found = known.iter().filter_map(|word| Some((slips(word)?, *word)));
    found.min_by_key(|(slips, _)| *slips).map(|(_, word)| word)
}

/// Returns the expected keys instead of an unknown one: first that which was probably meant.
pub(crate) fn expected_key(unknown: &str, known: &[&str]) -> String {
    let all = known.join(", ");
    match (known, nearest(unknown, known)) {
        ([], _) => "no key".to_owned(),
        ([key], _) => format!("the key {key}"),
        (_, Some(key)) => format!("the key {key}, or another of {all}"),
        (_, None) => format!("one of the keys {all}"),
    }
}

/// Returns the expected words instead of an unknown one: first that which was probably meant.
pub(crate) fn expected_word(unknown: &str, known: &[&str]) -> String {
    let mut known = known.to_vec();
    let Some(word) = nearest(unknown, &known) else {
        return one_of(&known);
    };
    known.retain(|other| *other != word);
    match known.is_empty() {
        true => quoted(word),
        false => format!("{}, or else {}", quoted(word), one_of(&known)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 6] = ["name", "socket", "queues", "trust_dscp", "dns", "mtu"];

    #[test]
    fn a_slip_is_understood() {
        for (unknown, meant) in [
            ("sokcet", Some("socket")),
            ("soket", Some("socket")),
            ("queue", Some("queues")),
            ("trust", Some("trust_dscp")),
            ("dsn", Some("dns")),
            ("Name", Some("name")),
            ("x", None),
            ("", None),
            ("colour", None),
            ("mac", None),
            ("burst", None),
        ] {
            assert_eq!(nearest(unknown, &KEYS), meant, "{unknown}");
        }
        assert_eq!(nearest(&"socket".repeat(100_000), &KEYS), None);
    }

    #[test]
    fn the_one_that_was_meant_comes_first() {
        let said = "the key mtu, or another of name, socket, queues, trust_dscp, dns, mtu";
        assert_eq!(expected_key("mut", &KEYS), said);
        assert_eq!(expected_key("x", &["a", "b"]), "one of the keys a, b");
        assert_eq!(expected_key("listn", &["listen"]), "the key listen");
        assert_eq!(expected_key("x", &[]), "no key");
    }

    #[test]
    fn words_of_other_programs_are_understood() {
        let actions = ["allow", "drop", "reject", "allow-stateful"];
        for (unknown, said) in [
            (
                "deny",
                "\"drop\", or else \"allow\", \"reject\" or \"allow-stateful\"",
            ),
            (
                "accept",
                "\"allow\", or else \"drop\", \"reject\" or \"allow-stateful\"",
            ),
            (
                "allow-related",
                "\"allow-stateful\", or else \"allow\", \"drop\" or \"reject\"",
            ),
            (
                "log",
                "\"allow\", \"drop\", \"reject\" or \"allow-stateful\"",
            ),
        ] {
            assert_eq!(expected_word(unknown, &actions), said);
        }
        let said = "\"deny\", or else \"allow\"";
        assert_eq!(expected_word("drop", &["allow", "deny"]), said);
        assert_eq!(expected_word("on", &["off"]), "\"off\"");
    }
}
