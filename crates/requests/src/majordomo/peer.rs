//! Majordomo as clients and workers see it.

use super::{CLIENT_01, CLIENT_02, Dialect, WORKER_01, WORKER_02, command};
use crate::assembler::{Attached, Received};
use crate::body::Body;
use crate::message::{append_body, body_of};
use bytes::Bytes;
use towpath_sockets::{Frames, Message};

/// Command of a client's request in MDP/0.2.
const CLIENT_REQUEST: u8 = 1;

/// Why a message isn't of the expected dialect.
#[derive(Debug, thiserror::Error)]
#[error("not a message of this dialect: {0}")]
pub struct NotThisDialect(&'static str);

/// A message for a client.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientMessage {
    /// Service that replied, if the dialect says so.
    pub service: Option<Bytes>,
    /// Whether more parts follow.
    pub partial: bool,
    /// The reply, or why it is lost.
    pub body: Result<Body, String>,
}

/// A message for a worker.
#[derive(Debug, PartialEq, Eq)]
pub enum WorkerMessage {
    /// A request.
    Request {
        /// Client address that the reply must return.
        address: Bytes,
        /// The request, or why it is lost.
        body: Result<Body, String>,
    },
    /// Heartbeat.
    Heartbeat,
    /// The broker ends this connection.
    Disconnect,
}

impl Dialect {
    fn head(self, header_01: &'static [u8], header_02: &'static [u8]) -> Message {
        match self {
            Dialect::Mdp01 => Message::new().with(Bytes::new()).with(header_01),
            Dialect::Mdp02 => Message::new().with(header_02),
            Dialect::Majortomo => Message::new().with(Bytes::new()).with(header_02),
        }
    }

    /// A client's request.
    pub fn request(self, service: &[u8], body: &Body) -> Message {
        let mut message = self.head(CLIENT_01, CLIENT_02);
        match self {
            Dialect::Mdp01 => {}
            Dialect::Mdp02 => message = message.with(&[CLIENT_REQUEST][..]),
            // The same commands for clients and workers.
            Dialect::Majortomo => message = message.with(&[command::REQUEST][..]),
        }
        message = message.with(Bytes::copy_from_slice(service));
        append_body(&mut message, body);
        message
    }

    /// Frames before the body of a message for a client: the empty frame, header, command and service, each where the
    /// dialect has one.
    pub const CLIENT_HEAD_FRAMES: usize = 3;

    /// Frames before the body of a request for a worker.
    pub fn worker_head_frames(self) -> usize {
        match self {
            Dialect::Mdp02 => 4,
            // With an empty frame in front.
            Dialect::Mdp01 | Dialect::Majortomo => 5,
        }
    }

    /// Decodes a message for a client.
    pub fn decode_for_client(self, message: Received<String>) -> Result<ClientMessage, NotThisDialect> {
        let Received { frames, attached } = message;
        let mut frames = self.behind_head(frames, CLIENT_01, CLIENT_02)?;
        let mut partial = false;
        if self != Dialect::Mdp01 {
            let (more, last) = if self == Dialect::Mdp02 { (2, 3) } else { (3, 4) };
            partial = match one_command(&mut frames)? {
                other if other == more => true,
                other if other == last => false,
                _ => return Err(NotThisDialect("an unknown command")),
            };
        }
        let service = if self == Dialect::Majortomo { None } else { Some(next_frame(&mut frames)?) };
        if frames.is_empty() && attached == Attached::Nothing {
            return Err(NotThisDialect("a reply without a body"));
        }
        Ok(ClientMessage { service, partial, body: body_of(frames, attached) })
    }

    /// READY.
    pub fn ready(self, service: &[u8]) -> Message {
        self.worker_says(command::READY).with(Bytes::copy_from_slice(service))
    }

    /// A reply, or a part of one where the dialect has parts.
    pub fn reply(self, address: &Bytes, partial: bool, body: &Body) -> Message {
        let command = match (self, partial) {
            (Dialect::Mdp01, _) => command::REPLY_01,
            (_, true) => command::PARTIAL,
            (_, false) => command::FINAL,
        };
        let mut message = self.worker_says(command).with(address.clone()).with(Bytes::new());
        append_body(&mut message, body);
        message
    }

    /// Heartbeat.
    pub fn heartbeat(self) -> Message {
        self.worker_says(command::heartbeat(self))
    }

    /// DISCONNECT.
    pub fn disconnect(self) -> Message {
        self.worker_says(command::disconnect(self))
    }

    fn worker_says(self, command: u8) -> Message {
        self.head(WORKER_01, WORKER_02).with(vec![command])
    }

    /// Decodes a message for a worker.
    pub fn decode_for_worker(self, message: Received<String>) -> Result<WorkerMessage, NotThisDialect> {
        let Received { frames, attached } = message;
        let mut frames = self.behind_head(frames, WORKER_01, WORKER_02)?;
        match one_command(&mut frames)? {
            command::REQUEST => {
                let address = next_frame(&mut frames)?;
                let is_separated = next_frame(&mut frames)?.is_empty();
                if !is_separated || (frames.is_empty() && attached == Attached::Nothing) {
                    return Err(NotThisDialect("a request without an empty frame and a body behind its address"));
                }
                Ok(WorkerMessage::Request { address, body: body_of(frames, attached) })
            }
            other if other == command::heartbeat(self) => Ok(WorkerMessage::Heartbeat),
            other if other == command::disconnect(self) => Ok(WorkerMessage::Disconnect),
            _ => Err(NotThisDialect("an unknown command")),
        }
    }

