//! Programs that are started for a measurement.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use testkit::process::on_cores;
use testkit::procfs;

pub(crate) use testkit::process::Process;

/// Starts the program of `words` with both output streams in `log`, on these cores if any are
/// named.
pub(crate) fn start(name: &str, cores: &[usize], words: &[String], log: &Path) -> Result<Process> {
    let [program, arguments @ ..] = words else {
        bail!("no program")
    };
    let mut command = Command::new(program);
    command.args(arguments);
    on_cores(&mut command, cores);
    Ok(Process::spawn(name, command, log)?)
}

/// Stops the whole group where it stands.
pub(crate) fn freeze(process: &Process) {
    process.signal_group(Signal::STOP);
}

/// Resumes a frozen group.
pub(crate) fn thaw(process: &Process) {
    process.signal_group(Signal::CONT);
}

/// How often the threads of this process and of all that it has started, switches and their peers
/// included, have gone to sleep; those of processes that have ended meanwhile, too.
pub(crate) fn wake_ups() -> u64 {
    let running: u64 = procfs::family_wake_ups(std::process::id()).values().sum();
    running + ended_wake_ups()
}

/// The same of the processes that have ended and were waited for.
fn ended_wake_ups() -> u64 {
    // SAFETY: zero is a value of this C structure, which lives until the call has written it.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut used);
        used
    };
    u64::try_from(used.ru_nvcsw).unwrap_or_default()
}

/// Words of a command line that has no blanks inside of words.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs a program to its end and gives what it printed.
///
/// # Errors
/// With its complaint, when its exit status is not 0.
pub(crate) fn run(words: &[String], environment: &[(&str, &Path)]) -> Result<String> {
    let [program, arguments @ ..] = words else {
        bail!("no program")
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied());
    let output = command.output().with_context(|| program.clone())?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{}: {}: {}",
            words.join(" "),
            output.status,
            complaint.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns whether a program is on the `PATH`, or there at all when it is a path.
pub(crate) fn installed(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}
