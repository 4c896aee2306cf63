//! The table of a prefilter: see `src/offload_page.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::offload_page(data));