    /// The frames after the empty one, where the dialect has one, and the header.
    fn behind_head(self, mut frames: Frames, header_01: &[u8], header_02: &[u8]) -> Result<Frames, NotThisDialect> {
        if self != Dialect::Mdp02 && !next_frame(&mut frames)?.is_empty() {
            return Err(NotThisDialect("no empty frame at the beginning"));
        }
        let header = if self == Dialect::Mdp01 { header_01 } else { header_02 };
        if next_frame(&mut frames)? != header {
            return Err(NotThisDialect("another header"));
        }
        Ok(frames)
    }
}

fn next_frame(frames: &mut Frames) -> Result<Bytes, NotThisDialect> {
    if frames.is_empty() { Err(NotThisDialect("it is too short")) } else { Ok(frames.remove(0)) }
}

fn one_command(frames: &mut Frames) -> Result<u8, NotThisDialect> {
    match next_frame(frames)?[..] {
        [command] => Ok(command),
        _ => Err(NotThisDialect("a command isn't one byte")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_sockets::Frame;

    fn bytes(message: &Message) -> Vec<Vec<u8>> {
        let of = |frame: &Frame| match frame {
            Frame::Bytes(bytes) => bytes.to_vec(),
            Frame::File(_) => panic!("a file"),
        };
        message.frames.iter().map(of).collect()
    }

    fn received(frames: &[&[u8]]) -> Received<String> {
        let frames = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
        Received { frames, attached: Attached::Nothing }
    }

    #[test]
    fn requests_of_each_shape() {
        let body = Body::of_frames([Bytes::from_static(b"one"), Bytes::from_static(b"two")]);
        assert_eq!(bytes(&Dialect::Mdp01.request(b"echo", &body)), [&b""[..], b"MDPC01", b"echo", b"one", b"two"]);
        assert_eq!(bytes(&Dialect::Mdp02.request(b"echo", &body)), [&b"MDPC02"[..], b"\x01", b"echo", b"one", b"two"]);
        assert_eq!(
            bytes(&Dialect::Majortomo.request(b"echo", &Body::default())),
            [&b""[..], b"MDPC02", b"\x02", b"echo", b""]
        );
    }

    #[test]
    fn replies_of_each_shape() {
        let message = Dialect::Mdp01.decode_for_client(received(&[b"", b"MDPC01", b"echo", b"one"])).unwrap();
        assert_eq!(message, ClientMessage { service: Some("echo".into()), partial: false, body: Ok("one".into()) });
        let message = Dialect::Mdp02.decode_for_client(received(&[b"MDPC02", b"\x02", b"echo", b"one"])).unwrap();
        assert_eq!(message, ClientMessage { service: Some("echo".into()), partial: true, body: Ok("one".into()) });
        let message = Dialect::Majortomo.decode_for_client(received(&[b"", b"MDPC02", b"\x04", b"one"])).unwrap();
        assert_eq!(message, ClientMessage { service: None, partial: false, body: Ok("one".into()) });
        for wrong in [
            &[&b""[..]][..],
            &[b"", b"MDPC01"],
            &[b"", b"MDPC01", b"echo"],
            &[b"", b"MDPW01", b"echo", b"x"],
            &[b"x", b"MDPC01", b"echo", b"x"],
        ] {
            Dialect::Mdp01.decode_for_client(received(wrong)).unwrap_err();
        }
        Dialect::Mdp02.decode_for_client(received(&[b"MDPC02", b"\x04", b"echo", b"one"])).unwrap_err();
    }

    #[test]
    fn a_worker_of_each_shape() {
        assert_eq!(bytes(&Dialect::Mdp01.ready(b"echo")), [&b""[..], b"MDPW01", b"\x01", b"echo"]);
        assert_eq!(bytes(&Dialect::Mdp02.heartbeat()), [&b"MDPW02"[..], b"\x05"]);
        assert_eq!(bytes(&Dialect::Majortomo.disconnect()), [&b""[..], b"MDPW02", b"\x06"]);
        let address = Bytes::from_static(b"client");
        assert_eq!(
            bytes(&Dialect::Mdp01.reply(&address, false, &"done".into())),
            [&b""[..], b"MDPW01", b"\x03", b"client", b"", b"done"]
        );
        assert_eq!(
            bytes(&Dialect::Mdp02.reply(&address, true, &"some".into())),
            [&b"MDPW02"[..], b"\x03", b"client", b"", b"some"]
        );
        let message =
            Dialect::Mdp01.decode_for_worker(received(&[b"", b"MDPW01", b"\x02", b"client", b"", b"do"])).unwrap();
        assert_eq!(message, WorkerMessage::Request { address, body: Ok("do".into()) });
        assert_eq!(
            Dialect::Mdp02.decode_for_worker(received(&[b"MDPW02", b"\x06"])).unwrap(),
            WorkerMessage::Disconnect
        );
        Dialect::Mdp01.decode_for_worker(received(&[b"", b"MDPW01", b"\x02", b"client", b"x", b"do"])).unwrap_err();
        Dialect::Mdp01.decode_for_worker(received(&[b"", b"MDPW01", b"\x02", b"client", b""])).unwrap_err();
    }
}
