//! A server as its operator sees it: the same for both kinds, as far as they have the same.

mod broker;
mod cell;
mod files;

pub use broker::BrokerView;
#[cfg(feature = "nats")]
pub use cell::{members_json, monitored_json, stream_json};
pub use files::FilesView;

use crate::admin::figures::Snapshot;
use crate::admin::history::Sample;
use crate::admin::problems::Found;
use serde_json::{Value, json};
use std::time::Duration;
use towpath_broker::core::{LetterAction, RequestKey};
use towpath_broker::{Questions, add_name};
use towpath_sockets::{GonePeer, Page, PeerId, PeerInfo, Principal};

/// Lists of a server.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum List {
    /// Connected peers.
    Peers,
    /// Peers that are gone.
    Gone,
    /// Fetches from a file server, and pushes to it.
    Transfers,
    /// Followers of a file server.
    Followers,
    /// Versions that a file server keeps.
    Versions,
    /// Refusals and failures of a file server.
    Failures,
    /// Services of a broker.
    Services,
    /// Workers of a broker.
    Workers,
    /// Services of a broker that have dead letters.
    DeadLetters,
}

impl List {
    /// Its name in a reply.
    pub fn name(self) -> &'static str {
        match self {
            List::Peers => "peers",
            List::Gone => "gone",
            List::Transfers => "transfers",
            List::Followers => "followers",
            List::Versions => "versions",
            List::Failures => "failures",
            List::Services => "services",
            List::Workers => "workers",
            List::DeadLetters => "dead_letters",
        }
    }

    /// The path of its resource.
    pub fn path(self) -> &'static str {
        match self {
            List::Peers => "/api/v1/peers",
            List::Gone => "/api/v1/peers/gone",
            List::Transfers => "/api/v1/transfers",
            List::Followers => "/api/v1/followers",
            List::Versions => "/api/v1/versions",
            List::Failures => "/api/v1/failures",
            List::Services => "/api/v1/services",
            List::Workers => "/api/v1/workers",
            List::DeadLetters => "/api/v1/dead-letters",
        }
    }
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The event loop has ended, or hangs.
    NoAnswer,
    /// This kind of server has no such list.
    NoList,
    /// There is no such thing, for this reason.
    NotFound(String),
    /// The action can't be done, for this reason.
    Conflict(String),
}

/// Questions to a running server. Each waits for its event loop.
pub trait View: Send + Sync {
    /// Members of the status.
    fn sums(&self) -> Result<Value, Refusal>;

    /// Why it can't serve at the moment although it runs, if it can't.
    fn trouble(&self) -> Result<Option<&'static str>, Refusal>;

    /// A page of a list, from this number on.
    fn page(&self, list: List, from: u32) -> Result<Page<Value>, Refusal>;

    /// Adds its figures for `/metrics`.
    fn figures(&self, to: &mut Snapshot, per_service: bool) -> Result<(), Refusal>;

    /// Problems at the moment.
    fn problems(&self) -> Result<Vec<Found>, Refusal>;

    /// Values for the history; with those of services or followers, if it is a long one.
    fn sample(&self, _is_long: bool) -> Result<Sample, Refusal> {
        Err(Refusal::NoList)
    }

    /// A service.
    fn service(&self, _service: &[u8]) -> Result<Option<Value>, Refusal> {
        Err(Refusal::NoList)
    }

    /// Pauses a service, or resumes it.
    fn pause(&self, _service: &[u8], _paused: bool) -> Result<(), Refusal> {
        Err(Refusal::NoList)
    }

    /// Ends the requests that wait for a service, if there are as many as expected, and says how many it were.
    fn purge(&self, _service: &[u8], _expected: Option<usize>) -> Result<usize, Refusal> {
        Err(Refusal::NoList)
    }

    /// A page of the requests of a service, from this number on.
    fn requests(&self, _service: &[u8], _from: u32) -> Result<Page<Value>, Refusal> {
        Err(Refusal::NoList)
    }

    /// Ends a request of a service.
    fn end_request(&self, _service: &[u8], _request: RequestKey) -> Result<(), Refusal> {
        Err(Refusal::NoList)
    }

    /// Drops outcomes of absent clients, and says how many.
    fn drop_outcomes(&self) -> Result<usize, Refusal> {
        Err(Refusal::NoList)
    }

    /// A page of the dead letters of a service, from this number on.
    fn letters(&self, _service: &[u8], _from: u32) -> Result<Page<Value>, Refusal> {
        Err(Refusal::NoList)
    }

