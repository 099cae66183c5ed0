//! Commands: a name and data in a frame with the COMMAND bit (RFC 37).

use crate::error::{Error, printable};
use crate::frame;
use crate::limits::{PING_CONTEXT_BYTES_MAX, PING_TTL_DECISECONDS_MAX};
use crate::metadata::Metadata;
use crate::secret::Secret;
use bytes::{BufMut, Bytes, BytesMut};

/// A decoded command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The end of the handshake, with the peer's metadata.
    Ready(Metadata),
    /// PLAIN: the client's name and password.
    Hello {
        /// The user's name, up to 255 bytes.
        user: Bytes,
        /// The password, up to 255 bytes.
        password: Secret,
    },
    /// PLAIN: the server admits the client.
    Welcome,
    /// PLAIN: the client's metadata.
    Initiate(Metadata),
    /// The peer gives up, with a reason.
    Error {
        /// As text, escaped.
        reason: String,
    },
    /// Answer with PONG.
    Ping {
        /// Tenths of a second of silence after which the sender may be given up; 0: never.
        ttl_deciseconds: u16,
        /// At most 16 bytes that PONG repeats.
        context: Bytes,
    },
    /// An answer to PING. go-zeromq leaves the context out, so it isn't compared.
    Pong,
    /// A command with an unknown name.
    Unknown {
        /// Its name, escaped and cut.
        name: String,
    },
}

impl Command {
    /// Parses a command frame's body.
    pub fn decode(mut body: Bytes) -> Result<Command, Error> {
        let unnamed = |why| Error::MalformedCommand { command: "unnamed", why };
        let name_length = usize::from(*body.first().ok_or_else(|| unnamed("an empty frame"))?);
        if name_length == 0 || body.len() < 1 + name_length {
            return Err(unnamed("its name is empty or longer than the frame"));
        }
        let _ = body.split_to(1);
        let name = body.split_to(name_length);
        match &name[..] {
            b"READY" => Ok(Command::Ready(Metadata::decode("READY", body)?)),
            b"INITIATE" => Ok(Command::Initiate(Metadata::decode("INITIATE", body)?)),
            b"HELLO" => {
                let user = short_string("HELLO", &mut body)?;
                let password = Secret::from(short_string("HELLO", &mut body)?);
                if !body.is_empty() {
                    return Err(Error::MalformedCommand { command: "HELLO", why: "bytes after the password" });
                }
                Ok(Command::Hello { user, password })
            }
            b"WELCOME" if body.is_empty() => Ok(Command::Welcome),
            b"WELCOME" => Err(Error::MalformedCommand { command: "WELCOME", why: "it has a body" }),
            b"ERROR" => {
                let reason = short_string("ERROR", &mut body)?;
                Ok(Command::Error { reason: printable(&reason) })
            }
            b"PING" => {
                if body.len() < 2 {
                    return Err(Error::MalformedCommand { command: "PING", why: "its TTL is cut off" });
                }
                let ttl = body.split_to(2);
                body.truncate(PING_CONTEXT_BYTES_MAX);
                Ok(Command::Ping { ttl_deciseconds: u16::from_be_bytes([ttl[0], ttl[1]]), context: body })
            }
            b"PONG" => Ok(Command::Pong),
            _ => Ok(Command::Unknown { name: printable(&name) }),
        }
    }
}

fn short_string(command: &'static str, body: &mut Bytes) -> Result<Bytes, Error> {
    let malformed = |why| Error::MalformedCommand { command, why };
    let length = usize::from(*body.first().ok_or_else(|| malformed("it is cut off"))?);
    if body.len() < 1 + length {
        return Err(malformed("a string is longer than the command"));
    }
    let _ = body.split_to(1);
    Ok(body.split_to(length))
}

/// A whole command frame with this body.
pub fn framed(body: &[u8]) -> Bytes {
    let mut wire = Vec::with_capacity(frame::HEADER_BYTES_MAX + body.len());
    frame::encode_header(&mut wire, frame::COMMAND, body.len() as u64);
    wire.extend_from_slice(body);
    wire.into()
}

