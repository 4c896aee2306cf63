//! Loading of maps and programs, with the verifier's reason for a refusal.

use std::io;
use std::os::fd::OwnedFd;

use crate::{Attribute, Command, Instruction, LICENSE};

// `linux/bpf.h`.
const MAP_TYPE_ARRAY: u32 = 2;
const MAPPABLE: u32 = 1 << 10;
/// Places of fields in `union bpf_attr` for a program, counted in 32 bits, and that of the log's
/// address, counted in 64 bits.
const LOG_LEVEL: usize = 6;
const LOG_SIZE: usize = 7;
const LOG: usize = 4;
/// Bytes of the verifier's log of a refused program.
const LOG_BYTES: usize = 1 << 20;

/// Reason why the kernel has no map or program of ours.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// This process lacks the rights.
    #[error(
        "loading BPF programs needs CAP_BPF and CAP_PERFMON ({0}); lasthop.service has them, and root"
    )]
    Rights(io::Error),
    /// The kernel refuses the program.
    #[error("the kernel refuses the BPF program ({error}): {why}")]
    Refused {
        /// The error of the system call.
        error: io::Error,
        /// The last line of the verifier's log.
        why: String,
    },
    /// Any other error of a system call.
    #[error("BPF: {0}")]
    System(io::Error),
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Rights(error),
            _ => Self::System(error),
        }
    }
}

/// Creates a map with one value of `bytes` bytes, which processes map into their memory, and whose
/// addresses programs use.
///
/// # Errors
/// The rights are missing, or the system refuses.
pub fn memory(bytes: u32) -> Result<OwnedFd, LoadError> {
    // Kind, bytes of a key, bytes of a value, entries, flags.
    let mut attribute = Attribute::new(&[MAP_TYPE_ARRAY, 4, bytes, 1, MAPPABLE]);
    Ok(attribute.make(Command::MapCreate)?)
}

/// Loads a program of a kind. `fields`: further fields of `union bpf_attr`, counted in 32 bits,
/// with their values.
///
/// # Errors
/// The rights are missing, or the kernel refuses the program.
pub fn program(
    kind: u32,
    code: &[Instruction],
    fields: &[(usize, u32)],
) -> Result<OwnedFd, LoadError> {
    load(kind, code, fields, &mut []).map_err(|error| {
        let mut log = vec![0; LOG_BYTES];
        // Refused as before.
        let _ = load(kind, code, fields, &mut log);
        match reason(&log) {
            None => error.into(),
            Some(why) => LoadError::Refused { error, why },
        }
    })
}

fn load(
    kind: u32,
    code: &[Instruction],
    fields: &[(usize, u32)],
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    // Kind, instructions, pointers to them and to the license.
    let mut attribute = Attribute::new(&[kind, code.len() as u32])
        .point(1, code)
        .point(2, &LICENSE);
    for (place, value) in fields {
        attribute = attribute.number(*place, *value);
    }
    if !log.is_empty() {
        attribute = attribute
            .number(LOG_LEVEL, 1)
            .number(LOG_SIZE, log.len() as u32)
            .point_mut(LOG, log);
    }
    attribute.make(Command::ProgramLoad)
}

/// Returns the last line of the verifier's log, but for that which counts instructions.
fn reason(log: &[u8]) -> Option<String> {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines().rev();
    let last = lines.find(|line| !line.starts_with("processed "));
    last.map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_refusal_is_the_last_line_but_the_count() {
        let log = b"0: (79) r1 = *(u64 *)(r1 +0)\ninvalid access\nprocessed 1 insns\n\0\0";
        assert_eq!(reason(log).as_deref(), Some("invalid access"));
        assert_eq!(reason(&[0; 8]), None);
        assert_eq!(reason(b"processed 0 insns\n\0"), None);
    }
}
