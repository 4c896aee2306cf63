//! Software segmentation: see `src/wire_segment.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::wire_segment(data));
