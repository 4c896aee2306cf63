//! The order of the modules of crates: each uses those before it only, and no folder has a large
//! circle.

use std::collections::{BTreeMap, BTreeSet};

use super::shape::{Source, identifier, sources, without_visibility};
use super::{crate_folder, read};

/// Crates with an order of modules.
const ORDERED: [&str; 8] = [
    "datapath",
    "control",
    "supervisor",
    "interfaces",
    "driver",
    "config",
    "usernet",
    "sockets",
];
/// Modules of a folder in a circle at most.
const MOST_IN_A_CIRCLE: usize = 3;
/// Folders with a larger circle, each with its size and the reason.
const CIRCLES: &[(&str, &str, usize, &str)] = &[
    (
        "datapath",
        "ports::guest",
        5,
        "a queue and what it does when its guest is slow",
    ),
    (
        "control",
        "engine",
        4,
        "changes, decisions and queries of one state",
    ),
    (
        "control",
        "metrics",
        4,
        "families of metrics, and the pages that list them",
    ),
];

/// A name in a module, and the path behind it.
struct Use {
    name: String,
    path: Vec<String>,
}

/// The modules of a crate in order, the lowest first: the fenced block in the documentation of the
/// crate that says so.
fn order(name: &str) -> Vec<String> {
    let roots = ["lib.rs", "main.rs"].map(|file| crate_folder(name).join("src").join(file));
    let file = roots.iter().find(|file| file.is_file());
    let text = read(file.expect("a crate has a root"));
    let lines = text.lines().filter_map(|line| line.strip_prefix("//!"));
    let mut lines = lines
        .map(str::trim)
        .skip_while(|line| !line.contains("lowest first"));
    let block = lines.find(|line| line.starts_with("```text"));
    assert!(block.is_some(), "{name} has no order of modules");
    let rows = lines.take_while(|line| !line.starts_with("```"));
    let names = rows.filter_map(|row| row.split_whitespace().next().map(str::to_owned));
    names.collect()
}

/// The rank of the module in the order to which a path belongs: of the longest name that it starts
/// with.
fn rank(order: &[String], path: &[String]) -> Option<usize> {
    let lengths = (1..=path.len()).rev();
    let mut names = lengths.map(|len| path[..len].join("::"));
    names.find_map(|name| order.iter().position(|listed| *listed == name))
}

/// Adds the names of a `use` tree, or of the path at the start of an expression.
fn add_uses(tree: &str, base: &[String], found: &mut Vec<Use>) {
    let mut path = base.to_vec();
    let mut rest = tree.trim_start();
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            return group_items(group)
                .iter()
                .for_each(|item| add_uses(item, &path, found));
        }
        let name = identifier(rest);
        rest = &rest[name.len()..];
        match name {
            "" => break,
            "crate" => path.clear(),
            "super" => drop(path.pop()),
            "self" => {}
            name => path.push(name.to_owned()),
        }
        match rest.strip_prefix("::") {
            Some(next) => rest = next,
            None => break,
        }
    }
    let alias = rest.trim_start().strip_prefix("as ").map(identifier);
    let name = alias.or(path.last().map(String::as_str));
    found.push(Use {
        name: name.unwrap_or_default().to_owned(),
        path,
    });
}

/// The items of a group of a `use` tree, from the text behind its brace.
fn group_items(group: &str) -> Vec<&str> {
    let (mut items, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                items.push(group[from..at].trim());
                from = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    items.retain(|item| !item.is_empty());
    items
}

/// The `use` declarations of a file.
fn declared(source: &Source) -> Vec<Use> {
    let text = source.lines.join("\n");
    let mut found = Vec::new();
    let mut from = 0;
    for line in text.split_inclusive('\n') {
        let is_use = without_visibility(line).starts_with("use ");
        if let Some(at) = line.find("use ").filter(|_| is_use) {
            add_uses(
                &text[from + at + "use ".len()..],
                &source.module,
                &mut found,
            );
        }
        from += line.len();
    }
    found
}

/// The paths in the crate that a file names: in `use` declarations, or by `crate::` and `super::`.
fn named(source: &Source) -> Vec<Vec<String>> {
    let text = source.lines.join("\n");
    let mut found = declared(source);
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            let inside = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
            if before.is_none_or(|letter| !inside(letter)) {
                add_uses(&text[at..], &source.module, &mut found);
            }
        }
    }
    found.into_iter().map(|found| found.path).collect()
}

/// The modules of a crate.
struct Modules {
    sources: Vec<Source>,
    /// Meanings of the names that a module imports, by the module's path.
    imports: BTreeMap<Vec<String>, BTreeMap<String, Vec<String>>>,
}

impl Modules {
    fn of(name: &str) -> Self {
        let sources = sources(name);
        let imports = sources.iter().map(|source| {
            let uses = declared(source).into_iter();
            let uses = uses.map(|found| (found.name, found.path));
            (source.module.clone(), uses.collect())
        });
        Self {
            imports: imports.collect(),
            sources,
        }
    }

    /// The module of the item at a path: one that a module has by `use` is of another.
    fn home(&self, path: &[String]) -> Vec<String> {
        let mut path = path.to_vec();
        // Each step leads to another module.
        for _ in 0..=self.sources.len() {
            let is_module = |len: &usize| self.imports.contains_key(&path[..*len]);
            let len = (0..=path.len()).rev().find(is_module).unwrap_or_default();
            let imports = self.imports.get(&path[..len]);
            let item = path.get(len);
            let import = item.and_then(|item| imports?.get(item));
            match import {
                Some(import) if *import != path[..=len] => {
                    path = [&import[..], &path[len + 1..]].concat();
                }
                _ => return path[..len].to_vec(),
            }
        }
        path
    }

