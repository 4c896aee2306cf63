//! Messages between our processes: see `src/channel_messages.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::channel_messages(data));
