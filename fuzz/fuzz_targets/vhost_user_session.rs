//! vhost-user connection and session: see `src/vhost_user.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::vhost_user_session(data));
