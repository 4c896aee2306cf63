//! Ends of pipes and their server: see `src/pipe_messages.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::pipe_messages(data));
