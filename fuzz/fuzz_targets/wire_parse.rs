//! Header parser, views and flow key: see `src/wire_parse.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::wire_parse(data));