    /// The modules that a file uses.
    fn used(&self, source: &Source) -> BTreeSet<Vec<String>> {
        let named = named(source);
        named.iter().map(|path| self.home(path)).collect()
    }

    /// Circles of modules that use each other, by the folder that they lie in.
    fn circles(&self) -> Vec<(String, BTreeSet<String>)> {
        let mut uses: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
        for source in &self.sources {
            for used in self.used(source) {
                let both = source.module.iter().zip(&used);
                let shared = both.take_while(|(own, other)| own == other).count();
                if let (Some(own), Some(other)) = (source.module.get(shared), used.get(shared)) {
                    let folder = used[..shared].join("::");
                    let from = uses.entry((folder, own.clone())).or_default();
                    from.insert(other.clone());
                }
            }
        }
        let reached = |folder: &String, from: &String| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(at) = open.pop() {
                let next = uses.get(&(folder.clone(), at)).into_iter().flatten();
                open.extend(next.filter(|to| reached.insert((*to).clone())).cloned());
            }
            reached
        };
        let circles = uses.keys().map(|(folder, module)| {
            let others = reached(folder, module).into_iter();
            let circle = others.filter(|other| reached(folder, other).contains(module));
            (folder.clone(), circle.collect::<BTreeSet<_>>())
        });
        let mut circles: Vec<_> = circles.collect();
        circles.sort();
        circles.dedup();
        circles
    }
}

#[test]
fn modules_use_only_those_before_them() {
    let mut wrong = Vec::new();
    for name in ORDERED {
        let order = order(name);
        let modules = Modules::of(name);
        for listed in &order {
            let path: Vec<_> = listed.split("::").map(str::to_owned).collect();
            let mut sources = modules.sources.iter();
            let exists = sources.any(|source| source.module.starts_with(&path));
            assert!(exists, "{name} has no module {listed}");
        }
        let sources = modules.sources.iter();
        for source in sources.filter(|source| !source.module.is_empty()) {
            let file = &source.file;
            let Some(own) = rank(&order, &source.module) else {
                wrong.push(format!("{name}: {file} is in no listed module"));
                continue;
            };
            for module in modules.used(source) {
                if let Some(other) = rank(&order, &module).filter(|other| *other > own) {
                    wrong.push(format!("{name}: {file} uses {}", order[other]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the order of modules: {wrong:#?}");
}

/// The table of orders in `docs/dev/architecture.md` has the modules of each crate's root.
#[test]
fn the_architecture_has_the_order_of_modules() {
    let text = read("docs/dev/architecture.md");
    let rows = text
        .lines()
        .skip_while(|line| *line != "### Order of modules");
    let rows = rows.skip_while(|line| !line.starts_with('|')).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, modules, ..] = cells[..] else {
            panic!("not a row of the table: {line}")
        };
        let modules = modules.split(',').map(|name| name.trim().to_owned());
        (name.trim_matches('`').to_owned(), modules.collect())
    };
    let listed: Vec<(String, Vec<String>)> = rows.map(row).collect();
    let actual = ORDERED.iter().map(|name| {
        let order = order(name);
        let mut folders = Vec::new();
        // A folder counts with its last module.
        for listed in order.iter().rev() {
            let folder = listed.split("::").next().unwrap_or_default().to_owned();
            if !folders.contains(&folder) {
                folders.insert(0, folder);
            }
        }
        ((*name).to_owned(), folders)
    });
    assert_eq!(listed, actual.collect::<Vec<_>>());
}

#[test]
fn modules_form_no_large_circles() {
    assert!(CIRCLES.len() <= 5, "that many exceptions are a rule");
    let mut unused: BTreeSet<_> = CIRCLES.iter().map(|(name, of, ..)| (*name, *of)).collect();
    let mut wrong = Vec::new();
    for name in ORDERED {
        let large = Modules::of(name).circles().into_iter();
        for (folder, circle) in large.filter(|(_, circle)| circle.len() > MOST_IN_A_CIRCLE) {
            unused.retain(|row| *row != (name, folder.as_str()));
            let excused = CIRCLES.iter().find(|row| (row.0, row.1) == (name, &folder));
            if excused.is_none_or(|(_, _, most, _)| circle.len() > *most) {
                wrong.push(format!("{name}::{folder}: {circle:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "circles of modules: {wrong:#?}");
    assert!(unused.is_empty(), "exceptions without need: {unused:?}");
}

/// Errors of the supervisor reach operators through several parts: each part has a type for its
/// own.
#[test]
fn functions_of_the_supervisor_return_no_texts_as_errors() {
    let mut wrong = Vec::new();
    for source in sources("supervisor") {
        let text = source.lines.join(" ");
        let returns = text.split("-> ").skip(1);
        let types = returns.filter_map(|rest| rest.split(['{', ';']).next());
        let is_text = |of: &&str| of.contains("Result<") && of.contains(", String>");
        wrong.extend(
            types
                .filter(is_text)
                .map(|of| format!("{}: {of}", source.file)),
        );
    }
    assert!(wrong.is_empty(), "errors without a type: {wrong:#?}");
}
