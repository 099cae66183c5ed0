//! ZMTP 3.1 (RFC 37) as a sans-I/O state machine: bytes and a time in, events and bytes to send out.
//!
//! There is no socket, file, thread or clock here. A driver (`towpath-sockets`) feeds a [`Connection`] with the bytes that it read, and
//! writes what its [`Outbox`] gives. A frame to send is bytes, or a range of something external, such as a file, that the driver moves
//! itself. A frame that arrives is delivered whole, within limits, or as a stream.
//!
//! ```
//! use bytes::{Bytes, BytesMut};
//! use smallvec::smallvec;
//! use std::{sync::Arc, time::{Duration, Instant}};
//! use towpath_zmtp::*;
//!
//! let config = |socket_type| Arc::new(Config {
//!     socket_type,
//!     routing_id: Bytes::new(),
//!     foreign_property: None,
//!     metadata: Metadata::new(),
//!     mechanism: MechanismConfig::Null,
//!     handshake_timeout: Duration::from_secs(10),
//!     heartbeat: None,
//!     limits: InboxLimits::default(),
//! });
//! let now = Instant::now();
//! let mut server: Connection<()> = Connection::new(config(SocketType::Router), now);
//! let mut client: Connection<()> = Connection::new(config(SocketType::Dealer), now);
//! client.send::<1>(smallvec![Body::Bytes(Bytes::from_static(b"hello"))], 0);
//!
//! // A driver moves bytes; here they go straight from one to the other.
//! let (mut to_server, mut to_client) = (BytesMut::new(), BytesMut::new());
//! let mut got = Vec::new();
//! for _ in 0..4 {
//!     for (from, to) in [(&mut client, &mut to_server), (&mut server, &mut to_client)] {
//!         while let Transmit::Bytes { slices, .. } = from.outbox().transmit() {
//!             let bytes = slices.concat();
//!             to.extend_from_slice(&bytes);
//!             from.outbox().advance(bytes.len());
//!         }
//!     }
//!     while let Some(event) = server.input(&mut to_server, now)? {
//!         got.push(event);
//!     }
//!     while client.input(&mut to_client, now)?.is_some() {}
//! }
//! assert!(matches!(&got[..], [Event::Ready(_), Event::Message { frames, .. }] if &frames[0][..] == b"hello"));
//! # Ok::<(), Error>(())
//! ```

mod command;
mod config;
mod connection;
mod credentials;
mod crypto;
mod deviations;
mod error;
mod event;
mod frame;
mod greeting;
mod inbox;
mod keys;
pub mod limits;
mod liveness;
mod mechanism;
mod metadata;
mod outbox;
mod random;
mod seal;
mod secret;
mod socket_type;

pub use command::Command;
pub use config::{Config, Heartbeat};
pub use connection::Connection;
pub use credentials::{Credentials, Principal};
pub use crypto::has_aes_instructions;
pub use deviations::ProtocolDeviations;
pub use error::{Error, Refusal};
pub use event::{Event, PeerProperties};
pub use frame::{FrameFlags, Header};
pub use greeting::{GREETING_BYTES, VERSION};
pub use inbox::{Frames, InboxLimits};
pub use keys::{KeyError, PublicKey, SecretKey};
pub use mechanism::{Mechanism, MechanismConfig, Step};
pub use metadata::Metadata;
pub use outbox::{Body, Outbox, Queued, Transmit};
pub use random::Random;
pub use seal::{FrameNumber, FrameSeal, OpenJob, Opened, Opener, SealJob, Sealed, Sealer};
pub use secret::Secret;
pub use socket_type::SocketType;

impl Default for InboxLimits {
    fn default() -> Self {
        InboxLimits {
            message_bytes_max: limits::MESSAGE_BYTES_DEFAULT,
            frames_max: limits::MESSAGE_FRAMES_DEFAULT,
            stream_over_bytes: None,
            streamed_frame_bytes_max: limits::STREAMED_FRAME_BYTES_DEFAULT,
        }
    }
}
