//! Our shared-memory ring: see `src/ring_record.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::ring_record(data));
