//! Small eBPF programs without a compiler: their instructions ([`assembler`]), the kernel's
//! information on its own types ([`btf`]), and the system call that loads them ([`Attribute`]).
//!
//! The purpose of a program, and its maps, are up to its user.

pub mod assembler;
mod attribute;
pub mod btf;

pub use assembler::Instruction;
pub use attribute::{Attribute, Command, LICENSE, number};
