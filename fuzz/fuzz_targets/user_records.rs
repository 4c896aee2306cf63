//! Records of flows of a user network: see `src/usernet.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::user_records(data));
