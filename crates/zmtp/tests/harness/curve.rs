//! Both sides of CURVE, with fixed keys and fixed randomness: handshakes are the same each time.

use std::sync::{Arc, Mutex};
use towpath_zmtp::{MechanismConfig, PublicKey, Random, SecretKey};

/// Randomness that counts, from a byte on.
pub fn counting(from: u8) -> Random {
    let next = Mutex::new(from);
    Random::new(move |bytes| {
        let mut next = next.lock().expect("no panic");
        for byte in bytes {
            *byte = *next;
            *next = next.wrapping_add(1);
        }
        Ok(())
    })
}

/// A key that is the same byte 32 times.
pub fn key(byte: u8) -> SecretKey {
    let hex = format!("{byte:02x}").repeat(32);
    hex.parse().expect("hex")
}

pub fn server_key() -> SecretKey {
    key(b'S')
}

pub fn client_key() -> SecretKey {
    key(b'C')
}

/// A server whose keys of connections count from 0.
pub fn server() -> MechanismConfig {
    server_with(false)
}

/// The same, with or without the second cipher.
pub fn server_with(aes: bool) -> MechanismConfig {
    MechanismConfig::CurveServer { keys: Arc::from([server_key()]), random: counting(0), aes }
}

/// A client whose keys of connections count from 100.
pub fn client() -> MechanismConfig {
    client_of(server_key().public_key())
}

pub fn client_of(server: PublicKey) -> MechanismConfig {
    MechanismConfig::CurveClient { key: client_key(), server, random: counting(100), aes: false }
}

/// The same, with or without the second cipher.
pub fn client_with(aes: bool) -> MechanismConfig {
    let server = server_key().public_key();
    MechanismConfig::CurveClient { key: client_key(), server, random: counting(100), aes }
}
