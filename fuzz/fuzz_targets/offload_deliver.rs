//! Checksums and segmentation for receivers that lack them: see `src/offload_deliver.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lasthop_fuzz::offload_deliver(data));
