//! The API's documents: see `src/api_json.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::api_json(data));
