//! `lasthop top` executes `lasthop-top` in the same directory: the supervisor's binary does not
//! link the terminal library.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::Failure;

/// The program's name.
const PROGRAM: &str = "lasthop-top";

/// Replaces this process by the program; returns only after an error.
pub(super) fn exec(runtime_dir: &Path) -> Failure {
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
