//! Connections of clients and workers: a hub driven by a task, message assembly, and bodies on disk.

pub(crate) mod assembler;
pub(crate) mod dialect_detect;
pub(crate) mod driver;
pub(crate) mod encoder;

use std::path::PathBuf;
use std::time::Duration;
use towpath_sockets::{Heartbeat, HubOptions, MechanismConfig, Metadata, SocketError, SocketType};

use dialect_detect::DialectGuess;
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX, LARGE_BODY_BYTES_MAX, MESSAGE_BYTES_MAX};
use towpath_requests::{majordomo, numbered};

/// Property of READY by which file servers are known.
const FILES_PROPERTY: &str = "X-Towpath-Files";

/// Bytes in a hub's queue above which nothing more is encoded: later records can still be changed.
const QUEUE_BYTES: usize = 1024 * 1024;

/// A block of records is read into memory whatever its bodies are. It is closed at 60 KiB, and its last record has up to 4
/// KiB of body.
const SPOOL_OVER_BYTES_MIN: u64 = 128 * 1024;

/// Bodies up to this size are received as whole messages.
const SPOOL_OVER_BYTES_MAX: u64 = BODY_BYTES_MAX as u64;

/// Failure before the first attempt.
pub(crate) const NOT_TRIED: &str = "no connection has been made yet";

/// Most frames of a message before its body.
const ENVELOPE_FRAMES_MAX: usize = 16;

/// Dialect to speak with a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Dialect {
    /// Numbered requests if the broker supports them, else MDP/0.1. A worker that gets no answer tries majortomo's variant
    /// of 0.2 too.
    #[default]
    Auto,
    /// MDP/0.1, the most common among Majordomo brokers.
    Mdp01,
    /// MDP/0.2 as specified.
    Mdp02,
    /// MDP/0.2 as in majortomo.
    Majortomo,
}

/// Options of a connection to a broker.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Dialect.
    pub dialect: Dialect,
    /// Credentials: [`MechanismConfig::PlainClient`] with up to 255 bytes each, [`MechanismConfig::CurveClient`], or none.
    pub mechanism: MechanismConfig,
    /// Interval between PINGs.
    pub heartbeat_interval: Duration,
    /// Silence after which a broker is given up. Not zero.
    pub heartbeat_timeout: Duration,
    /// Time for connecting and for the broker's greeting. Not zero.
    pub connect_timeout: Duration,
    /// Delay before the second attempt to connect; doubled each time. Not zero.
    pub backoff_first: Duration,
    /// Longest delay between attempts to connect. Not zero.
    pub backoff_most: Duration,
    /// Larger bodies are spooled to an unlinked temporary file. From 128 KiB to 64 MiB.
    pub spool_over_bytes: u64,
    /// Folder of those files, made when needed. It should be on a disk. `None`: one that only this user can use, below the system's for
    /// temporary files.
    pub spool_folder: Option<PathBuf>,
    /// Largest body that is received. The request whose reply is larger fails, without waiting for it.
    pub max_body_bytes: u64,
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
            spool_folder: None,
            max_body_bytes: LARGE_BODY_BYTES_MAX,
        }
    }
}

impl LinkOptions {
    /// Rejects options that can't work.
    fn check(&self) -> Result<(), SocketError> {
        let refuse = |option, why: String| Err(SocketError::Option { option, why });
        if !(SPOOL_OVER_BYTES_MIN..=SPOOL_OVER_BYTES_MAX).contains(&self.spool_over_bytes) {
            let over = self.spool_over_bytes;
            let why = format!("{over}, and it is from {SPOOL_OVER_BYTES_MIN} to {SPOOL_OVER_BYTES_MAX}");
            return refuse("spool_over_bytes", why);
        }
        if matches!(self.mechanism, MechanismConfig::PlainServer | MechanismConfig::CurveServer { .. }) {
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

    /// Options for the hub.
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
        // An attached list of frames may exceed this; it is then received by way of a file.
        options.stream_over_bytes = Some(self.spool_over_bytes);
        options.max_frames = BODY_FRAMES_MAX + ENVELOPE_FRAMES_MAX;
        options.max_message_bytes = MESSAGE_BYTES_MAX as u64;
        options.max_frame_bytes = LARGE_BODY_BYTES_MAX;
        options.reconnect = towpath_sockets::Backoff { first: self.backoff_first, most: self.backoff_most };
        Ok(options)
    }

    /// Protocol for a broker with this metadata. The error says that it is no broker, or speaks another version of ours.
    pub(crate) fn protocol(&self, metadata: &Metadata, guess: DialectGuess) -> Result<PeerProtocol, String> {
        if metadata.find(FILES_PROPERTY).is_some() {
            return Err("this is a file server (tow serve); requests go to tow broker".to_owned());
        }
        match metadata.find(numbered::PROPERTY).filter(|_| self.dialect == Dialect::Auto) {
            Some(version) if version == numbered::PROPERTY_VALUE => Ok(PeerProtocol::Numbered),
            Some(version) => {
                let (theirs, ours) = (version.escape_ascii(), numbered::PROPERTY_VALUE.escape_ascii());
                Err(format!(
                    "the broker speaks version {theirs} of numbered requests, and this program version {ours}; use builds of one version"
                ))
            }
            None => Ok(PeerProtocol::Stock(guess.dialect())),
        }
    }
}

/// Protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerProtocol {
    /// Numbered requests.
    Numbered,
    /// A Majordomo dialect.
    Stock(majordomo::Dialect),
}
