//! Objects of a compiler for BPF: the instructions of a program, with the maps and numbers that it
//! uses (Linux, `Documentation/bpf/llvm_reloc.rst`).
//!
//! | symbol | in its place |
//! |---|---|
//! | in the section `maps` | the map of its name |
//! | in a section of data | the address in the only value of the map of that section's name |
//! | undefined | the number of its name, which is known when the program is loaded |

use std::os::fd::BorrowedFd;

use ::object::elf::R_BPF_64_64;
use ::object::read::elf::ElfFile64;
use ::object::{
    LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    RelocationTarget, SymbolIndex, SymbolKind,
};

use crate::number;

/// Section of the definitions of maps.
const MAPS: &str = "maps";
/// `BPF_LD | BPF_DW | BPF_IMM`: loads a long number, which takes two instructions.
const LOAD_LONG: u8 = 0x18;
/// `BPF_PSEUDO_MAP_FD`: the long number is a map.
const MAP: u8 = 1;
/// `BPF_PSEUDO_MAP_VALUE`: the long number is a place in the only value of a map.
const MAP_VALUE: u8 = 2;

/// `struct bpf_insn` (RFC 9669).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u8,
    /// Destination in the low half, source in the high one.
    pub registers: u8,
    /// Distance of a jump, or of a place in memory.
    pub offset: i16,
    /// Constant operand.
    pub immediate: i32,
}

/// Reason why an object has no such program.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The bytes are no object.
    #[error("the object: {0}")]
    Malformed(#[from] ::object::Error),
    /// There is no program of this name.
    #[error("the object has no program {0}")]
    Missing(String),
    /// The program refers to something that is not given.
    #[error("the program refers to {0}")]
    Symbol(String),
}

type File<'a> = ElfFile64<'a, LittleEndian>;

