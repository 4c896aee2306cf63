//! Our shared-memory ring with a peer that rewrites it meanwhile: see `src/ring_race.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::ring_race(data));
