//! memif connection and session: see `src/memif_messages.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::memif_messages(data));
