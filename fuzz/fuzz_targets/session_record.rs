//! Saved sessions for a new switch: see `src/session_record.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::session_record(data));
