#![no_main]

#[path = "../../crates/journal/tests/fuzz_bodies/mod.rs"]
#[allow(dead_code)]
mod fuzz_bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::journal_segment(data));
