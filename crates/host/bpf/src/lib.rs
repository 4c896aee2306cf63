//! eBPF: programs compiled from C (`object`) and small ones without a compiler ([`assembler`]),
//! the kernel's information on its own types ([`btf`]), and the system call that loads them
//! ([`Attribute`], [`mod@load`]).
//!
//! The purpose of a program, and its maps, are up to its user.

pub mod assembler;
mod attribute;
pub mod btf;
pub mod load;
#[cfg(feature = "objects")]
pub mod object;

pub use assembler::Instruction;
pub use attribute::{Attribute, Command, LICENSE, number};
pub use load::LoadError;
