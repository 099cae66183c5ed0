#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| towpath_files::client::fuzz_follow_record(data));