    /// Runs an action on the dead letters of a service, if there are this many; returns how many it changed.
    fn act_on_letters(&self, _service: &[u8], _action: LetterAction, _expected: usize) -> Result<usize, Refusal> {
        Err(Refusal::NoList)
    }

    /// Runs an action on one dead letter of a service.
    fn act_on_letter(&self, _service: &[u8], _id: u64, _action: LetterAction) -> Result<(), Refusal> {
        Err(Refusal::NoList)
    }

    /// A part of the body of a dead letter of a service, from this offset on.
    fn letter_part(&self, _service: &[u8], _id: u64, _offset: u64) -> Result<Value, Refusal> {
        Err(Refusal::NoList)
    }

    /// The journal.
    fn journal(&self) -> Result<Value, Refusal> {
        Err(Refusal::NoList)
    }

    /// A version by its label or digest, of this path if one is given.
    fn version(&self, _name: &str, _of: Option<&str>) -> Result<Option<Value>, Refusal> {
        Err(Refusal::NoList)
    }

    /// A page of the followers of a version, from this number on.
    fn version_followers(&self, _digest: &str, _of: &[u8], _from: u32) -> Result<Page<Value>, Refusal> {
        Err(Refusal::NoList)
    }

    /// Forgets followers of a name that aren't there; returns how many.
    fn forget(&self, _name: &str) -> Result<usize, Refusal> {
        Err(Refusal::NoList)
    }

    /// Work that never ends by itself, while it is drained.
    fn left_never(&self) -> Result<Vec<Value>, Refusal> {
        Ok(Vec::new())
    }

    /// Takes nothing new, or does again.
    fn drain(&self, _on: bool) -> Result<(), Refusal> {
        Err(Refusal::NoList)
    }

    /// The road to the leader of its cell, if it is in one.
    fn questions(&self) -> Option<Questions> {
        None
    }

    /// Ends the connections of blocked peers, and says how many. `None`: there is no answer.
    fn end_blocked(&self) -> Option<usize> {
        Some(0)
    }

    /// Ends a connection. False if it isn't there.
    fn disconnect(&self, peer: PeerId, reason: &str) -> bool;
}

/// Members of a connected peer that both kinds have; those that only one has are null.
fn peer_json(info: &PeerInfo, protocol: Option<&str>, role: Option<&str>) -> Value {
    let mut peer = json!({
        "id": info.id.to_string(),
        "address": info.address.to_string(),
        "through": info.through.as_deref(),
        "mechanism": info.mechanism,
        "connected_seconds": seconds(info.connected_at.elapsed()),
        "heard_seconds": seconds(info.last_received.elapsed()),
        "received_bytes": info.bytes_in,
        "sent_bytes": info.bytes_out,
        "received_messages": info.messages_in,
        "sent_messages": info.messages_out,
        "queued_bytes": info.queued.memory_bytes as u64 + info.queued.external_bytes,
        "queued_messages": info.queued.messages,
        "protocol": protocol,
        "role": role,
        "transfers": null,
        "queries": null,
        "credit_bytes": null,
        "requests": null,
        "service": null,
        "credit": null,
    });
    add_principal(&mut peer, &info.principal);
    peer
}

/// A peer that is gone.
fn gone_json(gone: &GonePeer) -> Value {
    let mut peer = json!({
        "id": gone.id.map(|id| id.to_string()),
        "address": gone.address.to_string(),
        "through": gone.through.as_deref(),
        "handshake": gone.was_ready,
        "gone_seconds": seconds(gone.ended_at.elapsed()),
        "lasted_seconds": seconds(gone.ended_at.saturating_duration_since(gone.connected_at)),
        "received_bytes": gone.bytes_in,
        "sent_bytes": gone.bytes_out,
        "reason": gone.reason,
        "attempts": gone.attempts,
    });
    add_principal(&mut peer, &gone.principal);
    peer
}

pub fn add_principal(peer: &mut Value, principal: &Principal) {
    let (user, key) = match principal {
        Principal::User(name) => (Some(text(name)), None),
        Principal::Key { key, name } => {
            (Some(name).filter(|name| !name.is_empty()).map(|name| text(name)), Some(key.to_string()))
        }
        _ => (None, None),
    };
    peer["user"] = user.into();
    peer["key"] = key.into();
}

/// Adds the members of the second object to the first.
pub fn extend(mut to: Value, members: Value) -> Value {
    if let (Value::Object(to), Value::Object(members)) = (&mut to, members) {
        to.extend(members);
    }
    to
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// In seconds, to the millisecond.
fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}
