//! Lasthop's programs, for tests that start them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Packages with a program.
const PACKAGES: [&str; 6] = [
    "lasthop",
    "lasthop-supervisor",
    "lasthop-control",
    "lasthop-datapath",
    "lasthop-driver",
    "lasthop-top",
];

/// Returns the path of a program. The programs are those in the folder `LASTHOP_BIN`, or else those
/// of this build, which are brought up to date first: cargo builds the programs of the tested
/// package only.
///
/// # Panics
/// They cannot be built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| match std::env::var_os("LASTHOP_BIN") {
        Some(folder) => folder.into(),
        None => built(),
    });
    folder.join(name)
}

/// Builds all programs with the profile of this test; returns their folder.
fn built() -> PathBuf {
    // The test is in a subfolder of the programs' folder.
    let own = std::env::current_exe().expect("this program has a path");
    let folder = own.ancestors().nth(2).expect("a folder of the build");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--bins"]);
    command.args(PACKAGES.map(|package| format!("--package={package}")));
    if folder.ends_with("release") {
        command.arg("--release");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3);
    let status = command.current_dir(root.expect("the workspace")).status();
    assert!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "cargo build: {status:?}"
    );
    folder.to_owned()
}
