//! Bodies of the fuzz targets of `fuzz/`. `tests/corpus.rs` does the same with those that are kept, so that the
//! two can't drift apart.

mod curve;
#[path = "../harness/mod.rs"]
mod harness;
mod input;
mod outbox;

use towpath_zmtp::MechanismConfig;

/// A fuzz target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its corpus folder.
#[allow(dead_code, reason = "each fuzz target uses its own body")]
pub const TARGETS: [Target; 6] = [
    ("zmtp_null", zmtp_null),
    ("zmtp_plain_server", zmtp_plain_server),
    ("zmtp_plain_client", zmtp_plain_client),
    ("zmtp_curve_server", zmtp_curve_server),
    ("zmtp_curve_client", zmtp_curve_client),
    ("zmtp_outbox", zmtp_outbox),
];

/// A NULL peer sends anything.
pub fn zmtp_null(data: &[u8]) {
    input::run(&MechanismConfig::Null, data);
}

/// Somebody who should show credentials sends anything.
pub fn zmtp_plain_server(data: &[u8]) {
    input::run(&MechanismConfig::PlainServer, data);
}

/// A server that we show credentials sends anything.
pub fn zmtp_plain_client(data: &[u8]) {
    let mechanism = MechanismConfig::PlainClient { user: "ada".into(), password: "pw".into() };
    input::run(&mechanism, data);
}

/// A client seals anything, with the right keys.
pub fn zmtp_curve_server(data: &[u8]) {
    both_ciphers(curve::server, data);
}

/// A server seals anything, with the right keys.
pub fn zmtp_curve_client(data: &[u8]) {
    both_ciphers(curve::client, data);
}

fn both_ciphers(mechanism: fn(bool) -> MechanismConfig, data: &[u8]) {
    for aes in [false, true] {
        input::run(&mechanism(aes), data);
    }
}

/// A driver does anything with an outbox.
pub fn zmtp_outbox(data: &[u8]) {
    outbox::run(data);
}
