//! Instructions of eBPF (RFC 9669), as far as Lasthop's programs use them, and jumps to labels that
//! are placed later.

use std::os::fd::BorrowedFd;

use crate::number;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    /// Returns an instruction by its fields; the destination register is in the low half of
    /// `registers`.
    pub(crate) const fn new(code: u8, registers: u8, offset: i16, immediate: i32) -> Self {
        Self {
            code,
            registers,
            offset,
            immediate,
        }
    }
}

/// A register. Helpers take arguments in `R1` to `R5`, which they clobber, and return in `R0`;
/// `R10` is the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Register {
    R0 = 0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Width of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 32 bits.
    Word,
    /// 64 bits.
    Double,
}

impl Width {
    const fn bits(self) -> u8 {
        match self {
            Self::Word => 0x00,
            Self::Double => 0x18,
        }
    }
}

/// Condition of a jump; the destination register is compared as an unsigned 64-bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum If {
    /// They are the same.
    Equal = 0x10,
    /// The first is more.
    More = 0x20,
    /// They have a bit in common.
    Common = 0x40,
    /// They differ.
    Other = 0x50,
}

/// Second operand of a comparison or calculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The value of a register.
    Of(Register),
    /// A number, with its sign.
    Number(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Of(register)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

impl Operand {
    /// Returns the bit of the code, the register, the number.
    const fn parts(self) -> (u8, u8, i32) {
        match self {
            Self::Of(register) => (0x08, register as u8, 0),
            Self::Number(number) => (0, 0, number),
        }
    }
}

/// A place in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Reason why instructions are not a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssemblyError {
    /// There is a jump to a label that was not placed.
    #[error("a jump to nowhere")]
    Nowhere,
    /// A jump is longer than 32767 instructions.
    #[error("a jump too far")]
    TooFar,
}

/// A program under construction.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<Instruction>,
    /// Place of each label.
    places: Vec<Option<usize>>,
    /// Jumps, and the label of each.
    jumps: Vec<(usize, Label)>,
}

const LOAD: u8 = 0x61;
const STORE: u8 = 0x63;
const STORE_NUMBER: u8 = 0x62;
/// Atomic operation of 64 bits; the number selects it.
const ATOMIC: u8 = 0xdb;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_LONG: u8 = 0x18;
/// 64-bit calculations.
const ALU: u8 = 0x07;
const ADD: u8 = 0x00;
const OR: u8 = 0x40;
const AND: u8 = 0x50;
const SHIFT_LEFT: u8 = 0x60;
const MOVE: u8 = 0xb0;
/// `BPF_PSEUDO_MAP_FD`: a long number is a map.
const MAP: u8 = 1;
/// `BPF_PSEUDO_MAP_VALUE`: a long number is a place in the only value of a map.
const MAP_VALUE: u8 = 2;

impl Assembler {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> &mut Self {
        let registers = from << 4 | to;
        self.code
            .push(Instruction::new(code, registers, offset, immediate));
        self
    }

    fn calculate(&mut self, what: u8, to: Register, with: Operand) -> &mut Self {
        let (bit, from, number) = with.parts();
        self.push(ALU | what | bit, to as u8, from, 0, number)
    }

    /// `to = with`.
    pub fn set(&mut self, to: Register, with: impl Into<Operand>) -> &mut Self {
        self.calculate(MOVE, to, with.into())
    }

    /// `to += with`.
    pub fn add(&mut self, to: Register, with: impl Into<Operand>) -> &mut Self {
        self.calculate(ADD, to, with.into())
    }

    /// `to &= with`.
    pub fn and(&mut self, to: Register, with: impl Into<Operand>) -> &mut Self {
        self.calculate(AND, to, with.into())
    }

    /// `to |= with`.
    pub fn or(&mut self, to: Register, with: impl Into<Operand>) -> &mut Self {
        self.calculate(OR, to, with.into())
    }

    /// `to <<= with`.
    pub fn shift_left(&mut self, to: Register, with: impl Into<Operand>) -> &mut Self {
        self.calculate(SHIFT_LEFT, to, with.into())
    }

