#![no_main]

#[path = "../../crates/rules/tests/fuzz_bodies/mod.rs"]
#[allow(dead_code)]
mod fuzz_bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::rules_text(data));
