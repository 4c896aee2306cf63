//! Connection tracking over the table: see `src/conntrack_table.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::conntrack_table(data));
