//! The memory file of connections: see `src/conntrack_file.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::conntrack_file(data));
