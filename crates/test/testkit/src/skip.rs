//! Tests that cannot run on this machine.
//!
//! | environment | effect |
//! |---|---|
//! | `LASTHOP_SKIPPED=FILE` | a line for each is appended; `make test` prints them at its end |
//! | `LASTHOP_ALL=1` | all rights and features are there: such a test fails |

use std::io::Write;

/// Says that the calling test, or a part of it, is skipped, and why: a right or a feature that this
/// machine lacks. The test returns then.
///
/// # Panics
/// With `LASTHOP_ALL=1`; a file that cannot be written.
pub fn skipped(why: impl std::fmt::Display) {
    // The test harness names a test's thread after the test.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread");
    let line = format!("skipped: {test}: {why}");
    let all = std::env::var_os("LASTHOP_ALL").is_some_and(|value| value == "1");
    assert!(!all, "{line} (LASTHOP_ALL=1 says that nothing is missing)");
    eprintln!("{line}");
    let Some(path) = std::env::var_os("LASTHOP_SKIPPED") else {
        return;
    };
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&path);
    // One write, so that lines of several processes do not mix.
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
