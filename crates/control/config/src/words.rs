//! Texts of errors, and texts of libraries that users would read, in the words of the
//! configuration.

/// Texts of the standard library and of clap about a value that they cannot parse, and the
/// expected value.
const PARSERS: [(&str, &str); 7] = [
    ("invalid digit found in string", "an integer"),
    ("cannot parse integer from empty string", "an integer"),
    (
        "number too large to fit in target type",
        "a smaller integer",
    ),
    ("number too small to fit in target type", "a larger integer"),
    ("provided string was not `true` or `false`", "true or false"),
    ("invalid IP address syntax", "an IP address"),
    ("value was not a boolean", "true or false"),
];

/// Texts of the JSON library about a document, and the expected part of it.
const JSON: [(&str, &str); 13] = [
    ("expected ident", "true, false or null"),
    ("expected value", "a value"),
    ("expected `:`", "\":\" behind a key"),
    ("expected `,` or `]`", "\",\" or \"]\""),
    ("expected `,` or `}`", "\",\" or \"}\""),
    ("key must be a string", "a key in double quotes"),
    ("trailing comma", "a value behind the last \",\""),
    ("trailing characters", "one value and nothing behind it"),
    ("invalid number", "a number"),
    ("number out of range", "a number of at most 64 bits"),
    (
        "recursion limit exceeded",
        "at most 127 values within each other",
    ),
    ("invalid escape", "an escape like \\n or \\u0041"),
    (
        "control character (\\u0000-\\u001F) found while parsing a string",
        "an escape like \\n instead of a control character",
    ),
];

/// Texts of the TOML library about a file, what it expects there, and what it finds.
const TOML: [(&str, &str, &str); 26] = [
    (
        "string values must be quoted",
        "a value, and text in quotes",
        "a word without them",
    ),
    (
        "key with no value",
        "\"=\" and a value behind a key",
        "none",
    ),
    ("missing value", "a value", "none"),
    ("missing value for key", "a value", "none"),
    ("invalid value", "a value", "something else"),
    (
        "missing assignment between key-value pairs",
        "\"=\" behind a key",
        "none",
    ),
    ("extra `=`", "a value", "\"=\" a second time"),
    ("duplicate key", "each key once", "this one a second time"),
    ("unquoted keys cannot be empty", "a key", "none"),
    (
        "invalid unquoted key",
        "a key out of A-Z a-z 0-9 _ -, or one in quotes",
        "another character",
    ),
    ("unexpected key or value", "the end of the line", "more"),
    ("unexpected content", "the end of the line", "more"),
    ("unclosed table", "\"]\" behind the name of a table", "none"),
    (
        "unclosed array table",
        "\"]]\" behind the name of a table",
        "none",
    ),
    ("unclosed array", "\"]\" behind the last element", "none"),
    (
        "unclosed inline table",
        "\"}\" behind the last value",
        "none",
    ),
    (
        "missing comma between array elements",
        "\",\" between two elements",
        "none",
    ),
    (
        "extra assignment between key-value pairs",
        "\",\" between two keys",
        "\"=\"",
    ),
    (
        "missing comma between key-value pairs",
        "\",\" between two keys",
        "none",
    ),
    (
        "invalid basic string, expected `\"`",
        "text up to another '\"'",
        "none",
    ),
    (
        "invalid literal string, expected `'`",
        "text up to another \"'\"",
        "none",
    ),
    (
        "missing escaped value",
        "an escape like \\n or \\u0041",
        "another",
    ),
    ("missing opening quote", "a quote before the text", "none"),
    (
        "unexpected leading zero",
        "a number without a zero before it",
        "one",
    ),
    (
        "`_` may only go between digits",
        "\"_\" between digits only",
        "another",
    ),
    (
        "carriage return must be followed by newline",
        "a line feed behind a carriage return",
        "none",
    ),
];

/// Returns what is expected and what is found in a file, from the text of its parser. Rare texts
/// stay as they are.
pub(crate) fn toml(text: &str) -> (&str, &str) {
    let (found, expected) = text.rsplit_once(", expected ").unwrap_or((text, "TOML"));
    let row = TOML
        .iter()
        .find(|(known, ..)| [found, text].contains(known));
    row.map_or((expected, found), |(_, expected, found)| {
        (*expected, *found)
    })
}

