//! Coalescing of frames for an interface: see `src/coalesce.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::coalesce(data));
