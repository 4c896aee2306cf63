//! Faulty binary for tests of upgrades: under the name of one of the five programs, it passes as a
//! good one and then fails.
//!
//! Beside it lie `real`, a link to the directory of the real binaries, and `NAME.fault`, which
//! names the fault of the binary NAME:
//!
//! ```text
//! check      its self-check fails
//! hang       its self-check does not end
//! version    it is another version than the others
//! format X   it has the number before of the format X, and reads no record of another number
//! crash      it crashes when it starts
//! sleep      it does nothing when it starts
//! back       of `lasthop-supervisor`: it gives the place of the supervisor back to the one before
//! ```
//!
//! Without that file, it executes the real binary.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde_json::{Value, json};

/// Version of another release.
const OTHER: [&str; 2] = ["\"version\":\"", "\"version\":\"9"];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let own = PathBuf::from(arguments.next().unwrap_or_default());
    let arguments: Vec<OsString> = arguments.collect();
    let own = match own.parent() {
        // When it is executed in place of another program, it has that one's first argument.
        Some(_) if std::env::var_os("LASTHOP_RESUME").is_none() => own,
        _ => std::env::current_exe().unwrap_or(own),
    };
    let checks = arguments
        .iter()
        .any(|a| a == "self-check" || a == "--self-check");
    // Faults do not apply to `lasthop run --check`.
    let reads = arguments.iter().any(|a| a == "--check");
    let fault = std::fs::read_to_string(own.with_extension("fault")).unwrap_or_default();
    let fault = fault.trim();
    if let (Some(format), true) = (fault.strip_prefix("format "), checks) {
        return report_other(&own, &arguments, format);
    }
    match (fault, checks) {
        _ if reads => be_real(&own, &arguments),
        ("check", true) => ExitCode::FAILURE,
        ("hang", true) | ("sleep", false) => loop {
            std::thread::park();
        },
        ("version", true) => output(&own, &arguments, &[OTHER]),
        ("crash", false) => std::process::abort(),
        ("back", false) => give_back(),
        _ => be_real(&own, &arguments),
    }
}

fn be_real(own: &Path, arguments: &[OsString]) -> ExitCode {
    let error = real(own, arguments).exec();
    eprintln!("{}: {error}", own.display());
    ExitCode::FAILURE
}

fn real(own: &Path, arguments: &[OsString]) -> Command {
    let name = own.file_name().unwrap_or_default();
    let mut command = Command::new(own.with_file_name("real").join(name));
    command.args(arguments);
    command
}

/// Returns the process to the previous supervisor, with the same record and a reason.
fn give_back() -> ExitCode {
    let resume = std::env::var("LASTHOP_RESUME").unwrap_or_default();
    let (_, old) = resume.split_once(':').expect("two descriptors");
    let error = Command::new(format!("/proc/self/fd/{old}"))
        .env("LASTHOP_RESUME", format!("{resume}:simulated failure"))
        .args(std::env::args_os().skip(1))
        .exec();
    eprintln!("the old supervisor: {error}");
    ExitCode::FAILURE
}

/// Reports the number before of a format, as a build would that has it. The supervisor fails then,
/// because the record that it gets is of the next number.
fn report_other(own: &Path, arguments: &[OsString], format: &str) -> ExitCode {
    let mut real = real(own, arguments);
    let output = real.stdin(Stdio::inherit()).output().expect("it starts");
    let mut report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let of = &mut report["formats"][format];
    let before = of["writes"].as_u64().expect("a number") - 1;
    *of = json!({"writes": before, "reads": [before]});
    println!("{report}");
    let reads_record = arguments.iter().any(|argument| argument == "--record");
    match reads_record && format == "supervisor" {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// Prints the output of the real binary with these replacements, each of which must apply.
fn output(own: &Path, arguments: &[OsString], other: &[[&str; 2]]) -> ExitCode {
    let mut real = real(own, arguments);
    let text = real.stdin(Stdio::inherit()).output().expect("it starts");
    let mut text = String::from_utf8_lossy(&text.stdout).into_owned();
    for [from, to] in other {
        assert!(text.contains(from), "{text}");
        text = text.replace(from, to);
    }
    print!("{text}");
    ExitCode::SUCCESS
}
