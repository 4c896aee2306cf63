//! Programs beside this one: it becomes one of them, so that this one does not link what they need.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use client::Failure;

/// The supervisor.
pub(super) const SUPERVISOR: &str = "lasthop-supervisor";
/// The terminal screen of `lasthop top`.
pub(super) const TOP: &str = "lasthop-top";

/// Replaces this process by a program in the same directory; returns only after an error.
pub(super) fn execute(name: &str, with: impl FnOnce(&mut Command) -> &mut Command) -> Failure {
    let failed = |program: &Path, error| {
        let text = format!("cannot run {}: {error}", program.display());
        Failure::of_system(text, &error)
    };
    match std::env::current_exe() {
        Ok(own) => {
            let program = own.with_file_name(name);
            let error = with(&mut Command::new(&program)).exec();
            failed(&program, error)
        }
        Err(error) => failed(Path::new(name), error),
    }
}
