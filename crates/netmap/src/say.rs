//! Lines for the person in front of the program: why something was refused. Each is said once.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::view::lock;

/// Lines at most: a program with ever new requests does not fill its terminal.
const MOST: usize = 64;

/// Writes a line to standard error, unless it was written before.
pub(crate) fn once(line: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = lock(&SAID);
    if said.len() < MOST && said.insert(line.to_owned()) {
        write(&format!("lasthop netmap: {line}\n"));
    }
}

fn write(line: &str) {
    #[cfg(test)]
    eprint!("{line}");
    // A program without standard error is none of our business.
    #[cfg(not(test))]
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}
