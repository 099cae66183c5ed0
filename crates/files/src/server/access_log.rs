//! The log's lines about clients: their requests, results and refusals.

use super::RECEIPTS;
use super::session::{Ending, LogEvent, Ticket};
use crate::path::Escaped;
use crate::protocol::control::{ConfirmedFile, Request};
use crate::protocol::plain::{PlainMessage, PlainRequest};
use crate::protocol::{ErrorCode, WireError};
use std::time::Duration;
use towpath_sockets::Principal;
use tracing::field::{DisplayValue, display};

/// A client, for people.
#[derive(Debug)]
pub(super) struct ClientName {
    pub(super) address: String,
    /// The user, if it has logged in.
    pub(super) user: Option<String>,
    /// The name of its key, if it has one.
    pub(super) key_name: Option<String>,
}

impl ClientName {
    pub(super) fn new(address: String, principal: &Principal) -> ClientName {
        let (user, key_name) = match principal {
            Principal::User(name) => (Some(Escaped(name).to_string()), None),
            Principal::Key { name, .. } => (None, Some(Escaped(name).to_string())),
            _ => (None, None),
        };
        ClientName { address, user, key_name }
    }
}

/// A field that is left out if there is nothing to show.
pub(super) fn shown(text: &Option<String>) -> Option<DisplayValue<&str>> {
    text.as_deref().map(display)
}

pub(super) fn request(ClientName { address, user, key_name: name }: &ClientName, request: &Result<Request, WireError>) {
    match request {
        Ok(Request::Fetch(fetch)) => {
            let first = fetch.files.first().map(|file| Escaped(file.path.as_bytes()).to_string()).unwrap_or_default();
            tracing::debug!(%address, id = fetch.id, files = fetch.files.len(), %first, "fetch");
        }
        Ok(Request::List(list)) => {
            tracing::info!(%address, user = shown(user), name = shown(name), id = list.id, recursive = list.recursive, "list")
        }
        Ok(Request::Push(push)) => {
            let path = Escaped(push.path.as_bytes());
            tracing::info!(%address, user = shown(user), name = shown(name), id = push.id, %path, size = push.size, "push");
        }
        Ok(Request::Follow(follow)) => {
            tracing::info!(%address, user = shown(user), name = shown(name), id = follow.id, from = %follow.from, "follow")
        }
        Ok(Request::Cancel { id }) => tracing::info!(%address, id, "cancel"),
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(%address, user = shown(user), name = shown(name), id = error.id, reason = %error, "refused")
        }
    }
}

pub(super) fn plain(
    ClientName { address, user, key_name: name }: &ClientName,
    request: &Result<PlainMessage, WireError>,
) {
    match request {
        Ok(PlainMessage::Follow(follow)) => {
            let path = Escaped(&follow.path).to_string();
            tracing::info!(%address, user = shown(user), name = shown(name), %path, from = %follow.from, "plain follow");
        }
        Ok(PlainMessage::Fetch(PlainRequest { path, range })) if range.is_none_or(|range| range.offset == 0) => {
            let path = Escaped(path.as_deref().unwrap_or_default()).to_string();
            tracing::debug!(%address, %path, "plain fetch");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%address, user = shown(user), name = shown(name), reason = %error, "refused"),
    }
}

/// Logs confirmed files. A line for each of many files would cost the event thread more than sending them, so those are debug lines.
fn log_confirmed(address: &str, files: &[ConfirmedFile]) {
    let digest_of = |file: &ConfirmedFile| file.digest.map_or_else(|| "unverified".into(), |digest| digest.to_string());
    match files {
        [] => {}
        [file] => {
            let (path, digest) = (Escaped(file.path.as_bytes()), digest_of(file));
            tracing::info!(target: RECEIPTS, durable = file.durable, "confirmed {path} {digest} by {address}");
        }
        [first, ..] => {
            let path = Escaped(first.path.as_bytes());
            tracing::info!(target: RECEIPTS, durable = first.durable, "confirmed {} files from {path} on by {address}", files.len());
            if tracing::enabled!(tracing::Level::DEBUG) {
                for file in files {
                    let (path, digest) = (Escaped(file.path.as_bytes()), digest_of(file));
                    tracing::debug!(durable = file.durable, "confirmed {path} {digest} by {address}");
                }
            }
        }
    }
}

/// Logs an event. `age`: how long ago a request began, if that is known.
pub(super) fn event(client: &ClientName, event: &LogEvent, age: impl Fn(&Ticket) -> Option<Duration>) {
    let ClientName { address, user, key_name: name } = client;
    match event {
        LogEvent::Confirmed(confirm) => log_confirmed(address, &confirm.files),
        LogEvent::Void { path, failure } => {
            let path = Escaped(path.as_bytes());
            tracing::warn!(%address, user = shown(user), name = shown(name), %path, code = %failure.code, reason = %failure.message, "void");
        }
        // The limit itself is logged once for all clients.
        LogEvent::Refused { count, path, failure, .. } if failure.code == ErrorCode::Busy => {
            let path = Escaped(path.as_bytes());
            tracing::debug!(%address, files = count, %path, reason = %failure.message, "busy");
        }
        LogEvent::Refused { what, count, path, failure } => {
            let (path, what) = (Escaped(path.as_bytes()), what.as_str());
            tracing::info!(%address, user = shown(user), name = shown(name), what, files = count, %path, code = %failure.code, reason = %failure.message, "refused");
        }
        // The thread that receives them has said so.
        LogEvent::Pushed => {}
        LogEvent::Ended { ticket, path, files, bytes, ending } => {
            let path = Escaped(path.as_bytes());
            let seconds = age(ticket).map(|age| (age.as_secs_f64() * 1000.0).round() / 1000.0);
            let outcome = match ending {
                Ending::Done => "done",
                Ending::Cancelled => "cancelled",
                Ending::Lost => "lost",
            };
            tracing::info!(
                target: RECEIPTS, %address, user = shown(user), name = shown(name), %path, files, bytes, seconds, outcome,
                "sent",
            );
        }
    }
}
