#![doc = include_str!("../README.md")]

mod command;
mod config;
mod connection;
mod credentials;
#[cfg(feature = "curve")]
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
#[cfg(feature = "curve")]
pub use crypto::has_aes_instructions;
pub use deviations::ProtocolDeviations;
pub use error::{BLOCKED, Error, Refusal};
pub use event::{Event, PeerProperties};
pub use frame::{FrameFlags, Header};
pub use greeting::{GREETING_BYTES, VERSION};
pub use inbox::{Frames, InboxLimits};
#[cfg(feature = "curve")]
pub use keys::SecretKey;
pub use keys::{KeyError, PublicKey};
pub use mechanism::{Mechanism, MechanismConfig, Step};
pub use metadata::Metadata;
pub use outbox::{Body, Outbox, Queued, Transmit};
pub use random::Random;
pub use seal::{FrameNumber, FrameSeal, OpenJob, Opened, Opener, SealJob, Sealed, Sealer};
pub use secret::Secret;
pub use smallvec;
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
