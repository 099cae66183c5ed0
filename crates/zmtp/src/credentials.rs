//! The identity that a peer claims, and the proof of it.

use crate::keys::PublicKey;
use crate::secret::Secret;
use bytes::Bytes;
use std::fmt::{self, Display, Formatter};

/// A peer's credentials, from the handshake to the decision about them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credentials {
    /// PLAIN's user and password.
    Plain {
        /// The user's name.
        user: Bytes,
        /// The password.
        password: Secret,
    },
    /// CURVE's key, whose possession the peer has proven.
    Curve {
        /// The peer's long-term key.
        key: PublicKey,
    },
}

impl Credentials {
    /// The identity that they claim, without the proof.
    pub fn principal(&self) -> Principal {
        match self {
            Credentials::Plain { user, .. } => Principal::User(user.clone()),
            Credentials::Curve { key } => Principal::Key { key: *key, name: Bytes::new() },
        }
    }
}

/// A peer's identity as far as its mechanism establishes one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Principal {
    /// Anyone: the mechanism identifies nobody.
    #[default]
    Anonymous,
    /// A user with a password.
    User(Bytes),
    /// The holder of a key.
    Key {
        /// The key.
        key: PublicKey,
        /// The name that this side knows it by; empty: none.
        name: Bytes,
    },
}

/// For log lines: the user or the key's name, escaped; a key without a name as it is.
impl Display for Principal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Anonymous => f.write_str("anonymous"),
            Principal::User(name) => Display::fmt(&name.escape_ascii(), f),
            Principal::Key { key, name } if name.is_empty() => Display::fmt(key, f),
            Principal::Key { name, .. } => Display::fmt(&name.escape_ascii(), f),
        }
    }
}