/// Returns a program of an object without numbers: see [`with_numbers`].
///
/// # Errors
/// See [`ObjectError`].
pub fn program(
    object: &[u8],
    name: &str,
    maps: &[(&str, BorrowedFd<'_>)],
) -> Result<Vec<Instruction>, ObjectError> {
    with_numbers(object, name, maps, &[])
}

/// Returns a program of an object. `maps` are descriptors by name: of a definition of a map, or of
/// a section of data, which is the only value of a map. `numbers` are those of undefined symbols.
/// What the program does not use may be missing.
///
/// # Errors
/// See [`ObjectError`].
pub fn with_numbers(
    object: &[u8],
    name: &str,
    maps: &[(&str, BorrowedFd<'_>)],
    numbers: &[(&str, u64)],
) -> Result<Vec<Instruction>, ObjectError> {
    let missing = || ObjectError::Missing(name.to_owned());
    let file = File::parse(object)?;
    let is_it = |symbol: &::object::read::elf::ElfSymbol64<'_, '_, LittleEndian>| {
        symbol.kind() == SymbolKind::Text && symbol.name() == Ok(name)
    };
    let symbol = file.symbols().find(is_it).ok_or_else(missing)?;
    let section = file.section_by_index(symbol.section_index().ok_or_else(missing)?)?;
    let code = section.data_range(symbol.address(), symbol.size())?;
    let (code, _) = code.ok_or_else(missing)?.as_chunks();
    let mut code: Vec<_> = code.iter().map(Instruction::from_bytes).collect();
    for (at, relocation) in section.relocations() {
        let Some(at) = at.checked_sub(symbol.address()) else {
            continue;
        };
        let Some([first, second, ..]) = code.get_mut((at / 8) as usize..) else {
            // Of a program behind this one.
            continue;
        };
        let RelocationTarget::Symbol(target) = relocation.target() else {
            return Err(ObjectError::Symbol("nothing".to_owned()));
        };
        let long = RelocationFlags::Elf {
            r_type: R_BPF_64_64,
        };
        if relocation.flags() != long || first.code != LOAD_LONG {
            return Err(ObjectError::Symbol("a function".to_owned()));
        }
        (*first, *second) = load_long(*first, target_of(&file, target, maps, numbers)?);
    }
    Ok(code)
}

/// Target of a relocation.
enum Target {
    /// A map, by its descriptor.
    Map(u32),
    /// A place in the only value of a map.
    Value(u32, u64),
    /// A number.
    Number(u64),
}

/// Returns the target of a relocation by its symbol.
fn target_of(
    file: &File<'_>,
    symbol: SymbolIndex,
    maps: &[(&str, BorrowedFd<'_>)],
    numbers: &[(&str, u64)],
) -> Result<Target, ObjectError> {
    let symbol = file.symbol_by_index(symbol)?;
    let name = symbol.name()?;
    let missing = |name: &str| ObjectError::Symbol(name.to_owned());
    let map = |name| {
        let map = maps.iter().find(|map| map.0 == name);
        map.map(|map| number(&map.1)).ok_or_else(|| missing(name))
    };
    let Some(section) = symbol.section_index() else {
        let it = numbers.iter().find(|number| number.0 == name);
        let it = it.ok_or_else(|| missing(name))?;
        return Ok(Target::Number(it.1));
    };
    let section = file.section_by_index(section)?;
    Ok(match section.name()? {
        MAPS => Target::Map(map(name)?),
        section => Target::Value(map(section)?, symbol.address()),
    })
}

/// Returns the two instructions that load a target. The first one has the offset from it.
const fn load_long(mut first: Instruction, target: Target) -> (Instruction, Instruction) {
    let (source, low, high) = match target {
        Target::Map(map) => (MAP, map, 0),
        Target::Value(map, at) => (MAP_VALUE, map, at as u32 + first.immediate.cast_unsigned()),
        Target::Number(number) => (0, number as u32, (number >> 32) as u32),
    };
    first.registers |= source << 4;
    first.immediate = low.cast_signed();
    let second = Instruction {
        code: 0,
        registers: 0,
        offset: 0,
        immediate: high.cast_signed(),
    };
    (first, second)
}

impl Instruction {
    fn from_bytes(bytes: &[u8; 8]) -> Self {
        let [code, registers, a, b, c, d, e, f] = *bytes;
        Self {
            code,
            registers,
            offset: i16::from_le_bytes([a, b]),
            immediate: i32::from_le_bytes([c, d, e, f]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    const STATES: &[u8] = include_bytes!("../../vcpus/programs/states.o");

    /// Returns the long numbers of a program, with their kinds.
    fn long_numbers(code: &[Instruction]) -> Vec<(u8, i32, i32)> {
        let long = code.windows(2).filter(|pair| pair[0].code == LOAD_LONG);
        long.map(|pair| {
            let kind = pair[0].registers >> 4;
            (kind, pair[0].immediate, pair[1].immediate)
        })
        .collect()
    }

    #[test]
    fn symbols_are_maps_places_in_their_values_and_numbers() {
        assert_eq!(size_of::<Instruction>(), 8);
        let (map, ring) = (File::open("/").unwrap(), File::open("/").unwrap());
        let maps = [(".bss.states", map.as_fd()), ("ring", ring.as_fd())];
        let numbers = [("pid_at", 7), ("state_at", 5 << 32 | 9)];
        let code = with_numbers(STATES, "at_switch", &maps, &numbers).unwrap();
        let [map, ring] = maps.map(|(_, fd)| number(&fd).cast_signed());
        let long = long_numbers(&code);
        for expected in [(0, 7, 0), (0, 9, 5), (MAP, ring, 0), (MAP_VALUE, map, 0)] {
            assert!(long.contains(&expected), "{expected:?} {long:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let root = File::open("/").unwrap();
        let maps = [(".bss.states", root.as_fd()), ("ring", root.as_fd())];
        let error = |maps, numbers| {
            let refused = with_numbers(STATES, "at_switch", maps, numbers);
            refused.unwrap_err().to_string()
        };
        let numbers = [("pid_at", 1), ("state_at", 2)];
        assert_eq!(
            error(&maps, &numbers[..1]),
            "the program refers to state_at"
        );
        assert_eq!(error(&maps[..1], &numbers), "the program refers to ring");
        assert_eq!(
            error(&maps[1..], &numbers),
            "the program refers to .bss.states"
        );
        let nothing = program(STATES, "ring", &maps).unwrap_err();
        assert_eq!(nothing.to_string(), "the object has no program ring");
    }

    #[test]
    fn half_an_object_is_refused() {
        for length in [0, 63, 64, STATES.len() / 2, STATES.len() - 1] {
            assert!(program(&STATES[..length], "at_wakeup", &[]).is_err());
        }
    }

    /// In `make test-long`, which installs the compiler.
    #[test]
    fn the_objects_are_those_of_their_sources() {
        if std::env::var_os("LASTHOP_LONG").is_none_or(|value| value != "1") {
            return;
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/bpf");
        let status = std::process::Command::new(script).arg("--check").status();
        assert!(status.unwrap().success());
    }
}
