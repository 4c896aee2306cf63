//! Reading and writing big-endian fields.

use crate::MacAddr;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The two bytes at `at` of a fixed-size header; `at` is a constant of the caller, so the bounds
/// check folds away.
#[inline]
pub(crate) fn be16<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

/// `M` bytes at `at` of a fixed-size header.
#[inline]
pub(crate) fn array<const N: usize, const M: usize>(b: &[u8; N], at: usize) -> [u8; M] {
    std::array::from_fn(|i| b[at + i])
}

/// Writes `v` at `at`; nothing when it does not fit.
#[inline]
pub(crate) fn put16(b: &mut [u8], at: usize, v: u16) {
    if let Some(d) = b.get_mut(at..).and_then(|d| d.first_chunk_mut::<2>()) {
        *d = v.to_be_bytes();
    }
}

/// Writes `v` at `at`; nothing when it does not fit.
#[inline]
pub(crate) fn put32(b: &mut [u8], at: usize, v: u32) {
    if let Some(d) = b.get_mut(at..).and_then(|d| d.first_chunk_mut::<4>()) {
        *d = v.to_be_bytes();
    }
}

/// A field of a header, read at an offset that is a constant of the caller.
pub(crate) trait Field {
    fn read<const N: usize>(b: &[u8; N], at: usize) -> Self;
}

/// Types that are made of `M` bytes.
macro_rules! from_bytes {
    ($($type:ty = $make:expr;)*) => {$(
        impl Field for $type {
            #[inline]
            fn read<const N: usize>(b: &[u8; N], at: usize) -> Self {
                $make(array(b, at))
            }
        }
    )*};
}

from_bytes! {
    u8 = u8::from_be_bytes;
    u16 = u16::from_be_bytes;
    u32 = u32::from_be_bytes;
    MacAddr = MacAddr;
    Ipv4Addr = <Ipv4Addr as From<[u8; 4]>>::from;
    Ipv6Addr = <Ipv6Addr as From<[u8; 16]>>::from;
}

/// Writes the accessors of a view: each field with its type and its offset.
macro_rules! header_fields {
    ($view:ident: $($(#[$doc:meta])* $name:ident: $type:ty = $at:expr;)*) => {
        impl $view<'_> {$(
            $(#[$doc])*
            #[inline]
            pub fn $name(&self) -> $type {
                crate::bytes::Field::read(self.fixed, $at)
            }
        )*}
    };
}

pub(crate) use header_fields;
