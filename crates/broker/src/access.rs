//! Permissions of peers: the one place that decides about services, ids of clients and names of stored requests.

use crate::core::{canonical_name, is_dead_letter_queue};
use std::borrow::Cow;
use std::sync::Arc;
use towpath_requests::numbered::ClientId;
use towpath_rules::{Permissions, Verb};
use towpath_sockets::Principal;

/// Why a request is refused.
pub(crate) const MAY_NOT_CALL: &str = "not allowed to call this service, by the rules of this broker";

/// Why a worker is refused.
pub(crate) const MAY_NOT_WORK: &str = "not allowed to serve this service, by the rules of this broker";

/// The question to the rules when a peer does something with a service: its name may be an alias, and dead letters are for operators, also if somebody
/// may call everything.
pub fn asked_of_rules(verb: Verb, service: &[u8]) -> (Verb, Cow<'_, [u8]>) {
    let service = canonical_name(service);
    let verb = if is_dead_letter_queue(&service) { Verb::Admin } else { verb };
    (verb, service)
}

/// A peer's identity and permissions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    permissions: Permissions,
    owner: Owner,
}

/// Whose a client's id is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Owner {
    /// The identity of all that can't be distinguished.
    #[default]
    Nobody,
    /// That of the holder of a name, or of a key without one.
    Known(Arc<[u8]>),
}

impl Access {
    pub fn new(permissions: Permissions, principal: &Principal) -> Access {
        let known = |kind: &[u8], name: &[u8]| Owner::Known([kind, name].concat().into());
        let owner = match principal {
            Principal::User(name) => known(b"name ", name),
            Principal::Key { key, name } if name.is_empty() => known(b"key ", key.as_bytes()),
            Principal::Key { name, .. } => known(b"name ", name),
            _ => Owner::Nobody,
        };
        Access { permissions, owner }
    }

    /// Permissions of a peer whose connection has ended: none.
    pub fn nothing() -> Access {
        Access { permissions: Permissions::nothing(), owner: Owner::Nobody }
    }

    pub fn permissions(&self) -> &Permissions {
        &self.permissions
    }

    /// The id, or the name of a stored request, as the core knows it: the same of another owner is another one.
    pub fn own(&self, id: ClientId) -> ClientId {
        let Owner::Known(owner) = &self.owner else { return id };
        let mut hasher = blake3::Hasher::new_derive_key("towpath broker, whose the id of a client is");
        // The id has one length, so the two can't be mixed up.
        hasher.update(&id.0);
        hasher.update(owner);
        let mut own = ClientId::default();
        hasher.finalize_xof().fill(&mut own.0);
        own
    }

    /// Whether the peer may send requests to a service.
    #[inline]
    pub fn may_call(&self, service: &[u8]) -> bool {
        self.permissions.is_unrestricted() || self.check(Verb::Call, service)
    }

    /// Whether the peer may serve a service.
    #[inline]
    pub fn may_work(&self, service: &[u8]) -> bool {
        self.permissions.is_unrestricted() || self.check(Verb::Work, service)
    }

    fn check(&self, verb: Verb, service: &[u8]) -> bool {
        let (verb, service) = asked_of_rules(verb, service);
        self.permissions.check(verb, &service)
    }

    /// Whether the peer may know of a service.
    pub fn may_see(&self, service: &[u8]) -> bool {
        self.permissions.is_unrestricted() || {
            let service = canonical_name(service);
            let may = |verb| self.permissions.may(verb, &service);
            may(Verb::Admin) || (!is_dead_letter_queue(&service) && (may(Verb::Call) || may(Verb::Work)))
        }
    }

    /// Whether the peer may know of the workers of a service, and where they are.
    pub fn may_see_workers(&self, service: &[u8]) -> bool {
        self.permissions.is_unrestricted() || {
            let service = canonical_name(service);
            let may = |verb| self.permissions.may(verb, &service);
            may(Verb::Admin) || (!is_dead_letter_queue(&service) && may(Verb::Work))
        }
    }

    /// Whether the peer may see what is the broker's own.
    pub fn may_administer(&self, service: &[u8]) -> bool {
        self.permissions.may(Verb::Admin, service)
    }

    /// A number for which services it sees.
    pub fn fingerprint(&self) -> u128 {
        let of = |verb| self.permissions.fingerprint(verb);
        of(Verb::Call) ^ of(Verb::Work).rotate_left(1) ^ of(Verb::Admin).rotate_left(2)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_rules::{Origin, Rules};

    fn of(rules: &str, name: &str) -> Access {
        let permissions = Rules::parse(rules).unwrap().permissions(Some(name.as_bytes()), Origin::Local);
        Access::new(permissions, &Principal::User(name.to_owned().into()))
    }

    #[test]
    fn dead_letters_are_for_operators_by_either_name() {
        let rules = "user ann ops\nallow ann to call, work *\nallow ops to admin dlq.*\n";
        let (ann, ops) = (of(rules, "ann"), of(rules, "ops"));
        for service in [&b"dlq.x"[..], b"aside.x"] {
            assert!(!ann.may_call(service) && !ann.may_work(service) && !ann.may_see(service));
            assert!(ops.may_call(service) && ops.may_work(service) && ops.may_see(service));
        }
        assert!(ann.may_call(b"x") && ann.may_work(b"x") && ann.may_see_workers(b"x"));
        assert!(!ops.may_call(b"x") && !ops.may_see(b"x"));
        assert!(!Access::nothing().may_see(b"x") && Access::default().may_work(b"dlq.x"));
    }

    #[test]
    fn the_same_id_of_others_is_another_one() {
        let id = ClientId([7; 16]);
        let user = |name: &'static str| Access::new(Permissions::unrestricted(), &Principal::User(name.into())).own(id);
        let key = |key: u8, name: &'static str| {
            let principal = Principal::Key { key: [key; 32].into(), name: name.into() };
            Access::new(Permissions::unrestricted(), &principal).own(id)
        };
        assert_eq!(Access::default().own(id), id);
        assert_eq!(key(1, "ann"), key(2, "ann"), "a name may have several keys");
        let all = [id, user("ann"), user("bob"), key(1, ""), key(2, "")];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
    }
}
