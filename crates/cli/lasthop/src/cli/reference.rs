//! The generator of `docs/user/reference/cli.md`: renders the arguments as Markdown.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

use super::args::{Cli, EXIT_STATUSES};

const HEAD: &str = "\
# Command line

All commands with their arguments, as `lasthop COMMAND --help` prints them. \
[Commands](../commands.md) has examples.
This page is generated: `BLESS=1 cargo test -p lasthop --bin lasthop reference`.
";

/// `BLESS=1` writes the page.
#[test]
fn the_reference_has_every_command() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../docs/user/reference/cli.md"
    );
    let page = page();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(file, page).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(file).unwrap();
    assert!(
        committed == page,
        "BLESS=1 cargo test -p lasthop --bin lasthop reference"
    );
}

/// Returns the whole page.
fn page() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page = HEAD.to_owned();
    page += "\n## Global options\n";
    page += &table(root.get_arguments().filter(|arg| arg.is_global_set()));
    page += "\n## Exit status\n\n| status | meaning |\n|---|---|\n";
    for (status, meaning) in EXIT_STATUSES {
        let _ = writeln!(page, "| {status} | {meaning} |");
    }
    sections(&root, &mut page);
    page
}

/// Adds a section for each command below `parent`, except for mere groups of commands.
fn sections(parent: &Command, page: &mut String) {
    let commands = parent.get_subcommands();
    for command in commands.filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        let own = |arg: &&Arg| !arg.is_global_set();
        let arguments: Vec<&Arg> = command.get_arguments().filter(own).filter(shown).collect();
        if !command.has_subcommands() || !arguments.is_empty() {
            let usage = command.clone().render_usage().to_string();
            let usage = usage.trim_start_matches("Usage: ");
            let usage: Vec<&str> = usage.lines().map(str::trim).collect();
            let about = command.get_about().unwrap();
            let name = command.get_bin_name().unwrap();
            let usage = usage.join("\n");
            let _ = write!(page, "\n## {name}\n\n{about}.\n\n```text\n{usage}\n```\n");
            page.push_str(&table(arguments.into_iter()));
        }
        sections(command, page);
    }
}

/// Returns whether an argument is in the reference.
fn shown(arg: &&Arg) -> bool {
    !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

/// Formats a table of arguments; empty without any.
fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let rows: String = arguments.filter(shown).map(row).collect();
    if rows.is_empty() {
        return rows;
    }
    format!("\n| argument | meaning |\n|---|---|\n{rows}")
}

/// Formats an argument: its name, help, values and default.
fn row(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}, "));
    let name = format!("{}{arg}", short.unwrap_or_default());
    let mut text = arg.get_help().unwrap().to_string();
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}`: {help}", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !values.is_empty() {
        let several_words = values.iter().any(|value| value.contains(' '));
        let separator = if several_words { "; " } else { ", " };
        text = format!("{text}. Values: {}", values.join(separator));
    }
    if arg.get_action().takes_values() && !arg.is_hide_default_value_set() {
        let defaults = arg.get_default_values().iter();
        for default in defaults.map(|default| default.to_string_lossy()) {
            text = format!("{text}. Default: `{default}`");
        }
    }
    let cell = |text: &str| text.replace('|', "\\|");
    format!("| `{}` | {} |\n", cell(&name), cell(&text))
}
