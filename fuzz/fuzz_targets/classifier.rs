//! Access lists and their classifier: see `src/classifier.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::classifier(data));
