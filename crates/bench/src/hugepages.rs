//! Huge pages of 2 MiB for the DPDK peers, given back afterwards.

use std::fs;

use anyhow::{Context as _, Result, bail};

const NUMBER: &str = "/proc/sys/vm/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// A reservation. Dropping it sets the number of pages to what it was.
pub(crate) struct HugePages {
    before: u64,
}

impl HugePages {
    /// Makes sure that `wanted` pages are free.
    ///
    /// # Errors
    /// Says what the administrator can do, when we are not allowed to or memory is too fragmented.
    pub(crate) fn reserve(wanted: u64) -> Result<Self> {
        let before = read(NUMBER)?;
        let pages = Self { before };
        let free = read(FREE).unwrap_or(0);
        if free < wanted {
            let number = before + wanted - free;
            fs::write(NUMBER, number.to_string())
                .with_context(|| format!("'echo {number} > {NUMBER}' needs root"))?;
            let got = read(FREE).unwrap_or(0);
            if got < wanted {
                bail!(
                    "of {wanted} huge pages of 2 MiB the kernel gives {got}: memory is full or fragmented"
                );
            }
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if read(NUMBER).is_ok_and(|now| now != self.before)
            && let Err(error) = fs::write(NUMBER, self.before.to_string())
        {
            eprintln!("warning: {NUMBER} should be {} again: {error}", self.before);
        }
    }
}

fn read(path: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
    text.trim().parse().with_context(|| path.to_owned())
}
