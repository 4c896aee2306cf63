//! A binary of a version that is no good, for tests of upgrades: under the name of one of the four it says that it is fine,
//! and then is not.
//!
//! Beside it lie `real`, a link to the directory of the binaries that it claims to be one of, and `NAME.fault`, which
//! says what is wrong with the one called NAME:
//!
//! ```text
//! check      its self-check fails
//! hang       its self-check does not end
//! version    it is another version than the others
//! format     it writes the state file in another way
//! crash      it crashes when it starts
//! sleep      it does nothing when it starts
//! older      it is of a version that does not know the newest record of a supervisor; that is no fault
//! back       of `lasthop`: it gives the place of the supervisor back to the one before
//! ```
//!
//! Where there is no such file, it does what the real one does.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// As in another version.
const OTHER: [&str; 2] = ["\"version\":\"", "\"version\":\"9"];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let own = PathBuf::from(arguments.next().unwrap_or_default());
    let arguments: Vec<OsString> = arguments.collect();
    let own = match own.parent() {
        // Executed in the place of another program, it has that one's first argument.
        Some(_) if std::env::var_os("LASTHOP_RESUME").is_none() => own,
        _ => std::env::current_exe().unwrap_or(own),
    };
    let checks = arguments
        .iter()
        .any(|a| a == "self-check" || a == "--self-check");
    let fault = std::fs::read_to_string(own.with_extension("fault")).unwrap_or_default();
    match (fault.trim(), checks) {
        ("check", true) => ExitCode::FAILURE,
        ("hang", true) | ("sleep", false) => loop {
            std::thread::park();
        },
        ("version", true) => say(&own, &arguments, &[OTHER]),
        ("format", true) => {
            let state = ["\"state\":{\"writes\":2", "\"state\":{\"writes\":9"];
            say(&own, &arguments, &[state])
        }
        ("older", true) => {
            let supervisor = [
                "\"supervisor\":{\"writes\":1,\"reads\":[1,2,3]",
                "\"supervisor\":{\"writes\":1,\"reads\":[1]",
            ];
            say(&own, &arguments, &[OTHER, supervisor])
        }
        ("crash", false) => std::process::abort(),
        ("back", false) => give_back(),
        _ => {
            let error = real(&own, &arguments).exec();
            eprintln!("{}: {error}", own.display());
            ExitCode::FAILURE
        }
    }
}

fn real(own: &Path, arguments: &[OsString]) -> Command {
    let name = own.file_name().unwrap_or_default();
    let mut command = Command::new(own.with_file_name("real").join(name));
    command.args(arguments);
    command
}

/// What a supervisor does that cannot take over: it executes the one before, with the same record and the reason.
fn give_back() -> ExitCode {
    let resume = std::env::var("LASTHOP_RESUME").unwrap_or_default();
    let (_, old) = resume.split_once(':').expect("two descriptors");
    let error = Command::new(format!("/proc/self/fd/{old}"))
        .env(
            "LASTHOP_RESUME",
            format!("{resume}:it does not feel like it"),
        )
        .args(std::env::args_os().skip(1))
        .exec();
    eprintln!("the old supervisor: {error}");
    ExitCode::FAILURE
}

/// Says what the real one says, but for these words, each of which must be there.
fn say(own: &Path, arguments: &[OsString], other: &[[&str; 2]]) -> ExitCode {
    let mut real = real(own, arguments);
    let said = real.stdin(Stdio::inherit()).output().expect("it starts");
    let mut text = String::from_utf8_lossy(&said.stdout).into_owned();
    for [from, to] in other {
        assert!(text.contains(from), "{text}");
        text = text.replace(from, to);
    }
    print!("{text}");
    ExitCode::SUCCESS
}
