//! Numbers that nobody else has.

/// Bytes that nobody else has drawn.
pub(crate) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    // Without the system's randomness, which it always has, the time is as good as unique.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(bytes.len()) {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes = since.as_nanos().to_be_bytes();
    }
    bytes
}
