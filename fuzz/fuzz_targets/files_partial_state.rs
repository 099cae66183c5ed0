#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_files::receive::fuzz_partial_state(data));
