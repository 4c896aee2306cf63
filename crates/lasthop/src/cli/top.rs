//! `lasthop top` is a program of its own, `lasthop-top`, beside this one: what it takes to draw a screen is not part of the
//! supervisor.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::Failure;

/// Its name.
const PROGRAM: &str = "lasthop-top";

/// Becomes it; returns only if that fails.
pub(super) fn become_top(runtime_dir: &Path) -> Failure {
    let own = std::env::current_exe();
    let program = own.map(|own| own.with_file_name(PROGRAM));
    let failed = |program: &Path, error| {
        let program = program.display();
        Failure::Failed(format!("cannot run {program}: {error}"))
    };
    match program {
        Ok(program) => {
            let error = Command::new(&program).arg(runtime_dir).exec();
            failed(&program, error)
        }
        Err(error) => failed(Path::new(PROGRAM), error),
    }
}
