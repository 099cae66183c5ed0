//! What the client and the worker have in common: a hub that a task drives, messages put together, bodies on disk.

pub(crate) mod assembler;
pub(crate) mod dialect_detect;
pub(crate) mod driver;
pub(crate) mod encoder;

use std::path::PathBuf;
use std::time::Duration;
use towpath_sockets::{Heartbeat, HubOptions, MechanismConfig, Metadata, SocketError, SocketType};

use dialect_detect::Guess;
use towpath_journal::default_spool_folder;
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX, LARGE_BODY_BYTES_MAX, MESSAGE_BYTES_MAX};
use towpath_requests::{majordomo, numbered};

/// Bytes that wait in a hub's queue before no more are encoded: what is behind can still be changed.
const QUEUE_BYTES: usize = 1024 * 1024;

/// A block of records is in memory, however few bytes of a body are: it is closed at 60 KiB, and the last of its records has up to
/// 4 KiB of body beside what is said of it.
const SPOOL_OVER_BYTES_MIN: u64 = 128 * 1024;

/// What is not spooled is a message that is taken whole.
const SPOOL_OVER_BYTES_MAX: u64 = BODY_BYTES_MAX as u64;

/// Why there is no connection, before the first attempt.
pub(crate) const NOT_TRIED: &str = "no connection has been made yet";

/// Frames of a message beside those of its body.
const ENVELOPE_FRAMES_MAX: usize = 16;

/// What to speak with a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Dialect {
    /// Numbered requests with a broker that has them. With any other MDP/0.1; a worker that hears nothing
    /// tries majortomo's shape of 0.2 too.
    #[default]
    Auto,
    /// MDP/0.1, as most Majordomo brokers do.
    Mdp01,
    /// MDP/0.2 as in its specification.
    Mdp02,
    /// MDP/0.2 in the shape of majortomo.
    Majortomo,
}

/// How a connection to a broker behaves.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// What to speak.
    pub dialect: Dialect,
    /// As whom to connect: [`MechanismConfig::PlainClient`], with up to 255 bytes each, or nobody.
    pub mechanism: MechanismConfig,
    /// A PING goes out this often.
    pub heartbeat_interval: Duration,
    /// A broker that says nothing for so long is given up. Not zero.
    pub heartbeat_timeout: Duration,
    /// So is one that isn't connected, or hasn't said that it takes requests, so long after it was tried. Not zero.
    pub connect_timeout: Duration,
    /// Wait before the second attempt to connect; it doubles. Not zero.
    pub backoff_first: Duration,
    /// The longest wait between attempts to connect. Not zero.
    pub backoff_most: Duration,
    /// Bodies over this are spooled to an unlinked temporary file instead of being kept in memory. From 128 KiB to 64 MiB.
    pub spool_over_bytes: u64,
    /// Where those files are. It is made when it is needed, and should be on a disk.
    pub spool_folder: PathBuf,
}

impl Default for LinkOptions {
    fn default() -> LinkOptions {
        LinkOptions {
            dialect: Dialect::Auto,
            mechanism: MechanismConfig::Null,
            heartbeat_interval: Duration::from_secs(1),
            heartbeat_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(3),
            backoff_first: Duration::from_millis(20),
            backoff_most: Duration::from_secs(1),
            spool_over_bytes: 1024 * 1024,
            spool_folder: default_spool_folder(),
        }
    }
}

impl LinkOptions {
    /// Refuses what can't work.
    fn check(&self) -> Result<(), SocketError> {
        let refuse = |option, why: String| Err(SocketError::Option { option, why });
        if !(SPOOL_OVER_BYTES_MIN..=SPOOL_OVER_BYTES_MAX).contains(&self.spool_over_bytes) {
            let over = self.spool_over_bytes;
            let why = format!("{over}, and it is from {SPOOL_OVER_BYTES_MIN} to {SPOOL_OVER_BYTES_MAX}");
            return refuse("spool_over_bytes", why);
        }
        if self.mechanism == MechanismConfig::PlainServer {
            return refuse("mechanism", "clients and workers show who they are, and ask nobody".to_owned());
        }
        let times = [
            ("heartbeat_timeout", self.heartbeat_timeout),
            ("connect_timeout", self.connect_timeout),
            ("backoff_first", self.backoff_first),
            ("backoff_most", self.backoff_most),
        ];
        match times.iter().find(|(_, time)| time.is_zero()) {
            Some((option, _)) => refuse(option, "it is longer than zero".to_owned()),
            None => Ok(()),
        }
    }

    /// The hub's part of them.
    pub(crate) fn hub_options(&self) -> Result<HubOptions, SocketError> {
        self.check()?;
        let mut options = HubOptions::new(SocketType::Dealer);
        if self.dialect == Dialect::Auto {
            options.metadata = Metadata::new().with(numbered::PROPERTY, numbered::PROPERTY_VALUE);
        }
        options.mechanism = self.mechanism.clone();
        options.heartbeat =
            Some(Heartbeat { interval: self.heartbeat_interval, timeout: self.heartbeat_timeout, ttl: Duration::ZERO });
        options.handshake_timeout = self.connect_timeout;
        options.send_queue_bytes = QUEUE_BYTES;
        // A list of frames that is attached to a record may have more bytes than are streamed: it comes by way of a file then.
        options.stream_over_bytes = Some(self.spool_over_bytes);
        options.max_frames = BODY_FRAMES_MAX + ENVELOPE_FRAMES_MAX;
        options.max_message_bytes = MESSAGE_BYTES_MAX as u64;
        options.max_frame_bytes = LARGE_BODY_BYTES_MAX;
        options.reconnect = towpath_sockets::Backoff { first: self.backoff_first, most: self.backoff_most };
        Ok(options)
    }

    /// What to speak to a broker that announces itself so.
    pub(crate) fn speech(&self, metadata: &Metadata, guess: Guess) -> Speech {
        match self.dialect {
            Dialect::Auto if metadata.find(numbered::PROPERTY).is_some() => Speech::Numbered,
            _ => Speech::Stock(guess.dialect()),
        }
    }
}

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speech {
    /// Numbered requests.
    Numbered,
    /// One of Majordomo's dialects.
    Stock(majordomo::Dialect),
}
