//! Filters and descriptions of frames: see `src/expression.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::expression(data));
