//! The kernel's type information (`/sys/kernel/btf/vmlinux`; Linux, `Documentation/bpf/btf.rst`):
//! offsets of members of structures, and numbers of tracepoints.
//!
//! ```text
//! header     magic, version, offsets of types and names
//! types      one after the other, from 1: name, kind, size or another type; rest by kind
//! names      texts that end with a zero byte
//! ```
//!
//! Everything is checked as it is read: the file is either parsed or refused.

use std::io;

/// Path of the running kernel's type information.
const PATH: &str = "/sys/kernel/btf/vmlinux";
/// Most bytes of a file: those of distributions have five to ten million.
const LONGEST: u64 = 64 << 20;
const MAGIC: u16 = 0xeb9f;
/// Bytes of a type before what its kind adds.
const TYPE: usize = 12;
/// Most levels of members in members without a name.
const DEEPEST: u32 = 8;
/// Most members that are visited in one search.
const MOST: u32 = 1 << 16;

/// A type's number.
pub type Id = u32;

/// Reason why types are not known.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// There is no such file, or it cannot be read.
    #[error("{PATH}: {0}")]
    File(#[from] io::Error),
    /// The file is malformed or truncated.
    #[error("malformed type information: {0}")]
    Malformed(&'static str),
    /// The requested type does not exist.
    #[error("the kernel has no {0}")]
    Missing(String),
}

/// `BTF_KIND_*`, as far as the kinds matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A pointer.
    Pointer,
    /// A structure.
    Struct,
    /// A union.
    Union,
    /// Another name of a type.
    Typedef,
    /// A function's type.
    FunctionType,
    /// Any other kind.
    Other(u8),
}

/// All types.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Start of each type; the first has the number 1.
    types: Vec<usize>,
    /// Start and end of names.
    names: (usize, usize),
}

/// Head of one type.
struct Type {
    kind: Kind,
    name: u32,
    /// Number of members or parameters.
    count: usize,
    /// Whether member offsets carry the size of a bit field.
    flag: bool,
    /// Another type's number, or a size.
    other: u32,
    /// Start of the part that depends on the kind.
    rest: usize,
}

