//! The configuration file: see `src/config_toml.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::config_toml(data));
