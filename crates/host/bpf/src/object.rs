//! Objects of a compiler for BPF: the instructions of a program, with the maps that it uses.

use std::collections::HashSet;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya_obj::Object;

use crate::Instruction;

/// Reason why an object has no such program.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The bytes are no object.
    #[error("the object: {0}")]
    Malformed(String),
    /// There is no program of this name.
    #[error("the object has no program {0}")]
    Missing(String),
    /// A map is missing, or the program refers to something else.
    #[error("the program's maps: {0}")]
    Maps(String),
}

/// Returns a program of an object. `maps` are descriptors by name: of a definition of a map, or of
/// a section of data, which is the only value of a map. Maps that the program does not use may be
/// missing.
///
/// # Errors
/// See [`ObjectError`].
pub fn program(
    object: &[u8],
    name: &str,
    maps: &[(&str, BorrowedFd<'_>)],
) -> Result<Vec<Instruction>, ObjectError> {
    let mut object =
        Object::parse(object).map_err(|error| ObjectError::Malformed(error.to_string()))?;
    let missing = || ObjectError::Missing(name.to_owned());
    let key = object
        .programs
        .get(name)
        .ok_or_else(missing)?
        .function_key();
    object.functions.retain(|function, _| *function == key);
    let defined = std::mem::take(&mut object.maps);
    let given = maps.iter().filter_map(|(name, fd)| {
        let (name, map) = defined.get_key_value(*name)?;
        Some((name.as_str(), fd.as_raw_fd(), map))
    });
    // There are no functions but programs.
    object
        .relocate_maps(given, &HashSet::new())
        .map_err(|error| ObjectError::Maps(error.to_string()))?;
    let function = object.functions.get(&key).ok_or_else(missing)?;
    let instructions = function.instructions.iter();
    Ok(instructions
        .map(|i| Instruction::new(i.code, i.dst_reg() | i.src_reg() << 4, i.off, i.imm))
        .collect())
}
