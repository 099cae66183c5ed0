//! The 64 bytes that open a connection (RFC 37).

use crate::error::{Error, printable};

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 64;

/// The version that this side announces.
pub const VERSION: (u8, u8) = (3, 1);

/// This side's greeting, sent whole and at once: some peers read ten bytes before they send theirs.
pub fn encode(mechanism: &'static str, as_server: bool) -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[8] = 1; // padding; libzmq has its routing id's length + 1 here, which ZMTP 1 peers read
    greeting[9] = 0x7f;
    greeting[10] = VERSION.0;
    greeting[11] = VERSION.1;
    for (slot, byte) in greeting[12..32].iter_mut().zip(mechanism.bytes()) {
        *slot = byte;
    }
    greeting[32] = u8::from(as_server);
    greeting
}

/// Checks the peer's greeting as far as it has arrived; gives its version when it is complete.
///
/// A wrong byte is an error as soon as it is seen, and another protocol as soon as it is known: its peer may never send 64
/// bytes. `as-server` is not checked: libzmq always sends 0.
pub fn decode(input: &[u8], mechanism: &'static str) -> Result<Option<(u8, u8)>, Error> {
    match input.first() {
        None => return Ok(None),
        Some(0xff) => {}
        Some(_) if OTHER_PROTOCOLS.iter().any(|(first, _)| first.len() > input.len() && first.starts_with(input)) => {
            return Ok(None);
        }
        Some(&found) => return Err(other_protocol(input).unwrap_or(Error::NotZmtp { at: 0, found })),
    }
    match input.get(9) {
        None => return Ok(None),
        Some(byte) if byte & 1 == 1 => {}
        Some(&found) => return Err(Error::NotZmtp { at: 9, found }),
    }
    match input.get(10) {
        None => return Ok(None),
        // The byte is a revision in older versions: 0 in ZMTP 1, 1 in ZMTP 2.0 (libzmq 3.x).
        Some(&revision) if revision < 3 => return Err(Error::OldVersion { major: if revision == 0 { 1 } else { 2 } }),
        Some(_) => {}
    }
    let Some(greeting) = input.get(..GREETING_BYTES) else { return Ok(None) };
    let theirs = &greeting[12..32];
    let name = theirs.split(|byte| *byte == 0).next().unwrap_or_default();
    if name != mechanism.as_bytes() || theirs[name.len()..].iter().any(|byte| *byte != 0) {
        return Err(Error::Mechanism { ours: mechanism, theirs: printable(name) });
    }
    Ok(Some((greeting[10], greeting[11])))
}

/// First bytes of servers of other protocols, sent by themselves or in answer to a greeting.
const OTHER_PROTOCOLS: [(&[u8], &str); 8] = [
    (b"SSH-", "an SSH server"),
    (b"HTTP/", "a web server (HTTP)"),
    (b"GET ", "a web client (HTTP)"),
    // The records alert and handshake, of SSL 3.0 to TLS 1.3.
    (b"\x15\x03", "a TLS server (HTTPS, perhaps)"),
    (b"\x16\x03", "a TLS client"),
    (b"-ERR ", "a Redis server"),
    (b"INFO {", "a NATS server"),
    (b"AMQP", "an AMQP server (RabbitMQ, perhaps)"),
];

fn other_protocol(input: &[u8]) -> Option<Error> {
    let (_, what) = OTHER_PROTOCOLS.iter().find(|(first, _)| input.starts_with(first))?;
    Some(Error::OtherProtocol { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_of_a_greeting_is_taken() {
        let greeting = encode("PLAIN", true);
        for cut in 0..GREETING_BYTES {
            assert_eq!(decode(&greeting[..cut], "PLAIN"), Ok(None), "cut at {cut}");
        }
        assert_eq!(decode(&greeting, "PLAIN"), Ok(Some((3, 1))));
    }

    #[test]
    fn older_and_other_peers_are_refused_by_name() {
        for (first, what) in OTHER_PROTOCOLS {
            assert_eq!(decode(first, "NULL"), Err(Error::OtherProtocol { what }));
        }
        assert_eq!(decode(b"220 mail", "NULL"), Err(Error::NotZmtp { at: 0, found: b'2' }));
        // ZMTP 1.0: a short frame with an anonymous identity, or one in the long form. 2.0 announces revision 1.
        assert_eq!(decode(&[1, 0], "NULL"), Err(Error::NotZmtp { at: 0, found: 1 }));
        assert_eq!(decode(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0], "NULL"), Err(Error::NotZmtp { at: 9, found: 0 }));
        assert_eq!(decode(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 0], "NULL"), Err(Error::OldVersion { major: 1 }));
        assert_eq!(decode(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1], "NULL"), Err(Error::OldVersion { major: 2 }));
        let curve = encode("CURVE", false);
        assert!(matches!(decode(&curve, "NULL"), Err(Error::Mechanism { .. })));
    }
}
