//! Frames of connections in any order: see `src/conntrack.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::conntrack(data));
