//! Programs that run as an ordinary user, in a namespace of the test's: the test itself is root in
//! CI.

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

/// User and group id of `nobody`.
const NOBODY: u32 = 65534;

/// Returns the command that runs another one as `nobody` in a network namespace, without any
/// capability.
#[must_use]
pub fn command(inner: &Command, namespace: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", namespace.display()));
    command.args([
        "setpriv",
        "--clear-groups",
        "--no-new-privs",
        "--pdeathsig=KILL",
    ]);
    command
        .arg(format!("--reuid={NOBODY}"))
        .arg(format!("--regid={NOBODY}"));
    command.arg("--");
    append(&mut command, inner);
    command
}

/// Has a command that ends with the words of another one run that, with its environment.
pub fn append(outer: &mut Command, inner: &Command) {
    outer.arg(inner.get_program()).args(inner.get_args());
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(key, value),
            None => outer.env_remove(key),
        };
    }
}

/// Gives files and folders to `nobody`.
///
/// # Panics
/// Without rights.
pub fn give(paths: &[&Path]) {
    for path in paths {
        let given = chown(path, Some(NOBODY), Some(NOBODY));
        given.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Returns whether `nobody` can run a program, which may lie in a folder of root's alone. If not,
/// says so: the test is to be skipped.
#[must_use]
pub fn may_run(program: &Path, namespace: &Path) -> bool {
    let mut inner = Command::new("test");
    inner.arg("-x").arg(program);
    let is_allowed = command(&inner, namespace)
        .status()
        .is_ok_and(|status| status.success());
    if !is_allowed {
        testkit::skip::skipped(format!("nobody may not run {}", program.display()));
    }
    is_allowed
}
