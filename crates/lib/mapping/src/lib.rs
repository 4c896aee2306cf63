//! Mappings of files that other processes share: rings, counters, guest memory.
//!
//! A [`Mapping`] is a piece of such a file. The other processes write to it at any time, and may
//! truncate a file that they own: after [`survive_truncation`], an access behind the end finds a
//! dummy page, and the mapping is marked as lost. A [`Quota`] bounds what one port has mapped.
//! [`SharedWords`] are memory of a known length without that danger, also the value of a BPF map.
//! This crate has no knowledge of what the files hold.

mod mapping;
mod quota;
mod sigbus;
mod words;

#[cfg(all(test, not(miri)))]
mod tests;

pub use mapping::{Extent, Mapping};
pub use quota::{Amount, MAX_BYTES, PORTS, Quota};
pub use sigbus::{lost_mappings, survive_truncation};
pub use words::SharedWords;

/// Reason why a piece of a file is not mapped.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// A length of zero.
    #[error("a memory region of size 0")]
    Empty,
    /// Address plus size leaves the 64-bit space.
    #[error("memory region at {start:#x} of size {size:#x} wraps around")]
    Wraps {
        /// First address.
        start: u64,
        /// Size in bytes.
        size: u64,
    },
    /// The file is shorter than the piece.
    #[error("memory region needs {needed:#x} bytes of its file, which has {len:#x}")]
    FileTooShort {
        /// Offset plus size.
        needed: u64,
        /// The file's length.
        len: u64,
    },
    /// The file is not in memory, so an access could block indefinitely.
    #[error("guest memory must be a memfd or a file on tmpfs or hugetlbfs")]
    NotMemory,
    /// More than [`MAX_BYTES`], or hundreds of mappings, for one port.
    #[error("more than {} TiB of memory, or too many mappings, on one port", MAX_BYTES >> 40)]
    TooMuch,
    /// The mapping exceeds this port's share of the common part.
    #[error("other ports have mapped so much memory that this is more than one port's share")]
    NoShare,
    /// All ports together have too many mappings.
    #[error("too many memory regions are mapped already")]
    TooManyMappings,
    /// The process can map no more.
    #[error("no room to map more guest memory (vm.max_map_count, LimitAS=)")]
    NoRoom,
    /// The operating system refused.
    #[error("cannot map guest memory: {0} (is it shared? QEMU: memory-backend-memfd,share=on)")]
    Map(std::io::Error),
}
