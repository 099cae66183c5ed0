//! The decision about the credentials of clients.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use towpath_zmtp::{Credentials, Principal};

type Decide = dyn Fn(&Credentials) -> Option<Principal> + Send + Sync;

/// Decides which clients may connect, by their credentials. Clones share the decision.
#[derive(Clone)]
pub struct Authenticator {
    decide: Arc<Decide>,
    is_slow: bool,
}

impl Authenticator {
    /// Decides by a function, which is called on the thread that drives the hub. `None` refuses the client, and so does a panic.
    pub fn new(decide: impl Fn(&Credentials) -> Option<Principal> + Send + Sync + 'static) -> Authenticator {
        Authenticator { decide: Arc::new(decide), is_slow: false }
    }

    /// Decides by a function that takes long, such as one that hashes passwords. It is called on other threads, twice at a time at most, by turns
    /// of the tenants that ask.
    pub fn slow(decide: impl Fn(&Credentials) -> Option<Principal> + Send + Sync + 'static) -> Authenticator {
        Authenticator { is_slow: true, ..Authenticator::new(decide) }
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// The identity of a client with these credentials; `None`: it may not connect.
    pub fn identify(&self, credentials: &Credentials) -> Option<Principal> {
        // One client's strange name must not end the server of all others.
        catch_unwind(AssertUnwindSafe(|| (self.decide)(credentials))).unwrap_or_else(|_| {
            let principal = credentials.principal();
            tracing::error!(%principal, "a client is refused: the function that decides about it panicked");
            None
        })
    }
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authenticator")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::*;

    #[test]
    fn a_panic_refuses_the_client_and_no_other() {
        let authenticator = Authenticator::new(|credentials| match credentials {
            Credentials::Plain { user, password } => {
                (user.len() == 3 && password[0] == b'x').then(|| Principal::User(user.clone()))
            }
            _ => None,
        });
        let allows = |user: &'static str, password: &'static str| {
            let (user, password) = (bytes::Bytes::from(user), bytes::Bytes::from(password).into());
            authenticator.identify(&Credentials::Plain { user, password }).is_some()
        };
        assert!(allows("ann", "x"));
        assert!(!allows("ann", ""), "its password has no first byte: a panic");
        assert!(!allows("a", "x") && allows("ann", "xyz"));
    }
}
