//! Programs with a library that takes their calls of the C library (`LD_PRELOAD`, ld.so(8)). A
//! program whose calls would not come to the library is refused.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use client::Failure;
use interpose::programs::{self, Refusal};

/// Variable of the dynamic linker: libraries to load first, separated by colons or blanks.
const PRELOAD: &str = "LD_PRELOAD";

/// Becomes the program of a command line, with a library of this name, which lies beside this
/// program, and what `set` sets; that is called last. Returns only after an error.
pub(super) fn start(
    library: &str,
    command_line: &[OsString],
    set: impl FnOnce(&mut Command) -> Result<(), Failure>,
) -> Failure {
    let Some((name, rest)) = command_line.split_first() else {
        return Failure::Invalid("no program".to_owned());
    };
    let refused = |refusal: Refusal| Failure::Invalid(refusal.to_string());
    let prepared = programs::find(name).map_err(refused).and_then(|path| {
        programs::check(&path).map_err(refused)?;
        let library = self::library(library)?;
        let mut command = Command::new(&path);
        command.arg0(name).args(rest);
        command.env(PRELOAD, preload(&library, std::env::var_os(PRELOAD)));
        set(&mut command)?;
        Ok((path, command))
    });
    match prepared {
        Ok((path, mut command)) => {
            let error = command.exec();
            Failure::Invalid(format!("cannot run {}: {error}", path.display()))
        }
        Err(failure) => failure,
    }
}

/// Returns the path of the library.
fn library(name: &str) -> Result<PathBuf, Failure> {
    let failed = |text: String| Failure::Failed(format!("the library {name}: {text}"));
    let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let path = own.with_file_name(name);
    if !path.is_file() {
        return Err(failed(format!("there is no {}", path.display())));
    }
    // The linker splits the variable there.
    match path.to_str().is_some_and(|text| !text.contains([':', ' '])) {
        true => Ok(path),
        false => Err(failed(format!(
            "{PRELOAD} cannot name {}, which has a colon or a blank",
            path.display()
        ))),
    }
}

/// Returns the libraries to load first: ours, then those that were to be loaded already.
fn preload(library: &Path, others: Option<OsString>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_others_stay() {
        let own = Path::new("/usr/lib/lasthop/liblasthop_netmap.so");
        assert_eq!(preload(own, None), own.as_os_str());
        assert_eq!(preload(own, Some("".into())), own.as_os_str());
        let both = preload(own, Some("libjemalloc.so.2".into()));
        assert_eq!(
            both,
            "/usr/lib/lasthop/liblasthop_netmap.so:libjemalloc.so.2"
        );
    }
}
