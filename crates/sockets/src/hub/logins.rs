//! Decisions about the credentials of peers: at once or later, and fewer for peers that have failed too often.

use super::Hub;
use super::member::Member;
use super::slow_logins::Login;
use crate::auth::Authenticator;
use crate::net::tenant::Tenant;
use crate::peer::End;
use crate::peer_id::PeerId;
use std::time::{Duration, Instant};
use towpath_zmtp::{Credentials, Principal};

/// Reason for ending a login during which passwords were read again.
const PASSWORDS_READ: &str = "passwords were read again during its login";

/// Why a peer's password isn't looked at.
const TOO_MANY_FAILED: &str = "not checked, after too many failed logins from there";

impl Hub {
    /// Answers [`Event::Authenticate`](crate::Event::Authenticate) as an authenticator decides, later if that takes long. Without one, the peer is refused.
    pub fn authenticate_by(&mut self, by: Option<&Authenticator>, peer: PeerId, credentials: Credentials) {
        self.authenticator = by.cloned();
        if self.refuse_blocked(peer, &credentials.principal()) {
            return;
        }
        let Some(authenticator) = by.filter(|authenticator| authenticator.is_slow()) else {
            return self.authenticate(peer, by.and_then(|authenticator| authenticator.identify(&credentials)));
        };
        let Some(member) = self.peers.find(peer) else { return };
        let tenant = Tenant::of_address(&member.peer.address);
        self.slow_logins.push(&tenant, peer, Login { authenticator: authenticator.clone(), credentials });
        self.start_slow_logins();
    }

    fn start_slow_logins(&mut self) {
        while let Some((id, login)) = self.slow_logins.next_to_start() {
            let Some(member) = self.peers.find(id) else { continue };
            match self.failed_logins.may_try(&Tenant::of_address(&member.peer.address), Instant::now()) {
                true => self.slow_logins.start(id, login),
                false => self.end(id, End::new(TOO_MANY_FAILED)),
            }
        }
    }

    /// Goes on with peers that have been decided about.
    pub(super) fn take_slow_logins(&mut self) {
        while let Some((id, decision)) = self.slow_logins.next_done() {
            match decision {
                Ok(identity) => self.authenticate(id, identity),
                Err(()) => self.end(id, End::new("not checked: no thread for it could be started")),
            }
        }
        self.start_slow_logins();
    }

    /// Answers [`Event::Authenticate`](crate::Event::Authenticate): the peer's handshake goes on under this identity, or the peer is refused. After many
    /// wrong passwords of a tenant the refusal is sent later, and the peer isn't read for a while then.
    pub fn authenticate(&mut self, peer: PeerId, identity: Option<Principal>) {
        let now = Instant::now();
        let Some(member) = self.peers.find_mut(peer) else { return };
        let tenant = Tenant::of_address(&member.peer.address);
        // A key can't be guessed.
        let may_guess = !matches!(member.peer.principal, Principal::Key { .. });
        if may_guess && !self.failed_logins.may_try(&tenant, now) {
            // Without an ERROR, which would be final: anyone who has the right password may try again.
            return self.end(peer, End::new(TOO_MANY_FAILED));
        }
        if let Some(principal) = identity {
            // A key has its name only now.
            if self.refuse_blocked(peer, &principal) {
                return;
            }
            let Some(member) = self.peers.find_mut(peer) else { return };
            member.peer.principal = principal;
            member.peer.connection.accept();
            return member.schedule(&mut self.ready);
        }
        if let Some(authenticator) = &self.authenticator {
            authenticator.note_refusal(&member.peer.principal, &member.peer.address);
        }
        let delay = if may_guess { self.failed_logins.failed(tenant, now) } else { Duration::ZERO };
        if delay.is_zero() {
            return self.refuse(peer);
        }
        let until = now + delay;
        (member.refuse_at, member.flow.paused) = (Some(until), true);
        self.next_timer = self.next_timer.into_iter().chain([until]).min();
    }

    /// Ends the connections of peers that have shown a password and aren't ready yet: the decision about it may not be right any more. They may
    /// try again.
    pub fn end_logins(&mut self) {
        let is_login =
            |member: &&Member| !member.peer.is_ready() && matches!(member.peer.principal, Principal::User(_));
        let logins: Vec<_> = self.peers.iter().filter(is_login).map(|member| member.peer.id).collect();
        // Without an ERROR, which would be final.
        logins.into_iter().for_each(|id| self.end(id, End::new(PASSWORDS_READ)));
    }

    /// Refuses a peer's credentials.
    pub(super) fn refuse(&mut self, peer: PeerId) {
        if let Some(member) = self.peers.find_mut(peer) {
            let end = End::from(member.peer.connection.refuse());
            self.end(peer, end);
        }
    }
}
