//! Trees of scheduled ports: see `src/egress_tree.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::egress_tree(data));