fn named(name: &str) -> BytesMut {
    let mut body = BytesMut::with_capacity(64);
    put_short(&mut body, name.as_bytes());
    body
}

fn put_short(out: &mut BytesMut, text: &[u8]) {
    let text = text.get(..255).unwrap_or(text);
    out.put_u8(text.len() as u8);
    out.put_slice(text);
}

/// A whole READY frame.
pub fn ready(metadata: &Metadata) -> Bytes {
    let mut body = named("READY");
    metadata.encode(&mut body);
    framed(&body)
}

/// A whole INITIATE frame (PLAIN).
pub fn initiate(metadata: &Metadata) -> Bytes {
    let mut body = named("INITIATE");
    metadata.encode(&mut body);
    framed(&body)
}

/// A whole HELLO frame (PLAIN). Both strings are cut at 255 bytes.
pub fn hello(user: &[u8], password: &[u8]) -> Bytes {
    let mut body = named("HELLO");
    put_short(&mut body, user);
    put_short(&mut body, password);
    framed(&body)
}

/// A whole WELCOME frame (PLAIN).
pub fn welcome() -> Bytes {
    framed(&named("WELCOME"))
}

/// A whole ERROR frame; the reason is cut at 255 bytes.
pub fn error(reason: &str) -> Bytes {
    let mut body = named("ERROR");
    put_short(&mut body, reason.as_bytes());
    framed(&body)
}

/// A whole PING frame. The TTL is cut to what libzmq survives.
pub fn ping(ttl_deciseconds: u16) -> Bytes {
    let mut body = named("PING");
    body.put_u16(ttl_deciseconds.min(PING_TTL_DECISECONDS_MAX));
    framed(&body)
}

/// A whole PONG frame that repeats a PING's context.
pub fn pong(context: &[u8]) -> Bytes {
    let mut body = named("PONG");
    body.put_slice(context.get(..PING_CONTEXT_BYTES_MAX).unwrap_or(context));
    framed(&body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_of(frame: &Bytes) -> Bytes {
        let (header, size) = frame::Header::decode(frame).unwrap();
        assert!(header.command);
        assert_eq!(header.length as usize, frame.len() - size);
        frame.slice(size..)
    }

    #[test]
    fn commands_come_back() {
        let metadata = Metadata::new().with("Socket-Type", "ROUTER").with("Identity", "");
        assert_eq!(Command::decode(body_of(&ready(&metadata))), Ok(Command::Ready(metadata.clone())));
        assert_eq!(Command::decode(body_of(&initiate(&metadata))), Ok(Command::Initiate(metadata)));
        assert_eq!(Command::decode(body_of(&welcome())), Ok(Command::Welcome));
        assert_eq!(
            Command::decode(body_of(&hello(b"ann", b"secret"))),
            Ok(Command::Hello { user: "ann".into(), password: Bytes::from("secret").into() })
        );
        assert_eq!(Command::decode(body_of(&error("no"))), Ok(Command::Error { reason: "no".into() }));
        assert_eq!(
            Command::decode(body_of(&ping(9999))),
            Ok(Command::Ping { ttl_deciseconds: PING_TTL_DECISECONDS_MAX, context: Bytes::new() })
        );
        assert_eq!(Command::decode(body_of(&pong(&[7; 40]))), Ok(Command::Pong));
        assert_eq!(pong(&[7; 40]).len(), 2 + 5 + 16);
    }

    #[test]
    fn cut_commands_are_errors_and_unknown_ones_are_not() {
        for body in [&b""[..], b"\x00", b"\x05PING", b"\x04PING\x00", b"\x05HELLO\x09a", b"\x05ERROR", b"\x07WELCOMEx"]
        {
            assert!(Command::decode(Bytes::copy_from_slice(body)).is_err(), "{body:?}");
        }
        assert_eq!(
            Command::decode(Bytes::from_static(b"\x09SUBSCRIBEabc")),
            Ok(Command::Unknown { name: "SUBSCRIBE".into() })
        );
    }
}
