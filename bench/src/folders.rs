//! Temporary folders with the number of this process in their names, so that a later run can
//! recognise those of a killed one.

use std::fs;
use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::hugepages;

const PREFIX: &str = "lasthop-bench-";

/// A new folder; `what` says for whom.
pub(crate) fn new(what: &str) -> io::Result<TempDir> {
    let prefix = format!("{PREFIX}{}-{what}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir()
}

/// Removes what runs left behind that are no more, and gives their huge pages back.
pub(crate) fn clean() {
    for entry in fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let owner = entry.file_name().to_str().and_then(owner);
        let gone = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
        if owner.is_some_and(gone) {
            hugepages::restore(&entry.path());
            // Folders of other users stay.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process that made a folder of this name.
fn owner(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_known_by_name() {
        assert_eq!(owner("lasthop-bench-42-ovs-x1y2z3"), Some(42));
        for other in [
            "lasthop-bench-ovs-x",
            "lasthop-bench-42",
            "lasthop-42-x",
            "42-x",
        ] {
            assert_eq!(owner(other), None, "{other}");
        }
        let folder = new("test").expect("a folder");
        let name = folder.path().file_name().and_then(|name| name.to_str());
        assert_eq!(name.and_then(owner), Some(std::process::id()));
    }
}