impl Btf {
    /// Reads the running kernel's type information.
    ///
    /// # Errors
    /// It is missing or malformed.
    pub fn of_kernel() -> Result<Self, BtfError> {
        use std::io::Read;
        let mut bytes = Vec::new();
        std::fs::File::open(PATH)?
            .take(LONGEST + 1)
            .read_to_end(&mut bytes)?;
        Self::parse(bytes)
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// The malformed part.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        if bytes.len() as u64 > LONGEST {
            return Err(BtfError::Malformed("it is too long"));
        }
        let field = |at| word(&bytes, at);
        if field(0)? & 0xff_ffff != u32::from(MAGIC) | 1 << 16 {
            return Err(BtfError::Malformed("another format, version or byte order"));
        }
        let header = field(4)? as usize;
        let part = |offset: u32, length: u32| -> Result<(usize, usize), BtfError> {
            let start = header.checked_add(offset as usize);
            let end = start.and_then(|start| start.checked_add(length as usize));
            let inside = start.zip(end).filter(|(_, end)| *end <= bytes.len());
            inside.ok_or(BtfError::Malformed("a part is outside"))
        };
        let (from, to) = part(field(8)?, field(12)?)?;
        let names = part(field(16)?, field(20)?)?;
        let mut types = Vec::new();
        let mut at = from;
        while at < to {
            types.push(at);
            at = Type::read(&bytes, at)?.end()?;
        }
        if at != to {
            return Err(BtfError::Malformed("a type is cut off"));
        }
        Ok(Self {
            bytes,
            types,
            names,
        })
    }

    /// Returns the number of the type of this kind and name.
    ///
    /// # Errors
    /// There is no such type.
    pub fn find(&self, kind: Kind, name: &str) -> Result<Id, BtfError> {
        let missing = || BtfError::Missing(format!("type {name}"));
        let is_it = |id: &Id| {
            let it = self.get(*id);
            it.is_ok_and(|it| it.kind == kind && self.name(it.name) == Some(name.as_bytes()))
        };
        (1..=self.types.len() as Id).find(is_it).ok_or_else(missing)
    }

    /// Returns the offset of a member in its structure, in bytes; members of its members without a
    /// name are its own.
    ///
    /// # Errors
    /// There is no such member, or it is a bit field.
    pub fn member(&self, structure: &str, member: &str) -> Result<u32, BtfError> {
        let id = self.find(Kind::Struct, structure)?;
        let missing = || BtfError::Missing(format!("{structure}.{member}"));
        let bits = self.member_of(id, member.as_bytes(), DEEPEST, &mut { MOST })?;
        let bits = bits.filter(|bits| bits % 8 == 0).ok_or_else(missing)?;
        Ok(bits / 8)
    }

    /// Returns the offset in bits; `None` also below the deepest level, or when no more members are
    /// `left` to visit.
    fn member_of(
        &self,
        id: Id,
        member: &[u8],
        deepest: u32,
        left: &mut u32,
    ) -> Result<Option<u32>, BtfError> {
        let of = self.get(id)?;
        if !matches!(of.kind, Kind::Struct | Kind::Union) || deepest == 0 {
            return Ok(None);
        }
        for n in 0..of.count {
            let Some(fewer) = left.checked_sub(1) else {
                return Ok(None);
            };
            *left = fewer;
            let at = of.rest + n * 12;
            let (name, kind) = (word(&self.bytes, at)?, word(&self.bytes, at + 4)?);
            let place = word(&self.bytes, at + 8)?;
            let (offset, bits) = if of.flag {
                (place & 0xff_ffff, place >> 24)
            } else {
                (place, 0)
            };
            let found = match self.name(name) {
                Some(name) if name == member && bits == 0 => Some(0),
                Some(b"") => self.member_of(kind, member, deepest - 1, left)?,
                _ => None,
            };
            if let Some(inside) = found {
                return Ok(offset.checked_add(inside));
            }
        }
        Ok(None)
    }

    /// Returns the number by which programs are attached to a tracepoint, and the kinds of its
    /// arguments.
    ///
    /// # Errors
    /// There is no such tracepoint.
    pub fn tracepoint(&self, name: &str) -> Result<(Id, Vec<Kind>), BtfError> {
        let id = self.find(Kind::Typedef, &format!("btf_trace_{name}"))?;
        let missing = || BtfError::Missing(format!("tracepoint {name}"));
        let pointer = self.get(self.get(id)?.other)?;
        let function = self.get(pointer.other)?;
        if (pointer.kind, function.kind) != (Kind::Pointer, Kind::FunctionType) {
            return Err(missing());
        }
        // The first is the tracepoint's own.
        let arguments = (1..function.count).map(|n| {
            let id = word(&self.bytes, function.rest + n * 8 + 4)?;
            Ok(self.get(id)?.kind)
        });
        Ok((id, arguments.collect::<Result<_, BtfError>>()?))
    }

    fn get(&self, id: Id) -> Result<Type, BtfError> {
        let at = (id as usize).checked_sub(1).and_then(|n| self.types.get(n));
        let at = at.ok_or(BtfError::Malformed("a type that is not there"))?;
        Type::read(&self.bytes, *at)
    }

    fn name(&self, offset: u32) -> Option<&[u8]> {
        let names = &self.bytes[self.names.0..self.names.1];
        let name = names.get(offset as usize..)?;
        name.split(|byte| *byte == 0).next()
    }
}

impl Type {
    fn read(bytes: &[u8], at: usize) -> Result<Self, BtfError> {
        let info = word(bytes, at + 4)?;
        Ok(Self {
            kind: match (info >> 24 & 0x1f) as u8 {
                2 => Kind::Pointer,
                4 => Kind::Struct,
                5 => Kind::Union,
                8 => Kind::Typedef,
                13 => Kind::FunctionType,
                other => Kind::Other(other),
            },
            name: word(bytes, at)?,
            count: (info & 0xffff) as usize,
            flag: info >> 31 == 1,
            other: word(bytes, at + 8)?,
            rest: at + TYPE,
        })
    }

    /// Returns the start of the next type.
    fn end(&self) -> Result<usize, BtfError> {
        let rest = match self.kind {
            Kind::Pointer | Kind::Typedef => 0,
            Kind::Struct | Kind::Union => 12 * self.count,
            Kind::FunctionType => 8 * self.count,
            // A forward declaration, volatile, const, restrict, a function, a floating-point
            // number, a tag of a type.
            Kind::Other(7 | 9..=12 | 16 | 18) => 0,
            // An integer, a variable, a tag of a declaration.
            Kind::Other(1 | 14 | 17) => 4,
            // An array.
            Kind::Other(3) => 12,
            // An enumeration.
            Kind::Other(6) => 8 * self.count,
            // A section, a long enumeration.
            Kind::Other(15 | 19) => 12 * self.count,
            Kind::Other(_) => return Err(BtfError::Malformed("a kind that is not known")),
        };
        Ok(self.rest + rest)
    }
}

fn word(bytes: &[u8], at: usize) -> Result<u32, BtfError> {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    let word = word.ok_or(BtfError::Malformed("it is cut off"))?;
    Ok(u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests;
