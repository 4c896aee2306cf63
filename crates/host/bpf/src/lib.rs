//! eBPF: programs compiled from C ([`mod@object`]), the kernel's information on its own types
//! ([`btf`]), and the system call that loads them ([`Attribute`], [`mod@load`]).
//!
//! The purpose of a program, and its maps, are up to its user. Each crate with programs has their
//! sources and objects in its folder `programs`; `scripts/bpf` compiles all of them, with
//! `include/bpf.h`.

mod attribute;
pub mod btf;
pub mod load;
pub mod object;

pub use attribute::{Attribute, Command, LICENSE, number};
pub use load::LoadError;
pub use object::Instruction;
