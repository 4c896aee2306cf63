//! Huge pages of 2 MiB for the DPDK peers, given back afterwards.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::folders;

const NUMBER: &str = "/proc/sys/vm/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
/// Holds the number of pages that there were, for a later run if this one is killed.
const NOTE: &str = "huge-pages";

/// A reservation. Dropping it sets the number of pages to what it was; should this process be
/// killed, its guard does.
pub(crate) struct HugePages {
    folder: TempDir,
    guard: Option<Child>,
}

/// Waits until its standard input is closed, which the death of this process does, too. By then the
/// note is gone if the pages have been given back.
const GUARD: &str = "read -r _; [ -e \"$1\" ] && cat \"$1\" >\"$2\" && rm -r \"${1%/*}\"";

/// Starts the guard, in a group of its own: Ctrl-C in a terminal is not for it.
fn guard(note: &Path) -> io::Result<Child> {
    let mut shell = Command::new("sh");
    shell.args(["-c", GUARD, "sh"]).arg(note).arg(NUMBER);
    shell.stdin(Stdio::piped()).stdout(Stdio::null());
    shell.stderr(Stdio::null()).process_group(0).spawn()
}

impl HugePages {
    /// Makes sure that `desired` pages are free.
    ///
    /// # Errors
    /// Says what the administrator can do, when we are not allowed to or memory is too fragmented.
    pub(crate) fn reserve(desired: u64) -> Result<Self> {
        let before = read(NUMBER)?;
        let folder = folders::new("huge-pages")?;
        let note = folder.path().join(NOTE);
        fs::write(&note, before.to_string())?;
        let guard = Some(guard(&note)?);
        let pages = Self { folder, guard };
        let free = read(FREE).unwrap_or(0);
        if free < desired {
            let number = before + desired - free;
            fs::write(NUMBER, number.to_string())
                .with_context(|| format!("'echo {number} > {NUMBER}' needs root"))?;
            let got = read(FREE).unwrap_or(0);
            if got < desired {
                bail!(
                    "of {desired} huge pages of 2 MiB the kernel gives {got}: memory is full or \
                     fragmented"
                );
            }
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        restore(self.folder.path());
        let _ = fs::remove_file(self.folder.path().join(NOTE));
        if let Some(mut guard) = self.guard.take() {
            // Waiting closes its input.
            let _ = guard.wait();
        }
    }
}

/// Sets the number of pages to what is noted in a folder, if anything is.
pub(crate) fn restore(folder: &Path) {
    let Ok(before) = read(folder.join(NOTE)) else {
        return;
    };
    if read(NUMBER).is_ok_and(|now| now != before)
        && let Err(error) = fs::write(NUMBER, before.to_string())
    {
        eprintln!("warning: {NUMBER} should be {before} again: {error}");
    }
}

fn read(path: impl AsRef<Path>) -> Result<u64> {
    let path = path.as_ref();
    let name = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(name)?;
    text.trim().parse().with_context(name)
}
