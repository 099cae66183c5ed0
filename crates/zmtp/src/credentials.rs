//! The identity that a peer claims, and the proof of it.

use crate::secret::Secret;
use bytes::Bytes;

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
}

impl Credentials {
    /// The identity that they claim, without the proof.
    pub fn principal(&self) -> Principal {
        match self {
            Credentials::Plain { user, .. } => Principal::User(user.clone()),
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
}