/// Returns the expected value from the text of a parser of numbers, words or addresses; of clap's
/// `65 is not in 1..=64`, too. `None` for other texts.
#[must_use]
pub fn expected(text: &str) -> Option<String> {
    if let Some((_, expected)) = PARSERS.iter().find(|(known, _)| *known == text) {
        return Some((*expected).to_owned());
    }
    let (_, range) = text.split_once(" is not in ")?;
    Some(match range.split_once("..=") {
        Some(("", most)) => format!("an integer up to {most}"),
        Some((least, most)) => format!("an integer from {least} to {most}"),
        None => format!("an integer from {}", range.strip_suffix("..")?),
    })
}

/// Returns the part of a JSON document that its reader misses, from the reader's text without a
/// place.
#[must_use]
pub(crate) fn expected_json(text: &str) -> &'static str {
    let found = JSON.iter().find(|(known, _)| *known == text);
    // The rest is about escapes of half a character.
    found.map_or("an escape of a whole character", |(_, expected)| expected)
}

/// Returns the text of an error.
pub fn message(expected: &str, found: &str) -> String {
    match expected {
        "" => found.to_owned(),
        _ => format!("expected {expected}, found {found}"),
    }
}

/// Quotes a text for a message; control characters are escaped.
pub(crate) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// Returns a list of words, quoted.
pub(crate) fn one_of(all: &[&str]) -> String {
    let all: Vec<String> = all.iter().map(|word| quoted(word)).collect();
    match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => all.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_parsers_are_still_those_of_the_library() {
        let number = |text: &str| text.parse::<u8>().unwrap_err().to_string();
        let signed = "-200".parse::<i8>().unwrap_err().to_string();
        let word = "x".parse::<bool>().unwrap_err().to_string();
        let address = "x".parse::<std::net::IpAddr>().unwrap_err().to_string();
        for (text, said) in [
            (number("x"), "an integer"),
            (number(""), "an integer"),
            (number("256"), "a smaller integer"),
            (signed, "a larger integer"),
            (word, "true or false"),
            (address, "an IP address"),
        ] {
            assert_eq!(expected(&text).as_deref(), Some(said), "{text}");
        }
        for (text, said) in [
            ("65 is not in 1..=64", "an integer from 1 to 64"),
            ("0 is not in 1..", "an integer from 1"),
            ("9 is not in ..=8", "an integer up to 8"),
        ] {
            assert_eq!(expected(text).as_deref(), Some(said));
        }
        assert_eq!(expected("no such thing"), None);
    }

    #[test]
    fn usual_mistakes_in_a_file_are_in_our_words() {
        for file in [
            "a = b\n",
            "a\n",
            "a =\n",
            "a = \n",
            "a 1\n",
            "a == 1\n",
            "a = 1\na = 2\n",
            "= 1\n",
            "a? = 1\n",
            "a = 1 2\n",
            "[a\n",
            "[[a\n",
            "a = [1\n",
            "a = {b = 1\n",
            "a = [1 2]\n",
            "a = {b = 1 c = 2}\n",
            "a = b\"\n",
            "a = 01\n",
            "a = 1__0\n",
            "a = 1\rb = 2\n",
            "a = \"b\n",
            "a = 'b\n",
            "a = \"\\q\"\n",
        ] {
            let Err(error) = toml::de::DeTable::parse(file) else {
                panic!("{file}");
            };
            let said = error.message();
            let (expected, found) = super::toml(said);
            let is_ours = TOML
                .iter()
                .any(|(_, one, other)| (*one, *other) == (expected, found));
            assert!(is_ours, "{file:?}: {said}");
        }
    }

    /// A text for each way in which a document can be wrong.
    #[test]
    fn no_text_of_the_json_library_is_left() {
        let deep = "[".repeat(200);
        let documents = [
            "nul",
            "?",
            "{\"a\" 1}",
            "[1 2]",
            "{\"a\":1 2}",
            "{1:2}",
            "[1,]",
            "1 2",
            "01",
            "1e999",
            &deep,
            "\"\\q\"",
            "\"\u{1}\"",
            "\"\\ud800\"",
            "\"\\uzzzz\"",
            "-",
            "{\"a\":1,}",
        ];
        for document in documents {
            let error = serde_json::from_str::<serde_json::Value>(document).unwrap_err();
            let problem = crate::json::syntax_error(&error);
            let detail = &problem.detail;
            let ours = detail.starts_with("expected more JSON, found its end at line 1")
                || detail.contains(", found something else at line 1 column ");
            assert!(ours, "{document}: {detail}");
            let known = JSON
                .iter()
                .any(|(text, _)| error.to_string().starts_with(text));
            let is_escape = document.starts_with("\"\\u");
            assert!(known || is_escape || error.is_eof(), "{document}: {error}");
        }
    }
}
