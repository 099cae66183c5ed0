//! The decision about the credentials of clients, and about what each may do.

use crate::net::address::Address;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use towpath_rules::Permissions;
use towpath_zmtp::{Credentials, Principal};

type Decide = dyn Fn(&Credentials) -> Option<Principal> + Send + Sync;
type Refused = dyn Fn(&Principal, &Address) + Send + Sync;
type Permit = dyn Fn(&Principal, &Address, bool) -> Option<Permissions> + Send + Sync;

/// Decides which clients may connect, by their credentials, and what each may do. Clones share the decision.
#[derive(Clone)]
pub struct Authenticator {
    decide: Arc<Decide>,
    is_slow: bool,
    permit: Option<Arc<Permit>>,
    refused: Option<Arc<Refused>>,
}

impl Authenticator {
    /// Decides by a function, which is called on the thread that drives the hub. `None` refuses the client, and so does a panic. Who is admitted
    /// may do everything.
    pub fn new(decide: impl Fn(&Credentials) -> Option<Principal> + Send + Sync + 'static) -> Authenticator {
        Authenticator { decide: Arc::new(decide), is_slow: false, permit: None, refused: None }
    }

    /// Decides by a function that takes long, such as one that hashes passwords. It is called on other threads, twice at a time at most, by turns
    /// of the tenants that ask.
    pub fn slow(decide: impl Fn(&Credentials) -> Option<Principal> + Send + Sync + 'static) -> Authenticator {
        Authenticator { is_slow: true, ..Authenticator::new(decide) }
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// The same, with a function for what a peer may do. It is called when a peer is ready, whatever the mechanism, and again when the decisions
    /// have changed ([`Handle::judge_again`](crate::Handle::judge_again)), then with false: `None` if the peer is not admitted any more.
    #[must_use]
    pub fn permitting(
        self,
        permit: impl Fn(&Principal, &Address, bool) -> Option<Permissions> + Send + Sync + 'static,
    ) -> Authenticator {
        Authenticator { permit: Some(Arc::new(permit)), ..self }
    }

    /// The same, with a function that is called for each refused client, with the identity that it claimed.
    #[must_use]
    pub fn on_refusal(self, refused: impl Fn(&Principal, &Address) + Send + Sync + 'static) -> Authenticator {
        Authenticator { refused: Some(Arc::new(refused)), ..self }
    }

    /// Reports a refused client.
    pub(crate) fn note_refusal(&self, claimed: &Principal, address: &Address) {
        if let Some(refused) = &self.refused {
            refused(claimed, address);
        }
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

    /// Permissions of a peer that is new or checked again; `None`: it may not stay.
    pub fn permissions(&self, principal: &Principal, address: &Address, is_new: bool) -> Option<Permissions> {
        let Some(permit) = &self.permit else { return Some(Permissions::unrestricted()) };
        catch_unwind(AssertUnwindSafe(|| permit(principal, address, is_new))).unwrap_or_else(|_| {
            tracing::error!(%principal, "a client is refused: the function that decides what it may do panicked");
            None
        })
    }
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authenticator")
    }
}

type KeepsOut = dyn Fn(&Principal, &Address, bool) -> Option<String> + Send + Sync;

/// Keeps peers out that an operator has blocked. Clones share the decision.
#[derive(Clone)]
pub struct Gate(Arc<KeepsOut>);

impl Gate {
    /// Decides by a function, which is called on the thread that drives the hub: with the address of each connection that is accepted, with each
    /// identity that a peer claims or is given, and, with false, about connected peers ([`Hub::end_blocked`](crate::Hub::end_blocked)). It gives
    /// the reason, maybe empty, for peers that are kept out.
    pub fn new(keeps_out: impl Fn(&Principal, &Address, bool) -> Option<String> + Send + Sync + 'static) -> Gate {
        Gate(Arc::new(keeps_out))
    }

    pub(crate) fn keeps_out(&self, principal: &Principal, address: &Address, is_new: bool) -> Option<String> {
        (self.0)(principal, address, is_new)
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
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
        let (ann, here) = (Principal::User("ann".into()), Address::Inproc);
        assert_eq!(authenticator.permissions(&ann, &here, true), Some(Permissions::unrestricted()));
        let panics = authenticator.permitting(|_, _, _| panic!("for a test"));
        assert_eq!(panics.permissions(&ann, &here, true), None);
    }
}
