//! Security mechanisms: handshakes between the greeting and the first message (RFC 23, 24, 26).
//!
//! A mechanism sees each handshake command's body and answers with a [`Step`]. NULL and PLAIN leave frames as they are. A mechanism that
//! encrypts returns a [`FrameSeal`] when its handshake is over; file bodies are then read into memory instead of being moved by the kernel.

#[cfg(feature = "curve")]
mod curve;
mod null;
mod plain;

use crate::command::Command;
use crate::credentials::Credentials;
use crate::error::{Error, printable};
#[cfg(feature = "curve")]
use crate::keys::{PublicKey, SecretKey};
use crate::metadata::Metadata;
#[cfg(feature = "curve")]
use crate::random::Random;
use crate::seal::FrameSeal;
use bytes::Bytes;
#[cfg(feature = "curve")]
use curve::{CurveClient, CurveServer};
use null::Null;
use plain::{PlainClient, PlainServer};
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

/// The next step of a handshake.
#[derive(Debug)]
pub enum Step {
    /// Wait for the peer.
    Wait,
    /// Send this frame and wait.
    Send(Bytes),
    /// Ask the application about these credentials; then [`Mechanism::accept`].
    Authenticate(Credentials),
    /// Refuse the peer (status 400), and end the connection for this reason.
    Refuse(Error),
    /// The handshake is over, after this frame if there is one.
    Done {
        /// The last frame of this side.
        send: Option<Bytes>,
        /// The peer's metadata.
        metadata: Metadata,
    },
}

/// One side of one handshake.
pub trait Mechanism: Debug + Send {
    /// The name in the greeting.
    fn name(&self) -> &'static str;
    /// Whether this side takes the server's role.
    fn as_server(&self) -> bool {
        false
    }
    /// The first frame, if this side begins. Called when the peer's greeting has come.
    fn start(&mut self, metadata: &Metadata) -> Result<Option<Bytes>, Error>;
    /// Takes in a handshake command.
    fn command(&mut self, body: Bytes, metadata: &Metadata) -> Result<Step, Error>;
    /// The application accepts the credentials of [`Step::Authenticate`].
    fn accept(&mut self) -> Step {
        Step::Wait
    }
    /// The likely reason if the peer closes the connection now; `None`: not known.
    fn closed(&self) -> Option<Error> {
        None
    }
    /// The name of the command that carries the peer's metadata, for errors.
    fn metadata_command(&self) -> &'static str {
        if self.as_server() { "INITIATE" } else { "READY" }
    }
    /// Whether nobody on the path can change the metadata: it then says what was seen of the peer's greeting, which anybody can change.
    fn protects_metadata(&self) -> bool {
        false
    }
    /// The seal for all frames behind [`Step::Done`]; `None`: they travel as they are. Called once.
    fn frame_seal(&mut self) -> Option<FrameSeal> {
        None
    }
}

/// A socket's mechanism and role.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum MechanismConfig {
    /// No authentication.
    #[default]
    Null,
    /// PLAIN, as the side that has credentials.
    PlainClient {
        /// The user's name, up to 255 bytes.
        user: String,
        /// The password, up to 255 bytes.
        password: String,
    },
    /// PLAIN, as the side that checks credentials.
    PlainServer,
    /// CURVE, as the side that knows the other's key.
    #[cfg(feature = "curve")]
    CurveClient {
        /// This side's key.
        key: SecretKey,
        /// The server's.
        server: PublicKey,
        /// For keys and nonces of connections.
        random: Random,
        /// Offers AES-256-GCM for all behind the handshake: worth it with [`crate::has_aes_instructions`].
        aes: bool,
    },
    /// CURVE, as the side whose key is known.
    #[cfg(feature = "curve")]
    CurveServer {
        /// This side's keys; clients ask for one of them. Several, while one takes over from another.
        keys: Arc<[SecretKey]>,
        /// For keys and nonces of connections.
        random: Random,
        /// Takes a client's offer of AES-256-GCM.
        aes: bool,
    },
    /// A mechanism of the application's.
    Custom {
        /// The name in the greeting, up to 20 bytes.
        name: &'static str,
        /// Begins a handshake.
        begin: Arc<dyn Fn() -> Box<dyn Mechanism> + Send + Sync>,
    },
}

/// Omits passwords and keys, which must not end in a log.
impl Debug for MechanismConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            MechanismConfig::Null => f.write_str("Null"),
            MechanismConfig::PlainClient { user, .. } => {
                f.debug_struct("PlainClient").field("user", user).finish_non_exhaustive()
            }
            MechanismConfig::PlainServer => f.write_str("PlainServer"),
            #[cfg(feature = "curve")]
            MechanismConfig::CurveClient { server, .. } => {
                f.debug_struct("CurveClient").field("server", server).finish_non_exhaustive()
            }
            #[cfg(feature = "curve")]
            MechanismConfig::CurveServer { .. } => f.write_str("CurveServer"),
            MechanismConfig::Custom { name, .. } => {
                f.debug_struct("Custom").field("name", name).finish_non_exhaustive()
            }
        }
    }
}

impl MechanismConfig {
    /// Begins a handshake.
    pub fn begin(&self) -> Box<dyn Mechanism> {
        match self {
            MechanismConfig::Null => Box::new(Null),
            MechanismConfig::PlainClient { user, password } => {
                Box::new(PlainClient::new(user.clone(), password.clone()))
            }
            MechanismConfig::PlainServer => Box::new(PlainServer::new()),
            #[cfg(feature = "curve")]
            MechanismConfig::CurveClient { key, server, random, aes } => {
                Box::new(CurveClient::new(key.clone(), *server, random.clone(), *aes && cfg!(feature = "aes")))
            }
            #[cfg(feature = "curve")]
            MechanismConfig::CurveServer { keys, random, aes } => {
                Box::new(CurveServer::new(keys.clone(), random.clone(), *aes && cfg!(feature = "aes")))
            }
            MechanismConfig::Custom { begin, .. } => begin(),
        }
    }

    /// The name in the greeting.
    pub fn name(&self) -> &'static str {
        match self {
            MechanismConfig::Null => "NULL",
            MechanismConfig::PlainClient { .. } | MechanismConfig::PlainServer => "PLAIN",
            #[cfg(feature = "curve")]
            MechanismConfig::CurveClient { .. } | MechanismConfig::CurveServer { .. } => "CURVE",
            MechanismConfig::Custom { name, .. } => name,
        }
    }
}

fn unexpected<T>(body: &Bytes, wanted: &'static str) -> Result<T, Error> {
    let name = match body.split_first() {
        Some((length, rest)) => printable(rest.get(..usize::from(*length)).unwrap_or(rest)),
        None => String::new(),
    };
    Err(Error::UnexpectedInHandshake { found: name, wanted })
}

/// Decodes a command. The peer's ERROR is an error.
fn parse(body: &Bytes) -> Result<Command, Error> {
    let body = mend_libzmq_error(body).unwrap_or_else(|| body.clone());
    match Command::decode(body)? {
        Command::Error { reason } => Err(Error::RefusedByPeer { reason }),
        command => Ok(command),
    }
}

/// libzmq's PLAIN server writes `^` (0x5e) for the length and the E of `ERROR`: "\x05ERROR" in C, where the E is one more
/// hex digit. Read as it stands, that is a name of 94 bytes in a command of at most 16, so nothing else is meant by it.
fn mend_libzmq_error(body: &Bytes) -> Option<Bytes> {
    let reason = body.strip_prefix(b"^RROR").filter(|reason| reason.len() < 0x5e - 4)?;
    Some([b"\x05ERROR", reason].concat().into())
}
