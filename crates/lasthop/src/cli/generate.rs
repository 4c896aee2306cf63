//! What is generated from the arguments: completions and man pages.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::args::Cli;
use super::{Done, Failure, emit};

/// Prints the completions of a shell.
pub(super) fn completions(shell: Shell) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lasthop", &mut script);
    emit(&String::from_utf8_lossy(&script))
}

/// Prints the man page, or writes one for each command into a directory.
pub(super) fn man(out: Option<&Path>) -> Done {
    let Some(dir) = out else {
        let mut page = Vec::new();
        let rendered = Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|error| Failure::Failed(error.to_string()))?;
        return emit(&String::from_utf8_lossy(&page));
    };
    let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", dir.display()));
    std::fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(failed)
}
