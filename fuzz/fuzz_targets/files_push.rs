#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_files::server::fuzz_push(data));