    /// `to = *(from + offset)`; a short one is extended with zeros.
    pub fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) -> &mut Self {
        self.push(LOAD | width.bits(), to as u8, from as u8, offset, 0)
    }

    /// `*(to + offset) = value`.
    pub fn store(
        &mut self,
        width: Width,
        to: Register,
        offset: i16,
        value: impl Into<Operand>,
    ) -> &mut Self {
        match value.into() {
            Operand::Of(from) => self.push(STORE | width.bits(), to as u8, from as u8, offset, 0),
            Operand::Number(number) => {
                self.push(STORE_NUMBER | width.bits(), to as u8, 0, offset, number)
            }
        }
    }

    /// `*(to + offset) += value`, 64 bits of memory that other CPUs write at the same time.
    pub fn add_shared(&mut self, to: Register, offset: i16, value: Register) -> &mut Self {
        self.push(ATOMIC, to as u8, value as u8, offset, ADD.into())
    }

    /// Loads a map into `to`, as helpers take it.
    pub fn map(&mut self, to: Register, map: BorrowedFd<'_>) -> &mut Self {
        self.load_long(to, MAP, map, 0)
    }

    /// Loads the address at `offset` in the only value of a map, which is an array of one.
    pub fn map_value(&mut self, to: Register, map: BorrowedFd<'_>, offset: u32) -> &mut Self {
        self.load_long(to, MAP_VALUE, map, offset.cast_signed())
    }

    /// Loads a long number, which takes two instructions.
    fn load_long(&mut self, to: Register, kind: u8, map: BorrowedFd<'_>, second: i32) -> &mut Self {
        self.push(LOAD_LONG, to as u8, kind, 0, number(&map).cast_signed());
        self.push(0, 0, 0, 0, second)
    }

    /// Creates a label, for a place that is yet to come.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Places the label here.
    pub fn place(&mut self, label: Label) -> &mut Self {
        self.places[label.0] = Some(self.code.len());
        self
    }

    /// Jumps to the label.
    pub fn jump(&mut self, label: Label) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP, 0, 0, 0, 0)
    }

    /// Jumps to the label if the value of `first` compares so with the other.
    pub fn jump_if(
        &mut self,
        first: Register,
        how: If,
        with: impl Into<Operand>,
        label: Label,
    ) -> &mut Self {
        self.jumps.push((self.code.len(), label));
        let (bit, from, number) = with.into().parts();
        self.push(JUMP | how as u8 | bit, first as u8, from, 0, number)
    }

    /// Calls a helper by its number (`enum bpf_func_id`).
    pub fn call(&mut self, helper: i32) -> &mut Self {
        self.push(CALL, 0, 0, 0, helper)
    }

    /// Ends the program; it returns `R0`.
    pub fn exit(&mut self) -> &mut Self {
        self.push(EXIT, 0, 0, 0, 0)
    }

    /// Returns the program.
    ///
    /// # Errors
    /// A jump that cannot be made.
    pub fn finish(mut self) -> Result<Vec<Instruction>, AssemblyError> {
        for (from, label) in self.jumps {
            let to = self.places[label.0].ok_or(AssemblyError::Nowhere)?;
            // Counted from the instruction after the jump.
            let distance = to as i64 - (from as i64 + 1);
            self.code[from].offset = i16::try_from(distance).map_err(|_| AssemblyError::TooFar)?;
        }
        Ok(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::Register::{R0, R1, R2, R10};
    use super::*;

    /// Returns the program as the bytes that the kernel reads.
    fn bytes(assembler: Assembler) -> Vec<[u8; 8]> {
        let code = assembler.finish().unwrap();
        let bytes = |i: &Instruction| {
            let ([a, b], [c, d, e, f]) = (i.offset.to_le_bytes(), i.immediate.to_le_bytes());
            [i.code, i.registers, a, b, c, d, e, f]
        };
        code.iter().map(bytes).collect()
    }

    #[test]
    fn instructions_are_those_of_the_standard() {
        assert_eq!(size_of::<Instruction>(), 8);
        let mut a = Assembler::default();
        a.set(R1, R2).set(R1, -1).add(R1, R2).and(R1, 7).or(R1, R2);
        a.shift_left(R2, 6);
        a.load(Width::Word, R2, R1, 16)
            .load(Width::Double, R2, R1, -8);
        a.store(Width::Word, R1, 4, R2)
            .store(Width::Double, R1, 4, R2);
        a.store(Width::Word, R1, 4, 3)
            .store(Width::Double, R10, -8, 3);
        a.add_shared(R1, 8, R2).call(5).exit();
        // RFC 9669, section 4 and 5; written out by hand.
        let expected: [[u8; 8]; 15] = [
            [0xbf, 0x21, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x01, 0, 0, 0xff, 0xff, 0xff, 0xff],
            [0x0f, 0x21, 0, 0, 0, 0, 0, 0],
            [0x57, 0x01, 0, 0, 7, 0, 0, 0],
            [0x4f, 0x21, 0, 0, 0, 0, 0, 0],
            [0x67, 0x02, 0, 0, 6, 0, 0, 0],
            [0x61, 0x12, 16, 0, 0, 0, 0, 0],
            [0x79, 0x12, 0xf8, 0xff, 0, 0, 0, 0],
            [0x63, 0x21, 4, 0, 0, 0, 0, 0],
            [0x7b, 0x21, 4, 0, 0, 0, 0, 0],
            [0x62, 0x01, 4, 0, 3, 0, 0, 0],
            [0x7a, 0x0a, 0xf8, 0xff, 3, 0, 0, 0],
            [0xdb, 0x21, 8, 0, 0, 0, 0, 0],
            [0x85, 0, 0, 0, 5, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes(a), expected);
    }

    #[test]
    fn jumps_find_their_labels_in_both_directions() {
        let mut a = Assembler::default();
        let (start, end) = (a.label(), a.label());
        a.place(start).jump_if(R0, If::Equal, 1, end);
        a.jump_if(R0, If::Other, R2, end)
            .jump_if(R0, If::More, 9, end);
        a.jump_if(R0, If::Common, 4, start).jump(end);
        a.place(end).exit();
        let expected: [[u8; 8]; 6] = [
            [0x15, 0, 4, 0, 1, 0, 0, 0],
            [0x5d, 0x20, 3, 0, 0, 0, 0, 0],
            [0x25, 0, 2, 0, 9, 0, 0, 0],
            [0x45, 0, 0xfc, 0xff, 4, 0, 0, 0],
            [0x05, 0, 0, 0, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes(a), expected);
    }

    #[test]
    fn a_jump_that_cannot_be_made_is_refused() {
        let mut nowhere = Assembler::default();
        let label = nowhere.label();
        nowhere.jump(label);
        assert_eq!(nowhere.finish(), Err(AssemblyError::Nowhere));
        let mut far = Assembler::default();
        let label = far.label();
        far.jump(label);
        for _ in 0..40_000 {
            far.exit();
        }
        far.place(label).exit();
        assert_eq!(far.finish(), Err(AssemblyError::TooFar));
    }
}
