//! Lengths of functions in the production crates.

use std::collections::BTreeSet;

use super::crates;
use super::shape::{identifier, sources, without_visibility};

/// Lines of a function at most, comments left out.
const MOST_LINES: usize = 60;
/// Crates that are no product.
const NOT_CHECKED: [&str; 4] = ["testkit", "load", "hostile", "e2e"];
/// Functions that may be longer, each with its file and the reason.
const LONG: &[(&str, &str, &str)] = &[
    (
        "model/event_text.rs",
        "message",
        "a table: the text of each kind of event",
    ),
    (
        "config/desired/check.rs",
        "ports",
        "a list: the checks of a port",
    ),
    (
        "control/engine/work.rs",
        "execute",
        "a table: what each kind of work calls",
    ),
    (
        "control/metrics/families.rs",
        "counters",
        "a table: the name and the help of each counter",
    ),
    (
        "datapath/forward/fabric.rs",
        "deliver",
        "the way of a frame, whose instructions are counted",
    ),
    (
        "datapath/forward/switch/apply.rs",
        "apply",
        "the way of a frame, whose instructions are counted",
    ),
    (
        "datapath/ports/offload.rs",
        "deliver_segments",
        "the way of a frame, whose instructions are counted",
    ),
    (
        "driver/user.rs",
        "new",
        "makes the parts of a worker, a few lines for each",
    ),
    (
        "driver/user/reports.rs",
        "flow_event",
        "a table: what each state of a socket reports",
    ),
];

/// The name of the function that begins with a line, if one does.
fn function(line: &str) -> Option<&str> {
    let mut rest = without_visibility(line);
    for modifier in ["const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(modifier).unwrap_or(rest);
    }
    rest.strip_prefix("fn ").map(identifier)
}

/// The functions of a file with their lengths in lines. The code is formatted: the last line of a
/// body has the indentation of the first one.
fn functions(lines: &[String]) -> Vec<(&str, usize)> {
    let named = lines.iter().enumerate();
    let named = named.filter_map(|(at, line)| Some((at, function(line)?)));
    let length = |at: usize| {
        let indent = lines[at].len() - lines[at].trim_start().len();
        let is_last = |line: &String| {
            let own = line.len() - line.trim_start().len() == indent;
            own && (line.ends_with('}') || line.ends_with(';'))
        };
        let end = lines[at..].iter().position(is_last);
        end.map_or(lines.len() - at, |end| end + 1)
    };
    named.map(|(at, name)| (name, length(at))).collect()
}

#[test]
fn functions_are_short() {
    let listed = LONG
        .iter()
        .map(|(file, of, _)| (file.to_string(), of.to_string()));
    let mut listed: BTreeSet<_> = listed.collect();
    let mut wrong = Vec::new();
    let products = crates().into_iter();
    for name in products.filter(|name| !NOT_CHECKED.contains(&name.as_str())) {
        for source in sources(&name) {
            let file = format!("{name}/{}", source.file);
            for (function, length) in functions(&source.lines) {
                let is_long = length > MOST_LINES;
                if is_long && !listed.remove(&(file.clone(), function.to_owned())) {
                    wrong.push(format!("{file}: {function} has {length} lines"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "too long: {wrong:#?}");
    assert!(listed.is_empty(), "exceptions without need: {listed:?}");
}

#[test]
fn lengths_are_those_of_bodies() {
    let text = "\
impl A {
    pub(crate) async fn short(&self) -> u32 {
        1
    }

    fn long(
        of: u32,
    ) -> u32 {
        if of == 0 {
            return 1;
        }
        of
    }
}

trait B {
    fn declared(&self);
}

const fn line() {}
";
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let expected = [("short", 3), ("long", 8), ("declared", 1), ("line", 1)];
    assert_eq!(functions(&lines), expected);
}
