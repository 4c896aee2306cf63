//! A switch and a guest that rewrites its memory meanwhile: see `src/switch_race.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::switch_race(data));
